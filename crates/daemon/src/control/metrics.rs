//! Figures for Prometheus. Each is described in docs/operations.md, which a test keeps complete.

use crate::agent::Agent;
use phalanx_protocol::member::Engine;
use phalanx_protocol::segment::Segment;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::Ordering;

/// One figure.
#[derive(Clone, Debug)]
enum Figure {
    /// It goes up and down.
    Level(u64),
    /// It only goes up.
    Count(u64),
    /// It only goes up, and has parts.
    Counts(&'static str, Vec<(String, u64)>),
}

/// All figures of a node at one moment: name, what it is, value.
#[derive(Clone, Debug)]
pub(super) struct Figures(Vec<(&'static str, &'static str, Figure)>);

impl Figures {
    /// Reads them off.
    pub(super) fn of(agent: &Agent) -> Self {
        let (engine, node) = (agent.engine(), agent.driver().node());
        let (zone, link) = (engine.zone().map(|z| *z.counters()).unwrap_or_default(), node.link().counters());
        let history = engine.zone().map_or(0, |z| z.tables().history);
        let segment = engine.segment().map(Segment::counters).unwrap_or_default();
        let wires = agent.wires().counts();
        let rumours = node.rumours().map(|r| *r.counters()).unwrap_or_default();
        let drops = link.drops().map(|(why, n)| (format!("{why:?}").to_lowercase(), n)).collect();
        let level = |n: usize| Figure::Level(n as u64);
        Self(vec![
            ("members", "Members in the view, this one included", level(engine.len())),
            ("neighbours", "Members that this one is linked with", level(engine.neighbours().count())),
            ("settled", "1 once the node knows what others know", Figure::Level(engine.is_settled().into())),
            ("history", "Removed members that are remembered", level(history)),
            ("peers", "Peers that the link knows", level(node.link().peers())),
            ("tripwires", "Tripwires that are up", Figure::Level(wires.up.load(Ordering::Relaxed))),
            ("tripwires_broken", "Tripwires that broke", Figure::Count(wires.broken.load(Ordering::Relaxed))),
            (
                "tripwires_failed",
                "Tries to make a tripwire that failed",
                Figure::Count(wires.failed.load(Ordering::Relaxed)),
            ),
            (
                "strangers",
                "Streams of those who do not know the key",
                Figure::Count(wires.strangers.load(Ordering::Relaxed)),
            ),
            ("packets_sent", "Packets sealed and sent", Figure::Count(link.sent)),
            ("packets_accepted", "Packets opened and acted upon", Figure::Count(link.accepted)),
            ("packets_dropped", "Packets dropped, by reason", Figure::Counts("reason", drops)),
            ("sessions", "Handshakes completed", Figure::Count(link.sessions)),
            ("letters", "Membership letters sent", Figure::Count(zone.letters)),
            ("suspicions", "Suspicions of this node", Figure::Count(zone.suspected)),
            ("dispelled", "Doubts that a probe dispelled", Figure::Count(zone.dispelled)),
            ("refuted", "Times this node spoke up for itself", Figure::Count(zone.refuted)),
            ("starved", "Times this node was late and doubted itself", Figure::Count(zone.starved)),
            ("held_back", "Times this node was removed again so soon that it held back", Figure::Count(zone.held_back)),
            ("resyncs", "Whole views sent because a neighbour's differed at rest", Figure::Count(zone.resyncs)),
            ("malformed", "Letters of members that made no sense", Figure::Count(zone.malformed + segment.malformed)),
            ("segment_forged", "Heartbeats in another's name", Figure::Count(segment.forged)),
            (
                "segment_strays",
                "Packets about groups that the node is not in, or from who is not heard",
                Figure::Count(segment.strays),
            ),
            ("segment_crowded", "Members that found no room", Figure::Count(segment.crowded)),
            ("segment_unanswered", "Questions beyond the bound of a period", Figure::Count(segment.unanswered)),
            ("segment_polls", "Times this node asked somebody for all it knows", Figure::Count(segment.polls)),
            ("segment_gaps", "Of those: because too many updates were missed", Figure::Count(segment.gaps)),
            ("rumours", "User events and queries heard", Figure::Count(rumours.heard)),
            ("rumours_repeated", "User events and queries heard again", Figure::Count(rumours.repeated)),
            ("rumours_late", "Answers that nobody waited for", Figure::Count(rumours.late)),
            ("events", "Events written to the journal", Figure::Count(agent.journal().count())),
            ("key_epoch", "How often the cluster's keys were changed", Figure::Level(agent.key_ring().epoch)),
        ])
    }

    /// As Prometheus reads it.
    pub(super) fn text(self) -> String {
        let mut registry = Registry::with_prefix("phalanx");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // A text takes all that is written.
        let _ = encode(&mut text, &registry);
        text
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, about, figure) in &self.0 {
            match figure {
                Figure::Level(n) => {
                    let gauge = ConstGauge::new(*n as i64);
                    gauge.encode(encoder.encode_descriptor(name, about, None, gauge.metric_type())?)?;
                }
                Figure::Count(n) => {
                    let counter = ConstCounter::new(*n);
                    counter.encode(encoder.encode_descriptor(name, about, None, counter.metric_type())?)?;
                }
                Figure::Counts(label, parts) => {
                    let mut metric = encoder.encode_descriptor(name, about, None, MetricType::Counter)?;
                    for (part, n) in parts {
                        let labels = [(*label, part.as_str())];
                        ConstCounter::new(*n).encode(metric.encode_family(&labels)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is measured and what is explained are the same.
    #[test]
    fn each_figure_is_explained() {
        let source = include_str!("metrics.rs").split("#[cfg(test)]").next().unwrap_or_default();
        // However its lines are broken: a name follows a parenthesis that calls nothing.
        let text: String = source.lines().map(str::trim).collect();
        let pieces: Vec<&str> = text.split("(\"").collect();
        let names: std::collections::BTreeSet<&str> = pieces
            .windows(2)
            .filter(|pair| !pair[0].ends_with(char::is_alphanumeric))
            .filter_map(|pair| pair[1].split_once('"').map(|(name, _)| name))
            .filter(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
            .collect();
        assert!(names.len() > 20, "{names:?}");
        let page = include_str!("../../../../docs/operations.md");
        for name in &names {
            assert!(page.contains(&format!("| `phalanx_{name}` |")), "docs/operations.md does not explain {name}");
        }
        let explained = page.lines().filter(|l| l.starts_with("| `phalanx_")).count();
        assert_eq!(explained, names.len(), "docs/operations.md explains what is not there");
    }

    #[test]
    fn figures_are_written_as_prometheus_reads_them() {
        let parts = vec![("badseal".to_owned(), 3)];
        let figures = Figures(vec![
            ("members", "Members", Figure::Level(5)),
            ("letters", "Letters", Figure::Count(7)),
            ("packets_dropped", "Drops", Figure::Counts("reason", parts)),
        ]);
        let text = figures.text();
        for line in [
            "phalanx_members 5\n",
            "phalanx_letters_total 7\n",
            "phalanx_packets_dropped_total{reason=\"badseal\"} 3\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
