//! Events in, answers out: books, watches, and that no way to the same state is told from another.

use super::ledger::{Ledger, Lost};
use super::*;
use phalanx_api::directory::Directory as Whole;
use phalanx_api::{Event, Member, Offer, Phase, State, What};
use phalanx_query::Service as _;
use proptest::collection::vec;
use proptest::prelude::*;

fn member(n: u8, incarnation: u64) -> Member {
    Member {
        name: format!("n{n}"),
        id: format!("id{n}"),
        addr: format!("10.0.0.{n}:7946").parse().unwrap(),
        state: State::Alive,
        zone: None,
        incarnation,
        minor: 0,
        me: n == 0,
        part: None,
        teller: None,
    }
}

fn joined(n: u8) -> What {
    What::Joined { member: member(n, 1) }
}

fn left(n: u8) -> What {
    What::Left { member: Member { state: State::Failed, ..member(n, 1) } }
}

fn says(n: u8, key: &str, value: Option<&str>) -> What {
    What::Attribute {
        name: format!("n{n}"),
        identity: format!("id{n}"),
        key: key.into(),
        value: value.map(str::to_owned),
        opaque: false,
        service: None,
    }
}

fn offers(n: u8, offer: Offer) -> What {
    let port = offer.port.map(|p| format!(":{p}")).unwrap_or_default();
    let key = format!("svc/{}{port}", offer.name);
    match says(n, &key, Some("\u{1}")) {
        What::Attribute { name, identity, key, value, opaque, .. } => {
            What::Attribute { name, identity, key, value, opaque, service: Some(offer) }
        }
        other => other,
    }
}

fn cache(port: u16) -> Offer {
    Offer { name: "cache".into(), port: Some(port), partitions: vec![(3, 5)], ..Offer::default() }
}

/// A ledger with its book, and what watches it: what the follower does, without a daemon.
struct Desk {
    ledger: Ledger,
    shared: Arc<Shared>,
    next: u64,
}

impl Desk {
    fn new() -> Self {
        Self { ledger: Ledger::default(), shared: Arc::new(Shared::new()), next: 1 }
    }

    fn tell(&mut self, what: What) -> Result<(), Lost> {
        let event = Event { id: self.next, at_ms: 0, what };
        self.next += 1;
        let told = self.ledger.apply(event);
        self.publish();
        told
    }

    fn publish(&mut self) {
        let before = self.shared.book.load_full();
        if let Some((book, changed)) = self.ledger.book(&before) {
            self.shared.book.store(Arc::new(book));
            let book = self.shared.book.load();
            self.shared.standing().iter().filter_map(Weak::upgrade).for_each(|s| s.update(&book, &changed));
        }
    }

    fn directory(&self) -> Directory {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let life = Life(runtime.spawn(async {}).abort_handle());
        Directory { shared: Arc::clone(&self.shared), _life: Arc::new(life) }
    }

    fn find(&self, query: &str) -> Vec<String> {
        let query = Query::parse(query).unwrap_or_else(|e| panic!("{e}"));
        self.shared.book.load().find(&query).map(label).collect()
    }
}

fn label(found: &Found) -> String {
    format!("{}@{}:{}", found.name(), found.node(), found.offer().port.unwrap_or_default())
}

#[test]
fn services_come_change_and_go_with_their_members() {
    let mut desk = Desk::new();
    for what in [joined(1), joined(2), offers(1, cache(1)), offers(2, cache(1)), offers(2, cache(2))] {
        desk.tell(what).unwrap();
    }
    assert_eq!(desk.find("name == cache"), ["cache@n1:1", "cache@n2:1", "cache@n2:2"]);
    assert_eq!(desk.find("name == cache and load < 0.5"), [""; 0], "nobody has told");
    desk.tell(says(2, "phalanx.load", Some("0.25"))).unwrap();
    desk.tell(says(2, "rack", Some("r7"))).unwrap();
    assert_eq!(desk.find("name =~ 'ca.*' and load < 0.5 and rack == r7"), ["cache@n2:1", "cache@n2:2"]);
    let book = desk.shared.book.load_full();
    let found = &book.named("cache")[2];
    assert_eq!((found.load(), found.attribute("rack")), (Some(0.25), Some("r7")));
    assert_eq!(found.addr().unwrap().to_string(), "10.0.0.2:2");
    assert_eq!(book.member("n2").unwrap().services.len(), 2);
    assert!(book.member("n3").is_none() && book.named("cach").is_empty());
    desk.tell(says(2, "svc/cache:1", None)).unwrap();
    desk.tell(offers(2, Offer { partitions: vec![(9, 9)], ..cache(2) })).unwrap();
    assert_eq!(desk.find("partition == 9"), ["cache@n2:2"]);
    desk.tell(left(2)).unwrap();
    assert_eq!(desk.find("has name"), ["cache@n1:1"]);
    assert_eq!(book.services().len(), 3, "an older book stays as it was");
}

