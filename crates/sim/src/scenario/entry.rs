//! The timeline: what befalls whom, when, how often and for how long.
//!
//! An entry's fields are read all at once and then taken out by its kind; what is left means nothing for that kind and
//! is refused, because a fault that silently does less than it says ruins a run.

use super::engine::Engine;
use super::problem::{Problem, unknown};
use super::select::{NodesText, Pool, Selection};
use super::span::{Span, Step};
use crate::disk::DiskFault;
use crate::network::Weather;
use phalanx_core::Duration;
use phalanx_fault::Rule;
use phalanx_wire::cast::BODY_MAX;
use serde::Deserialize;

/// One line of the timeline.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    /// When, counted from the start of the run.
    pub(crate) at: Duration,
    /// Again after each such span.
    pub(crate) every: Option<Duration>,
    /// No more from then on.
    pub(crate) until: Duration,
    /// Ends by itself after so long.
    pub(crate) lasts: Option<Duration>,
    /// On whom.
    pub(crate) on: Selection,
    /// What.
    pub(crate) what: What,
}

/// What may befall nodes or the network.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum What {
    Crash,
    CrashHost,
    Restart,
    Pause,
    Resume,
    Clock { rate: f64, step_ns: i64 },
    Disk(DiskFault),
    Loss { inward: f64, outward: f64 },
    StreamReset { against: Option<Vec<u32>> },
    Partition { name: Option<String>, direction: Direction, against: Option<Vec<u32>> },
    Heal { name: Option<String> },
    Leave { code: u8 },
    Join { spare: bool },
    Doubt { against: Vec<u32> },
    Cast { bytes: u32 },
    KillShepherds,
    Lie,
    Corrupt,
    Weather(Weather),
    Inject { point: Point, rule: Box<Rule>, peers: Vec<u32> },
}

/// Which way a partition stops messages, seen from its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Direction {
    /// Both ways.
    #[default]
    Both,
    /// What they send does not arrive.
    Out,
    /// What is sent to them does not arrive.
    In,
}

/// FI-3: where a rule acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Point {
    /// Below the seal.
    #[default]
    Wire,
    /// Above it.
    Plain,
}

/// All kinds, as scenarios write them.
pub(crate) const KINDS: [&str; 20] = [
    "crash",
    "crash-host",
    "restart",
    "pause",
    "resume",
    "clock",
    "disk",
    "loss",
    "stream-reset",
    "partition",
    "heal",
    "leave",
    "join",
    "doubt",
    "cast",
    "kill-shepherds",
    "lie",
    "corrupt",
    "weather",
    "inject",
];

impl What {
    /// Its kind's name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::CrashHost => "crash-host",
            Self::Restart => "restart",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Clock { .. } => "clock",
            Self::Disk(_) => "disk",
            Self::Loss { .. } => "loss",
            Self::StreamReset { .. } => "stream-reset",
            Self::Partition { .. } => "partition",
            Self::Heal { .. } => "heal",
            Self::Leave { .. } => "leave",
            Self::Join { .. } => "join",
            Self::Doubt { .. } => "doubt",
            Self::Cast { .. } => "cast",
            Self::KillShepherds => "kill-shepherds",
            Self::Lie => "lie",
            Self::Corrupt => "corrupt",
            Self::Weather(_) => "weather",
            Self::Inject { .. } => "inject",
        }
    }

    /// Nobody needs to be named: it says itself whom it means.
    fn finds_its_nodes(&self) -> bool {
        matches!(self, Self::Restart | Self::Resume)
    }

    /// It is about the network, not about nodes.
    fn has_no_nodes(&self) -> bool {
        matches!(self, Self::Heal { .. } | Self::Weather(_))
    }

    /// It goes on until something ends it.
    fn can_last(&self) -> bool {
        !matches!(
            self,
            Self::Restart
                | Self::Resume
                | Self::StreamReset { .. }
                | Self::Heal { .. }
                | Self::Leave { .. }
                | Self::Join { .. }
                | Self::Doubt { .. }
                | Self::Cast { .. }
                | Self::KillShepherds
                | Self::Lie
                | Self::Corrupt
        )
    }
}

