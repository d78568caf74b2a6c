//! serf: a process for each member. What it sees it writes into its log, on its standard output.

use super::ground::{Ground, address, member_named, name};
use super::measure::System;
use super::process::{Process, median_rss_mb};
use super::sight::{Sighting, Watch, now_ms};
use crate::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// A member says that it runs within this time.
const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster of them.
pub(super) struct Serf {
    profile: &'static str,
    tell: Sender<Sighting>,
    members: Vec<Option<Process>>,
}

impl Serf {
    pub(super) fn new(members: usize, profile: &'static str, tell: Sender<Sighting>) -> Self {
        Self { profile, tell, members: (0..members).map(|_| None).collect() }
    }

    /// Starts a member; it says on the channel that it runs.
    fn start(&mut self, member: usize, join: Option<usize>) -> Result<Receiver<()>, Error> {
        let launcher = Ground::launcher(member);
        let mut command = Command::new(&launcher[0]);
        command.args(&launcher[1..]).args(["serf", "agent", "-log-level", "info", "-profile", self.profile]);
        command.args(["-node", &name(member), &format!("-bind={}", address(member))]);
        command.args(join.map(|other| format!("-join={}", address(other))));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let log = child.stdout.take().expect("it was asked for");
        let (tell, (up, is_up)) = (self.tell.clone(), channel());
        // A thread for each, which ends with its process.
        thread::spawn(move || {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                if line.contains("agent: Serf agent running!") || line.contains("agent: Serf agent starting") {
                    // Whoever waited may have given up.
                    let _ = up.send(());
                }
                if let Some((subject, alive)) = event_in(&line)
                    && tell.send(Sighting::now(member, subject, alive)).is_err()
                {
                    break;
                }
            }
        });
        self.members[member] = Some(Process::new(child));
        Ok(is_up)
    }
}

impl System for Serf {
    fn boot(&mut self) -> Result<f64, Error> {
        let up = self.start(0, None)?;
        let silent = |_| Error::Silent { role: "serf".into(), seconds: PATIENCE.as_secs_f64() };
        up.recv_timeout(PATIENCE).map_err(silent)?;
        // It listens a moment later than it says.
        thread::sleep(Duration::from_millis(500));
        let began = now_ms();
        for member in 1..self.members.len() {
            self.start(member, Some(0))?;
        }
        Ok(began)
    }

    fn crash(&mut self, member: usize) -> Result<(), Error> {
        self.members[member] = None;
        Ok(())
    }

    fn mend(&mut self, member: usize, watch: &mut Watch) -> Result<(), Error> {
        self.members[member] = None;
        watch.restarted(member);
        self.start(member, Some(usize::from(member == 0)))?;
        Ok(())
    }

    fn stop(&mut self, member: usize, stopped: bool) -> Result<(), Error> {
        self.members[member].as_ref().map_or(Ok(()), |m| m.stop(stopped))?;
        Ok(())
    }

    fn rss_mb(&self) -> Option<f64> {
        median_rss_mb(self.members.iter().flatten())
    }
}

/// What a line of the log says of a member: who, and whether it is there.
fn event_in(line: &str) -> Option<(usize, bool)> {
    let (_, event) = line.split_once("serf: EventMember")?;
    let (kind, rest) = event.split_once(": ")?;
    let alive = match kind {
        "Join" => true,
        "Failed" | "Leave" => false,
        // `Update` and `Reap` say nothing about who is there.
        _ => return None,
    };
    Some((member_named(rest.split_whitespace().next()?)?, alive))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_who_comes_and_who_goes() {
        let line = |event: &str| format!("    2018/11/03 12:01:02 [INFO] serf: {event}");
        assert_eq!(event_in(&line("EventMemberJoin: n12 10.77.0.13")), Some((12, true)));
        assert_eq!(event_in(&line("EventMemberFailed: n7 10.77.0.8")), Some((7, false)));
        assert_eq!(event_in(&line("EventMemberLeave: n0 10.77.0.1")), Some((0, false)));
        assert_eq!(event_in(&line("EventMemberReap: n7")), None);
        assert_eq!(event_in(&line("EventMemberUpdate: n7")), None);
        assert_eq!(event_in("    2018/11/03 12:01:02 [INFO] agent: Received event: member-failed"), None);
        assert_eq!(
            event_in("    2018/11/03 12:01:02 [INFO] memberlist: Suspect n7 has failed, no acks received"),
            None
        );
    }
}
