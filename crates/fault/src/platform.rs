//! FI-4: what real platforms do wrong, as functional faults and codes of Table 1 (as Table 3 does for GM/Myrinet).
//!
//! The paper made this mapping for sockets and UDP and left it out "due to space limitations". `docs/faults.md`
//! prints the table; [`code_of`] is what the socket platforms call.

use phalanx_core::Code;
use std::io::ErrorKind;

/// One way in which a socket call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The errno's name.
    pub name: &'static str,
    /// Its number on this system.
    pub errno: i32,
    /// The code of Table 1.
    pub code: Code,
}

const fn failure(name: &'static str, errno: i32, code: Code) -> Failure {
    Failure { name, errno, code }
}

/// Every errno that sockets are known to answer with, and the code it becomes.
pub const FAILURES: &[Failure] = &[
    failure("EAGAIN", os::EAGAIN, Code::LocalResource),
    failure("ENOBUFS", os::ENOBUFS, Code::LocalResource),
    failure("ENOMEM", 12, Code::LocalResource),
    failure("EMFILE", 24, Code::LocalResource),
    failure("ENFILE", 23, Code::LocalResource),
    failure("EFAULT", 14, Code::InvalidBuffer),
    failure("EADDRNOTAVAIL", os::EADDRNOTAVAIL, Code::InvalidEndpoint),
    failure("EAFNOSUPPORT", os::EAFNOSUPPORT, Code::InvalidEndpoint),
    failure("EDESTADDRREQ", os::EDESTADDRREQ, Code::InvalidEndpoint),
    failure("EMSGSIZE", os::EMSGSIZE, Code::InvalidArgs),
    failure("EINVAL", 22, Code::InvalidArgs),
    failure("ENOPROTOOPT", os::ENOPROTOOPT, Code::DestReject),
    // Table 1 counts a closed port as unreachable: behind a datagram's port there was a process, and it is gone.
    failure("ECONNREFUSED", os::ECONNREFUSED, Code::Unreachable),
    failure("ECONNRESET", os::ECONNRESET, Code::Unreachable),
    failure("ECONNABORTED", os::ECONNABORTED, Code::Unreachable),
    failure("EPIPE", 32, Code::Unreachable),
    failure("ETIMEDOUT", os::ETIMEDOUT, Code::Unreachable),
    failure("EHOSTUNREACH", os::EHOSTUNREACH, Code::Unreachable),
    failure("EHOSTDOWN", os::EHOSTDOWN, Code::Unreachable),
    failure("ENETUNREACH", os::ENETUNREACH, Code::Unreachable),
    failure("ENETDOWN", os::ENETDOWN, Code::Unreachable),
    // A firewall that drops on the way out answers the caller: for the peer it is a cut cable.
    failure("EPERM", 1, Code::Unreachable),
    failure("EACCES", 13, Code::Unreachable),
    failure("EBADF", 9, Code::NotInitialized),
    failure("ENOTCONN", os::ENOTCONN, Code::NotInitialized),
    failure("EINTR", 4, Code::Interrupted),
];

