//! A task of a job that waits for all others, adds up their ranks, and hears what each has to say.
//!
//! `reduce JOB RANK SIZE`, with `PHALANX_SOCKET` for a daemon that is not at the usual place.

use phalanx_client::blocking::Client;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [job, rank, size] = arguments.as_slice() else {
        return Err("usage: reduce JOB RANK SIZE".into());
    };
    let (rank, size): (u32, u32) = (rank.parse()?, size.parse()?);
    let client = Client::from_environment();
    let mut task = client.join(job, rank, size)?;
    task.wait_full()?;
    task.barrier()?;
    println!("the ranks add up to {}", task.sum(rank.into())?);
    for (rank, words) in task.gather(format!("hello, I am process {}", std::process::id()).as_bytes())? {
        println!("{rank}: {}", String::from_utf8_lossy(&words));
    }
    // Whoever is still reading may need us.
    Ok(task.barrier()?)
}
