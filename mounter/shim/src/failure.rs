//! The answer that the shim gives when there is none from the mounter.

/// A failure that is being written: JSON in a fixed buffer, whole at any time.
#[derive(Debug)]
pub struct Failure {
    buffer: [u8; Self::MAX],
    length: usize,
}

impl Failure {
    /// Bytes of the whole object; a longer message is cut.
    const MAX: usize = 1024;
    /// What every failure ends with.
    const END: &'static [u8] = b"\"}\n";

    pub fn new(message: &str) -> Self {
        let mut failure = Self {
            buffer: [0; Self::MAX],
            length: 0,
        };
        failure.raw(br#"{"status":"Failure","message":""#);
        failure.text(message.as_bytes())
    }

    /// Goes on with the message; what is too long is left out.
    #[must_use]
    pub fn text(mut self, text: &[u8]) -> Self {
        for byte in text {
            match byte {
                b'"' | b'\\' => self.raw(&[b'\\', *byte]),
                // Paths are bytes, JSON is text: what is not plain text is shown as a question mark.
                0x20..0x7f => self.raw(&[*byte]),
                _ => self.raw(b"?"),
            }
        }
        self
    }

    #[must_use]
    pub fn number(self, number: u64) -> Self {
        let mut digits = [0; 20];
        let mut start = digits.len();
        let mut rest = number;
        loop {
            start -= 1;
            digits[start] = b"0123456789"[usize::try_from(rest % 10).unwrap_or_default()];
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text(&digits[start..])
    }

    /// The whole JSON object.
    pub fn finish(&mut self) -> &[u8] {
        let end = self.length + Self::END.len();
        self.buffer[self.length..end].copy_from_slice(Self::END);
        &self.buffer[..end]
    }

    fn raw(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if end + Self::END.len() <= Self::MAX {
            self.buffer[self.length..end].copy_from_slice(bytes);
            self.length = end;
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::Failure;
    use std::string::String;

    fn message(mut failure: Failure) -> String {
        let value: serde_json::Value = serde_json::from_slice(failure.finish()).unwrap();
        assert_eq!(value["status"], "Failure");
        value["message"].as_str().unwrap().into()
    }

    #[test]
    fn a_failure_is_json_whatever_its_message_is_made_of() {
        assert_eq!(
            message(Failure::new("no ").text(b"\"a\\b\"\n\xff").number(0)),
            "no \"a\\b\"??0"
        );
        assert_eq!(message(Failure::new("").number(u64::MAX)), "18446744073709551615");
        let long = message(Failure::new("x").text(&[b'"'; 4000]));
        assert!(long.len() > 400);
    }
}