/// The fields of an entry, in the order in which they are listed to those who misspell one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EntryText {
    #[serde(default)]
    at: Span,
    kind: String,
    nodes: Option<NodesText>,
    random: Option<u32>,
    role: Option<String>,
    every: Option<Span>,
    until: Option<Span>,
    #[serde(rename = "for")]
    lasts: Option<Span>,
    rate: Option<f64>,
    step: Option<Step>,
    delay: Option<Span>,
    fail: Option<f64>,
    lose: Option<f64>,
    forget: Option<f64>,
    inward: Option<f64>,
    outward: Option<f64>,
    name: Option<String>,
    direction: Option<Direction>,
    against: Option<NodesText>,
    loss: Option<f64>,
    duplication: Option<f64>,
    reorder: Option<f64>,
    reorder_by: Option<Span>,
    slower: Option<Span>,
    point: Option<Point>,
    rule: Option<Rule>,
    code: Option<u8>,
    spare: Option<bool>,
    bytes: Option<u32>,
}

/// What an entry must fit.
pub(crate) struct Frame<'a> {
    pub(crate) nodes: u32,
    /// When the first phase ends.
    pub(crate) safety: Duration,
    /// Roles of the workload.
    pub(crate) roles: &'a [&'a str],
    /// What nodes run: not all of them can leave, or have a disk.
    pub(crate) engine: Engine,
}

impl EntryText {
    /// The entry, when it makes sense.
    pub(crate) fn entry(mut self, frame: &Frame<'_>) -> Result<Entry, Problem> {
        let what = self.take_what(frame)?;
        let on = self.take_selection(frame, &what)?;
        let lasts = self.take_lasts(&what)?;
        if let Some(field) = self.left() {
            let text = format!("does not apply to kind `{}`", what.name());
            return Err(Problem::new(field, text));
        }
        let at = self.at.0;
        if at >= frame.safety {
            let text = format!("{at} comes after the first phase, which ends at {}: see `phases.safety`", frame.safety);
            return Err(Problem::new("at", text));
        }
        let until = self.until.map_or(frame.safety, |s| s.0.min(frame.safety));
        let every = self.every.map(|s| s.0);
        match every {
            Some(_) if matches!(what, What::Inject { .. }) => {
                return Err(Problem::new(
                    "every",
                    "does not apply to kind `inject`: the rule has an `every` of its own",
                ));
            }
            Some(Duration::ZERO) => return Err(Problem::new("every", "must be longer than nothing")),
            Some(every) if (until - at).0 / every.0 >= REPEATS_MAX => {
                let text = format!("{every} is too often: a fault comes at most {REPEATS_MAX} times");
                return Err(Problem::new("every", text));
            }
            None if self.until.is_some() => {
                return Err(Problem::new("until", "only means something beside `every`; `for` ends a single fault"));
            }
            _ => {}
        }
        Ok(Entry { at, every, until, lasts, on, what })
    }

    fn take_what(&mut self, frame: &Frame<'_>) -> Result<What, Problem> {
        Ok(match self.kind.as_str() {
            "crash" => What::Crash,
            "crash-host" => What::CrashHost,
            "restart" => What::Restart,
            "pause" => What::Pause,
            "resume" => What::Resume,
            "clock" if frame.engine == Engine::Manager => {
                return Err(Problem::new("kind", "`clock` does not apply to engine `manager`: leases need clocks that go"));
            }
            "clock" => {
                let rate = self.rate.take().unwrap_or(1.0);
                if !(rate > 0.0 && rate <= MAX_RATE) {
                    let text = format!("{rate} is no rate of a clock: above 0, 1 is right, at most {MAX_RATE}");
                    return Err(Problem::new("rate", text));
                }
                What::Clock { rate, step_ns: self.step.take().unwrap_or_default().0 }
            }
            "disk" if !matches!(frame.engine, Engine::Link | Engine::View) => {
                return Err(Problem::new("kind", "`disk` needs engine `link`: members write nothing to disk"));
            }
            "disk" => What::Disk(DiskFault {
                delay: self.delay.take().unwrap_or_default().0,
                fail: chance("fail", self.fail.take())?.unwrap_or(0.0),
                lose: chance("lose", self.lose.take())?.unwrap_or(0.0),
                forget: chance("forget", self.forget.take())?.unwrap_or(0.0),
            }),
            "loss" => What::Loss {
                inward: chance("inward", self.inward.take())?.unwrap_or(0.0),
                outward: chance("outward", self.outward.take())?.unwrap_or(0.0),
            },
            "stream-reset" => What::StreamReset { against: self.take_against(frame)? },
            "partition" => What::Partition {
                name: self.name.take(),
                direction: self.direction.take().unwrap_or_default(),
                against: self.take_against(frame)?,
            },
            "heal" => What::Heal { name: self.name.take() },
            "leave" if frame.engine != Engine::Link => What::Leave { code: self.code.take().unwrap_or(0) },
            "leave" => {
                return Err(Problem::new("kind", "`leave` needs an engine with members: zone, all-to-all or gossip"));
            }
            "join" if frame.engine != Engine::View => {
                return Err(Problem::new("kind", "`join` needs engine `view`"));
            }
            "doubt" if !matches!(frame.engine, Engine::View | Engine::Manager) => {
                return Err(Problem::new("kind", "`doubt` needs engine `view` or `manager`"));
            }
            "kill-shepherds" | "lie" | "corrupt" if frame.engine != Engine::Manager => {
                return Err(Problem::new("kind", format!("`{}` needs engine `manager`", self.kind)));
            }
            "kill-shepherds" => What::KillShepherds,
            "lie" => What::Lie,
            "corrupt" => What::Corrupt,
            "join" => What::Join { spare: self.spare.take().unwrap_or(false) },
            "doubt" => {
                let needs = "kind `doubt` needs the hosts that are said to have failed";
                What::Doubt { against: self.take_against(frame)?.ok_or_else(|| Problem::new("against", needs))? }
            }
            "cast" if frame.engine != Engine::Cast => {
                return Err(Problem::new("kind", "`cast` needs engine `cast`"));
            }
            "cast" => match self.bytes.take().unwrap_or(0) {
                bytes if bytes as usize > BODY_MAX => {
                    return Err(Problem::new("bytes", format!("{bytes} are too many: at most {BODY_MAX}")));
                }
                bytes => What::Cast { bytes },
            },
            "weather" => What::Weather(Weather {
                loss: chance("loss", self.loss.take())?.unwrap_or(0.0),
                duplication: chance("duplication", self.duplication.take())?.unwrap_or(0.0),
                reorder: chance("reorder", self.reorder.take())?.unwrap_or(0.0),
                reorder_by: self.reorder_by.take().unwrap_or_default().0,
                slower: self.slower.take().unwrap_or_default().0,
            }),
            "inject" => self.take_rule(frame)?,
            other => return Err(Problem::new("kind", unknown(other, &KINDS))),
        })
    }

