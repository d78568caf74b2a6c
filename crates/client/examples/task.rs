//! A task of a job: says hello to its neighbour in each full view, and prints what it hears until it is ended.
//!
//! `task JOB RANK SIZE`, with `PHALANX_SOCKET` for a daemon that is not at the usual place.

use phalanx_client::blocking::Client;
use phalanx_client::jobs::Event;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [job, rank, size] = arguments.as_slice() else {
        return Err("usage: task JOB RANK SIZE".into());
    };
    let (rank, size): (u32, u32) = (rank.parse()?, size.parse()?);
    let client = Client::from_environment();
    let mut task = client.join(job, rank, size)?;
    loop {
        match task.event()? {
            Event::View(view) => {
                println!("view {}: {} tasks", view.view, view.tasks.len());
                if let Some(next) = view.task_of((rank + 1) % size).filter(|_| view.is_full()) {
                    // The view may just have changed: the next one comes.
                    let _ = task.send(next, format!("hello from {rank}").as_bytes());
                }
            }
            Event::Message { from, body, .. } => println!("{from}: {}", String::from_utf8_lossy(&body)),
            event => println!("{event:?}"),
        }
    }
}
