//! `zones`, `segments`, `federation`, `census`, `tree`: the cluster as a whole.

use crate::ask::{Common, Output, print_json, print_table, told};
use phalanx_client::Error;
use phalanx_client::api::zones::{Census, Zone};
use phalanx_client::api::{Member, State};
use phalanx_client::blocking::Client;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// The attribute of members that speak for their zone.
const DELEGATE: &str = "phalanx.monitor";

/// All zones, and how many members each has
#[derive(clap::Args)]
pub(crate) struct ZonesArgs {
    #[command(flatten)]
    common: Common,
}

/// The groups of the network that the node is in, from its own segment up
#[derive(clap::Args)]
pub(crate) struct SegmentsArgs {
    #[command(flatten)]
    common: Common,
}

/// What the node knows of other data centres
#[derive(clap::Args)]
pub(crate) struct FederationArgs {
    #[command(flatten)]
    common: Common,
}

/// How many zones and members there are
#[derive(clap::Args)]
pub(crate) struct CensusArgs {
    #[command(flatten)]
    common: Common,
}

/// The cluster drawn as a tree, or the tasks of a job; who is gone is marked with a cross
#[derive(clap::Args)]
pub(crate) struct TreeArgs {
    /// A job
    job: Option<String>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn zones(args: &ZonesArgs) -> ExitCode {
    told(args.common.client().zones(), |zones| match args.common.output {
        Output::Json => print_json(&zones),
        Output::Table => print_table(
            ["ZONE", "MEMBERS", "DELEGATES"],
            zones.iter().map(|z| [title(z), z.members.to_string(), z.delegates.to_string()]),
        ),
    })
}

fn title(zone: &Zone) -> String {
    let name = if zone.name.is_empty() { "-" } else { &zone.name };
    if zone.mine { format!("{name} *") } else { name.to_owned() }
}

pub(crate) fn segments(args: &SegmentsArgs) -> ExitCode {
    let or_none = |name: Option<String>| name.unwrap_or_else(|| "-".to_owned());
    told(args.common.client().segments(), |levels| match args.common.output {
        Output::Json => print_json(&levels),
        Output::Table => print_table(
            ["LEVEL", "TTL", "LEADER", "BACKUP", "MEMBERS"],
            levels.into_iter().map(|l| {
                [l.level.to_string(), l.ttl.to_string(), or_none(l.leader), or_none(l.backup), l.members.join(",")]
            }),
        ),
    })
}

pub(crate) fn federation(args: &FederationArgs) -> ExitCode {
    told(args.common.client().federation(), |federation| match args.common.output {
        Output::Json => print_json(&federation),
        Output::Table => print_table(
            ["CENTRE", "REACH", "HEARD", "MEMBERS", "SERVICES"],
            federation.centres.into_iter().map(|c| {
                let heard = c.age_ms.map_or_else(|| "-".to_owned(), |ms| format!("{:.1} s ago", ms as f64 / 1e3));
                let mut services: Vec<String> =
                    c.services.iter().map(|(name, count)| format!("{name}:{count}")).collect();
                services.extend((c.more > 0).then(|| format!("and {} more", c.more)));
                [c.name, c.reach.name().to_owned(), heard, c.members.to_string(), services.join(",")]
            }),
        ),
    })
}

pub(crate) fn census(args: &CensusArgs) -> ExitCode {
    told(args.common.client().census(), |census| match args.common.output {
        Output::Json => print_json(&census),
        Output::Table => {
            let Census { zones, members, supervisors, source, .. } = &census;
            let silent = zones.iter().filter(|z| z.delegates == 0 && !z.name.is_empty()).count();
            let mut out = std::io::stdout().lock();
            // Nobody reads any more: that is no error.
            let _ = writeln!(out, "zones        {}", zones.len());
            let _ = writeln!(out, "members      {members}");
            let _ = writeln!(out, "supervisors  {supervisors}");
            let _ = writeln!(out, "silent       {silent}");
            let _ = writeln!(out, "counted by   {source}");
        }
    })
}

/// A line of a tree, and what hangs on it.
#[derive(serde::Serialize)]
struct Branch {
    name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<Leaf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(serde::Serialize)]
struct Leaf {
    name: String,
    state: &'static str,
    delegate: bool,
    me: bool,
}

pub(crate) fn tree(args: &TreeArgs) -> ExitCode {
    if let Some(job) = &args.job {
        return crate::jobs::tree(&args.common, job);
    }
    told(branches(&args.common.client()), |(title, branches)| match args.common.output {
        Output::Json => print_json(&branches),
        // Nobody reads any more: that is no error.
        Output::Table => _ = write!(std::io::stdout().lock(), "{}", drawn(&title, &branches)),
    })
}

fn branches(client: &Client) -> Result<(String, Vec<Branch>), Error> {
    let (census, members) = (client.census()?, client.members()?);
    let said = client.attributes()?;
    let delegates: BTreeSet<&str> =
        said.iter().filter(|a| a.attributes.contains_key(DELEGATE)).map(|a| a.name.as_str()).collect();
    let leaf = |m: &Member| Leaf {
        name: m.name.clone(),
        state: m.state.name(),
        delegate: delegates.contains(m.name.as_str()),
        me: m.me,
    };
    let many = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut branches = Vec::new();
    let supervises = census.supervisors > 0 && members.iter().any(|m| m.me && m.zone.is_none());
    if supervises {
        branches.push(Branch {
            name: "supervisors".to_owned(),
            members: members.iter().map(leaf).collect(),
            note: None,
        });
    }
    for zone in &census.zones {
        let counts = format!("{}, {}", many(zone.members, "member"), many(zone.delegates, "delegate"));
        let name = if zone.name.is_empty() { "members".to_owned() } else { format!("{} ({counts})", title(zone)) };
        let (leaves, note) = if zone.mine {
            (members.iter().map(leaf).collect(), None)
        } else {
            match client.zone(&zone.name) {
                Ok(details) => (details.members.iter().map(leaf).collect(), None),
                Err(e) => (Vec::new(), Some(e.to_string())),
            }
        };
        branches.push(Branch { name, members: leaves, note });
    }
    let title = match census.supervisors {
        0 => format!("cluster: {}", many(census.members, "member")),
        supervisors => format!(
            "cluster: {}, {}, {}",
            many(census.zones.len() as u64, "zone"),
            many(census.members, "member"),
            many(supervisors, "supervisor")
        ),
    };
    Ok((title, branches))
}

fn drawn(title: &str, branches: &[Branch]) -> String {
    let mut text = format!("{title}\n");
    let fork = |last: bool| if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
    for (at, branch) in branches.iter().enumerate() {
        let (mark, under) = fork(at + 1 == branches.len());
        let _ = writeln!(text, "{mark}{}", branch.name);
        if let Some(note) = &branch.note {
            let _ = writeln!(text, "{under}└─ ({note})");
        }
        for (at, leaf) in branch.members.iter().enumerate() {
            let (mark, _) = fork(at + 1 == branch.members.len());
            let ghost = if leaf.state == State::Alive.name() { String::new() } else { format!(" ✝ {}", leaf.state) };
            let role = if leaf.delegate { " (delegate)" } else { "" };
            let me = if leaf.me { " *" } else { "" };
            let _ = writeln!(text, "{under}{mark}{}{me}{role}{ghost}", leaf.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_shows_roles_and_ghosts() {
        let leaf =
            |name: &str, state: State, delegate, me| Leaf { name: name.into(), state: state.name(), delegate, me };
        let branches = [
            Branch {
                name: "rack1 * (2 members, 1 delegate)".into(),
                members: vec![
                    leaf("n1", State::Alive, true, true),
                    leaf("n2", State::Alive, false, false),
                    leaf("n3", State::Failed, false, false),
                ],
                note: None,
            },
            Branch {
                name: "rack2 (9 members, 2 delegates)".into(),
                members: Vec::new(),
                note: Some("no guard".into()),
            },
        ];
        let expected = "cluster\n\
            ├─ rack1 * (2 members, 1 delegate)\n\
            │  ├─ n1 * (delegate)\n\
            │  ├─ n2\n\
            │  └─ n3 ✝ failed\n\
            └─ rack2 (9 members, 2 delegates)\n\
            \u{20}  └─ (no guard)\n";
        assert_eq!(drawn("cluster", &branches), expected);
    }
}
