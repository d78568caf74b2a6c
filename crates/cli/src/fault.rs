//! `fault`: the fault injector of a running daemon.

use crate::ask::{Common, Output, failed, print_json, print_table, told};
use phalanx_client::api::operate::Fault;
use std::process::ExitCode;

/// Injects faults into a daemon's traffic, to see what happens
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Injects a fault until it is healed: KEY=VALUE words of docs/faults.md, such as kind=drop p=0.4 only=n3
    Inject {
        /// The rule's words
        #[arg(required_unless_present = "file", value_name = "KEY=VALUE")]
        words: Vec<String>,
        /// A TOML file with the rule instead
        #[arg(long, value_name = "FILE", conflicts_with = "words")]
        file: Option<std::path::PathBuf>,
    },
    /// Lists the faults that are injected
    Ls,
    /// Heals faults
    Heal {
        /// Only this one
        id: Option<u32>,
    },
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let client = args.common.client();
    Ok(match &args.command {
        Command::Inject { words, file } => {
            let rule = match file {
                Some(path) => {
                    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?
                }
                None => rule(words)?,
            };
            told(client.inject(&rule), |fault| print(args, &[fault]))
        }
        Command::Ls => told(client.faults(), |faults| print(args, &faults)),
        Command::Heal { id } => match client.heal(*id) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => failed(&e),
        },
    })
}

fn print(args: &Args, faults: &[Fault]) {
    match args.common.output {
        Output::Json => print_json(&faults),
        Output::Table => {
            let row = |f: &Fault| [f.id.to_string(), f.hits.to_string(), f.rule.clone()];
            print_table(["ID", "HITS", "RULE"], faults.iter().map(row));
        }
    }
}

/// Words as TOML: what is no number, list or table is a text; `only` is a list of names.
fn rule(words: &[String]) -> Result<String, String> {
    let mut rule = String::new();
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            return Err(format!("`{word}` is no KEY=VALUE"));
        };
        let plain =
            value.parse::<f64>().is_ok() || value.starts_with(['[', '{', '"']) || matches!(value, "true" | "false");
        let value = match key {
            "only" if !value.starts_with('[') => {
                let names: Vec<String> = value.split(',').map(|n| format!("{n:?}")).collect();
                format!("[{}]", names.join(", "))
            }
            _ if plain => value.to_owned(),
            _ => format!("{value:?}"),
        };
        rule.push_str(&format!("{key} = {value}\n"));
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<String, String> {
        rule(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn words_become_toml() {
        assert_eq!(words("kind=drop p=0.4 only=n3,n4").unwrap(), "kind = \"drop\"\np = 0.4\nonly = [\"n3\", \"n4\"]\n");
        let delay = words("kind=delay delay=5ms every={exponential={mean=3}}").unwrap();
        assert!(toml::from_str::<toml::Table>(&delay).is_ok(), "{delay}");
        assert!(words("drop").is_err());
    }
}
