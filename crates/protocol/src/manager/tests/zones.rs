//! Zones that see themselves alone: what the manager knows of all of them.

use super::super::herald::SILENT;
use super::*;
use std::collections::BTreeSet;

/// Three zones of three nodes and a supervisor, with a manager that all know.
fn apart(weather: Weather, seed: u64) -> Net {
    founded_apart(9, weather, seed)
}

fn founded_apart(nodes: usize, weather: Weather, seed: u64) -> Net {
    let mut net = Net::apart(nodes, weather, seed);
    let founded = |net: &mut Net| (0..nodes).all(|n| net.steward(n).group().is_some()) && settled(net, 1);
    assert!(net.run_until(net.now + S * 60, founded), "seed {seed}: no group");
    net
}

/// Those of all zones that a node is told to be there.
fn seen(net: &Net, n: usize) -> BTreeSet<usize> {
    (0..net.hosts.len()).filter(|&other| net.steward(n).sees(net.key(other)).is_some()).collect()
}

/// Everybody that runs sees all that run, in the life that they have, and nobody else.
fn all_see_all(net: &Net) -> bool {
    let up: BTreeSet<usize> = (0..net.hosts.len() - 1).filter(|&n| net.is_up(n)).collect();
    let knows = |n: usize, m: usize| net.steward(n).sees(net.key(m)) == Some(&net.info(m));
    up.iter().all(|&n| seen(net, n) == up && up.iter().all(|&m| knows(n, m)))
}

/// Some replica's state has given this node up.
fn is_lost(net: &Net, n: usize) -> bool {
    replicas(net).iter().any(|&r| net.steward(r).replica().unwrap().core().state().is_lost(&net.key(n)))
}

/// CM-1: three replicas in three zones, though none sees another; all nodes of all zones hear of each other, ask, and get leases.
#[test]
fn cm_1_one_manager_serves_zones_that_do_not_see_each_other() {
    let mut net = apart(Weather::FAIR, 1);
    assert_eq!(zones(&net).len(), 3);
    assert!(net.run_until(net.now + S * 5, |net| all_see_all(net)));
    for n in [0, 4, 8] {
        assert_eq!(answered(&mut net, n, drain((n + 3) % 9), S), Some(Answer::Done), "n{n}");
    }
    net.run_for(S * 5);
    assert!((0..9).all(|n| net.hosts[n].told.iter().any(|(_, t)| matches!(t, Told::Lease(_)))));
    // A mere supervisor introduces zones, and is nobody's node.
    assert!(net.steward(9).group().is_none() && seen(&net, 9).is_empty());
}

/// CM-3: who dies in another zone is given up at once, as its zone says; a start of it that follows is known, too. With those who spoke
/// for the zone, and the supervisor, the others go on.
#[test]
fn cm_3_who_dies_in_another_zone_is_heard_of_whoever_speaks() {
    for seed in 0..10 {
        let mut net = apart(Weather::FAIR, seed);
        net.run_for(S * 3);
        // The supervisor, and both that speak for zone 1.
        net.crash(9);
        net.crash(3);
        net.crash(4);
        let died = net.now;
        assert!(net.run_until(died + S * 4, |net| all_see_all(net)), "seed {seed}");
        assert!(net.run_until(died + S * 6, |net| is_lost(net, 3) && is_lost(net, 4)), "seed {seed}");
        assert!(!is_lost(&net, 5));
        net.start(4);
        assert!(net.run_until(net.now + S * 4, |net| all_see_all(net)), "seed {seed}");
        assert!(net.run_until(net.now + S * 12, |net| settled(net, 1) && !is_lost(net, 4)), "seed {seed}");
        net.run_for(S * 8);
        settle(&mut net, 1);
        assert!(!replicas(&net).contains(&3), "seed {seed}: whoever had a seat there is replaced");
        assert_eq!(answered(&mut net, 5, drain(0), S * 3), Some(Answer::Done), "seed {seed}");
    }
}

/// More zones than a herald speaks to at once: news is passed on.
#[test]
fn news_reaches_many_zones() {
    let mut net = founded_apart(30, Weather::FAIR, 1);
    assert!(net.run_until(net.now + S * 20, |net| all_see_all(net)));
    assert_eq!(zones(&net).len(), 3);
    net.run_for(S * 20);
    net.crash(17);
    // The zone takes half a second.
    assert!(net.run_until(net.now + S * 2, |net| all_see_all(net)), "without a round of sums");
}

