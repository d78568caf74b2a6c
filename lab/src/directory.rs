//! `directory-lookup`: how long a look-up in a program's own memory takes, and how soon it is right (TG-4, 003 §5.1).
//!
//! Real daemons offer the services; a program of one of them looks for them. A look-up is timed one by one, so each
//! figure holds what reading the clock twice costs, which has a row of its own. Beside it the same question to the daemon,
//! over its socket: what a program without the directory would do.

use crate::daemons::{Daemons, said, wait};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::{Is, Picture};
use crate::report::{Check, Must, row, significant};
use crate::stats::quantile;
use phalanx_client::Directory;
use phalanx_client::api::Offer;
use phalanx_client::blocking::Client;
use phalanx_client::directory::{Query, Watch};
use std::fmt;
use std::hint::black_box;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The experiment.
pub(crate) struct DirectoryLookup;

/// Daemons; none takes more than 256 attributes, so it takes some for thousands of services.
const NODES: usize = 10;
/// Services in the cluster, each under a name of its own.
const SERVICES: [usize; 3] = [100, 1_000, 2_000];
/// Where a look-up has to show its worth, and what it may take.
const THOUSAND: usize = 1_000;
const WORTH_NS: f64 = 1_000.0;
/// Threads that look things up at the same time.
const THREADS: [usize; 3] = [1, 2, 4];
/// Look-ups of a thread in a trial.
const LOOKS: usize = 5_000;
/// Questions to the daemon in a trial.
const ASKS: usize = 30;
/// Queries of a kind, asked in turn, so that not all of memory's caches hold the one answer.
const QUERIES: usize = 64;
/// Services that are offered to see when they are known.
const NEWS: usize = 20;
/// What is offered on another node must be in memory within so long, at the median.
const SOON_MS: f64 = 250.0;
/// Between two looks whether something is in memory.
const LOOK: Duration = Duration::from_micros(50);
/// How long a service may take before the run fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is looked up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Nothing: what the clock takes.
    Clock,
    Name,
    /// The same while a service of another node changes all the time.
    NameChanging,
    Partition,
    Prefix,
    /// What no table helps with: all services are looked at.
    All,
    /// The same, as a query that is watched.
    Watched,
    /// The daemon is asked.
    Socket,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Clock,
        Self::Name,
        Self::NameChanging,
        Self::Partition,
        Self::Prefix,
        Self::All,
        Self::Watched,
        Self::Socket,
    ];

    /// The query, for the service of this number.
    fn query(self, n: usize) -> String {
        match self {
            Self::Clock | Self::Name | Self::NameChanging | Self::Socket => format!("name == {}", name(n)),
            Self::Partition => format!("name == {} and partition == {n} and rack == {}", name(n), rack(n)),
            Self::Prefix => format!("name =~ \"{}.*\"", &name(n)[..name(n).len() - 1]),
            Self::All | Self::Watched => format!("rack == {} and partition in 0..49", rack(n)),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clock => "nothing",
            Self::Name => "name",
            Self::NameChanging => "name, while services change",
            Self::Partition => "name, partition and attribute",
            Self::Prefix => "names that begin so",
            Self::All => "attribute and partition",
            Self::Watched => "attribute and partition, watched",
            Self::Socket => "name, over the socket",
        })
    }
}

fn name(n: usize) -> String {
    format!("service-{n:04}")
}

fn rack(n: usize) -> String {
    format!("r{}", n % NODES)
}

