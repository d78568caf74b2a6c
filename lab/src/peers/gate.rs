//! Stops a member that is a task as a signal stops one that is a process: at its next step it waits until it may go on,
//! and what is sent to it waits in its socket.

use tokio::sync::watch;

/// The member's side.
#[derive(Clone)]
pub(super) struct Gate(watch::Receiver<bool>);

/// The other side.
pub(super) struct Keeper(watch::Sender<bool>);

impl Keeper {
    /// An open gate, and who keeps it.
    pub(super) fn new() -> (Self, Gate) {
        let (keeper, gate) = watch::channel(false);
        (Self(keeper), Gate(gate))
    }

    /// Closes it, or opens it.
    pub(super) fn close(&self, closed: bool) {
        self.0.send_replace(closed);
    }
}

impl Gate {
    /// Waits while it is closed.
    pub(super) async fn pass(&mut self) {
        // Without a keeper it stays as it was; who keeps it ends the member too.
        let _ = self.0.wait_for(|closed| !closed).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[test]
    fn a_closed_gate_holds_until_it_is_opened() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (keeper, mut gate) = Keeper::new();
            gate.pass().await;
            keeper.close(true);
            assert!(timeout(Duration::from_millis(5), gate.pass()).await.is_err());
            keeper.close(false);
            gate.pass().await;
        });
    }
}
