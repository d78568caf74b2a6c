//! What a job runs, on its way through the manager: as small as it can be, since each replica keeps it.
//!
//! Programs of one job mostly share their environment, so it is written once, and for each program what differs.

use phalanx_api::run::Program;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The longest spec: what asks for a job must fit into one message of the order.
pub const SPEC_MAX: usize = 40 * 1024;

#[derive(Serialize, Deserialize)]
struct Spec {
    /// The environment of the first program.
    env: BTreeMap<String, String>,
    programs: Vec<Part>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    puts: Vec<(String, String)>,
}

/// What a job runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Runs {
    /// Its programs, ranks in this order.
    pub programs: Vec<Program>,
    /// What its ranks find in their key-value space from the beginning: who spawned them.
    pub puts: Vec<(String, String)>,
}

#[derive(Serialize, Deserialize)]
struct Part {
    argv: Vec<String>,
    ranks: u32,
    wdir: String,
    /// Variables that it has otherwise than the first; none for those that it has not.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    differs: BTreeMap<String, Option<String>>,
}

/// The bytes of what a job runs.
///
/// # Errors
/// How long they are, when that is more than [`SPEC_MAX`].
pub fn encode(Runs { programs, puts }: &Runs) -> Result<Vec<u8>, usize> {
    let map = |p: &Program| p.env.iter().cloned().collect::<BTreeMap<_, _>>();
    let env = programs.first().map(map).unwrap_or_default();
    let part = |p: &Program| {
        let own = map(p);
        let gone = env.keys().filter(|k| !own.contains_key(*k)).map(|k| (k.clone(), None));
        let other = own.iter().filter(|(k, v)| env.get(*k) != Some(v)).map(|(k, v)| (k.clone(), Some(v.clone())));
        let differs = gone.chain(other).collect();
        Part { argv: p.argv.clone(), ranks: p.ranks, wdir: p.wdir.clone(), differs }
    };
    let programs = programs.iter().map(part).collect();
    // Texts and numbers: nothing of it could not be written.
    let bytes = serde_json::to_vec(&Spec { env, programs, puts: puts.clone() }).unwrap_or_default();
    if bytes.len() > SPEC_MAX { Err(bytes.len()) } else { Ok(bytes) }
}

/// What these bytes say is to be run.
///
/// # Errors
/// When they say nothing.
pub fn decode(bytes: &[u8]) -> Result<Runs, serde_json::Error> {
    let Spec { env, programs, puts } = serde_json::from_slice(bytes)?;
    let program = |part: Part| {
        let mut own = env.clone();
        for (key, value) in part.differs {
            match value {
                Some(value) => _ = own.insert(key, value),
                None => _ = own.remove(&key),
            }
        }
        Program { argv: part.argv, ranks: part.ranks, env: own.into_iter().collect(), wdir: part.wdir }
    };
    Ok(Runs { programs: programs.into_iter().map(program).collect(), puts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, env: &[(&str, &str)]) -> Program {
        let env = env.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        Program { argv: vec![name.to_owned()], ranks: 2, env, wdir: "/tmp".to_owned() }
    }

    #[test]
    fn programs_are_read_as_they_were_written() {
        let programs = [
            program("solve", &[("A", "1"), ("B", "2")]),
            program("watch", &[("B", "3"), ("C", "")]),
            program("third", &[("A", "1"), ("B", "2")]),
        ];
        let puts = vec![("PARENT_ROOT_PORT_NAME".to_owned(), "tag#0$".to_owned())];
        for runs in [Runs { programs: programs.to_vec(), puts }, Runs::default()] {
            assert_eq!(decode(&encode(&runs).unwrap()).unwrap(), runs);
        }
        assert!(decode(b"{").is_err());
    }

    #[test]
    fn an_environment_is_written_once_and_too_much_of_it_is_refused() {
        let long = "x".repeat(10_000);
        let runs = |programs| Runs { programs, puts: Vec::new() };
        let many: Vec<Program> = (0..64).map(|_| program("solve", &[("LONG", &long)])).collect();
        assert!(encode(&runs(many)).unwrap().len() < 20_000);
        let longer = runs(vec![program("solve", &[("LONG", &"x".repeat(SPEC_MAX))])]);
        assert!(encode(&longer).is_err_and(|length| length > SPEC_MAX));
    }
}
