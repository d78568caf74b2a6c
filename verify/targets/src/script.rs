//! Bytes read as a script: small numbers and pieces, until they run out. Any bytes are a script.

/// The rest of a script.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl<'a> Script<'a> {
    /// The next byte; `None` at the end.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// A number below `bound`; 0 at the end.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::from(u16::from_le_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)])) % bound
    }

    /// The next `length` bytes, or what is left.
    pub(crate) fn piece(&mut self, length: usize) -> &'a [u8] {
        let (piece, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        piece
    }
}
