//! A rank with much memory: `heap MIB` touches so many MiB, says so, and stays until it is ended. `heap MIB exit N` ends with this status
//! when all are there, and `heap MIB exec PROGRAM …` becomes another program.
//!
//! The ranks that stay print who is in their view. When one is killed the others know at once, though the kernel frees its memory for
//! another 70 ms for each GiB.

use phalanx_client::blocking::Client;
use phalanx_client::jobs::Event;
use std::os::unix::process::CommandExt;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mib: usize = arguments.first().ok_or("usage: heap MIB [exit N | exec PROGRAM …]")?.parse()?;
    let client = Client::from_environment();
    let mut task = client.task()?;
    let heap = vec![1_u8; mib << 20];
    let rank = task.view().rank.ok_or("a rank")?;
    println!("rank {rank} holds {} MiB", std::hint::black_box(&heap).len() >> 20);
    match arguments[1..] {
        ["exit", status] => std::process::exit(status.parse()?),
        ["exec", program, ref its @ ..] => Err(Command::new(program).args(its).exec())?,
        _ => {}
    }
    loop {
        if let Event::View(view) = task.event()? {
            println!("view {}: {:?}", view.view, view.tasks);
        }
    }
}
