//! A task of a job: says hello to its neighbour in each full view, prints what it hears, and leaves after some messages.
//!
//! `task JOB RANK SIZE [MESSAGES]`, with `PHALANX_SOCKET` for a daemon that is not at the usual place.

use phalanx_client::blocking::Client;
use phalanx_client::jobs::Event;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [job, rank, size, rest @ ..] = arguments.as_slice() else {
        return Err("usage: task JOB RANK SIZE [MESSAGES]".into());
    };
    let (rank, size): (u32, u32) = (rank.parse()?, size.parse()?);
    let wanted: usize = rest.first().map_or(Ok(usize::MAX), |n| n.parse())?;
    let client = Client::from_environment();
    let mut task = client.join(job, rank, size)?;
    let mut heard = 0;
    while heard < wanted {
        match task.event()? {
            Event::View(view) => {
                println!("view {}: {} tasks", view.view, view.tasks.len());
                if let Some(next) = view.task_of((rank + 1) % size).filter(|_| view.is_full()) {
                    // The view may just have changed: the next one comes.
                    let _ = task.send(next, format!("hello from {rank}").as_bytes());
                }
            }
            Event::Message { from, body, .. } => {
                heard += 1;
                println!("{from}: {}", String::from_utf8_lossy(&body));
            }
            event => println!("{event:?}"),
        }
    }
    task.leave()?;
    while task.event()? != Event::Left {}
    Ok(())
}
