//! `completions` and `man`, made from the command line's own description.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Prints completions for a shell
#[derive(clap::Args)]
pub(crate) struct Completions {
    /// Which shell
    shell: clap_complete::Shell,
}

/// Writes the manual pages
#[derive(clap::Args)]
pub(crate) struct Man {
    /// Into this directory, one for each command; without, the first page goes to standard output
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &Completions, mut command: clap::Command) -> Result<ExitCode, String> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "phalanx", &mut script);
    // Nobody reads any more: that is no error.
    let _ = std::io::stdout().write_all(&script);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &Man, command: clap::Command) -> Result<ExitCode, String> {
    match &args.dir {
        Some(dir) => {
            let fail = |e: std::io::Error| format!("cannot write to {}: {e}", dir.display());
            std::fs::create_dir_all(dir).map_err(fail)?;
            clap_mangen::generate_to(command, dir).map_err(fail)?;
        }
        None => {
            // Nobody reads any more: that is no error.
            let _ = clap_mangen::Man::new(command).render(&mut std::io::stdout());
        }
    }
    Ok(ExitCode::SUCCESS)
}