    fn take_against(&mut self, frame: &Frame<'_>) -> Result<Option<Vec<u32>>, Problem> {
        self.against.take().map(|text| text.resolve("against", frame.nodes)).transpose()
    }

    fn take_rule(&mut self, frame: &Frame<'_>) -> Result<What, Problem> {
        let needs = "kind `inject` needs a rule, such as rule = { kind = \"drop\", p = 0.01 }";
        let mut rule = self.rule.take().ok_or_else(|| Problem::new("rule", needs))?;
        let point = self.point.take().unwrap_or_default();
        let names = rule.only.take();
        if names.is_some() && point == Point::Plain {
            // Above the seal a peer is the link's own number for it, which nobody outside knows.
            return Err(Problem::new("rule.only", "does not apply to point `plain`: a rule there means all peers"));
        }
        let mut peers = Vec::new();
        for name in names.iter().flatten() {
            let number = name.strip_prefix('n').and_then(|n| n.parse().ok()).filter(|&n: &u32| n < frame.nodes);
            let text = || format!("`{name}` is no node of this run: n0 to n{}", frame.nodes - 1);
            peers.push(number.ok_or_else(|| Problem::new("rule.only", text()))?);
        }
        if names.is_some() && peers.is_empty() {
            return Err(Problem::new("rule.only", "names nobody: leave it out to mean all peers"));
        }
        // A rule has a window of its own; `for` is one way to say where it closes.
        if let Some(Span(lasts)) = self.lasts.take() {
            rule.until = rule.until.min(lasts);
        }
        Ok(What::Inject { point, rule: Box::new(rule), peers })
    }

    fn take_selection(&mut self, frame: &Frame<'_>, what: &What) -> Result<Selection, Problem> {
        if what.has_no_nodes() {
            // Named nodes stay where they are and are refused as not applicable.
            return Ok(Selection::default());
        }
        let pool = match (self.nodes.take(), self.role.take()) {
            (Some(_), Some(_)) => return Err(Problem::new("role", "excludes `nodes`: name one of the two")),
            (Some(text), None) => Some(Pool::Nodes(text.resolve("nodes", frame.nodes)?)),
            (None, Some(role)) if frame.roles.contains(&role.as_str()) => Some(Pool::Role(role)),
            (None, Some(_)) if frame.roles.is_empty() => {
                return Err(Problem::new("role", "the nodes of this run have no roles: use `nodes` or `random`"));
            }
            (None, Some(role)) => return Err(Problem::new("role", unknown(&role, frame.roles))),
            (None, None) => None,
        };
        let random = self.random.take();
        if random == Some(0) {
            return Err(Problem::new("random", "chooses nobody: at least 1"));
        }
        let on = Selection { pool, random };
        if on.is_open() && !what.finds_its_nodes() {
            let text = format!("kind `{}` needs `nodes`, `role` or `random`", what.name());
            return Err(Problem::new("", text));
        }
        Ok(on)
    }

