//! The lines of PMI-1: how an MPI library asks whoever started it.
//!
//! ```text
//! cmd=put kvsname=12.0@c key=-bcast-1-0 value=2F64…\n      one line, words `key=value` between spaces
//! mcmd=spawn\nnprocs=2\nexecname=./a\n…endcmd\n            a block, one `key=value` a line
//! ```
//! There is no standard: this is what the clients of MPICH 3 to 5 write and read, as its own launcher hears it. A value that
//! stands last takes the rest of its line, spaces and all.
//!
//! The other side is a program of whoever: what is too long or makes no sense ends the connection with a reason for people, and nothing else.

use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The longest line: the longest name, key and value that clients are told of take 1,400 bytes.
pub(super) const LINE_MAX: usize = 8 << 10;
/// The longest block of lines.
pub(super) const BLOCK_MAX: usize = 256 << 10;
/// The longest name of a key-value space. These three are told to clients.
pub(super) const KVSNAME_MAX: usize = 256;
/// The longest key.
pub(super) const KEY_MAX: usize = 64;
/// The longest value; the client of MPICH has a line of so many bytes for the whole answer.
pub(super) const VALUE_MAX: usize = 1024;

/// What a rank says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Said {
    /// Over a connection that it made itself: it is this rank.
    Initack {
        /// Which.
        rank: u32,
    },
    /// The first thing said over an inherited socket.
    Init {
        /// The version of PMI that it speaks.
        version: u32,
    },
    /// How long may names, keys and values be?
    Maxes,
    /// Which of the job's programs am I?
    Appnum,
    /// What is our key-value space called?
    KvsName,
    /// How many ranks could there be?
    Universe,
    /// For all to know after the next barrier.
    Put {
        /// In which space.
        kvsname: String,
        /// Under which key.
        key: String,
        /// It.
        value: String,
    },
    /// What did somebody put?
    Get {
        /// In which space.
        kvsname: String,
        /// Under which key.
        key: String,
    },
    /// It waits for all others.
    Barrier,
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
    /// More ranks are wanted.
    Spawn(Spawn),
    /// It will say nothing more.
    Finalize,
    /// The whole job is to end.
    Abort {
        /// With this status.
        status: i32,
    },
}

/// Ranks that a rank wants to be started: one program of a call that may name several.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Spawn {
    /// How many.
    pub ranks: u32,
    /// What they run.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// How many programs the call names, …
    pub of: u32,
    /// … and which of them this is, from 1.
    pub nth: u32,
    /// Hints: `wdir`, `host` and so on.
    pub hints: Vec<(String, String)>,
    /// What their key-value space has from the beginning.
    pub puts: Vec<(String, String)>,
}

/// Why a connection ends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum Nonsense {
    /// A line or block without end.
    #[error("it sent {0} bytes of PMI without an end")]
    TooLong(usize),
    /// Not a text.
    #[error("what it sent as PMI is no text")]
    NotText,
    /// A command that there is not, or not with these words.
    #[error("it sent `{0}`, which PMI-1 does not know: is the MPI library one that starts under MPICH's launcher?")]
    Unknown(String),
}

/// What is shown of a line that makes no sense.
const SHOWN: usize = 80;

impl Nonsense {
    fn of(text: &str) -> Self {
        Self::Unknown(text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect())
    }
}

/// Bytes as they come, cut into what was said.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Reader {
    unread: Vec<u8>,
}

impl Reader {
    /// More bytes came: adds what was said with them.
    ///
    /// # Errors
    /// See [`Nonsense`]; what was said before it was added.
    pub(super) fn read(&mut self, bytes: &[u8], said: &mut Vec<Said>) -> Result<(), Nonsense> {
        self.unread.extend_from_slice(bytes);
        let mut begin = 0;
        while let Some(length) = whole(&self.unread[begin..])? {
            let text = std::str::from_utf8(&self.unread[begin..begin + length]).map_err(|_| Nonsense::NotText)?;
            begin += length;
            if !text.trim().is_empty() {
                said.push(parse(text).ok_or_else(|| Nonsense::of(text))?);
            }
        }
        self.unread.drain(..begin);
        Ok(())
    }
}

