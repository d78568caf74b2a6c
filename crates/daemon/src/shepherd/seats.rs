//! Ranks in the job's view (CM-2, RV-5): those that start again are let in before they run, and hosts that take theirs with them are told
//! of.

use super::Shepherd;
use super::news::Said;
use super::words::ToDaemon;
use super::work::{Knocking, ranks_of};
use nix::libc;
use nix::sys::signal::{Signal, killpg};
use phalanx_api::run::RankEnd;
use phalanx_core::{Addr, Duration};
use phalanx_protocol::company::Seat;
use phalanx_protocol::view::{self, Change, Task, View, Wanted};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A rank that starts again knocks so often.
const KNOCK: Duration = Duration::from_millis(100);

impl Shepherd {
    /// Ranks that are to start again are let into the view first.
    pub(super) fn knock(&mut self) {
        let now = self.driver.now();
        let Some(work) = &mut self.work else { return };
        let contacts: Vec<Addr> = work.contacts.iter().copied().map(Addr::Ip).collect();
        let mut late = Vec::new();
        work.knocking.retain_mut(|k| {
            if k.until <= now {
                late.push((k.rank, k.life, k.seat));
                return false;
            }
            if k.seat.is_none() && k.next <= now {
                let wanted = Wanted::Again(Task(k.rank));
                k.seat = Some(self.driver.act(|company, now, out| company.join(now, wanted, &contacts, out)));
            }
            true
        });
        for (rank, life, seat) in late {
            let attempt = work.work.attempt;
            work.ranks.add((attempt, rank, life), None, Err(RankEnd::Missing(libc::ETIMEDOUT)), None);
            if let Some(seat) = seat {
                self.driver.act(|company, now, out| company.part(now, seat, out));
            }
        }
        self.say_ends();
    }

    /// What a member decided whose task is a rank that was started here, or is about to be. True when nobody else needs to hear it.
    pub(super) fn on_rank_said(&mut self, seat: Seat, said: &Said) -> bool {
        match said {
            Said::Host(Addr::Ip(from), bytes) => self.on_frame(*from, bytes),
            Said::HostGone(Addr::Ip(addr), certain) => self.on_host_gone(*addr, *certain),
            Said::Host(..) | Said::HostGone(..) => {}
            Said::Writable => self.send_again(),
            Said::Mustered(outcome) => self.on_mustered(outcome.as_ref()),
            Said::Installed { view, change } => {
                self.on_let_in(seat);
                self.muster_again();
                if let Some(change) = change {
                    self.look_for_missed(seat, view, change);
                }
                return false;
            }
            Said::Refused(_) => return self.on_not_let_in(seat),
            Said::Pause => {
                let is_alone = self.work.is_some() && !self.seats.contains_key(&seat);
                if is_alone {
                    self.driver.act(|company, now, out| {
                        company.tell(now, seat, view::Input::Paused, out);
                    });
                }
                return is_alone;
            }
            Said::Excluded(_) => {
                // It was only slow. A task that is there decides by itself.
                let is_alone = self.work.is_some() && !self.seats.contains_key(&seat);
                if is_alone {
                    self.driver.act(|company, now, out| company.rejoin(now, seat, out));
                }
                return is_alone;
            }
            Said::Aborted => {
                let Some(work) = &mut self.work else { return false };
                if let Some(pid) = work.ranks.by_seat(seat).filter(|r| r.runs()).and_then(|r| r.pid) {
                    // The part of the job that it is in ends.
                    let _ = killpg(pid, Signal::SIGKILL);
                }
                return false;
            }
            _ => return false,
        }
        true
    }

    fn on_let_in(&mut self, seat: Seat) {
        let Some(work) = &mut self.work else { return };
        let Some(at) = work.knocking.iter().position(|k| k.seat == Some(seat)) else { return };
        let Knocking { rank, life, .. } = work.knocking.swap_remove(at);
        self.start(&[(rank, Some(seat))], life);
    }

    fn on_not_let_in(&mut self, seat: Seat) -> bool {
        let now = self.driver.now();
        let Some(knocking) = self.work.as_mut().and_then(|w| w.knocking.iter_mut().find(|k| k.seat == Some(seat)))
        else {
            return false;
        };
        (knocking.seat, knocking.next) = (None, now + KNOCK);
        self.driver.act(|company, now, out| company.part(now, seat, out));
        true
    }

    /// The root of a view says who is not in it any more because nobody hears its host.
    fn look_for_missed(&mut self, seat: Seat, view: &View, change: &Change) {
        let Some(work) = &self.work else { return };
        let me = self.driver.node().member(seat).map(|m| m.me());
        if me.is_none() || view.tree().root() != me {
            return;
        }
        let mut missed: BTreeMap<SocketAddr, Vec<(u32, Seat)>> = BTreeMap::new();
        for &task in &change.failed {
            // Where its host is heard a rank has ended by itself, and its shepherd says how; who is dead for sure is missed already.
            let Some(person) = view.person(task) else { continue };
            if let Addr::Ip(host) = person.host
                && work.silent.contains(&host)
            {
                missed.entry(host).or_default().push((task.0, person.boot));
            }
        }
        missed.into_iter().for_each(|(host, ranks)| self.miss(host, ranks, false));
    }

    /// Ranks whose tasks are, or were, on a host, and the start of each.
    fn ranks_at(&self, host: SocketAddr) -> Vec<(u32, Seat)> {
        let views = self.driver.node().members().filter_map(|(_, m)| m.view());
        if let Some(view) = views.max_by_key(|v| v.id().number) {
            let people = (0..self.terms.size).filter_map(|rank| Some((rank, view.person(Task(rank))?)));
            return people.filter(|(_, p)| p.host == Addr::Ip(host)).map(|(rank, p)| (rank, p.boot)).collect();
        }
        let crews = self.work.iter().flat_map(|w| &w.crews);
        crews.filter(|c| c.addr == host).flat_map(|c| ranks_of(c).zip(c.first..)).collect()
    }

    fn miss(&mut self, host: SocketAddr, ranks: Vec<(u32, Seat)>, proven: bool) {
        let Some(work) = &mut self.work else { return };
        if work.is_ending() || ranks.is_empty() || !work.missed.insert((host, proven)) {
            return;
        }
        let attempt = work.work.attempt;
        self.tell_daemons(&ToDaemon::Missed { attempt, host, ranks, proven });
    }

    fn on_host_gone(&mut self, host: SocketAddr, certain: bool) {
        let ranks = self.ranks_at(host);
        let Some(work) = &mut self.work else { return };
        let is_over = work.over.is_some();
        if work.home == Some(host) && (certain || is_over) {
            work.home_is_lost = true;
            work.ranks.unacknowledged = 0;
            self.on_taken(0);
        }
        let Some(work) = &mut self.work else { return };
        if certain {
            work.unsent.retain(|(to, _)| *to != host);
            work.silent.remove(&host);
        } else {
            work.silent.insert(host);
        }
        if let Some(console) = &mut work.console
            && (certain || is_over)
        {
            console.hosts.remove(&host);
            let ranks: Vec<u32> = ranks.iter().map(|r| r.0).collect();
            console.on_lost(&ranks, &mut self.desk);
        }
        if certain {
            self.miss(host, ranks, true);
        }
    }
}