#[test]
fn a_new_life_has_said_nothing_and_the_same_life_has() {
    let mut desk = Desk::new();
    desk.tell(joined(1)).unwrap();
    desk.tell(offers(1, cache(1))).unwrap();
    desk.tell(joined(1)).unwrap();
    assert_eq!(desk.find("has name").len(), 1, "told twice");
    desk.tell(What::Joined { member: member(1, 2) }).unwrap();
    assert_eq!(desk.find("has name"), [""; 0]);
    desk.tell(left(1)).unwrap();
    assert_eq!(desk.shared.book.load().members().len(), 1, "it was a former life that left");
    desk.tell(says(9, "rack", Some("r"))).unwrap();
    desk.tell(says(1, "svc/odd:port", None)).unwrap();
    assert_eq!(desk.tell(What::Gap), Err(Lost));
}

#[test]
fn bytes_that_are_no_text_are_there_and_nothing_more() {
    let mut desk = Desk::new();
    desk.tell(joined(1)).unwrap();
    desk.tell(offers(1, cache(1))).unwrap();
    let mut blob = says(1, "blob", Some("?"));
    if let What::Attribute { opaque, .. } = &mut blob {
        *opaque = true;
    }
    desk.tell(blob).unwrap();
    assert_eq!((desk.find("has blob").len(), desk.find("blob =~ '.*'").len()), (1, 0));
    desk.tell(says(1, "blob", Some("text"))).unwrap();
    assert_eq!(desk.find("blob == text").len(), 1);
    desk.tell(says(1, "blob", None)).unwrap();
    assert_eq!(desk.find("has blob"), [""; 0]);
}

/// A member that took another name without saying more is no event: the sum tells.
#[test]
fn what_no_event_tells_changes_the_sum() {
    let mut desk = Desk::new();
    desk.tell(joined(1)).unwrap();
    let before = desk.ledger.sum();
    let renamed = Member { name: "other".into(), ..member(1, 1) };
    let entry = Entry::new(renamed);
    desk.ledger.replace(Whole { event: 5, phase: Phase::Member, entries: vec![entry] });
    assert_ne!(desk.ledger.sum(), before);
    desk.publish();
    assert!(desk.shared.book.load().member("other").is_some() && desk.shared.book.load().event() == 5);
}

#[test]
fn a_watch_tells_what_leads_from_what_was_told_to_what_is_there() {
    let mut desk = Desk::new();
    for what in [joined(1), joined(2), offers(1, cache(1))] {
        desk.tell(what).unwrap();
    }
    let query = || Query::parse("name == cache and not load > 0.75").unwrap();
    let mut watch = desk.directory().watch(query());
    let told = |watch: &mut Watch| -> Vec<String> {
        let changes = std::iter::from_fn(|| watch.ready());
        let written = changes.map(|change| match change {
            Change::Came(found) => format!("+{}", label(&found)),
            Change::Changed(found) => format!("~{}", label(&found)),
            Change::Gone(found) => format!("-{}", label(&found)),
        });
        written.collect()
    };
    assert_eq!(told(&mut watch), ["+cache@n1:1"], "what is there comes first");
    desk.tell(offers(2, cache(1))).unwrap();
    desk.tell(offers(2, Offer { name: "other".into(), ..cache(2) })).unwrap();
    assert_eq!(told(&mut watch), ["+cache@n2:1"]);
    desk.tell(says(2, "phalanx.load", Some("0.5"))).unwrap();
    assert_eq!(told(&mut watch), ["~cache@n2:1"]);
    desk.tell(says(2, "phalanx.load", Some("1"))).unwrap();
    assert_eq!(told(&mut watch), ["-cache@n2:1"], "it is there, and asked for no more");
    assert_eq!(watch.found().iter().map(label).collect::<Vec<_>>(), ["cache@n1:1"]);
    desk.tell(offers(1, cache(7))).unwrap();
    desk.tell(left(1)).unwrap();
    assert_eq!(told(&mut watch), ["-cache@n1:1"], "what came and went in between is not told");
    assert_eq!(watch.wait(Duration::from_millis(1)), None);
    let waiting = std::thread::spawn(move || watch.wait(Duration::from_secs(60)));
    desk.tell(says(2, "phalanx.load", Some("0"))).unwrap();
    assert!(matches!(waiting.join().unwrap(), Some(Change::Came(found)) if found.node() == "n2"));
}

