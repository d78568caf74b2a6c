//! ST-2: seats in a real etcd, which is killed for real. Each test has its own, on a loopback address of its own.

use phalanx_cluster::etcd::Etcd as Server;
use phalanx_daemon::etcd::{Etcd, EtcdError, Holder, Keeper, Reuse, Seat, Update};
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long anything may take before a test fails; a story that ends well ends early.
const PATIENCE: Duration = Duration::from_secs(30);
/// The shortest lease that etcd grants with its usual settings.
const SHORT: Duration = Duration::from_secs(2);
/// A lease that lasts longer than any test.
const LONG: Duration = Duration::from_secs(60);
fn etcd(server: &Server, ttl: Duration) -> Etcd {
    Etcd::new([server.url()], "/phalanx/test/zone/", ttl).unwrap()
}

fn seats(server: &Server) -> Vec<Seat> {
    runtime().block_on(etcd(server, LONG).seats()).unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn holder(n: u16) -> Holder {
    Holder { identity: format!("{n:032x}"), name: format!("node{n}"), addr: ([10, 0, 0, 1], n).into() }
}

/// A keeper whose updates are heard here.
fn keeper(etcd: Etcd, n: u16) -> (Keeper, Receiver<Update>) {
    let (tell, updates) = channel();
    // When nobody listens any more, the test is over.
    let keeper = Keeper::start(etcd, holder(n), Reuse::Lowest, move |update| drop(tell.send(update))).unwrap();
    (keeper, updates)
}

/// Waits for the update that this is about.
fn wait<T>(updates: &Receiver<Update>, what: &str, mut about: impl FnMut(Update) -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        let update = updates.recv_timeout(PATIENCE.saturating_sub(began.elapsed()));
        if let Some(found) = about(update.unwrap_or_else(|e| panic!("no {what}: {e}"))) {
            return found;
        }
    }
}

fn mine(updates: &Receiver<Update>) -> Seat {
    wait(updates, "seat", |u| if let Update::Mine(seat) = u { Some(seat) } else { None })
}

/// Waits until these sit somewhere, and nobody else.
fn sitting(updates: &Receiver<Update>, who: &[u16]) -> Vec<Seat> {
    let who: BTreeSet<String> = who.iter().map(|&n| holder(n).identity).collect();
    wait(updates, &format!("seats of {who:?}"), |u| match u {
        Update::All(seats) => {
            (seats.iter().map(|s| s.holder.identity.clone()).collect::<BTreeSet<_>>() == who).then_some(seats)
        }
        _ => None,
    })
}

fn trouble(updates: &Receiver<Update>) -> String {
    wait(updates, "trouble", |u| if let Update::Trouble(why) = u { Some(why) } else { None })
}

#[test]
fn st_2_twenty_at_once_get_the_twenty_lowest_seats() {
    let Some(server) = Server::running() else { return };
    runtime().block_on(async {
        let claims = (0..20).map(|n| {
            let mut etcd = etcd(&server, LONG);
            tokio::spawn(async move { (etcd.claim(&holder(n), Reuse::Lowest).await.unwrap(), etcd) })
        });
        let mut claimed = Vec::new();
        for claim in claims.collect::<Vec<_>>() {
            claimed.push(claim.await.unwrap());
        }
        claimed.sort_by_key(|(seat, _)| seat.number);
        let seats: Vec<Seat> = claimed.iter().map(|(seat, _)| seat.clone()).collect();
        assert_eq!(
            seats.iter().map(|s| (s.number, s.life)).collect::<Vec<_>>(),
            (0..20).map(|n| (n, 1)).collect::<Vec<_>>()
        );
        assert_eq!(etcd(&server, LONG).seats().await.unwrap(), seats, "everybody sees what each was told");
        for (_, etcd) in &mut claimed {
            etcd.keep().await.unwrap();
        }
        // Holes are filled, or left.
        claimed[7].1.release().await.unwrap();
        claimed[3].1.release().await.unwrap();
        let next = |n, reuse| {
            let mut etcd = etcd(&server, LONG);
            async move { etcd.claim(&holder(n), reuse).await.unwrap() }
        };
        assert_eq!(next(20, Reuse::Last).await.number, 20);
        let filled = next(21, Reuse::Lowest).await;
        assert_eq!((filled.number, filled.life), (3, 2));
        assert_eq!(next(22, Reuse::Lowest).await.number, 7);
        assert_eq!(next(23, Reuse::Lowest).await.number, 21);
    });
}

#[test]
fn st_2_a_lease_that_runs_out_frees_the_seat_for_a_higher_life() {
    let Some(server) = Server::running() else { return };
    runtime().block_on(async {
        let (mut gone, mut kept, mut next) = (etcd(&server, SHORT), etcd(&server, SHORT), etcd(&server, SHORT));
        let first = gone.claim(&holder(1), Reuse::Lowest).await.unwrap();
        let second = kept.claim(&holder(2), Reuse::Lowest).await.unwrap();
        assert_eq!((first.number, first.life, second.number), (0, 1, 1));
        let began = Instant::now();
        while kept.seats().await.unwrap().contains(&first) {
            assert!(began.elapsed() < PATIENCE, "a seat that nobody keeps stays");
            kept.keep().await.unwrap();
            tokio::time::sleep(SHORT / 10).await;
        }
        assert_eq!(kept.seats().await.unwrap(), [second], "who keeps its seat still has it");
        let heir = next.claim(&holder(3), Reuse::Lowest).await.unwrap();
        assert_eq!((heir.number, heir.life), (0, 2));
        assert_eq!(gone.keep().await, Err(EtcdError::Lost));
        next.keep().await.unwrap();
    });
}