/// A zone that dies as a whole has nobody who says so: its silence does, and its replica goes to a node that lives.
#[test]
fn a_zone_that_dies_as_a_whole_is_given_up() {
    for seed in 0..5 {
        let mut net = apart(Weather::FAIR, seed);
        net.run_for(S * 3);
        (6..9).for_each(|n| net.crash(n));
        let until = net.now + SILENT + S * 30;
        let given_up =
            |net: &mut Net| (6..9).all(|n| is_lost(net, n)) && settled(net, 2) && replicas(net).iter().all(|&n| n < 6);
        assert!(net.run_until(until, given_up), "seed {seed}: {:?}", replicas(&net));
        assert_eq!(answered(&mut net, 0, drain(4), S * 3), Some(Answer::Done), "seed {seed}");
        (6..9).for_each(|n| net.start(n));
        assert!(net.run_until(net.now + S * 10, |net| all_see_all(net)), "seed {seed}");
    }
}

/// A zone that is cut off hears nothing of the others for a while; nobody of it is given up whom the replicas hear again in time.
#[test]
fn a_short_cut_between_zones_changes_nothing() {
    let mut net = apart(Weather::FAIR, 3);
    net.run_for(S * 3);
    net.isolate(&[3, 4, 5], true);
    net.run_for(S * 5);
    net.isolate(&[3, 4, 5], false);
    net.run_for(S * 5);
    assert!(all_see_all(&net) && (0..9).all(|n| !is_lost(&net, n)));
}

/// A zone that is cut off for long is given up: its ranks have no lease any more. When it is back it is known again.
#[test]
fn a_zone_that_was_cut_off_for_long_comes_back() {
    let mut net = apart(Weather::FAIR, 4);
    net.run_for(S * 3);
    net.isolate(&[3, 4, 5], true);
    net.run_for(SILENT + S * 30);
    assert!((3..6).all(|n| is_lost(&net, n)) && replicas(&net).iter().all(|n| !(3..6).contains(n)));
    net.isolate(&[3, 4, 5], false);
    let is_back = |net: &mut Net| all_see_all(net) && (3..6).all(|n| !is_lost(net, n)) && settled(net, 2);
    assert!(net.run_until(net.now + S * 20, is_back));
    assert_eq!(answered(&mut net, 4, drain(0), S * 3), Some(Answer::Done));
}

/// Whatever is lost on the way: in the end all know the same.
#[test]
fn in_the_end_all_zones_know_the_same() {
    let weather = Weather {
        loss: 0.2,
        duplication: 0.1,
        delay: (Duration::from_millis(1), Duration::from_millis(60)),
        ..Weather::FAIR
    };
    for seed in 0..10 {
        let mut net = apart(weather, seed);
        let mut rng = Rng::new(seed, 7);
        for _ in 0..20 {
            let n = rng.index(9);
            let down = (0..9).filter(|&n| !net.is_up(n)).count();
            if !net.is_up(n) {
                net.start(n);
            } else if down < 2 {
                net.crash(n);
            }
            let wait = Duration::from_millis(rng.below(3000));
            net.run_for(wait);
        }
        (0..9).for_each(|n| _ = (!net.is_up(n)).then(|| net.start(n)));
        assert!(net.run_until(net.now + S * 30, |net| all_see_all(net)), "seed {seed}");
        let atlases: Vec<_> = (0..9).map(|n| net.steward(n).herald().atlas().zones().collect::<Vec<_>>()).collect();
        let same = atlases.windows(2).all(|two| two[0] == two[1]);
        assert!(
            same || net.run_until(net.now + S * 10, |net| {
                let sums = |n: usize| net.steward(n).herald().atlas().zones().map(|z| z.1).collect::<Vec<_>>();
                (1..9).all(|n| sums(n) == sums(0))
            }),
            "seed {seed}"
        );
    }
}

/// The traffic between zones at rest does not grow with their nodes: sums alone, from those who speak.
#[test]
fn at_rest_zones_exchange_sums_alone() {
    let mut net = apart(Weather::FAIR, 5);
    net.run_for(S * 20);
    net.tapped = Some(Vec::new());
    net.run_for(S * 60);
    let tapped = net.tapped.take().unwrap();
    let mut tidings = tapped.iter().filter(|t| matches!(Packet::decode(&t.3), Some(Packet::Tidings(_))));
    assert!(tidings.clone().all(|t| t.2 == Carriage::Light && t.3.len() < 200));
    let count = tidings.clone().count();
    // Seven that speak, four heralds or two of them to tell every other second and a supervisor, two members of each zone every fourth.
    assert!(count <= 30 * (6 * 5 + 6) + 15 * 6, "{count}");
    assert!(tidings.all(|t| [0, 1, 3, 4, 6, 7, 9].contains(&t.0)), "nobody else speaks");
}
