//! How numbers, lists and addresses are written in letters of views.

use super::terms::Task;
use crate::Malformed;
use crate::addr::parse_addr;
use phalanx_core::Addr;

/// Appends a number, seven bits in a byte, the lowest first.
pub(super) fn put_number(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Appends a list of tasks, which are in order and different.
pub(super) fn put_tasks(tasks: &[Task], out: &mut Vec<u8>) {
    debug_assert!(tasks.is_sorted_by(|a, b| a < b), "lists of tasks are in order: {tasks:?}");
    put_number(tasks.len() as u64, out);
    let mut next = 0;
    for task in tasks {
        put_number(u64::from(task.0 - next), out);
        next = task.0.wrapping_add(1);
    }
}

/// What is left to be read.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let (&byte, rest) = self.0.split_first().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(byte)
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
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

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.number()?.try_into().map_err(|_| Malformed::Inconsistent)
    }

    pub(super) fn task(&mut self) -> Result<Task, Malformed> {
        self.u32().map(Task)
    }

    pub(super) fn tasks(&mut self) -> Result<Vec<Task>, Malformed> {
        let mut next = Some(0u32);
        self.list(|r| {
            let task = next.and_then(|n| n.checked_add(r.u32().ok()?)).ok_or(Malformed::Inconsistent)?;
            next = task.checked_add(1);
            Ok(Task(task))
        })
    }

    /// A list. Each item takes a byte at least, so a length over what is left is a lie.
    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let length = self.number()?;
        if length > self.0.len() as u64 {
            return Err(Malformed::Truncated);
        }
        (0..length).map(|_| item(self)).collect()
    }

    pub(super) fn option<T>(
        &mut self,
        item: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        match self.byte()? {
            0 => Ok(None),
            1 => item(self).map(Some),
            _ => Err(Malformed::Unknown),
        }
    }

    pub(super) fn addr(&mut self) -> Result<Addr, Malformed> {
        let (addr, rest) = parse_addr(self.0)?;
        self.0 = rest;
        Ok(addr)
    }
}
