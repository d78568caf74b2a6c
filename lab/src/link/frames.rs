//! Messages in a byte stream: a length of four bytes, little endian, then the message.

/// Bytes in front of each message.
pub(super) const PREFIX: usize = 4;
/// Room for what one read may bring. More would leave the nearest caches and slow every layer that reads into it.
const READ: usize = 64 << 10;

/// Appends `message` with its length to `out`.
pub(super) fn put(out: &mut Vec<u8>, message: &[u8]) {
    out.extend_from_slice(&(message.len() as u32).to_le_bytes());
    out.extend_from_slice(message);
}

/// What was read and not yet taken out.
pub(super) struct Frames {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Frames {
    /// Nothing read yet.
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; 2 * READ], start: 0, end: 0 }
    }

    /// The next whole message.
    #[inline]
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        let waiting = &self.bytes[self.start..self.end];
        let (prefix, rest) = waiting.split_first_chunk::<PREFIX>()?;
        let len = u32::from_le_bytes(*prefix) as usize;
        let at = self.start + PREFIX;
        if rest.len() < len {
            return None;
        }
        self.start = at + len;
        Some(&self.bytes[at..at + len])
    }

    /// Where the next read goes; tell [`Frames::filled`] how much it brought.
    ///
    /// # Panics
    /// When a message is longer than half the buffer: the experiments send 4 KB.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.bytes.len() - self.end < READ {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        assert!(self.bytes.len() - self.end >= READ, "a message of more than {READ} bytes");
        &mut self.bytes[self.end..]
    }

    /// `n` bytes were read into the space.
    pub(super) fn filled(&mut self, n: usize) {
        self.end += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However a stream is cut into reads, the same messages come out.
    #[test]
    fn messages_survive_any_cut() {
        let messages: Vec<Vec<u8>> = [0, 1, 5, 300, 2].map(|n| vec![n as u8; n]).to_vec();
        let mut stream = Vec::new();
        messages.iter().for_each(|m| put(&mut stream, m));
        for cut in 1..stream.len() {
            let (mut frames, mut got) = (Frames::new(), Vec::new());
            for part in stream.chunks(cut) {
                frames.space()[..part.len()].copy_from_slice(part);
                frames.filled(part.len());
                while let Some(message) = frames.next() {
                    got.push(message.to_vec());
                }
            }
            assert_eq!(got, messages, "cut every {cut} bytes");
        }
    }
}