const BLOCK: &[u8] = b"mcmd=";
const BLOCK_END: &[u8] = b"\nendcmd\n";

/// How many bytes of these are the first line or block, when all of it is there.
fn whole(bytes: &[u8]) -> Result<Option<usize>, Nonsense> {
    let is_block = bytes.starts_with(BLOCK);
    let (end, most) = match is_block {
        true => (bytes.windows(BLOCK_END.len()).position(|w| w == BLOCK_END).map(|at| at + BLOCK_END.len()), BLOCK_MAX),
        false => (bytes.iter().position(|&b| b == b'\n').map(|at| at + 1), LINE_MAX),
    };
    match end.unwrap_or(bytes.len()) {
        length if length > most => Err(Nonsense::TooLong(length)),
        _ => Ok(end),
    }
}

/// What follows `key=`, to the next space; to the end where it `is_last`.
fn word<'l>(line: &'l str, key: &str, is_last: bool) -> Option<&'l str> {
    let begins = |&(at, _): &(usize, &str)| at == 0 || line[..at].ends_with(' ');
    let found = line.match_indices(key).filter(begins);
    let mut values = found.filter_map(|(at, _)| line[at + key.len()..].strip_prefix('='));
    let value = values.next()?;
    Some(if is_last { value } else { value.split(' ').next().unwrap_or_default() })
}

fn parse(text: &str) -> Option<Said> {
    if let Some(block) = text.strip_prefix("mcmd=spawn\n") {
        return spawn(block).map(Said::Spawn);
    }
    let line = text.trim_end_matches(['\n', '\r']);
    let own = |key| word(line, key, false).map(str::to_owned);
    let last = |key| word(line, key, true).map(str::to_owned);
    Some(match word(line, "cmd", false)? {
        "initack" => Said::Initack { rank: own("pmiid")?.parse().ok()? },
        "init" => Said::Init { version: own("pmi_version")?.parse().ok()? },
        "get_maxes" => Said::Maxes,
        "get_appnum" => Said::Appnum,
        "get_my_kvsname" => Said::KvsName,
        "get_universe_size" => Said::Universe,
        "put" => Said::Put { kvsname: own("kvsname")?, key: own("key")?, value: last("value")? },
        "get" => Said::Get { kvsname: own("kvsname")?, key: own("key")? },
        "barrier_in" => Said::Barrier,
        "publish_name" => {
            let (service, port) = last("service")?.rsplit_once(" port=").map(|(s, p)| (s.to_owned(), p.to_owned()))?;
            Said::Publish { service, port }
        }
        "lookup_name" => Said::Lookup { service: last("service")? },
        "unpublish_name" => Said::Unpublish { service: last("service")? },
        "finalize" => Said::Finalize,
        "abort" => Said::Abort { status: own("exitcode").and_then(|e| e.parse().ok()).unwrap_or(1) },
        _ => return None,
    })
}

fn spawn(block: &str) -> Option<Spawn> {
    let (mut spawn, mut keys) = (Spawn { of: 1, nth: 1, ..Spawn::default() }, Vec::new());
    for line in block.lines().take_while(|&l| l != "endcmd") {
        let (name, value) = line.split_once('=')?;
        let text = value.to_owned();
        match name {
            "nprocs" => spawn.ranks = value.parse().ok()?,
            "execname" => spawn.program = text,
            "totspawns" => spawn.of = value.parse().ok()?,
            "spawnssofar" => spawn.nth = value.parse().ok()?,
            _ if name.starts_with("arg") && name != "argcnt" => spawn.args.push(text),
            _ if name.starts_with("info_key_") || name.starts_with("preput_key_") => keys.push(text),
            _ if name.starts_with("info_val_") => spawn.hints.push((keys.pop()?, text)),
            _ if name.starts_with("preput_val_") => spawn.puts.push((keys.pop()?, text)),
            // Counts of what follows.
            _ => {}
        }
    }
    let makes_sense = spawn.ranks > 0 && !spawn.program.is_empty() && (1..=spawn.of).contains(&spawn.nth);
    makes_sense.then_some(spawn)
}