    fn take_lasts(&mut self, what: &What) -> Result<Option<Duration>, Problem> {
        if !what.can_last() {
            return Ok(None);
        }
        match self.lasts.take() {
            Some(Span(Duration::ZERO)) => Err(Problem::new("for", "must be longer than nothing")),
            lasts => Ok(lasts.map(|s| s.0)),
        }
    }

    /// The first field that nobody took.
    fn left(&self) -> Option<&'static str> {
        let fields = [
            (self.nodes.is_some(), "nodes"),
            (self.random.is_some(), "random"),
            (self.role.is_some(), "role"),
            (self.lasts.is_some(), "for"),
            (self.rate.is_some(), "rate"),
            (self.step.is_some(), "step"),
            (self.delay.is_some(), "delay"),
            (self.fail.is_some(), "fail"),
            (self.lose.is_some(), "lose"),
            (self.forget.is_some(), "forget"),
            (self.inward.is_some(), "inward"),
            (self.outward.is_some(), "outward"),
            (self.name.is_some(), "name"),
            (self.direction.is_some(), "direction"),
            (self.against.is_some(), "against"),
            (self.loss.is_some(), "loss"),
            (self.duplication.is_some(), "duplication"),
            (self.reorder.is_some(), "reorder"),
            (self.reorder_by.is_some(), "reorder_by"),
            (self.slower.is_some(), "slower"),
            (self.point.is_some(), "point"),
            (self.rule.is_some(), "rule"),
            (self.code.is_some(), "code"),
            (self.spare.is_some(), "spare"),
            (self.bytes.is_some(), "bytes"),
        ];
        fields.into_iter().find(|f| f.0).map(|f| f.1)
    }
}

/// How often an entry may come: more is a mistake in a unit.
const REPEATS_MAX: u64 = 100_000;
/// The fastest clock: beyond it a timer of a minute rings within a network delay, which tests nothing.
const MAX_RATE: f64 = 1_000.0;

