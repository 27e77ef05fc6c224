//! What a node's pool has left for new volumes, as its mounter notes it on its Node ([`NODE_POOL`]).
//!
//! [`NODE_POOL`]: crate::names::annotations::NODE_POOL

use serde::{Deserialize, Serialize};

/// The part of the disk that [`PoolRoom::room`] is rounded down to: small against what the image keeps in reserve.
const ROOM_STEPS: u64 = 1024;

/// The part of the disk that [`PoolRoom::free`] is rounded down to. Each write to a volume changes it, and only classes
/// that promise more than there is go by it.
const FREE_STEPS: u64 = 64;

const MEBIBYTE: u64 = 1 << 20;

/// Percent of the disk that image `local` keeps in reserve where nothing else is said.
const RESERVE_PERCENT: u64 = 5;

/// Largest reserve that image `local` understands: from there on, awk does not count in whole numbers.
const LARGEST_RESERVE: u128 = 1 << 53;

/// The space of a pool in bytes, rounded down so that it does not change all the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PoolRoom {
    /// The size of the pool's disk.
    pub disk: u64,
    pub free: u64,
    /// What of it is not promised to volumes either.
    pub room: u64,
}

impl PoolRoom {
    /// Of a disk that has `free` bytes, when the volumes of the pool have not written `unwritten` bytes of their sizes.
    pub fn new(disk: u64, free: u64, unwritten: u64) -> Self {
        let rounded = |bytes: u64, steps: u64| bytes - bytes % (disk / steps).max(1);
        Self {
            disk,
            free: rounded(free, FREE_STEPS),
            room: rounded(free.saturating_sub(unwritten), ROOM_STEPS),
        }
    }

    /// Of two, no more than either has.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self {
            disk: self.disk.max(other.disk),
            free: self.free.min(other.free),
            room: self.room.min(other.room),
        }
    }

    /// The largest volume that image `local` still makes, with these values of its properties `thin` and `reserve`
    /// (`room_for` in `images/provisioner-local/provision`), and a little less, in whole mebibytes. What it would not
    /// understand refuses nothing: the image says what is wrong.
    pub fn largest_volume(&self, thin: Option<&str>, reserve: Option<&str>) -> u64 {
        let has = match thin.unwrap_or_default() {
            "" | "false" => self.room,
            _ => self.free,
        };
        let reserve = match reserve.unwrap_or_default() {
            "" => share(self.disk, RESERVE_PERCENT.into()),
            said => reserved(said, self.disk).unwrap_or_default(),
        };
        let left = has.saturating_sub(u64::try_from(reserve).unwrap_or(u64::MAX));
        left - left % MEBIBYTE
    }
}

/// A share of the disk, rounded up.
fn share(disk: u64, percent: u128) -> u128 {
    (u128::from(disk) * percent).div_ceil(100)
}

/// A size such as 20Gi or a share of the disk such as 5%, in bytes.
fn reserved(said: &str, disk: u64) -> Option<u128> {
    let unit = said.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u128 = said[..said.len() - unit.len()].parse().ok()?;
    let number = Some(number).filter(|number| *number <= LARGEST_RESERVE)?;
    let bytes = match unit {
        "" => number,
        "%" => share(disk, number),
        "Mi" => number << 20,
        "Gi" => number << 30,
        "Ti" => number << 40,
        _ => return None,
    };
    Some(bytes).filter(|bytes| *bytes <= LARGEST_RESERVE)
}

#[cfg(test)]
mod tests {
    use super::PoolRoom;

    const GI: u64 = 1 << 30;

    #[test]
    fn what_a_pool_has_left_is_rounded_down_and_changes_seldom() {
        let room = PoolRoom::new(1024 * GI, 500 * GI + 7, 100 * GI);
        assert_eq!((room.disk, room.room), (1024 * GI, 400 * GI));
        assert_eq!(room.free, 496 * GI);
        // What is written to a volume was promised to it.
        assert_eq!(PoolRoom::new(1024 * GI, 499 * GI, 99 * GI).room, 400 * GI);
        assert_eq!(PoolRoom::new(1024 * GI, 499 * GI + 7, 99 * GI), room);
        let overbooked = PoolRoom::new(1024 * GI, 100 * GI, 200 * GI);
        assert_eq!((overbooked.free, overbooked.room), (96 * GI, 0));
        for tiny in [0, 1, 63] {
            assert_eq!(PoolRoom::new(tiny, tiny, 0).room, tiny);
        }
    }

    #[test]
    fn as_much_can_be_asked_for_as_image_local_still_makes() {
        let pool = PoolRoom::new(1000 * GI, 500 * GI, 100 * GI);
        let (free, room) = (pool.free, pool.room);
        for (thin, reserve, expected) in [
            (None, None, room - 50 * GI),
            (Some(""), Some(""), room - 50 * GI),
            (Some("false"), Some("5%"), room - 50 * GI),
            (Some("false"), Some("0"), room),
            (Some("true"), Some("10%"), free - 100 * GI),
            (None, Some("20Gi"), room - 20 * GI),
            (None, Some("1024Mi"), room - GI),
            (None, Some("1Ti"), 0),
            (None, Some("100%"), 0),
            (None, Some("7"), room - (1 << 20)),
            // The image refuses these, and says why.
            (Some("yes"), Some("0"), free),
            (None, Some("ten percent"), room),
            (None, Some("5 %"), room),
            (None, Some("-5%"), room),
            (None, Some("%"), room),
            (None, Some("9007199254740993"), room),
            (None, Some("99999999999999999999999999999999999999999"), room),
            (None, Some("9000000Ti"), room),
        ] {
            assert_eq!(pool.largest_volume(thin, reserve), expected, "{thin:?} {reserve:?}");
        }
    }

    #[test]
    fn a_share_of_an_odd_disk_is_no_smaller_than_the_image_reckons() {
        for disk in [1, 99, 101, 12_345_678_901] {
            let pool = PoolRoom {
                disk,
                free: disk,
                room: disk,
            };
            let left = pool.largest_volume(None, Some("3%"));
            assert!(u128::from(left) * 100 <= u128::from(disk) * 97, "{left} of {disk}");
        }
    }

    #[test]
    fn a_node_notes_it_as_json() {
        let pool = PoolRoom::new(1 << 20, 1 << 19, 1 << 18);
        let text = serde_json::to_string(&pool).unwrap();
        assert_eq!(text, r#"{"disk":1048576,"free":524288,"room":262144}"#);
        assert_eq!(serde_json::from_str::<PoolRoom>(&text).unwrap(), pool);
    }
}
