//! The death notice of ranks: a word in memory that a rank shares with its shepherd.
//!
//! The shepherd makes the page and seals its length; the rank inherits the file, whose place [`VARIABLE`] tells. A thread of the rank that
//! does nothing else holds the word, as a robust futex: its own number and [`WAITERS`]. When the thread ends, with its process or because
//! that becomes another program, the kernel takes the number away, sets [`OWNER_DIED`] and wakes the shepherd, all that before it frees
//! the memory of the process. So the word is a suspicion, which the shepherd looks into.

/// Where the file is: its number, a colon, and its inode, by which a rank knows that nobody has closed it and opened another one.
pub const VARIABLE: &str = "PHALANX_NOTICE";
/// Bytes of the page. The word is the first four.
pub const LENGTH: usize = 4096;
/// The number of the thread that holds the word, as the kernel defines it.
pub const HOLDER: u32 = 0x3fff_ffff;
/// The holder died.
pub const OWNER_DIED: u32 = 0x4000_0000;
/// Somebody waits: without it the kernel wakes nobody.
pub const WAITERS: u32 = 0x8000_0000;

/// What [`VARIABLE`] holds.
#[must_use]
pub fn place(file: i32, inode: u64) -> String {
    format!("{file}:{inode}")
}

/// Reads what [`VARIABLE`] holds.
#[must_use]
pub fn placed(text: &str) -> Option<(i32, u64)> {
    let (file, inode) = text.split_once(':')?;
    Some((file.parse().ok().filter(|&f| f >= 0)?, inode.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_were_written() {
        assert_eq!(placed(&place(7, 1 << 40)), Some((7, 1 << 40)));
        for bad in ["", "7", "7:", ":7", "-1:7", "7:x"] {
            assert_eq!(placed(bad), None, "{bad}");
        }
    }
}
