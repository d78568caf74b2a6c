//! Prints who is there, and then what happens. Async.
//!
//! `cargo run -p phalanx-client --example watch [EVENTS]`: with a number it ends after so many events. The daemon is the one
//! at `PHALANX_SOCKET`; `phalanx dev up 3` starts some.

use phalanx_client::api::What;
use phalanx_client::{Client, Error};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let most = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(usize::MAX);
    let client = Client::from_environment();
    for member in client.members().await? {
        println!("{} {} {}", member.name, member.addr, member.state.name());
    }
    // From the first event that the daemon still knows: what happened before we looked is not missed.
    let mut events = client.events(Some(0));
    for _ in 0..most {
        match events.next().await?.what {
            What::Joined { member } => println!("+ {}", member.name),
            What::Left { member } => println!("- {} ({})", member.name, member.state.name()),
            What::User { from, name, payload } => println!("! {name} from {from}: {payload}"),
            // The daemon restarted, or we were too slow.
            What::Gap => println!("? something was missed: read the members anew"),
            other => println!("  {}", other.name()),
        }
    }
    Ok(())
}
