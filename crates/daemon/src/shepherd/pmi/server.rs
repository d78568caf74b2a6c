//! The ranks of one attempt on one node, and what they are answered.
//!
//! **A barrier waits for every rank here that may still come to it**: one that has said nothing yet may be about to start its MPI library.
//! Who is dead, has finalised, or made no sense is not waited for; so a death in a barrier ends nobody's patience when the job goes on.

use super::kvs::Kvs;
use super::mapping::mapping;
use super::meeting::{Meeting, Met};
use super::wire::{KVSNAME_MAX, Reader, Reply, Said, Spawn};
use phalanx_api::run::PROGRAMS_MAX;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Under this key MPICH looks for who shares a node.
const MAPPING: &str = "PMI_process_mapping";

/// What must be known of the attempt. All ranks of the job, not only those here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// A name that no other attempt of any job has.
    pub name: String,
    /// How many ranks the job has.
    pub size: u32,
    /// Ranks of each node, as ranges from..to, in the order of nodes.
    pub nodes: Vec<Vec<(u32, u32)>>,
    /// How many ranks each program has, in the order of ranks.
    pub programs: Vec<u32>,
    /// How many ranks there could be.
    pub universe: u32,
    /// What is in the key-value space from the beginning, for all alike.
    pub puts: Vec<(String, String)>,
}

/// What a rank wants that its shepherd cannot do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "errand", rename_all = "lowercase")]
pub enum Errand {
    /// Others are to find this port by that name.
    Publish {
        /// The name.
        service: String,
        /// The port.
        port: String,
    },
    /// Which port has that name?
    Lookup {
        /// The name.
        service: String,
    },
    /// Nobody is to find it any more.
    Unpublish {
        /// The name.
        service: String,
    },
    /// More ranks are wanted, of these programs.
    Spawn {
        /// All of one call.
        programs: Vec<Spawn>,
    },
}

/// What became of an errand.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
    /// It was done.
    Done,
    /// The port of that name.
    Port {
        /// None when there is none.
        port: Option<String>,
    },
    /// It was not done.
    Refused {
        /// Why.
        why: String,
    },
}

/// What a server decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Write this to the rank's socket.
    Say {
        /// Whose.
        rank: u32,
        /// The lines.
        bytes: Vec<u8>,
    },
    /// Gather this over the nodes of the job, and say what all gave.
    Gather {
        /// The value of this node.
        value: Vec<u8>,
    },
    /// The rank wants the job to end.
    Abort {
        /// Which.
        rank: u32,
        /// With this status.
        status: i32,
    },
    /// Close its socket.
    HangUp {
        /// Whose.
        rank: u32,
        /// Why, when it makes no sense.
        why: String,
    },
    /// Do this for it, and say what became of it.
    Ask {
        /// For whom.
        rank: u32,
        /// What.
        errand: Errand,
    },
}

/// How far a rank has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It has said nothing.
    Silent,
    /// It speaks MPI.
    Talking,
    /// It is in a barrier.
    Waiting,
    /// It speaks no more, and may end.
    Finalised,
    /// It made no sense.
    Unheard,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Client {
    reader: Reader,
    stage: Stage,
    /// Programs of a call that is not complete.
    spawns: Vec<Spawn>,
    /// What it waits for.
    errand: Option<Errand>,
}

/// The server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pmi {
    setting: Setting,
    mapping: Option<String>,
    kvs: Kvs,
    clients: BTreeMap<u32, Client>,
    meeting: Option<Meeting>,
    /// Barriers of all that are over.
    seen: u64,
}

impl Pmi {
    /// Nobody sits here yet.
    pub fn new(setting: Setting) -> Self {
        let mut setting = setting;
        setting.name.retain(|c| c.is_ascii_graphic());
        setting.name.truncate(KVSNAME_MAX);
        let mapping = mapping(&setting.nodes);
        Self { setting, mapping, kvs: Kvs::default(), clients: BTreeMap::new(), meeting: None, seen: 0 }
    }