fn chance(field: &str, value: Option<f64>) -> Result<Option<f64>, Problem> {
    match value {
        Some(p) if !(0.0..=1.0).contains(&p) => {
            Err(Problem::new(field, format!("{p} is not a part of the whole: from 0 to 1")))
        }
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str) -> Result<Entry, String> {
        let engine = match text {
            _ if text.contains("'leave'") => Engine::Zone,
            _ if text.contains("'cast'") => Engine::Cast,
            _ if ["'kill-shepherds'", "'lie'", "'corrupt'"].iter().any(|k| text.contains(k)) => Engine::Manager,
            _ if text.contains("'join'") || text.contains("'doubt'") => Engine::View,
            _ => Engine::Link,
        };
        let text: EntryText = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        let frame = Frame { nodes: 8, safety: Duration::from_secs(10), roles: &["leader"], engine };
        text.entry(&frame).map_err(|p| format!("{}: {}", p.path, p.text))
    }

    fn what(text: &str) -> What {
        entry(text).unwrap_or_else(|e| panic!("{text}: {e}")).what
    }

    /// Each kind can be written down, and its name leads to it.
    #[test]
    fn every_kind_is_read_under_its_name() {
        for kind in KINDS {
            let nodes = if matches!(kind, "heal" | "weather") { "" } else { "nodes = [1]\n" };
            let rule = match kind {
                "inject" => "rule = { kind = 'drop' }\n",
                "doubt" => "against = [2]\n",
                _ => "",
            };
            assert_eq!(what(&format!("{nodes}{rule}kind = '{kind}'")).name(), kind);
        }
    }

    #[test]
    fn parameters_arrive_where_they_belong() {
        let clock = what("kind = 'clock'\nnodes = [1]\nrate = 0.5\nstep = '-1s'");
        assert_eq!(clock, What::Clock { rate: 0.5, step_ns: -1_000_000_000 });
        let disk = what("kind = 'disk'\nnodes = 'all'\ndelay = '5ms'\nlose = 0.1\nfail = 0.2\nforget = 0.3");
        let delay = Duration::from_millis(5);
        assert_eq!(disk, What::Disk(DiskFault { delay, fail: 0.2, lose: 0.1, forget: 0.3 }));
        let cut = what("kind = 'partition'\nnodes = '0-3'\ndirection = 'out'\nagainst = [7]");
        assert_eq!(cut, What::Partition { name: None, direction: Direction::Out, against: Some(vec![7]) });
        let weather = what("kind = 'weather'\nloss = 0.1\nreorder = 0.2\nreorder_by = '3ms'\nslower = '1ms'");
        assert!(matches!(weather, What::Weather(w) if w.loss == 0.1 && w.reorder_by == Duration::from_millis(3)));
    }

    /// FI-3: a rule is written as in the guide to faults, and acts below the seal unless told otherwise.
    #[test]
    fn a_rule_is_that_of_the_injector() {
        let inject = "kind = 'inject'\nnodes = 'all'\nfor = '2s'\n";
        let rule = "rule = { kind = 'delay', delay = 'until-next', every = 10, only = ['n3', 'n4'] }";
        let What::Inject { point, rule, peers } = what(&format!("{inject}{rule}")) else { panic!("not a rule") };
        assert_eq!((point, peers), (Point::Wire, vec![3, 4]));
        assert_eq!((rule.until, rule.only), (Duration::from_secs(2), None));
    }

    #[test]
    fn repetition_ends_with_the_first_phase_at_the_latest() {
        let e = entry("at = '1s'\nkind = 'crash'\nrandom = 1\nfor = '300ms'\nevery = '2s'\nuntil = '60s'").unwrap();
        assert_eq!((e.every, e.until), (Some(Duration::from_secs(2)), Duration::from_secs(10)));
        assert_eq!(e.lasts, Some(Duration::from_millis(300)));
    }

    #[test]
    fn errors_name_the_field_and_what_it_takes() {
        for (text, wanted) in [
            ("kind = 'carsh'\nrandom = 1", "kind: `carsh` is unknown; known: crash, "),
            ("kind = 'crash'", ": kind `crash` needs `nodes`, `role` or `random`"),
            ("kind = 'crash'\nnodes = [8]", "nodes: there is no node 8"),
            ("kind = 'crash'\nnodes = [1]\nrole = 'leader'", "role: excludes `nodes`"),
            ("kind = 'crash'\nrole = 'laeder'", "role: `laeder` is unknown; known: leader"),
            ("kind = 'crash'\nrandom = 0", "random: chooses nobody"),
            ("kind = 'crash'\nrandom = 1\nrate = 2.0", "rate: does not apply to kind `crash`"),
            ("kind = 'heal'\nnodes = [1]", "nodes: does not apply to kind `heal`"),
            ("kind = 'restart'\nfor = '1s'", "for: does not apply to kind `restart`"),
            ("kind = 'pause'\nrandom = 1\nfor = '0'", "for: must be longer than nothing"),
            ("kind = 'pause'\nrandom = 1\nevery = '0s'", "every: must be longer than nothing"),
            ("kind = 'pause'\nrandom = 1\nevery = '1us'", "every: 1µs is too often"),
            ("kind = 'inject'\nrandom = 1\nrule = { kind = 'drop' }\nevery = '1s'", "every: does not apply to kind"),
            ("kind = 'pause'\nrandom = 1\nuntil = '3s'", "until: only means something beside `every`"),
            ("at = '11s'\nkind = 'crash'\nrandom = 1", "at: 11s comes after the first phase, which ends at 10s"),
            ("kind = 'clock'\nnodes = [1]\nrate = 0.0", "rate: 0 is no rate of a clock"),
            ("kind = 'loss'\nnodes = [1]\ninward = 1.5", "inward: 1.5 is not a part of the whole"),
            ("kind = 'inject'\nnodes = [1]", "rule: kind `inject` needs a rule"),
            ("kind = 'inject'\nnodes = [1]\nrule = { kind = 'drop', only = ['x'] }", "rule.only: `x` is no node"),
            ("kind = 'inject'\nnodes = [1]\nrule = { kind = 'drop', only = ['n8'] }", "`n8` is no node of this run"),
            ("kind = 'inject'\nnodes = [1]\nrule = { kind = 'dorp' }", "`kind` does not know `dorp`; it takes one of"),
            (
                "kind = 'inject'\nnodes = [1]\npoint = 'plain'\nrule = { kind = 'drop', only = ['n1'] }",
                "rule.only: does not apply to point `plain`",
            ),
            ("kind = 'inject'\nnodes = [1]\npoint = 'middle'", "unknown variant `middle`"),
            ("kind = 'partition'\nrandom = 1\ndirection = 'up'", "unknown variant `up`"),
        ] {
            let error = entry(text).unwrap_err();
            assert!(error.contains(wanted), "{text}\n{error}\nshould say {wanted}");
        }
    }
}
