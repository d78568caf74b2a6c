//! `doctor`: looks at a daemon and its surroundings, and says what is wrong and what to do.

use crate::ask::{Common, Output, failed, print_json};
use phalanx_client::Error;
use phalanx_client::api::{Phase, State, Status};
use phalanx_client::blocking::Client;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

/// A daemon with fewer descriptors may have to turn neighbours or clients away.
const DESCRIPTORS: u64 = 1024;

/// Looks for what is wrong with a daemon, and says what to do
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
}

/// What was looked at.
#[derive(serde::Serialize)]
struct Finding {
    what: &'static str,
    good: bool,
    said: String,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let findings = match examine(&args.common.client()) {
        Ok(findings) => findings,
        Err(e) => return failed(&e),
    };
    match args.common.output {
        Output::Json => print_json(&findings),
        Output::Table => {
            let mut out = std::io::stdout().lock();
            for Finding { what, good, said } in &findings {
                // Nobody reads any more: that is no error.
                let _ = writeln!(out, "{}  {what:12} {said}", if *good { "ok  " } else { "WARN" });
            }
        }
    }
    if findings.iter().all(|f| f.good) { ExitCode::SUCCESS } else { crate::EXIT_NOTHING.into() }
}

fn examine(client: &Client) -> Result<Vec<Finding>, Error> {
    let (status, members) = (client.status()?, client.members()?);
    let figures = Figures::parse(&client.metrics()?);
    let keys = client.all_keys()?;
    let faults = client.faults()?;
    let alive = members.iter().filter(|m| m.state == State::Alive).count();
    let failed: Vec<&str> = members.iter().filter(|m| m.state == State::Failed).map(|m| m.name.as_str()).collect();
    let finding = |what, good, said: String| Finding { what, good, said };
    let of = |good: bool, fine: String, wrong: String| if good { fine } else { wrong };
    let mut findings = vec![
        finding("daemon", true, format!("{} at {}, pid {}", status.version, status.me.addr, status.pid)),
        finding(
            "phase",
            status.phase == Phase::Member,
            of(
                status.phase == Phase::Member,
                "a member".into(),
                "not a member yet: look whether its seeds are right and reachable (UDP and TCP)".into(),
            ),
        ),
        finding(
            "members",
            failed.is_empty(),
            of(
                failed.is_empty(),
                format!("{alive} alive"),
                format!(
                    "{alive} alive, failed: {}; `phalanx force-leave NAME` forgets who will not come back",
                    failed.join(", ")
                ),
            ),
        ),
        finding(
            "answers",
            keys.len() == alive,
            of(
                keys.len() == alive,
                format!("all {alive} members answer"),
                format!("only {} of {alive} members answer a question: some link is bad", keys.len()),
            ),
        ),
    ];
    let epoch = keys.values().map(|r| r.epoch).max().unwrap_or(0);
    let lagging: Vec<&str> = keys.iter().filter(|(_, r)| r.epoch < epoch).map(|(n, _)| n.as_str()).collect();
    findings.push(finding(
        "keys",
        lagging.is_empty(),
        of(
            lagging.is_empty(),
            format!("all have the same, epoch {epoch}"),
            format!("old keys at {}", lagging.join(", ")),
        ),
    ));
    let strangers = figures.sum("phalanx_strangers_total")
        + figures.labelled("phalanx_packets_dropped_total", "badseal")
        + figures.labelled("phalanx_packets_dropped_total", "unknownkey");
    findings.push(finding(
        "strangers",
        strangers == 0,
        of(
            strangers == 0,
            "nobody without the key spoke to us".into(),
            format!("{strangers} packets and streams of somebody with another key or cluster name"),
        ),
    ));
    let (wires, neighbours) = (figures.sum("phalanx_tripwires"), status.neighbours as u64);
    let wired = neighbours == 0 || wires > 0;
    findings.push(finding(
        "tripwires",
        wired,
        of(
            wired,
            format!("{wires} up, {neighbours} neighbours"),
            format!(
                "none up with {neighbours} neighbours: open TCP port {} too, or crashes are noticed late",
                status.me.addr.port()
            ),
        ),
    ));
    let starved = figures.sum("phalanx_starved_total");
    let calm = starved * 100 <= status.uptime_ms / 1000;
    findings.push(finding(
        "processor",
        calm,
        of(
            calm,
            format!("late {starved} times"),
            format!(
                "late {starved} times: the machine is too busy, give the daemon a higher priority (Nice=, CPUWeight=)"
            ),
        ),
    ));
    findings.push(finding(
        "faults",
        faults.is_empty(),
        of(
            faults.is_empty(),
            "none injected".into(),
            format!("{} injected: `phalanx fault heal` ends them", faults.len()),
        ),
    ));
    findings.extend(descriptors(&status));
    Ok(findings)
}

/// Open files, when the daemon is on this machine and we may look.
fn descriptors(status: &Status) -> Option<Finding> {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", status.pid)).ok()?;
    let line = limits.lines().find(|l| l.starts_with("Max open files"))?;
    let limit: u64 = line.split_whitespace().nth(3)?.parse().ok()?;
    let open = std::fs::read_dir(format!("/proc/{}/fd", status.pid)).ok()?.count() as u64;
    let good = limit >= DESCRIPTORS && open * 2 < limit;
    let advice =
        if good { String::new() } else { format!(": raise the limit to {DESCRIPTORS} or more (LimitNOFILE=)") };
    Some(Finding { what: "files", good, said: format!("{open} of {limit} open{advice}") })
}

/// Figures as the daemon tells them.
struct Figures(BTreeMap<String, u64>);

impl Figures {
    fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|l| !l.starts_with('#'));
        let pairs = lines.filter_map(|l| l.rsplit_once(' ')).filter_map(|(k, v)| Some((k.to_owned(), v.parse().ok()?)));
        Self(pairs.collect())
    }

    fn sum(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    fn labelled(&self, name: &str, value: &str) -> u64 {
        let end = format!("=\"{value}\"}}");
        self.0.iter().filter(|(k, _)| k.starts_with(name) && k.ends_with(&end)).map(|(_, v)| v).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read() {
        let text =
            "# HELP phalanx_members x\nphalanx_members 3\nphalanx_packets_dropped_total{reason=\"badseal\"} 7\n# EOF\n";
        let figures = Figures::parse(text);
        assert_eq!(figures.sum("phalanx_members"), 3);
        assert_eq!(figures.labelled("phalanx_packets_dropped_total", "badseal"), 7);
        assert_eq!(figures.labelled("phalanx_packets_dropped_total", "replayed"), 0);
    }
}
