//! FI-4: what the kernel says, as one of the nine conditions of CL-3. The table is the fault model's.

use nix::errno::Errno;
use phalanx_core::Code;
use std::io;

/// The code for a failed system call on a socket.
#[must_use]
pub fn code_of(errno: Errno) -> Code {
    phalanx_fault::code_of(io::Error::from(errno).kind(), Some(errno as i32))
}

/// The code for a failed call of the standard library.
#[must_use]
pub fn code_of_io(error: &io::Error) -> Code {
    phalanx_fault::code_of(error.kind(), error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CL-3: a full buffer is ours, a refused port is theirs, a signal is neither.
    #[test]
    fn common_failures_have_the_code_a_reader_expects() {
        assert_eq!(code_of(Errno::ENOBUFS), Code::LocalResource);
        assert_eq!(code_of(Errno::ECONNREFUSED), Code::Unreachable);
        assert_eq!(code_of(Errno::EHOSTUNREACH), Code::Unreachable);
        assert_eq!(code_of(Errno::EMSGSIZE), Code::InvalidArgs);
        assert_eq!(code_of(Errno::EINTR), Code::Interrupted);
        assert_eq!(code_of_io(&io::Error::from_raw_os_error(Errno::EPIPE as i32)), Code::Unreachable);
    }
}
