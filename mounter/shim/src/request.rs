//! A request on the wire.

use crate::{MAX_ARGS, MAX_REQUEST};

/// Bytes of a number.
const NUMBER: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MalformedRequest {
    /// More than [`MAX_ARGS`].
    TooMany,
    /// More than [`MAX_REQUEST`] bytes.
    TooLong,
    /// The bytes end before the request does.
    Short,
    /// There are bytes after the request.
    Trailing,
}

impl core::fmt::Display for MalformedRequest {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::TooMany => write!(f, "more than {MAX_ARGS} arguments"),
            Self::TooLong => write!(f, "more than {MAX_REQUEST} bytes of arguments"),
            Self::Short => f.write_str("the request ends half-way"),
            Self::Trailing => f.write_str("there is more after the request"),
        }
    }
}

impl core::error::Error for MalformedRequest {}

/// Whether arguments fit a request.
pub fn check<'a>(args: impl Iterator<Item = &'a [u8]>) -> Result<(), MalformedRequest> {
    let mut length = NUMBER;
    for (index, arg) in args.enumerate() {
        if index == MAX_ARGS {
            return Err(MalformedRequest::TooMany);
        }
        length = length.saturating_add(NUMBER).saturating_add(arg.len());
        if length > MAX_REQUEST {
            return Err(MalformedRequest::TooLong);
        }
    }
    Ok(())
}

/// Writes the request of arguments that passed [`check`], a piece at a time.
pub fn write<'a, E>(
    args: impl Iterator<Item = &'a [u8]> + Clone,
    mut put: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    put(&to_number(args.clone().count()))?;
    for arg in args {
        put(&to_number(arg.len()))?;
        put(arg)?;
    }
    Ok(())
}

fn to_number(number: usize) -> [u8; NUMBER] {
    // What passed the check is far below the limit.
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

/// Reads a request's arguments from the bytes that have come so far.
///
/// # Errors
/// [`MalformedRequest::Short`] until all bytes have come; any other error is for good.
pub fn decode(bytes: &[u8]) -> Result<RequestArgs<'_>, MalformedRequest> {
    let mut rest = bytes;
    let count = number(&mut rest)?;
    if count > MAX_ARGS {
        return Err(MalformedRequest::TooMany);
    }
    let args = RequestArgs { rest, left: count };
    for _ in 0..count {
        let length = number(&mut rest)?;
        if length > MAX_REQUEST {
            return Err(MalformedRequest::TooLong);
        }
        rest = rest.get(length..).ok_or(MalformedRequest::Short)?;
    }
    if bytes.len() - rest.len() > MAX_REQUEST {
        return Err(MalformedRequest::TooLong);
    }
    if rest.is_empty() {
        Ok(args)
    } else {
        Err(MalformedRequest::Trailing)
    }
}

fn number(rest: &mut &[u8]) -> Result<usize, MalformedRequest> {
    let (number, after) = rest.split_first_chunk::<NUMBER>().ok_or(MalformedRequest::Short)?;
    *rest = after;
    usize::try_from(u32::from_le_bytes(*number)).map_err(|_| MalformedRequest::TooLong)
}

#[derive(Debug, Clone)]
pub struct RequestArgs<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for RequestArgs<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let length = number(&mut self.rest).ok()?;
        let (arg, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(arg)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{MalformedRequest, check, decode, write};
    use crate::{MAX_ARGS, MAX_REQUEST};
    use std::{vec, vec::Vec};

    fn encoded(args: &[&[u8]]) -> Result<Vec<u8>, MalformedRequest> {
        check(args.iter().copied())?;
        let mut bytes = Vec::new();
        write(args.iter().copied(), |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    #[test]
    fn arguments_come_out_as_they_went_in() {
        for args in [&[][..], &[&b"init"[..]], &[b"mount", b"", b"{\"a\":\"\xff\"}"]] {
            let bytes = encoded(args).unwrap();
            assert_eq!(decode(&bytes).unwrap().collect::<Vec<_>>(), args);
        }
    }

    #[test]
    fn every_cut_of_a_request_is_short_and_nothing_may_follow() {
        let mut bytes = encoded(&[b"mount", b"/dir", b"{}"]).unwrap();
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]).unwrap_err(), MalformedRequest::Short);
        }
        bytes.push(0);
        assert_eq!(decode(&bytes).unwrap_err(), MalformedRequest::Trailing);
    }

    #[test]
    fn what_is_too_much_is_refused_at_both_ends() {
        let many = vec![&b"x"[..]; MAX_ARGS + 1];
        assert_eq!(encoded(&many).unwrap_err(), MalformedRequest::TooMany);
        let long = vec![b'x'; MAX_REQUEST];
        assert_eq!(encoded(&[&long]).unwrap_err(), MalformedRequest::TooLong);
        assert_eq!(decode(&65u32.to_le_bytes()).unwrap_err(), MalformedRequest::TooMany);
        let mut claim = 1u32.to_le_bytes().to_vec();
        claim.extend(u32::MAX.to_le_bytes());
        assert_eq!(decode(&claim).unwrap_err(), MalformedRequest::TooLong);
    }
}
