//! A request to expand a volume that is mounted (`NodeExpandVolume`), read as the kubelet writes it
//! (`pkg/volume/csi/expander.go` of Kubernetes). It has none of the volume's options: what is mounted is found out by
//! the target.

use mooring_csi_proto::csi::CapacityRange;

use super::publish::CsiRequestError;

/// The size in bytes that a volume should have at least; 0 if it is to be as large as what it is on.
pub(super) fn size(range: Option<CapacityRange>) -> Result<u64, CsiRequestError> {
    let CapacityRange {
        required_bytes,
        limit_bytes,
    } = range.unwrap_or_default();
    let bytes = |size: i64| u64::try_from(size).map_err(|_| CsiRequestError::Size(size));
    let (required, limit) = (bytes(required_bytes)?, bytes(limit_bytes)?);
    if limit != 0 && limit < required {
        return Err(CsiRequestError::Range { required, limit });
    }
    Ok(required)
}

#[cfg(test)]
mod tests {
    use mooring_csi_proto::csi::CapacityRange;

    use super::size;

    #[test]
    fn a_size_is_parsed_and_an_impossible_one_is_refused() {
        let of = |required_bytes, limit_bytes| {
            size(Some(CapacityRange {
                required_bytes,
                limit_bytes,
            }))
            .map_err(|error| error.to_string())
        };
        assert_eq!((of(5, 0), of(5, 5), of(0, 0)), (Ok(5), Ok(5), Ok(0)));
        assert_eq!(size(None).unwrap(), 0);
        for (refused, words) in [
            (of(6, 5), "at least 6 and at most 5"),
            (of(-1, 0), "-1"),
            (of(0, -2), "-2"),
        ] {
            assert!(refused.as_ref().unwrap_err().contains(words), "{refused:?}");
        }
    }
}