#[test]
fn st_2_the_same_identity_gets_its_seat_back_in_a_new_life() {
    let Some(server) = Server::running() else { return };
    runtime().block_on(async {
        let (mut other, mut before, mut after) = (etcd(&server, LONG), etcd(&server, LONG), etcd(&server, LONG));
        other.claim(&holder(1), Reuse::Lowest).await.unwrap();
        before.claim(&holder(2), Reuse::Lowest).await.unwrap();
        other.release().await.unwrap();
        let moved = Holder { addr: "[fd00::2]:7946".parse().unwrap(), ..holder(2) };
        let seat = after.claim(&moved, Reuse::Lowest).await.unwrap();
        assert_eq!((seat.number, seat.life), (1, 2), "its own, though a lower one is free");
        assert_eq!(etcd(&server, LONG).seats().await.unwrap(), [seat], "found where it is now");
        // What is left of the earlier life cannot take the seat from the new one.
        before.release().await.unwrap();
        after.keep().await.unwrap();
        let again = etcd(&server, LONG).claim(&moved, Reuse::Lowest).await.unwrap();
        assert_eq!((again.number, again.life), (1, 3));
        assert_eq!(after.keep().await, Err(EtcdError::Lost), "one identity has one seat and one holder");
    });
}

#[test]
fn st_2_a_seat_that_is_given_back_is_free_at_once() {
    let Some(server) = Server::running() else { return };
    runtime().block_on(async {
        let (mut first, mut second) = (etcd(&server, LONG), etcd(&server, LONG));
        assert_eq!(first.keep().await, Err(EtcdError::Lost), "nothing is held yet");
        first.claim(&holder(1), Reuse::Lowest).await.unwrap();
        first.release().await.unwrap();
        assert_eq!(second.seats().await.unwrap(), []);
        first.release().await.unwrap();
        assert_eq!(first.keep().await, Err(EtcdError::Lost));
        let seat = second.claim(&holder(2), Reuse::Lowest).await.unwrap();
        assert_eq!((seat.number, seat.life), (0, 2));
    });
}

#[test]
fn st_2_keepers_outlive_an_etcd_that_is_killed() {
    let Some(mut server) = Server::new() else { return };
    // One is there before etcd is.
    let (one, from_one) = keeper(etcd(&server, SHORT), 1);
    assert!(trouble(&from_one).contains("etcd does not answer"));
    server.start();
    assert_eq!(mine(&from_one).number, 0);
    let (two, from_two) = keeper(etcd(&server, SHORT), 2);
    assert_eq!(mine(&from_two).number, 1);
    let before = sitting(&from_one, &[1, 2]);
    sitting(&from_two, &[1, 2]);

    server.kill();
    trouble(&from_one);
    trouble(&from_two);
    // Longer than their leases.
    std::thread::sleep(SHORT * 2);
    server.start();
    let after = sitting(&from_one, &[1, 2]);
    sitting(&from_two, &[1, 2]);
    for (before, after) in before.iter().zip(&after) {
        assert!(after.number != before.number || after.life >= before.life, "{before:?} became {after:?}");
    }

    // Who is dropped says no more, and its seat runs out; who leaves gives it back.
    drop(two);
    while from_two.recv_timeout(PATIENCE).map_err(|e| assert_eq!(e, RecvTimeoutError::Disconnected)).is_ok() {}
    sitting(&from_one, &[1]);
    one.release().unwrap();
    assert_eq!(seats(&server), []);
}

#[test]
fn st_2_a_keeper_claims_anew_what_it_lost() {
    let Some(server) = Server::running() else { return };
    let (_keeper, updates) = keeper(etcd(&server, SHORT), 1);
    let first = mine(&updates);
    runtime().block_on(async {
        // Somebody takes its seat by its own name, and lets it go.
        let mut thief = etcd(&server, LONG);
        let taken = thief.claim(&holder(1), Reuse::Lowest).await.unwrap();
        assert_eq!((taken.number, taken.life), (first.number, first.life + 1));
        thief.release().await.unwrap();
    });
    let again = mine(&updates);
    assert_eq!((again.number, again.life), (first.number, first.life + 2));
}

#[test]
fn st_2_keepers_hear_who_came_went_and_came_back() {
    let Some(server) = Server::running() else { return };
    let (_keeper, updates) = keeper(etcd(&server, SHORT), 1);
    sitting(&updates, &[1]);
    runtime().block_on(async {
        let (mut two, mut three) = (etcd(&server, LONG), etcd(&server, LONG));
        two.claim(&holder(2), Reuse::Lowest).await.unwrap();
        three.claim(&holder(3), Reuse::Lowest).await.unwrap();
        sitting(&updates, &[1, 2, 3]);
        // Not the newest: only the number of seats tells.
        two.release().await.unwrap();
        sitting(&updates, &[1, 3]);
        // As many as before: only the newest tells.
        three.release().await.unwrap();
        two.claim(&holder(2), Reuse::Lowest).await.unwrap();
        sitting(&updates, &[1, 2]);
        let moved = Holder { addr: "10.9.9.9:9".parse().unwrap(), ..holder(2) };
        two.claim(&moved, Reuse::Lowest).await.unwrap();
        assert_eq!(sitting(&updates, &[1, 2])[1].holder, moved);
    });
}
