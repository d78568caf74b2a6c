//! FI-4: what the kernel says, as one of the nine conditions of CL-3.

use nix::errno::Errno;
use phalanx_core::Code;

/// The code for a failed system call on a socket.
#[must_use]
pub fn code_of(errno: Errno) -> Code {
    match errno {
        Errno::ENOBUFS | Errno::ENOMEM | Errno::EAGAIN | Errno::EMFILE | Errno::ENFILE | Errno::EADDRINUSE => {
            Code::LocalResource
        }
        Errno::EFAULT => Code::InvalidBuffer,
        Errno::EADDRNOTAVAIL | Errno::EAFNOSUPPORT | Errno::EDESTADDRREQ | Errno::ENODEV => Code::InvalidEndpoint,
        Errno::EMSGSIZE | Errno::EINVAL | Errno::EOPNOTSUPP => Code::InvalidArgs,
        // A firewall that answers, or one of our own that refuses the way out: somebody said no.
        Errno::EPERM | Errno::EACCES => Code::DestReject,
        Errno::EBADF | Errno::ENOTSOCK => Code::NotInitialized,
        Errno::EINTR => Code::Interrupted,
        // Refused ports, unreachable hosts and networks, resets, time-outs: nobody there that answers.
        _ => Code::Unreachable,
    }
}

/// The code for a failed call of the standard library.
#[must_use]
pub fn code_of_io(error: &std::io::Error) -> Code {
    error.raw_os_error().map_or(Code::LocalResource, |raw| code_of(Errno::from_raw(raw)))
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
        assert_eq!(code_of_io(&std::io::Error::from_raw_os_error(Errno::EPERM as i32)), Code::DestReject);
    }
}
