//! `keys`: the cluster's keys, while it runs.

use crate::ask::{Common, Output, failed, print_json, print_table};
use phalanx_client::Error;
use phalanx_client::api::State;
use phalanx_client::api::operate::{KeyChange, KeyInfo, KeyRing};
use phalanx_client::blocking::Client;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long all members may take to have a new key.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// The cluster's keys: who has which, and another one
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Keys,
}

#[derive(clap::Subcommand)]
enum Keys {
    /// Lists the keys, and says whether all members have them
    Ls,
    /// Draws a key, gives it to all members, and seals with it once all have it; the old one still opens, so that who is down
    /// now can come back
    Rotate,
    /// Adds a key that opens and does not seal yet: a drawn one, or that in a file
    Add {
        /// 64 hexadecimal digits
        #[arg(long, value_name = "FILE")]
        key_file: Option<std::path::PathBuf>,
    },
    /// Seals with a key that is there
    Use {
        /// Its number
        id: u8,
    },
    /// Removes a key: who has no other one stays outside
    Rm {
        /// Its number
        id: u8,
    },
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let client = args.common.client();
    let done = match &args.command {
        Keys::Ls => list(&client, args.common.output),
        Keys::Rotate => rotate(&client),
        Keys::Add { key_file } => {
            let read = |path: &std::path::PathBuf| {
                std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
            };
            let key = key_file.as_ref().map(read).transpose()?.map(|text| text.trim().to_owned());
            change(&client, &KeyChange::Add { key })
        }
        Keys::Use { id } => change(&client, &KeyChange::Use { id: *id }),
        Keys::Rm { id } => change(&client, &KeyChange::Remove { id: *id }),
    };
    Ok(done.unwrap_or_else(|e| failed(&e)))
}

fn list(client: &Client, output: Output) -> Result<ExitCode, Error> {
    let (own, all) = (client.keys()?, client.all_keys()?);
    if output == Output::Json {
        print_json(&all);
        return Ok(if others(&all, &own).is_empty() { ExitCode::SUCCESS } else { crate::EXIT_NOTHING.into() });
    }
    let seals = |k: &KeyInfo| if k.seals { "seals" } else { "opens" }.to_owned();
    let have = |k: &KeyInfo| all.values().filter(|r| r.keys.iter().any(|o| o.fingerprint == k.fingerprint)).count();
    let row = |k: &KeyInfo| [k.id.to_string(), k.fingerprint.clone(), seals(k), format!("{}/{}", have(k), all.len())];
    print_table(["KEY", "FINGERPRINT", "USE", "MEMBERS"], own.keys.iter().map(row));
    let lagging = others(&all, &own);
    if lagging.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("phalanx: these have other keys: {}", lagging.join(", "));
    Ok(crate::EXIT_NOTHING.into())
}

fn change(client: &Client, change: &KeyChange) -> Result<ExitCode, Error> {
    let ring = client.change_keys(change)?;
    Ok(spread(client, &ring)?.err().unwrap_or(ExitCode::SUCCESS))
}

fn rotate(client: &Client) -> Result<ExitCode, Error> {
    let added = client.change_keys(&KeyChange::Add { key: None })?;
    let Some(new) = added.keys.last().map(|k| k.id) else { return Ok(crate::EXIT_ERROR.into()) };
    if let Err(code) = spread(client, &added)? {
        eprintln!("phalanx: key {new} is not used yet: `phalanx keys use {new}` once all have it");
        return Ok(code);
    }
    let old = added.keys.first().map_or(0, |k| k.id);
    let used = client.change_keys(&KeyChange::Use { id: new })?;
    if let Err(code) = spread(client, &used)? {
        return Ok(code);
    }
    println!("key {new} seals now, at all members of this zone; key {old} still opens");
    println!("who joins from now on needs the new key: it is in the file `keys` of each node's data_dir");
    let away: Vec<String> =
        client.members()?.into_iter().filter(|m| m.state == State::Failed).map(|m| m.name).collect();
    if !away.is_empty() {
        println!("down, and given the new key when they are back: {}", away.join(", "));
    }
    println!("when all have been there, remove the old one: phalanx keys rm {old}");
    Ok(ExitCode::SUCCESS)
}

/// Waits until all members that are there have these keys; says with which exit code to end when they do not.
fn spread(client: &Client, wanted: &KeyRing) -> Result<Result<(), ExitCode>, Error> {
    let began = Instant::now();
    loop {
        let all = client.all_keys()?;
        let alive = client.members()?.iter().filter(|m| m.state == State::Alive).count();
        let others = others(&all, wanted);
        if others.is_empty() && all.len() >= alive {
            return Ok(Ok(()));
        }
        if all.values().any(|ring| ring.epoch >= wanted.epoch && ring != wanted) {
            eprintln!(
                "phalanx: somebody else changed the keys at the same time: look at them (`phalanx keys ls`) and try again"
            );
            return Ok(Err(crate::EXIT_ERROR.into()));
        }
        if began.elapsed() > PATIENCE {
            let silent = alive.saturating_sub(all.len());
            eprintln!("phalanx: not all have the keys: {silent} do not answer, old keys at {}", others.join(", "));
            return Ok(Err(crate::EXIT_TIMEOUT.into()));
        }
        std::thread::sleep(LOOK);
    }
}

/// Members whose keys are not these.
fn others(all: &BTreeMap<String, KeyRing>, wanted: &KeyRing) -> Vec<String> {
    all.iter().filter(|(_, ring)| *ring != wanted).map(|(name, _)| name.clone()).collect()
}