impl Experiment for DirectoryLookup {
    fn name(&self) -> &'static str {
        "directory-lookup"
    }

    fn about(&self) -> &'static str {
        "services found in a program's own memory: how long that takes, and how soon it is right"
    }

    fn picture(&self) -> Picture {
        Picture {
            x: "services",
            y: "ns_p50",
            series: &["query"],
            only: Some(("threads", Is::Number(1.0))),
            beside: &[],
        }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        run.options.budget_s /= SERVICES.len() as f64;
        let daemons = Daemons::start("directory", NODES)?;
        for n in 0..NODES {
            daemons.client(n).set_attribute("rack", Some(&rack(n))).map_err(said)?;
        }
        let directory = daemons.client(0).directory().map_err(said)?;
        let mut offered = 0;
        for services in SERVICES {
            for n in offered..services {
                let part = n as u32;
                let offer = Offer { name: name(n), port: Some(80), partitions: vec![(part, part)], ..Offer::default() };
                daemons.client(n % NODES).offer(&offer).map_err(said)?;
            }
            offered = services;
            wait("all services are in memory", || directory.now().services().len() == services)?;
            measure(run, &daemons, &directory, services);
        }
        soon(run, &daemons, &directory)?;
        if directory.copies() != 1 {
            run.note(format!("the directory was read {} times as a whole: something was no event", directory.copies()));
        }
        Ok(())
    }
}

/// All kinds of look-ups among so many services.
fn measure(run: &mut Run, daemons: &Daemons, directory: &Directory, services: usize) {
    let threads = |kind: Kind| match kind {
        Kind::Clock | Kind::Socket => &THREADS[..1],
        _ => &THREADS[..],
    };
    let key = |kind: Kind, threads: usize, q: &str| format!("{services} services, {threads} threads, {kind}, {q}");
    let samples = run.rounds(&Kind::ALL, &[], |&kind, samples| {
        let quarry = Quarry::new(kind, directory, services)?;
        for &threads in threads(kind) {
            let mut ns = match kind {
                Kind::NameChanging => while_changing(&daemons.daemon(1).socket(), || quarry.times(threads))?,
                Kind::Socket => over_the_socket(&daemons.client(0), &quarry)?,
                _ => quarry.times(threads)?,
            };
            ns.sort_unstable_by(f64::total_cmp);
            let at = |q| quantile(&ns, q).expect("something was looked up");
            samples.watch(key(kind, threads, "p50"), at(0.5));
            samples.also(key(kind, threads, "p99"), at(0.99));
        }
        Ok(())
    });
    for kind in Kind::ALL {
        for &threads in threads(kind) {
            let [p50, p99] = ["p50", "p99"].map(|q| samples.median(&key(kind, threads, q)));
            run.row(row! {
                "services": services, "threads": threads, "query": kind.to_string(),
                "ns_p50": p50.map(significant), "ns_p99": p99.map(significant),
            });
            if services == THOUSAND && matches!(kind, Kind::Name | Kind::NameChanging | Kind::Watched) {
                let claim = format!("look-up by {kind}, {services} services, {threads} threads ≤ 1 µs, median");
                run.check(Check::new(claim, p50, Must::AtMost, WORTH_NS));
            }
        }
    }
}

/// Queries of a kind, and how much each finds.
struct Quarry<'d> {
    kind: Kind,
    directory: &'d Directory,
    queries: Vec<(Query, usize)>,
    watch: Watch,
}

impl<'d> Quarry<'d> {
    fn new(kind: Kind, directory: &'d Directory, services: usize) -> Result<Self, Error> {
        // Spread over all of them.
        let numbers = (0..QUERIES).map(|n| n * services / QUERIES);
        let expected = |n: usize| match kind {
            Kind::Clock => 0,
            Kind::Name | Kind::NameChanging | Kind::Partition | Kind::Socket => 1,
            Kind::Prefix => 10,
            Kind::All | Kind::Watched => (0..50).filter(|part| part % NODES == n % NODES).count(),
        };
        let parsed = |n: usize| Query::parse(&kind.query(n)).map(|query| (query, expected(n))).map_err(said);
        let queries = numbers.map(parsed).collect::<Result<Vec<_>, _>>()?;
        let watch = directory.watch(queries[0].0.clone());
        Ok(Self { kind, directory, queries, watch })
    }

