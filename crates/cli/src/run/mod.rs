//! `run`: starts a parallel job, as mpiexec does, and stays with it until it ends.
//!
//! | file | idea |
//! |---|---|
//! | `args` | the command line, with mpiexec's habits |
//! | `hosts` | `--host` and host files |
//! | `console` | what ranks write, what they read, and signals |

mod args;
mod console;
mod hosts;

pub(crate) use args::{Args, habits};

use crate::ask::failed;
use phalanx_client::api::run::RunWanted;
use std::process::ExitCode;

pub(crate) fn run(args: Args) -> Result<ExitCode, String> {
    let (client, tagged, hostfile) = (args.client(), args.tagged(), args.hostfile());
    let wanted: RunWanted = match args.wanted() {
        Ok(wanted) => wanted,
        Err(why) => {
            eprintln!("phalanx: {why}");
            return Ok(crate::EXIT_USAGE.into());
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        // The manager knows of no file, and so of no line; where it cannot be asked, it says so below.
        if let (Some(file), Ok(nodes)) = (hostfile, client.slots().await)
            && let Err(why) = hosts::check(&file, &nodes)
        {
            eprintln!("phalanx: {why}");
            return Ok(crate::EXIT_ERROR.into());
        }
        match client.run(&wanted).await {
            Ok(job) => Ok(console::attend(job, tagged).await),
            Err(e) => Ok(failed(&e)),
        }
    })
}
