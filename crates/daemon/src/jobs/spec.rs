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

/// The bytes of these programs.
///
/// # Errors
/// How long they are, when that is more than [`SPEC_MAX`].
pub fn encode(programs: &[Program]) -> Result<Vec<u8>, usize> {
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
    let bytes = serde_json::to_vec(&Spec { env, programs }).unwrap_or_default();
    if bytes.len() > SPEC_MAX { Err(bytes.len()) } else { Ok(bytes) }
}

/// The programs of these bytes.
///
/// # Errors
/// When they are none.
pub fn decode(bytes: &[u8]) -> Result<Vec<Program>, serde_json::Error> {
    let Spec { env, programs } = serde_json::from_slice(bytes)?;
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
    Ok(programs.into_iter().map(program).collect())
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
        assert_eq!(decode(&encode(&programs).unwrap()).unwrap(), programs);
        assert!(decode(b"{").is_err());
        assert_eq!(decode(&encode(&[]).unwrap()).unwrap(), []);
    }

    #[test]
    fn an_environment_is_written_once_and_too_much_of_it_is_refused() {
        let long = "x".repeat(10_000);
        let many: Vec<Program> = (0..64).map(|_| program("solve", &[("LONG", &long)])).collect();
        assert!(encode(&many).unwrap().len() < 20_000);
        let longer = "x".repeat(SPEC_MAX);
        assert!(encode(&[program("solve", &[("LONG", &longer)])]).is_err_and(|length| length > SPEC_MAX));
    }
}
