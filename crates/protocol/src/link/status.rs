//! CL-2: the status of a send, to be read later: pending, sent, or failed with a code.

use phalanx_core::Code;

/// Sends whose outcome is remembered; the oldest outcome is forgotten first.
pub const REMEMBERED: usize = 1024;

/// Names one send.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u32);

/// How far a send is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Status {
    /// Not with the platform yet, or not answered by it.
    Pending,
    /// The platform took it. Whether it arrives is another matter: CL is unreliable.
    Sent,
    /// It failed.
    Failed(Code),
}

/// The last [`REMEMBERED`] tickets and what became of them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Statuses {
    next: u32,
    /// Slot `ticket % REMEMBERED`; grown on first use, so a link that never asks holds nothing.
    slots: Vec<Option<(u32, Status)>>,
}

impl Statuses {
    /// A new ticket, pending.
    ///
    /// # Errors
    /// `LocalResource` when the send that had its slot is pending still: too many are under way.
    pub(crate) fn issue(&mut self) -> Result<Ticket, Code> {
        if self.slots.is_empty() {
            self.slots = vec![None; REMEMBERED];
        }
        let slot = &mut self.slots[self.next as usize % REMEMBERED];
        if matches!(slot, Some((_, Status::Pending))) {
            return Err(Code::LocalResource);
        }
        *slot = Some((self.next, Status::Pending));
        self.next = self.next.wrapping_add(1);
        Ok(Ticket(self.next.wrapping_sub(1)))
    }

    /// The platform's answer. A second one for the same ticket changes nothing.
    pub(crate) fn complete(&mut self, ticket: Ticket, result: Result<(), Code>) {
        if let Some(Some((t, status @ Status::Pending))) = self.slots.get_mut(ticket.0 as usize % REMEMBERED)
            && *t == ticket.0
        {
            *status = result.map_or_else(Status::Failed, |()| Status::Sent);
        }
    }

    /// The status of a ticket; `None` when it is forgotten or was never issued.
    pub(crate) fn of(&self, ticket: Ticket) -> Option<Status> {
        match self.slots.get(ticket.0 as usize % REMEMBERED)? {
            Some((t, status)) if *t == ticket.0 => Some(*status),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CL-2: a handle that later reads pending, sent or failed.
    #[test]
    fn a_ticket_ends_once_and_is_forgotten_when_its_slot_is_needed() {
        let mut statuses = Statuses::default();
        let first = statuses.issue().unwrap();
        assert_eq!(statuses.of(first), Some(Status::Pending));
        statuses.complete(first, Err(Code::Unreachable));
        statuses.complete(first, Ok(()));
        assert_eq!(statuses.of(first), Some(Status::Failed(Code::Unreachable)));
        for _ in 1..REMEMBERED {
            statuses.issue().unwrap();
        }
        statuses.issue().unwrap();
        assert_eq!(statuses.of(first), None, "forgotten");
        assert_eq!(statuses.issue(), Err(Code::LocalResource), "the next slot is pending still");
        assert_eq!(statuses.of(Ticket(999_999)), None);
    }
}
