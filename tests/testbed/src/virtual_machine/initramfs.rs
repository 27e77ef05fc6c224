//! A root file system in memory, in the format that the kernel unpacks (`cpio`, form `newc`).

#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

impl Archive {
    /// Adds a folder, after those above it.
    pub fn folder(&mut self, name: &str) {
        self.entry(name, FOLDER | 0o755, (0, 0), &[]);
    }

    pub fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name, FILE | mode, (0, 0), content);
    }

    pub fn character_device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, CHARACTER_DEVICE | 0o600, (major, minor), &[]);
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let fields = [
            self.entries,
            mode,
            0, // user
            0, // group
            1, // links
            0, // time
            length(content.len()),
            0, // the device that it is on
            0,
            device.0,
            device.1,
            length(name.len() + 1),
            0, // checksum
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn every_entry_begins_at_a_multiple_of_four() {
        let mut archive = Archive::default();
        archive.folder("bin");
        archive.file("bin/a", 0o755, b"hello");
        archive.character_device("dev/console", 5, 1);
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let begins: Vec<_> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(begins.len(), 4);
        assert!(begins.iter().all(|at| at % 4 == 0) && bytes.len() % 4 == 0);
        let file = &text[begins[1]..];
        assert_eq!(&file[14..22], "000081ed", "{file}");
        assert_eq!(&file[54..62], "00000005", "{file}");
        assert_eq!(&file[110..116], "bin/a\0");
        assert_eq!(&file[116..121], "hello");
    }
}