/// Threads read while another writes: each sees books that fit together.
#[test]
fn readers_see_whole_books() {
    let mut desk = Desk::new();
    desk.tell(joined(1)).unwrap();
    let directory = desk.directory();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let query = Query::parse("name in [a, b] and k == v").unwrap();
                while !end.load(Ordering::Relaxed) {
                    let now = directory.now();
                    let found = now.find(&query).count();
                    assert_eq!(found, now.services().len());
                }
            });
        }
        desk.tell(says(1, "k", Some("v"))).unwrap();
        for n in 0..2000 {
            let name = if n % 2 == 0 { "a" } else { "b" };
            desk.tell(offers(1, Offer { name: name.into(), ..cache(n % 50) })).unwrap();
            desk.tell(says(1, &format!("svc/{name}:{}", (n * 7) % 50), None)).unwrap();
        }
        end.store(true, Ordering::Relaxed);
    });
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // Nearly all of them tell something.
enum Step {
    Tell(What),
    /// The whole is read anew.
    Copy,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let offer = ("[ab]{1,2}", prop::option::of(0u16..3), 0u32..4, "[xy]").prop_map(|(name, port, first, tag)| Offer {
        name,
        port,
        partitions: vec![(first, first + 1)],
        tags: [tag].into(),
        ..Offer::default()
    });
    let step = prop_oneof![
        2 => (0u8..4, 1u64..3).prop_map(|(n, i)| Step::Tell(What::Joined { member: member(n, i) })),
        1 => (0u8..4, 1u64..3).prop_map(|(n, i)| Step::Tell(What::Left { member: member(n, i) })),
        6 => (0u8..4, offer).prop_map(|(n, offer)| Step::Tell(offers(n, offer))),
        2 => (0u8..4, "svc/[ab]{1,2}(:[012])?").prop_map(|(n, key)| Step::Tell(says(n, &key, None))),
        2 => (0u8..4, "(rack|phalanx.load|name)", prop::option::of("[01]")).prop_map(|(n, key, value)| {
            Step::Tell(says(n, &key, value.as_deref()))
        }),
        1 => Just(Step::Copy),
    ];
    vec(step, 0..40)
}

const QUERIES: [&str; 8] = [
    "has name",
    "name == a",
    "name in [b, ab, b, zz]",
    "name =~ 'a.*'",
    "name =~ 'a?b' and port == 1",
    "name == aa or name == b and tag == x",
    "not name == a and partition == 2",
    "rack == 1 and load == 0",
];

proptest! {
    /// However a state was reached, the book is the one that is made of it at once; and an index finds what a look at
    /// everything finds.
    #[test]
    fn books_depend_on_the_state_alone(steps in steps()) {
        let mut desk = Desk::new();
        let mut watches: Vec<Watch> = Vec::new();
        let directory = desk.directory();
        for (n, step) in steps.into_iter().enumerate() {
            if n % 5 == 0 {
                watches.push(directory.watch(Query::parse(QUERIES[n / 5 % QUERIES.len()]).unwrap()));
            }
            match step {
                Step::Tell(what) => desk.tell(what).unwrap(),
                Step::Copy => {
                    let entries = directory.now().members().cloned().collect();
                    desk.ledger.replace(Whole { event: desk.next, phase: Phase::Member, entries });
                    prop_assert!(desk.ledger.book(&directory.now()).is_none(), "the same again is no change");
                }
            }
        }
        let now = directory.now();
        let whole = Whole { event: desk.next, phase: Phase::Member, entries: now.members().cloned().collect() };
        let made = Book::from(whole.clone());
        prop_assert_eq!(made.services(), now.services());
        let mut anew = Ledger::default();
        anew.replace(whole);
        prop_assert_eq!(anew.sum(), desk.ledger.sum());
        prop_assert!(now.services().is_sorted_by(|a, b| a.order(b).is_lt()));
        for text in QUERIES {
            let query = Query::parse(text).unwrap();
            let all: Vec<&Found> = now.services().iter().filter(|f| query.matches(&f.fields())).collect();
            prop_assert_eq!(now.find(&query).collect::<Vec<_>>(), all, "{}", text);
        }
        for (n, watch) in watches.iter().enumerate() {
            let query = Query::parse(QUERIES[n % QUERIES.len()]).unwrap();
            prop_assert_eq!(&*watch.found(), &*directory.find(&query));
        }
    }
}
