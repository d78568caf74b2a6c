//! Packets on their way to one peer: a few, so that a peer that does not answer costs little and what comes
//! meanwhile shares the next packet.

/// Packets under way at once.
const IN_FLIGHT: usize = 8;

/// The last item of each packet on its way, oldest first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Flight {
    ends: [u64; IN_FLIGHT],
    len: usize,
}

impl Flight {
    pub(super) fn is_full(&self) -> bool {
        self.len == IN_FLIGHT
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A packet left whose last item is `end`.
    pub(super) fn push(&mut self, end: u64) {
        debug_assert!(!self.is_full());
        self.ends[self.len] = end;
        self.len += 1;
    }

    /// All up to `end` arrived.
    pub(super) fn arrived(&mut self, end: u64) {
        let done = self.ends[..self.len].partition_point(|&e| e <= end);
        self.ends.copy_within(done..self.len, 0);
        self.len -= done;
        self.ends[self.len..].fill(0);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back_as_packets_arrive() {
        let mut flight = Flight::default();
        (1..=IN_FLIGHT as u64).for_each(|n| flight.push(n * 10));
        assert!(flight.is_full());
        flight.arrived(9);
        assert!(flight.is_full());
        flight.arrived(35);
        assert_eq!(flight.len, IN_FLIGHT - 3);
        flight.push(90);
        flight.arrived(1_000);
        assert_eq!(flight, Flight::default());
    }
}