/// The code of Table 1 for a failed socket call: by its number where there is one, else by its kind.
///
/// What nobody foresaw becomes [`Code::LocalResource`]: the caller tries again and the failure detector decides.
#[must_use]
pub fn code_of(kind: ErrorKind, raw: Option<i32>) -> Code {
    if let Some(known) = raw.and_then(|errno| FAILURES.iter().find(|f| f.errno == errno)) {
        return known.code;
    }
    match kind {
        ErrorKind::AddrNotAvailable | ErrorKind::AddrInUse | ErrorKind::NotFound => Code::InvalidEndpoint,
        ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::Unsupported => Code::InvalidArgs,
        ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof
        | ErrorKind::WriteZero
        | ErrorKind::TimedOut
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::NetworkDown
        | ErrorKind::PermissionDenied => Code::Unreachable,
        ErrorKind::NotConnected => Code::NotInitialized,
        ErrorKind::Interrupted => Code::Interrupted,
        _ => Code::LocalResource,
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod os {
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const EDESTADDRREQ: i32 = 89;
    pub(super) const EMSGSIZE: i32 = 90;
    pub(super) const ENOPROTOOPT: i32 = 92;
    pub(super) const EAFNOSUPPORT: i32 = 97;
    pub(super) const EADDRNOTAVAIL: i32 = 99;
    pub(super) const ENETDOWN: i32 = 100;
    pub(super) const ENETUNREACH: i32 = 101;
    pub(super) const ECONNABORTED: i32 = 103;
    pub(super) const ECONNRESET: i32 = 104;
    pub(super) const ENOBUFS: i32 = 105;
    pub(super) const ENOTCONN: i32 = 107;
    pub(super) const ETIMEDOUT: i32 = 110;
    pub(super) const ECONNREFUSED: i32 = 111;
    pub(super) const EHOSTDOWN: i32 = 112;
    pub(super) const EHOSTUNREACH: i32 = 113;
}

/// macOS and the BSDs.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod os {
    pub(super) const EAGAIN: i32 = 35;
    pub(super) const EDESTADDRREQ: i32 = 39;
    pub(super) const EMSGSIZE: i32 = 40;
    pub(super) const ENOPROTOOPT: i32 = 42;
    pub(super) const EAFNOSUPPORT: i32 = 47;
    pub(super) const EADDRNOTAVAIL: i32 = 49;
    pub(super) const ENETDOWN: i32 = 50;
    pub(super) const ENETUNREACH: i32 = 51;
    pub(super) const ECONNABORTED: i32 = 53;
    pub(super) const ECONNRESET: i32 = 54;
    pub(super) const ENOBUFS: i32 = 55;
    pub(super) const ENOTCONN: i32 = 57;
    pub(super) const ETIMEDOUT: i32 = 60;
    pub(super) const ECONNREFUSED: i32 = 61;
    pub(super) const EHOSTDOWN: i32 = 64;
    pub(super) const EHOSTUNREACH: i32 = 65;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const GUIDE: &str = include_str!("../../../docs/faults.md");

    /// FI-4: each row of the guide's table says what the code does, and no errno is missing there.
    #[test]
    fn the_guide_and_the_code_agree_on_every_errno() {
        for f in FAILURES {
            let row = GUIDE
                .lines()
                .find(|line| line.starts_with('|') && line.contains(&format!("`{}`", f.name)))
                .unwrap_or_else(|| panic!("{} is missing in docs/faults.md", f.name));
            assert!(row.contains(&format!("`{}`", f.code.name())), "{}: the guide says {row}", f.name);
            let error = io::Error::from_raw_os_error(f.errno);
            assert_eq!(code_of(error.kind(), error.raw_os_error()), f.code, "{}", f.name);
        }
    }

    /// FI-4: the numbers are those of this system, as far as the standard library knows their names.
    #[test]
    fn numbers_belong_to_their_names() {
        for (name, kind) in [
            ("EAGAIN", ErrorKind::WouldBlock),
            ("ENOMEM", ErrorKind::OutOfMemory),
            ("EADDRNOTAVAIL", ErrorKind::AddrNotAvailable),
            ("EINVAL", ErrorKind::InvalidInput),
            ("ECONNREFUSED", ErrorKind::ConnectionRefused),
            ("ECONNRESET", ErrorKind::ConnectionReset),
            ("ECONNABORTED", ErrorKind::ConnectionAborted),
            ("EPIPE", ErrorKind::BrokenPipe),
            ("ETIMEDOUT", ErrorKind::TimedOut),
            ("EHOSTUNREACH", ErrorKind::HostUnreachable),
            ("ENETUNREACH", ErrorKind::NetworkUnreachable),
            ("ENETDOWN", ErrorKind::NetworkDown),
            ("EPERM", ErrorKind::PermissionDenied),
            ("EACCES", ErrorKind::PermissionDenied),
            ("ENOTCONN", ErrorKind::NotConnected),
            ("EINTR", ErrorKind::Interrupted),
        ] {
            let f = FAILURES.iter().find(|f| f.name == name).unwrap();
            assert_eq!(io::Error::from_raw_os_error(f.errno).kind(), kind, "{name}");
            assert_eq!(code_of(kind, None), f.code, "{name} without its number");
        }
        for (name, text) in
            [("ENOBUFS", "No buffer space"), ("EMSGSIZE", "Message too long"), ("EMFILE", "Too many open")]
        {
            let f = FAILURES.iter().find(|f| f.name == name).unwrap();
            assert!(io::Error::from_raw_os_error(f.errno).to_string().contains(text), "{name}");
        }
    }

    /// FI-4: a short read ends the stream, and what nobody foresaw is tried again.
    #[test]
    fn errors_without_a_number_have_codes_too() {
        assert_eq!(code_of(ErrorKind::UnexpectedEof, None), Code::Unreachable);
        assert_eq!(code_of(ErrorKind::Other, Some(9_999)), Code::LocalResource);
    }
}