    /// A rank is about to be started, again perhaps: it has said nothing yet.
    pub fn sit(&mut self, rank: u32) {
        let client = Client { reader: Reader::default(), stage: Stage::Silent, spawns: Vec::new(), errand: None };
        self.clients.insert(rank, client);
    }

    /// What a rank wrote: any piece of its lines.
    pub fn on_bytes(&mut self, rank: u32, bytes: &[u8], out: &mut Vec<Output>) {
        let Some(client) = self.clients.get_mut(&rank).filter(|c| c.stage != Stage::Unheard) else { return };
        let mut said = Vec::new();
        let read = client.reader.read(bytes, &mut said);
        for said in said {
            self.on_said(rank, said, out);
        }
        if let Err(nonsense) = read {
            self.hang_up(rank, nonsense.to_string(), out);
        }
    }

    fn hang_up(&mut self, rank: u32, why: String, out: &mut Vec<Output>) {
        if let Some(client) = self.clients.get_mut(&rank) {
            client.stage = Stage::Unheard;
        }
        out.push(Output::HangUp { rank, why });
        self.meet(out);
    }

    fn on_said(&mut self, rank: u32, said: Said, out: &mut Vec<Output>) {
        let Some(client) = self.clients.get_mut(&rank) else { return };
        let reply = match said {
            Said::Initack { rank: says } if says == rank => Reply::Welcome { size: self.setting.size, rank },
            Said::Initack { rank: says } => {
                return self.hang_up(rank, format!("it says that it is rank {says}"), out);
            }
            Said::Init { version } => {
                client.stage = Stage::Talking;
                Reply::Init { fits: version == 1 }
            }
            Said::Maxes => Reply::Maxes,
            Said::Appnum => Reply::Appnum(appnum(&self.setting.programs, rank)),
            Said::KvsName => Reply::KvsName(self.setting.name.clone()),
            Said::Universe => Reply::Universe(self.setting.universe),
            Said::Put { kvsname, key, value } if kvsname == self.setting.name => Reply::Put(self.kvs.put(key, value)),
            Said::Put { .. } => Reply::Put(Err("there is no such key-value space")),
            Said::Get { kvsname, key } => Reply::Got(self.value(&kvsname, &key)),
            Said::Barrier => {
                client.stage = Stage::Waiting;
                return self.meet(out);
            }
            Said::Publish { service, port } => return self.ask(rank, Errand::Publish { service, port }, out),
            Said::Lookup { service } => return self.ask(rank, Errand::Lookup { service }, out),
            Said::Unpublish { service } => return self.ask(rank, Errand::Unpublish { service }, out),
            Said::Spawn(spawn) => match add(&mut client.spawns, spawn) {
                Some(Ok(programs)) => return self.ask(rank, Errand::Spawn { programs }, out),
                Some(Err(why)) => Reply::Spawned(Err(why.to_owned())),
                None => return,
            },
            Said::Finalize => {
                client.stage = Stage::Finalised;
                out.push(say(rank, &Reply::Finalize));
                return self.meet(out);
            }
            Said::Abort { status } => return out.push(Output::Abort { rank, status }),
        };
        out.push(say(rank, &reply));
    }

    fn value(&self, kvsname: &str, key: &str) -> Option<String> {
        if kvsname != self.setting.name {
            return None;
        }
        let put = self.kvs.value(key).map(str::to_owned);
        let early = || self.setting.puts.iter().find(|(k, _)| k == key).map(|(_, value)| value.clone());
        put.or_else(early).or_else(|| self.mapping.clone().filter(|_| key == MAPPING))
    }

    fn ask(&mut self, rank: u32, errand: Errand, out: &mut Vec<Output>) {
        if let Some(client) = self.clients.get_mut(&rank) {
            client.errand = Some(errand.clone());
            out.push(Output::Ask { rank, errand });
        }
    }