    /// How long each look-up of each thread took, in nanoseconds.
    fn times(&self, threads: usize) -> Result<Vec<f64>, Error> {
        let start = Barrier::new(threads);
        let looks = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        // Regular expressions are for one thread at a time.
                        let queries = self.queries.clone();
                        start.wait();
                        self.look(&queries)
                    })
                })
                .collect();
            handles.into_iter().map(|h| h.join().map_err(|_| said("a thread that looks things up has ended"))).collect()
        });
        let looks: Result<Vec<_>, Error> = looks;
        Ok(looks?.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn look(&self, queries: &[(Query, usize)]) -> Result<Vec<f64>, Error> {
        let mut ns = Vec::with_capacity(LOOKS);
        let watched = queries.iter().map(|query| query.1).next().filter(|_| self.kind == Kind::Watched);
        for (query, expected) in queries.iter().cycle().take(LOOKS) {
            let expected = watched.unwrap_or(*expected);
            let began = Instant::now();
            let found = match self.kind {
                Kind::Clock => 0,
                Kind::Watched => black_box(&self.watch).found().len(),
                // Each of them is looked at, as who wants to call one would.
                _ => self
                    .directory
                    .now()
                    .find(black_box(query))
                    .filter(|found| black_box(found.addr()).is_some())
                    .count(),
            };
            ns.push(began.elapsed().as_nanos() as f64);
            if found != expected {
                return Err(said(format!("{query} found {found} services, not {expected}")));
            }
        }
        Ok(ns)
    }
}

/// Measures while another node changes what it says as fast as it can.
fn while_changing(socket: &Path, measure: impl FnOnce() -> Result<Vec<f64>, Error>) -> Result<Vec<f64>, Error> {
    let (end, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = Client::new(socket);
            while !end.load(Ordering::Relaxed) {
                let said = format!("{}", changes.load(Ordering::Relaxed));
                if client.set_attribute("changing", Some(&said)).is_ok() {
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        while changes.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let measured = measure();
        end.store(true, Ordering::Relaxed);
        measured
    })
}

/// The daemon is asked, again and again.
fn over_the_socket(client: &Client, quarry: &Quarry<'_>) -> Result<Vec<f64>, Error> {
    let texts: Vec<String> = quarry.queries.iter().map(|(query, _)| query.to_string()).collect();
    let asks = texts.iter().cycle().take(ASKS).map(|text| {
        let began = Instant::now();
        let found = client.services(Some(text)).map_err(said)?.len();
        let ns = began.elapsed().as_nanos() as f64;
        if found == 1 { Ok(ns) } else { Err(said(format!("{text} found {found} services"))) }
    });
    asks.collect()
}

/// How long after it was offered a service is in memory: of the program's own node, and of another.
fn soon(run: &mut Run, daemons: &Daemons, directory: &Directory) -> Result<(), Error> {
    for (what, node) in [("own node", 0), ("another node", 1)] {
        let mut ms = Vec::with_capacity(NEWS);
        let client = daemons.client(node);
        let query = Query::parse("name == news").map_err(said)?;
        for _ in 0..NEWS {
            let offer = Offer { name: "news".into(), port: Some(1), ..Offer::default() };
            let began = Instant::now();
            client.offer(&offer).map_err(said)?;
            until(|| directory.now().find(&query).next().is_some())?;
            ms.push(began.elapsed().as_secs_f64() * 1e3);
            client.withdraw("news", Some(1)).map_err(said)?;
            until(|| directory.now().find(&query).next().is_none())?;
        }
        ms.sort_unstable_by(f64::total_cmp);
        let [p50, p99] = [0.5, 0.99].map(|q| quantile(&ms, q));
        run.row(row! {
            "services": SERVICES[SERVICES.len() - 1], "threads": (), "query": format!("offered on {what}, in memory"),
            "ns_p50": p50.map(|ms| significant(ms * 1e6)), "ns_p99": p99.map(|ms| significant(ms * 1e6)),
        });
        let claim = format!("a service of {what} is in memory ≤ {SOON_MS} ms after it was offered, median");
        run.check(Check::new(claim, p50, Must::AtMost, SOON_MS));
    }
    Ok(())
}

fn until(holds: impl Fn() -> bool) -> Result<(), Error> {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > PATIENCE {
            return Err(said("a change is not in memory"));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
