//! CL-3: why a call of the communication layer was refused or failed (004 Table 1).

use thiserror::Error;

/// The error conditions of the communication layer. A refused call has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Error)]
#[repr(u8)]
pub enum Code {
    /// `LOCAL_RESOURCE`: a buffer, queue or table of this node is full; try again after the next poll.
    #[error("a local queue or buffer is full: try again after the next poll")]
    LocalResource = 1,
    /// `REMOTE_RESOURCE`: the destination has no room; wait until it grants credit.
    #[error("the destination has no room for the message: wait until it grants credit")]
    RemoteResource = 2,
    /// `INVALID_BUFF`: the buffer does not come from this layer, or is too short for its headers.
    #[error("the buffer was not made by the link layer: allocate it there")]
    InvalidBuffer = 3,
    /// `INVALID_ENDPOINT`: no such node or port here, or a group on a platform without multicast.
    #[error("no such endpoint: the node, port or group is unknown to this platform")]
    InvalidEndpoint = 4,
    /// `INVALID_ARGS`: another argument is wrong, such as a message over the cap.
    #[error("invalid arguments: the message is empty, over the cap, or the call makes no sense here")]
    InvalidArgs = 5,
    /// `DEST_REJECT`: the destination's node is there and refuses the message.
    #[error("the destination is there and refuses the message: it does not speak this protocol, or forbids it")]
    DestReject = 6,
    /// `UNREACHABLE`: the destination does not answer (cut cable, dead process, closed port).
    #[error("the destination cannot be reached")]
    Unreachable = 7,
    /// `NOT_INITIALIZED`: the layer is closed or not open yet.
    #[error("the communication layer is not open")]
    NotInitialized = 8,
    /// `INTR`: a signal interrupted the call.
    #[error("a signal interrupted the call: call again")]
    Interrupted = 9,
}

impl Code {
    /// All codes, in the order of Table 1.
    pub const ALL: [Self; 9] = [
        Self::LocalResource,
        Self::RemoteResource,
        Self::InvalidBuffer,
        Self::InvalidEndpoint,
        Self::InvalidArgs,
        Self::DestReject,
        Self::Unreachable,
        Self::NotInitialized,
        Self::Interrupted,
    ];

    /// The name users write in configurations: `local-resource`, …
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LocalResource => "local-resource",
            Self::RemoteResource => "remote-resource",
            Self::InvalidBuffer => "invalid-buffer",
            Self::InvalidEndpoint => "invalid-endpoint",
            Self::InvalidArgs => "invalid-args",
            Self::DestReject => "dest-reject",
            Self::Unreachable => "unreachable",
            Self::NotInitialized => "not-initialized",
            Self::Interrupted => "interrupted",
        }
    }

    /// The code of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CL-3: the nine conditions of Table 1, each with a name of its own.
    #[test]
    fn every_code_of_table_1_has_a_name_that_parses_back() {
        for code in Code::ALL {
            assert_eq!(Code::parse(code.name()), Some(code));
        }
        assert_eq!(Code::parse("sunshine"), None);
    }
}