    /// What became of the errand of a rank.
    pub fn on_answer(&mut self, rank: u32, answer: Answer, out: &mut Vec<Output>) {
        let Some(errand) = self.clients.get_mut(&rank).and_then(|c| c.errand.take()) else { return };
        let (port, done) = match answer {
            Answer::Done => (None, Ok(())),
            Answer::Port { port } => (port, Ok(())),
            Answer::Refused { why } => (None, Err(why)),
        };
        let reply = match errand {
            Errand::Publish { .. } => Reply::Published(done),
            Errand::Lookup { .. } => Reply::Found(port),
            Errand::Unpublish { .. } => Reply::Unpublished(done),
            Errand::Spawn { .. } => Reply::Spawned(done),
        };
        out.push(say(rank, &reply));
    }

    /// The process of a rank is gone. True when it spoke MPI and had not finalised.
    pub fn on_gone(&mut self, rank: u32, out: &mut Vec<Output>) -> bool {
        let Some(client) = self.clients.remove(&rank) else { return false };
        if let Some(meeting) = &mut self.meeting {
            meeting.waiting.remove(&rank);
        }
        self.meet(out);
        matches!(client.stage, Stage::Talking | Stage::Waiting | Stage::Unheard)
    }

    /// Begins a barrier of all when all ranks here have come.
    fn meet(&mut self, out: &mut Vec<Output>) {
        let may_come = |c: &&Client| matches!(c.stage, Stage::Silent | Stage::Talking);
        if self.meeting.is_some() || self.clients.values().any(|c| may_come(&c)) {
            return;
        }
        let waiting = self.clients.iter().filter(|(_, c)| c.stage == Stage::Waiting).map(|(&rank, _)| rank);
        let waiting: std::collections::BTreeSet<u32> = waiting.collect();
        let Some(&lowest) = waiting.first() else { return };
        let nodes = self.setting.nodes.iter().filter(|n| !n.is_empty()).count();
        let mut meeting = Meeting::new(lowest, waiting, self.seen, self.kvs.take_fresh(), nodes);
        out.push(Output::Gather { value: meeting.value() });
        self.meeting = Some(meeting);
    }

    /// A gather to which we gave is over.
    pub fn on_gathered(&mut self, met: Met<'_>, out: &mut Vec<Output>) {
        let Some(meeting) = &mut self.meeting else { return };
        if !meeting.on_met(met, &self.kvs) {
            return out.push(Output::Gather { value: meeting.value() });
        }
        let Some(meeting) = self.meeting.take() else { return };
        let released = meeting.waiting.clone();
        self.seen = meeting.end(&mut self.kvs);
        for rank in released {
            if let Some(client) = self.clients.get_mut(&rank).filter(|c| c.stage == Stage::Waiting) {
                client.stage = Stage::Talking;
                out.push(say(rank, &Reply::Barrier));
            }
        }
        self.meet(out);
    }

    /// The gather to which we gave last came to nothing, because this node was not in the view; now it is.
    pub fn gather_again(&mut self, out: &mut Vec<Output>) {
        // Nobody here waits for that one any more: who comes now comes to the next.
        self.meeting.take_if(|m| m.waiting.is_empty());
        match &mut self.meeting {
            Some(meeting) => out.push(Output::Gather { value: meeting.value() }),
            None => self.meet(out),
        }
    }
}

fn say(rank: u32, reply: &Reply) -> Output {
    Output::Say { rank, bytes: reply.lines().into_bytes() }
}

/// Which program a rank runs.
fn appnum(programs: &[u32], rank: u32) -> u32 {
    let mut from = 0;
    let runs = |&ranks: &u32| {
        from += ranks;
        rank < from
    };
    programs.iter().position(runs).unwrap_or_default() as u32
}

/// One more program of a call; all of them when it was the last.
fn add(spawns: &mut Vec<Spawn>, spawn: Spawn) -> Option<Result<Vec<Spawn>, &'static str>> {
    let Spawn { of, nth, .. } = spawn;
    if of as usize > PROGRAMS_MAX || nth as usize != spawns.len() + 1 {
        spawns.clear();
        return (nth == of).then_some(Err("too many programs at once, or not in order"));
    }
    spawns.push(spawn);
    (nth == of).then(|| Ok(std::mem::take(spawns)))
}

#[cfg(test)]
mod tests;
