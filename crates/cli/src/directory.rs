//! `attr` and `service`: what members say of themselves, and what they offer.

use crate::ask::{Common, Output, part, print_json, print_table, told};
use phalanx_client::api::{Offer, Service};
use std::process::ExitCode;

/// Nothing was found.
const EXIT_NO_MATCH: u8 = 2;

/// What members say of themselves
#[derive(clap::Args)]
pub(crate) struct Attr {
    #[command(subcommand)]
    command: AttrCommand,
}

#[derive(clap::Subcommand)]
enum AttrCommand {
    /// Writes an attribute of this node
    Set {
        /// Which one
        key: String,
        /// What it says
        value: String,
        #[command(flatten)]
        common: Common,
    },
    /// Removes an attribute of this node
    Rm {
        /// Which one
        key: String,
        #[command(flatten)]
        common: Common,
    },
    /// Prints attributes of all members, or of some; exits with 2 when there are none
    Get {
        /// Only this one
        key: Option<String>,
        /// Only of this member
        #[arg(long)]
        node: Option<String>,
        #[command(flatten)]
        common: Common,
    },
}

/// What members offer
#[derive(clap::Args)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    command: ServiceCommand,
}

#[derive(clap::Subcommand)]
enum ServiceCommand {
    /// This node offers a service
    Register {
        /// What it is called
        name: String,
        /// Where it listens
        #[arg(long)]
        port: Option<u16>,
        /// Partitions that it serves: 3 or 3..5, as often as you like
        #[arg(long, value_parser = partitions, value_name = "RANGE")]
        partition: Vec<(u32, u32)>,
        /// A tag, as often as you like
        #[arg(long)]
        tag: Vec<String>,
        /// A parameter, as often as you like
        #[arg(long, value_parser = parameter, value_name = "KEY=VALUE")]
        param: Vec<(String, String)>,
        #[command(flatten)]
        common: Common,
    },
    /// This node offers it no more
    Rm {
        /// What it is called
        name: String,
        /// Where it listens
        #[arg(long)]
        port: Option<u16>,
        #[command(flatten)]
        common: Common,
    },
    /// Prints services that are there; exits with 2 when there are none
    Find {
        /// Which ones: 'name =~ "cache-.*" and load < 0.5'
        expression: Option<String>,
        #[command(flatten)]
        common: Common,
    },
}

fn partitions(text: &str) -> Result<(u32, u32), String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) => Ok((first, last)),
        _ => Err("write 3 or 3..5".to_owned()),
    }
}

fn parameter(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub(crate) fn attr(args: &Attr) -> ExitCode {
    match &args.command {
        AttrCommand::Set { key, value, common } => told(common.client().set_attribute(key, Some(value)), |()| ()),
        AttrCommand::Rm { key, common } => told(common.client().set_attribute(key, None), |()| ()),
        AttrCommand::Get { key, node, common } => {
            let mut exit = ExitCode::SUCCESS;
            let asked = told(common.client().attributes(), |mut all| {
                all.retain(|a| node.as_ref().is_none_or(|n| *n == a.name));
                for one in &mut all {
                    one.attributes.retain(|k, _| key.as_ref().is_none_or(|wanted| wanted == k));
                }
                all.retain(|a| !a.attributes.is_empty());
                if all.is_empty() {
                    exit = EXIT_NO_MATCH.into();
                }
                match common.output {
                    Output::Json => print_json(&all),
                    Output::Table => {
                        let rows = all
                            .iter()
                            .flat_map(|a| a.attributes.iter().map(|(k, v)| [a.name.clone(), k.clone(), v.clone()]));
                        print_table(["NODE", "KEY", "VALUE"], rows);
                    }
                }
            });
            if asked == ExitCode::SUCCESS { exit } else { asked }
        }
    }
}

pub(crate) fn service(args: &ServiceArgs) -> ExitCode {
    match &args.command {
        ServiceCommand::Register { name, port, partition, tag, param, common } => {
            let offer = Offer {
                name: name.clone(),
                port: *port,
                partitions: partition.clone(),
                tags: tag.iter().cloned().collect(),
                parameters: param.iter().cloned().collect(),
            };
            told(common.client().offer(&offer), |()| ())
        }
        ServiceCommand::Rm { name, port, common } => told(common.client().withdraw(name, *port), |()| ()),
        ServiceCommand::Find { expression, common } => {
            let mut exit = ExitCode::SUCCESS;
            let asked = told(common.client().services(expression.as_deref()), |services| {
                if services.is_empty() {
                    exit = EXIT_NO_MATCH.into();
                }
                match common.output {
                    Output::Json => print_json(&services),
                    Output::Table => print_services(&services),
                }
            });
            if asked == ExitCode::SUCCESS { exit } else { asked }
        }
    }
}

fn print_services(services: &[Service]) {
    if services.iter().all(|s| s.part.is_none()) {
        let head = ["SERVICE", "NODE", "ADDRESS", "PARTITIONS", "TAGS", "PARAMETERS"];
        return print_table(head, services.iter().map(row));
    }
    let rows = services.iter().map(|s| {
        let [name, node, addr, partitions, tags, parameters] = row(s);
        [name, node, addr, partitions, tags, parameters, part(s.part, s.teller.as_deref())]
    });
    print_table(["SERVICE", "NODE", "ADDRESS", "PARTITIONS", "TAGS", "PARAMETERS", "PART"], rows);
}

fn row(service: &Service) -> [String; 6] {
    let Service { node, addr, offer, .. } = service;
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let ranges = offer.partitions.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}..{b}") });
    [
        offer.name.clone(),
        node.clone(),
        or_none(addr.map(|a| a.to_string()).unwrap_or_default()),
        or_none(ranges.collect::<Vec<_>>().join(",")),
        or_none(offer.tags.iter().cloned().collect::<Vec<_>>().join(",")),
        or_none(offer.parameters.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")),
    ]
}
