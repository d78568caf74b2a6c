//! Ours, a process for each member: real daemons, heard through their streams of events.

use super::ground::{Ground, address, member_named, name};
use super::measure::System;
use super::process::{Process, median_rss_mb};
use super::sight::{Sighting, Watch, now_ms};
use crate::error::Error;
use phalanx_client::Client;
use phalanx_client::api::{Event, What};
use phalanx_client::local::{Daemon, Start};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// A daemon answers within this time.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two tries to reach one that starts.
const LOOK: Duration = Duration::from_millis(5);
/// Events tell whole milliseconds, and the rest is cut off: what happened in one is taken to have happened at its end.
const CUT_OFF_MS: f64 = 1.0;
/// The key of a cluster that nobody else can reach.
const KEY: &str = "7068616c616e78207068616c616e78207068616c616e78207068616c616e7821";
/// The command, beside the laboratory.
const COMMAND: &str = "phalanx";

/// A cluster of them.
pub(super) struct Daemons {
    profile: Option<&'static str>,
    binary: PathBuf,
    dir: PathBuf,
    tell: Sender<Sighting>,
    runtime: Runtime,
    members: Vec<Option<(Process, JoinHandle<()>)>>,
}

impl Daemons {
    /// With this profile, or with the one that daemons choose themselves.
    pub(super) fn new(members: usize, profile: Option<&'static str>, tell: Sender<Sighting>) -> Result<Self, Error> {
        let binary = std::env::current_exe()?.with_file_name(COMMAND);
        if !binary.is_file() {
            let reason = format!("{} is not there: cargo build --release -p {COMMAND}", binary.display());
            return Err(Error::Peer { library: COMMAND, reason });
        }
        let dir = std::env::temp_dir().join(format!("phalanx-lab-peers-{}", std::process::id()));
        // One thread hears all streams, so that the daemons have the machine.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let members = (0..members).map(|_| None).collect();
        Ok(Self { profile, binary, dir, tell, runtime, members })
    }

    fn daemon(&self, member: usize) -> Daemon {
        Daemon::at(self.dir.join(name(member)))
    }

    fn start(&mut self, member: usize, join: Option<usize>) -> Result<(), Error> {
        let daemon = self.daemon(member);
        let join: Vec<String> = join.map(|other| address(other).to_string()).into_iter().collect();
        let start = Start {
            binary: &self.binary,
            launcher: &Ground::launcher(member),
            name: &name(member),
            bind: &address(member).to_string(),
            join: &join,
            key: Some(KEY),
            profile: self.profile,
            config: None,
        };
        let process = Process::new(daemon.command(&start)?.spawn()?);
        let reader = self.runtime.spawn(follow(member, Client::new(daemon.socket()), self.tell.clone()));
        self.members[member] = Some((process, reader));
        Ok(())
    }

    /// Ends a member without a word, and stops to hear it.
    fn end(&mut self, member: usize) {
        if let Some((process, reader)) = self.members[member].take() {
            drop(process);
            reader.abort();
        }
    }
}

impl System for Daemons {
    fn boot(&mut self) -> Result<f64, Error> {
        self.start(0, None)?;
        self.daemon(0).answer(PATIENCE).map_err(|said| Error::Child { role: COMMAND.into(), said })?;
        let began = now_ms();
        for member in 1..self.members.len() {
            self.start(member, Some(0))?;
        }
        Ok(began)
    }

    fn crash(&mut self, member: usize) -> Result<(), Error> {
        self.end(member);
        Ok(())
    }

    fn mend(&mut self, member: usize, watch: &mut Watch) -> Result<(), Error> {
        self.end(member);
        watch.restarted(member);
        self.start(member, Some(usize::from(member == 0)))
    }

    fn stop(&mut self, member: usize, stopped: bool) -> Result<(), Error> {
        self.members[member].as_ref().map_or(Ok(()), |m| m.0.stop(stopped))?;
        Ok(())
    }

    fn rss_mb(&self) -> Option<f64> {
        median_rss_mb(self.members.iter().flatten().map(|m| &m.0))
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|member| self.end(member));
        // What cannot be removed lies in a directory for such things.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Tells all events of a daemon from its first one on, as soon as it answers.
async fn follow(observer: usize, client: Client, tell: Sender<Sighting>) {
    let mut events = client.events(Some(0));
    loop {
        match events.next().await {
            Ok(event) => {
                let Some(sighting) = sighting_in(observer, &event) else { continue };
                if tell.send(sighting).is_err() {
                    return;
                }
            }
            Err(_) => tokio::time::sleep(LOOK).await,
        }
    }
}

fn sighting_in(observer: usize, event: &Event) -> Option<Sighting> {
    let (member, alive) = match &event.what {
        What::Joined { member } => (member, true),
        What::Left { member } => (member, false),
        _ => return None,
    };
    Some(Sighting { observer, subject: member_named(&member.name)?, alive, at_ms: event.at_ms as f64 + CUT_OFF_MS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_sightings_at_the_end_of_their_millisecond() {
        let event = |what: &str, name: &str| {
            let member = format!(
                r#"{{"name":"{name}","id":"a","addr":"10.77.0.4:7946","state":"failed","incarnation":1,"minor":0}}"#
            );
            serde_json::from_str::<Event>(&format!(r#"{{"id":3,"at_ms":41,"event":"{what}","member":{member}}}"#))
                .unwrap()
        };
        let seen = |alive| Some(Sighting { observer: 5, subject: 3, alive, at_ms: 42.0 });
        assert_eq!(sighting_in(5, &event("left", "n3")), seen(false));
        assert_eq!(sighting_in(5, &event("joined", "n3")), seen(true));
        assert_eq!(sighting_in(5, &event("joined", "stranger")), None);
        assert_eq!(sighting_in(5, &Event { id: 1, at_ms: 1, what: What::Gap }), None);
    }
}
