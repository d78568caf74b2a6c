//! The directory over engines: the same services, whatever says who is there.

use super::*;
use crate::baselines::{self, AllToAll, AllToAllConfig, Gossip, GossipConfig};
use crate::member::{Name, Output, Roster};
use crate::zone::{Config, Zone};
use phalanx_core::{Each, Identity, Machine, Rng};
use std::sync::Arc;

const NOW: Instant = Instant(1_000_000_000);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn card() -> Card {
    let addr = Addr::Ip("10.1.2.3:7000".parse().unwrap());
    Card { identity: Identity([1; 32]), addr, name: name("rack1-a") }
}

fn zone() -> Zone {
    let roster = Roster::new(Arc::default(), 8);
    Zone::new(&Arc::new(Config::lan()), roster, &card(), 1, &Arc::from([]), Rng::new(1, 1), NOW)
}

fn cache() -> Service {
    Service::new(name("cache-users"))
        .port(6379)
        .partitions(3, 4)
        .partitions(5, 5)
        .tag("hot")
        .parameter("proto", "resp3")
}

fn names<E: Engine>(engine: &E, query: &str) -> Vec<String> {
    let query = Query::parse(query).unwrap_or_else(|e| panic!("{e}"));
    Directory::of(engine).in_zone("a").find(&query).map(|f| f.offer.name.to_owned()).collect()
}

/// TG-4: what is registered is found by what it is, until it is registered no more.
fn serves(mut engine: impl Engine) {
    register(&mut engine, NOW, &cache()).unwrap();
    register(&mut engine, NOW, &Service::new(name("cron"))).unwrap();
    assert_eq!(names(&engine, r#"name =~ "c.*""#), ["cache-users", "cron"]);
    assert_eq!(names(&engine, "partition in 4..9 and tag == hot and proto == resp3"), ["cache-users"]);
    assert_eq!(names(&engine, "node =~ 'rack1-.*' and zone == a and not has port"), ["cron"]);
    assert_eq!(names(&engine, "load < 0.5"), [""; 0], "nobody has told");
    engine.set(NOW, load::LOAD, Some(b"0.25")).unwrap();
    engine.set(NOW, "zone", Some(b"b")).unwrap();
    assert_eq!(names(&engine, "load < 0.5 and name == cron"), ["cron"]);
    assert_eq!(names(&engine, "zone == a"), [""; 0], "the member's own word counts first");
    register(&mut engine, NOW, &cache().parameter("zone", "c").port(6380)).unwrap();
    let ports: Vec<_> = Directory::of(&engine).services().filter_map(|f| f.addr()).map(|a| a.to_string()).collect();
    assert_eq!(ports, ["10.1.2.3:6379", "10.1.2.3:6380"]);
    assert_eq!(names(&engine, "zone == c and port == 6380"), ["cache-users"], "and the service's before that");
    assert_eq!(deregister(&mut engine, NOW, "cache-users", Some(6379)), Ok(true));
    assert_eq!(deregister(&mut engine, NOW, "cache-users", None), Ok(false));
    assert_eq!(names(&engine, "name == cache-users"), ["cache-users"], "that of the other port");
}

#[test]
fn tg_4_every_engine_has_the_same_directory() {
    serves(zone());
    let start = || baselines::Start { card: card(), incarnation: 1, bootstrap: Vec::new(), shared: Arc::default() };
    serves(AllToAll::new(AllToAllConfig::lan(None), start(), Rng::new(1, 1), NOW));
    serves(Gossip::new(GossipConfig::lan(), start(), Rng::new(1, 1), NOW));
}

#[test]
fn what_is_under_the_prefix_and_no_service_is_left_out() {
    let mut zone = zone();
    for (key, value) in [
        ("svc/a b", &b"\x01"[..]),
        ("svc/", b"\x01"),
        ("svc/x:port", b"\x01"),
        ("svc/x:70000", b"\x01"),
        ("svc/later", b"\x02"),
        ("svc/broken", b"\x01\x02"),
        ("other", b"\x01"),
        ("svc/good:1", b"\x01"),
    ] {
        zone.set(NOW, key, Some(value)).unwrap();
    }
    assert_eq!(names(&zone, "has name"), ["good"]);
}

#[test]
fn to_register_the_same_again_changes_nothing() {
    let mut zone = zone();
    register(&mut zone, NOW, &cache()).unwrap();
    let before = zone.clone();
    let same = Service::new(name("cache-users")).parameter("proto", "resp3").tag("hot").partitions(4, 5);
    register(&mut zone, NOW, &same.port(6379).partitions(3, 3)).unwrap();
    assert!(zone == before);
}

#[test]
fn what_cannot_be_told_is_refused_and_what_was_told_stays() {
    let mut zone = zone();
    register(&mut zone, NOW, &cache()).unwrap();
    let long = "x".repeat(200);
    for (service, why) in [
        (cache().parameter("port", "1"), RegisterError::BuiltIn("port".into())),
        (cache().parameter("k", &long), RegisterError::Value("k".into())),
        (cache().tag(""), RegisterError::Word(String::new())),
        (cache().partitions(9, 8), RegisterError::Partitions(9, 8)),
        ((0..64).fold(cache(), |s, n| s.tag(&n.to_string())), RegisterError::Items(67)),
        ((0..30).fold(cache(), |s, n| s.parameter(&n.to_string(), &long[..190])), {
            RegisterError::Refused(Code::InvalidArgs)
        }),
    ] {
        assert_eq!(register(&mut zone, NOW, &service), Err(why));
    }
    let found: Vec<_> = Directory::of(&zone).services().collect();
    assert_eq!(found.len(), 1);
    let offer = found[0].offer;
    assert_eq!(offer.partitions().collect::<Vec<_>>(), [(3, 5)]);
    assert_eq!(offer.tags().collect::<Vec<_>>(), ["hot"]);
    assert_eq!(offer.parameters().collect::<Vec<_>>(), [("proto", "resp3")]);
}

/// A query finds the services of members in the view: who has left has none.
#[test]
fn tg_4_nobody_finds_the_services_of_the_departed() {
    let mut zone = zone();
    register(&mut zone, NOW, &cache()).unwrap();
    zone.leave(NOW, 0, &mut Each(|_: Output<'_>| ()));
    assert_eq!(names(&zone, "has name"), [""; 0]);
    assert_eq!(zone.deadline(), Instant::NEVER);
    assert_eq!(register(&mut zone, NOW, &cache()), Err(RegisterError::Refused(Code::NotInitialized)));
}
