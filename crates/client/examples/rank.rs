//! A rank of a parallel job: `phalanx run -n 4 rank` adds up what all ranks know, waits for them, and ends.
//!
//! `rank stay` goes on until it is ended, says hello to its neighbour in each full view, and prints what it hears. With `rank late` the last
//! rank never comes where the others wait for it: when it is killed they go on without it.

use phalanx_client::blocking::Client;
use phalanx_client::jobs::Event;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_environment();
    let mut task = client.task()?;
    let view = task.wait_full()?;
    let (rank, size) = (view.rank.ok_or("a rank")?, view.size);
    let sum = task.sum(i64::from(rank))?;
    println!("rank {rank} of {size}: the ranks add up to {sum}");
    match std::env::args().nth(1).as_deref() {
        Some("stay") => {}
        Some("late") => {
            if rank + 1 == size {
                loop {
                    std::thread::park();
                }
            }
            println!("rank {rank} waits");
            task.barrier()?;
            println!("rank {rank} waits no more: those who live add up to {}", task.sum(i64::from(rank))?);
            return Ok(());
        }
        _ => return Ok(task.barrier()?),
    }
    loop {
        match task.event()? {
            Event::View(view) => {
                println!("view {}: {:?}", view.view, view.tasks);
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
