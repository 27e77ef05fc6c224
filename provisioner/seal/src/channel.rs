//! One connection between the controller and a worker, over which secrets pass.
//!
//! Both have the worker's key. The worker greets with random bytes, so that nothing of an earlier connection counts in
//! this one. Then the two take turns: each message is sealed for its speaker, this connection and its place in it. A
//! message is preceded by its length, four bytes, the highest first.

use ring::aead::{Aad, LessSafeKey};
use ring::rand::{SecureRandom as _, SystemRandom};

use super::{SealError, cipher, opened, sealed};

/// Bytes of a greeting.
pub const GREETING: usize = 32;

/// Most bytes of a message on the wire: the properties of a run, as JSON.
pub const MAX_FRAME: usize = 2 * 1024 * 1024;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Controller,
    Worker,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Controller => Self::Worker,
            Self::Worker => Self::Controller,
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    cipher: LessSafeKey,
    side: Side,
    greeting: [u8; GREETING],
    sent: u64,
    received: u64,
}

/// What a worker greets with.
pub fn greeting() -> Result<[u8; GREETING], SealError> {
    let mut greeting = [0; GREETING];
    SystemRandom::new()
        .fill(&mut greeting)
        .map_err(|_| SealError::NoRandom)?;
    Ok(greeting)
}

impl Channel {
    /// The end of `side`, with the worker's key and greeting.
    pub fn new(key: &str, side: Side, greeting: [u8; GREETING]) -> Result<Self, SealError> {
        Ok(Self {
            cipher: cipher(key)?,
            side,
            greeting,
            sent: 0,
            received: 0,
        })
    }

    /// What goes on the wire for the next message of this side, with its length.
    pub fn seal(&mut self, message: Vec<u8>) -> Result<Vec<u8>, SealError> {
        let frame = sealed(&self.cipher, self.place(self.side, self.sent), message)?;
        self.sent += 1;
        let length = u32::try_from(frame.len()).ok().filter(|_| frame.len() <= MAX_FRAME);
        let length = length.ok_or(SealError::TooLong)?.to_be_bytes();
        Ok([length.as_slice(), &frame].concat())
    }

    /// The next message of the other side, from what followed its length on the wire.
    pub fn open(&mut self, frame: &[u8]) -> Result<Vec<u8>, SealError> {
        let message = opened(&self.cipher, self.place(self.side.other(), self.received), frame)?;
        self.received += 1;
        Ok(message)
    }

    /// How many bytes follow, by the length that came.
    pub fn length(bytes: [u8; 4]) -> Result<usize, SealError> {
        let length = u32::from_be_bytes(bytes) as usize;
        if length > MAX_FRAME {
            return Err(SealError::TooLong);
        }
        Ok(length)
    }

    fn place(&self, side: Side, nth: u64) -> Aad<Vec<u8>> {
        let side: &[u8] = match side {
            Side::Controller => b"controller",
            Side::Worker => b"worker",
        };
        Aad::from([self.greeting.as_slice(), &nth.to_be_bytes(), side].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::{Channel, Side, greeting};
    use crate::{SealError, new_key};

    fn pair(key: &str) -> (Channel, Channel) {
        let greeting = greeting().unwrap();
        let end = |side| Channel::new(key, side, greeting).unwrap();
        (end(Side::Controller), end(Side::Worker))
    }

    fn body(wire: &[u8]) -> &[u8] {
        let (length, body) = wire.split_at(4);
        assert_eq!(Channel::length(length.try_into().unwrap()).unwrap(), body.len());
        body
    }

    #[test]
    fn each_message_counts_once_in_its_place_and_from_its_side() {
        let key = new_key().unwrap();
        let (mut controller, mut worker) = pair(&key);
        let first = controller.seal(b"begin".to_vec()).unwrap();
        assert!(!first.windows(5).any(|part| part == b"begin"));
        assert_eq!(worker.open(body(&first)).unwrap(), b"begin");
        let not_ours = |result| matches!(result, Err(SealError::NotOurs));
        assert!(not_ours(worker.open(body(&first))), "a message came twice");
        let answer = worker.seal(b"done".to_vec()).unwrap();
        assert!(
            not_ours(worker.open(body(&answer))),
            "it took its own word for the other's"
        );
        assert_eq!(controller.open(body(&answer)).unwrap(), b"done");
        let (_, mut later) = pair(&key);
        assert!(
            not_ours(later.open(body(&first))),
            "a message of another connection counted"
        );
        let (_, mut stranger) = pair(&new_key().unwrap());
        assert!(not_ours(stranger.open(body(&first))));
        assert!(not_ours(worker.open(&[])));
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_is_read() {
        let (mut controller, _) = pair(&new_key().unwrap());
        let too_long = controller.seal(vec![0; super::MAX_FRAME]);
        assert!(matches!(too_long, Err(SealError::TooLong)));
        assert!(matches!(Channel::length([0xff; 4]), Err(SealError::TooLong)));
    }
}