/// What a rank is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// After an `initack`: who it is.
    Welcome {
        /// How many ranks there are.
        size: u32,
        /// Which it is.
        rank: u32,
    },
    /// We speak its version of PMI, or we do not.
    Init {
        /// We do.
        fits: bool,
    },
    /// The longest names, keys and values.
    Maxes,
    /// Which program.
    Appnum(u32),
    /// What the space is called.
    KvsName(String),
    /// How many ranks there could be.
    Universe(u32),
    /// It was put, or why not.
    Put(Result<(), &'static str>),
    /// What was put.
    Got(Option<String>),
    /// All have come.
    Barrier,
    /// It can be found, or why not.
    Published(Result<(), String>),
    /// The port of that name.
    Found(Option<String>),
    /// It cannot be found any more, or why there was nothing to be found.
    Unpublished(Result<(), String>),
    /// They run, or why not.
    Spawned(Result<(), String>),
    /// Nothing more is to come.
    Finalize,
}

impl Reply {
    /// The line or lines.
    #[must_use]
    pub(super) fn lines(&self) -> String {
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut line);
        line.push('\n');
        line
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        match self {
            Self::Welcome { size, rank } => {
                write!(out, "cmd=initack rc=0\ncmd=set size={size}\ncmd=set rank={rank}\ncmd=set debug=0")
            }
            Self::Init { fits } => {
                write!(out, "cmd=response_to_init rc={} pmi_version=1 pmi_subversion=1", if *fits { 0 } else { -1 })
            }
            Self::Maxes => {
                write!(out, "cmd=maxes rc=0 kvsname_max={KVSNAME_MAX} keylen_max={KEY_MAX} vallen_max={VALUE_MAX}")
            }
            Self::Appnum(program) => write!(out, "cmd=appnum rc=0 appnum={program}"),
            Self::KvsName(name) => write!(out, "cmd=my_kvsname rc=0 kvsname={name}"),
            Self::Universe(size) => write!(out, "cmd=universe_size rc=0 size={size}"),
            Self::Put(Ok(())) => write!(out, "cmd=put_result rc=0 msg=success"),
            Self::Put(Err(why)) => write!(out, "cmd=put_result rc=-1 msg={}", one_word(why)),
            Self::Got(Some(value)) => write!(out, "cmd=get_result rc=0 msg=success value={value}"),
            Self::Got(None) => write!(out, "cmd=get_result rc=-1 msg=key_not_found value=unknown"),
            Self::Barrier => write!(out, "cmd=barrier_out rc=0 msg=success"),
            Self::Published(said) => named(out, "publish_result", said),
            Self::Found(Some(port)) => write!(out, "cmd=lookup_result rc=0 info=ok msg=success port={port}"),
            Self::Found(None) => write!(out, "cmd=lookup_result rc=1 info=service_not_found msg=service_not_found"),
            Self::Unpublished(said) => named(out, "unpublish_result", said),
            Self::Spawned(Ok(())) => write!(out, "cmd=spawn_result rc=0"),
            Self::Spawned(Err(why)) => write!(out, "cmd=spawn_result rc=1 msg={}", one_word(why)),
            Self::Finalize => write!(out, "cmd=finalize_ack rc=0 msg=success"),
        }
    }
}

fn named(out: &mut String, reply: &str, said: &Result<(), String>) -> std::fmt::Result {
    match said {
        Ok(()) => write!(out, "cmd={reply} rc=0 info=ok msg=success"),
        Err(why) => write!(out, "cmd={reply} rc=1 info={0} msg={0}", one_word(why)),
    }
}

/// Clients take a reason to its first space.
fn one_word(why: &str) -> String {
    why.split_whitespace().collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests;
