//! Finds services in this program's own memory, and prints how what is found changes. Blocking: no runtime needed.
//!
//! `cargo run -p phalanx-client --example directory 'name == cache' [CHANGES]`: with a number it ends after so many changes. The
//! daemon is the one at `PHALANX_SOCKET`; `phalanx dev up 3` starts some.

use phalanx_client::blocking::Client;
use phalanx_client::directory::{Change, Query};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let query = Query::parse(&arguments.next().ok_or("usage: directory QUERY [CHANGES]")?)?;
    let most = arguments.next().map_or(Ok(usize::MAX), |n| n.parse())?;
    let directory = Client::from_environment().directory()?;
    let mut watch = directory.watch(query);
    for _ in 0..most {
        // What was found last stays found while the daemon is away; whoever calls it should know.
        let change = loop {
            if let Some(change) = watch.wait(Duration::from_secs(1)) {
                break change;
            }
            if let Some(since) = directory.stale_since() {
                println!("? the daemon was last heard {:?} ago", since.elapsed());
            }
        };
        match change {
            Change::Came(found) => println!("+ {} at {}, {:?}", found.name(), found.node(), found.addr()),
            Change::Changed(found) => println!("~ {} at {}, load {:?}", found.name(), found.node(), found.load()),
            Change::Gone(found) => println!("- {} at {}", found.name(), found.node()),
        }
        println!("  {} are there", watch.found().len());
    }
    Ok(())
}
