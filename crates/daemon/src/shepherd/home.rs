//! What the shepherds of a job tell each other, and home the console.

use super::Shepherd;
use super::console::{Early, Feed};
use super::desk::Caller;
use super::frames::{self, Frame, Words};
use super::words::ToDaemon;
use super::work::Phase;
use phalanx_api::run::{ToConsole, ToConsoleShepherd};
use phalanx_core::Addr;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use tokio::sync::OwnedSemaphorePermit;

impl Shepherd {
    /// A console that came before the daemon's word.
    pub(super) fn admit_console(&mut self) {
        if let Some(Early { caller, typed }) = self.early_console.take() {
            self.on_console(caller, ToConsoleShepherd::Attach);
            typed.into_iter().for_each(|(bytes, place)| self.on_typed(caller, bytes, place));
        }
    }

    pub(super) fn on_console(&mut self, caller: Caller, words: ToConsoleShepherd) {
        if self.work.as_ref().is_none_or(|w| w.console.is_none()) && words == ToConsoleShepherd::Attach {
            self.early_console = Some(Early { caller, typed: Vec::new() });
        }
        let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()) else { return };
        match words {
            ToConsoleShepherd::Attach => {
                if !console.attach(caller, &mut self.desk) {
                    let text = "the job has a console already".to_owned();
                    self.desk.say(caller, &ToConsole::Note { text });
                    self.desk.show_out(caller);
                }
            }
            ToConsoleShepherd::Signal { signal } if console.is(caller) => {
                if !self.daemons.is_empty() {
                    return self.tell_daemons(&ToDaemon::Signalled { signal });
                }
                // Nobody is there to ask the manager; whoever typed it wants it now.
                for host in console.hosts.clone() {
                    self.tell_host(host, frames::words(&Words::Signal { signal }));
                }
            }
            ToConsoleShepherd::Signal { .. } => {}
        }
    }

    pub(super) fn on_typed(&mut self, caller: Caller, bytes: Vec<u8>, place: Option<OwnedSemaphorePermit>) {
        // How much waits is bounded by the places that its caller has.
        if let Some(early) = self.early_console.as_mut().filter(|e| e.caller == caller) {
            return early.typed.push((bytes, place));
        }
        if let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()).filter(|c| c.is(caller)) {
            console.on_input(bytes, place);
        }
    }

    pub(super) fn on_took(&mut self, caller: Caller) {
        if let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()).filter(|c| c.is(caller)) {
            console.on_took(&mut self.desk);
        }
    }

    /// True when it was the console.
    pub(super) fn on_console_gone(&mut self, caller: Caller) -> bool {
        if self.early_console.take_if(|e| e.caller == caller).is_some() {
            return true;
        }
        let Some(work) = &mut self.work else { return false };
        let Some(console) = work.console.as_mut().filter(|c| c.is(caller)) else { return false };
        if console.on_gone() {
            self.tell_daemons(&ToDaemon::Deserted);
        }
        true
    }

    /// What was taken is told to whose it was, what was typed to rank 0.
    pub(super) fn serve_console(&mut self) {
        loop {
            let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()) else { return };
            let taken = console.taken();
            let feeds = console.feed(&mut self.desk);
            if taken.is_empty() && feeds.is_empty() {
                return;
            }
            for (host, bytes) in taken {
                self.tell_host(host, frames::words(&Words::Taken { bytes }));
            }
            for feed in feeds {
                match feed {
                    Feed::Bytes(host, bytes) => self.tell_host(host, frames::input(&bytes)),
                    Feed::End(host) => self.tell_host(host, frames::words(&Words::InputEnd)),
                }
            }
        }
    }

    pub(super) fn tell_home(&mut self, words: &Words) {
        self.tell_home_frame(frames::words(words));
    }

    pub(super) fn tell_home_frame(&mut self, frame: Vec<u8>) {
        let Some(work) = &mut self.work else { return };
        match work.home.filter(|_| !work.home_is_lost) {
            Some(home) => self.tell_host(home, frame),
            // Nobody is there to be told.
            None => work.ranks.unacknowledged = 0,
        }
    }

    pub(super) fn tell_host(&mut self, host: SocketAddr, frame: Vec<u8>) {
        if host == self.addr {
            return self.on_frame(host, &frame);
        }
        let Some(work) = &mut self.work else { return };
        // What waits goes first.
        if !work.unsent.iter().any(|(to, _)| *to == host) {
            let sent = self.driver.act(|company, now, out| company.tell_host(now, Addr::Ip(host), &frame, out));
            if sent.is_ok() {
                return;
            }
        }
        work.unsent.push_back((host, frame));
    }

    pub(super) fn send_again(&mut self) {
        let Some(work) = &mut self.work else { return };
        let mut full = BTreeSet::new();
        work.unsent.retain(|(host, frame)| {
            let is_sent = !full.contains(host)
                && self.driver.act(|company, now, out| company.tell_host(now, Addr::Ip(*host), frame, out)).is_ok();
            if !is_sent {
                full.insert(*host);
            }
            !is_sent
        });
    }

    pub(super) fn on_frame(&mut self, from: SocketAddr, frame: &[u8]) {
        let Some(frame) = frames::read(frame) else {
            tracing::warn!(%from, "a frame that makes no sense");
            return;
        };
        match frame {
            Frame::Output { rank, stream, bytes } => {
                if let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()) {
                    console.on_output(from, rank, stream, bytes, &mut self.desk);
                }
            }
            Frame::Input(bytes) => self.on_input(bytes, false),
            Frame::Words(words) => self.on_words(from, words),
        }
    }

    fn on_words(&mut self, from: SocketAddr, words: Words) {
        match words {
            Words::InputEnd => return self.on_input(&[], true),
            Words::Taken { bytes } => return self.on_taken(bytes),
            Words::Signal { signal } => return self.on_signal(signal),
            Words::Finish => {
                if let Some(work) = &mut self.work {
                    work.drained = None;
                }
                return;
            }
            Words::Dismissed { attempt } => {
                if let Some(work) = self.work.as_mut().filter(|w| w.work.attempt == attempt) {
                    work.dismissed = true;
                }
                return;
            }
            _ => {}
        }
        let Some(work) = &mut self.work else { return };
        // The names of all nodes take as long as there are ranks, and there is a word for each rank's end.
        let nodes = if matches!(words, Words::Started { .. }) { work.nodes() } else { Vec::new() };
        let Some(console) = &mut work.console else { return };
        match words {
            Words::Started { attempt, ranks } => console.on_started(from, attempt, &ranks, &nodes, &mut self.desk),
            Words::Ended { rank, end } => console.on_ended(rank, end, &mut self.desk),
            Words::Fed { bytes } => console.on_fed(bytes),
            Words::Drained { attempt } => {
                // Of one that has ranks of a later attempt this is not the last word.
                if attempt == work.work.attempt || !work.crews.iter().any(|c| c.addr == from) {
                    console.hosts.remove(&from);
                }
                self.tell_host(from, frames::words(&Words::Dismissed { attempt }));
            }
            _ => {}
        }
    }

    /// No rank is left here and home has all that they wrote: said once, and again when home asks.
    pub(super) fn say_drained(&mut self) {
        let Some(work) = &mut self.work else { return };
        let attempt = work.work.attempt;
        let is_idle = matches!(work.phase, Phase::Going | Phase::Cleared) && work.knocking.is_empty();
        if is_idle && work.home.is_some() && work.ranks.are_drained() && work.drained != Some(attempt) {
            work.drained = Some(attempt);
            self.tell_home(&Words::Drained { attempt });
        }
    }
}
