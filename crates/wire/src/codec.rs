//! How numbers, lists and addresses are written in letters of views and casts.

use crate::Malformed;
use crate::addr::parse_addr;
use phalanx_core::Addr;

/// Appends a number, seven bits in a byte, the lowest first.
pub(crate) fn put_number(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Appends bytes, and how many they are.
pub(crate) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_number(bytes.len() as u64, out);
    out.extend(bytes);
}

/// What is left to be read.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let (&byte, rest) = self.0.split_first().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(byte)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(Malformed::Inconsistent);
            }
            n |= bits << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(Malformed::Inconsistent)
    }

    /// Bytes behind their number, which may not be higher than `most`.
    pub(crate) fn lengthy(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.number()?).map_err(|_| Malformed::Inconsistent)?;
        if length > most { Err(Malformed::Inconsistent) } else { self.bytes(length) }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.number()?.try_into().map_err(|_| Malformed::Inconsistent)
    }

    /// A list. Each item takes a byte at least, so a length over what is left is a lie.
    pub(crate) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let length = self.number()?;
        if length > self.0.len() as u64 {
            return Err(Malformed::Truncated);
        }
        (0..length).map(|_| item(self)).collect()
    }

    pub(crate) fn option<T>(
        &mut self,
        item: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        match self.byte()? {
            0 => Ok(None),
            1 => item(self).map(Some),
            _ => Err(Malformed::Unknown),
        }
    }

    pub(crate) fn addr(&mut self) -> Result<Addr, Malformed> {
        let (addr, rest) = parse_addr(self.0)?;
        self.0 = rest;
        Ok(addr)
    }
}
