//! Rules: which zone a node belongs to.
//!
//! HI-1, 002 §2: on Blue Gene a node's "personality" says so. Here it is said outright, or its host name shows it, or an
//! attribute that it will have (a rack, a switch, a room). The result is the zone's name, as [`Role::Base`] takes it: zones
//! have no numbers, because guards are found by hashing names and nobody has to hand out numbers then.
//!
//! Every node must come to the same answer about itself each time it starts, so a rule is a pure function, and what does
//! not fit is an error at start, not a zone of the node's own: a typing mistake would otherwise split the cluster
//! without a word.

use super::hierarchy::Role;
use crate::member::{Name, NameError};
use phalanx_core::Addr;
use regex_lite::{Regex, RegexBuilder};
use std::sync::Arc;
use thiserror::Error;

/// The longest pattern and template, in bytes.
pub const RULE_MAX: usize = 256;
/// The most patterns of a rule.
pub const PATTERNS_MAX: usize = 32;
/// The most memory that one pattern may take.
const PROGRAM_MAX: usize = 64 * 1024;

/// Why a rule cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// Too long.
    #[error("`{0}…` has more than {RULE_MAX} bytes: write a shorter pattern, or several")]
    TooLong(String),
    /// Too many, or none.
    #[error("a rule has 1 to {PATTERNS_MAX} patterns, not {0}")]
    Patterns(usize),
    /// No regular expression.
    #[error("`{pattern}` is not a regular expression: {why}")]
    Pattern {
        /// What was written.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },
    /// The template names a group that the pattern does not have.
    #[error(
        "`{template}` names the group `{group}`, and `{pattern}` has {groups}: write $1 to ${groups}, or $$ for a dollar"
    )]
    Group {
        /// The template.
        template: String,
        /// The pattern.
        pattern: String,
        /// What follows the dollar.
        group: String,
        /// How many groups the pattern has.
        groups: usize,
    },
}

/// Why a node has no zone.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ZoneError {
    /// No pattern fits.
    #[error("host name `{host}` fits none of {patterns}, and there is no default zone: add a pattern or a default")]
    NoMatch {
        /// The host's name.
        host: String,
        /// The patterns that were tried.
        patterns: String,
    },
    /// The attribute is not there.
    #[error(
        "attribute `{0}` is not set, and there is no default zone: set it before the node starts, or add a default"
    )]
    NoAttribute(String),
    /// What came out is no name.
    #[error("`{zone}` cannot name a zone: {why}")]
    NotAName {
        /// What came out.
        zone: String,
        /// What is wrong with it.
        why: NameError,
    },
}

/// Which zone a node belongs to.
#[derive(Clone, Debug)]
pub struct ZoneRule {
    by: By,
    default: Option<Name>,
}

#[derive(Clone, Debug)]
enum By {
    Name(Name),
    Host(Vec<Shape>),
    Attribute(Box<str>),
}

/// A pattern that host names fit, and what the zone is called then.
#[derive(Clone, Debug)]
struct Shape {
    source: Box<str>,
    whole: Regex,
    template: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Text(Box<str>),
    Group(usize),
}

impl ZoneRule {
    /// This zone, whatever the node is.
    #[must_use]
    pub const fn named(zone: Name) -> Self {
        Self { by: By::Name(zone), default: None }
    }

    /// From the host's name: the first of these patterns that fits all of it counts, and its template names the zone:
    /// `(r"rack(\d+)-.*", "rack$1")`. A group may have a name: `(?<room>…)`, `${room}`. `(?i)` in front ignores case.
    ///
    /// # Errors
    /// When a pattern or a template makes no sense.
    pub fn from_host<'a>(shapes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, RuleError> {
        let shapes: Vec<Shape> = shapes.into_iter().map(|(p, t)| Shape::new(p, t)).collect::<Result<_, _>>()?;
        if shapes.is_empty() || shapes.len() > PATTERNS_MAX {
            return Err(RuleError::Patterns(shapes.len()));
        }
        Ok(Self { by: By::Host(shapes), default: None })
    }

    /// From one of the attributes with which the node starts.
    #[must_use]
    pub fn from_attribute(key: &str) -> Self {
        Self { by: By::Attribute(key.into()), default: None }
    }

    /// The zone of nodes that nothing fits.
    #[must_use]
    pub fn or(self, default: Name) -> Self {
        Self { default: Some(default), ..self }
    }

    /// The zone of a node with this host name and these attributes.
    ///
    /// # Errors
    /// When nothing fits and there is no default, or what fits gives no name: a default does not hide that.
    pub fn zone<'a>(&self, host: &str, attribute: impl Fn(&str) -> Option<&'a str>) -> Result<Name, ZoneError> {
        let zone = match &self.by {
            By::Name(name) => return Ok(name.clone()),
            By::Host(shapes) => shapes.iter().find_map(|shape| shape.zone(host)).ok_or_else(|| no_match(host, shapes)),
            By::Attribute(key) => {
                attribute(key).map(str::to_owned).ok_or_else(|| ZoneError::NoAttribute(key.to_string()))
            }
        };
        match (zone, &self.default) {
            (Ok(zone), _) => Name::new(&zone).map_err(|why| ZoneError::NotAName { zone, why }),
            (Err(_), Some(default)) => Ok(default.clone()),
            (Err(nothing), None) => Err(nothing),
        }
    }

    /// The place of such a node in a hierarchy with these supervisors.
    ///
    /// # Errors
    /// As [`ZoneRule::zone`].
    pub fn role<'a>(
        &self,
        host: &str,
        attribute: impl Fn(&str) -> Option<&'a str>,
        supervisors: &Arc<[Addr]>,
    ) -> Result<Role, ZoneError> {
        let zone = self.zone(host, attribute)?;
        Ok(Role::Base { zone, supervisors: Arc::clone(supervisors) })
    }
}

fn no_match(host: &str, shapes: &[Shape]) -> ZoneError {
    let patterns: Vec<String> = shapes.iter().map(|s| format!("`{}`", s.source)).collect();
    ZoneError::NoMatch { host: host.into(), patterns: patterns.join(", ") }
}

impl Shape {
    fn new(pattern: &str, template: &str) -> Result<Self, RuleError> {
        if let Some(long) = [pattern, template].into_iter().find(|t| t.len() > RULE_MAX) {
            return Err(RuleError::TooLong(long.chars().take(20).collect()));
        }
        let build = |text: &str| {
            let wrong = |e: regex_lite::Error| RuleError::Pattern { pattern: pattern.into(), why: e.to_string() };
            RegexBuilder::new(text).size_limit(PROGRAM_MAX).build().map_err(wrong)
        };
        // It must make sense alone, not only between what is put around it.
        build(pattern)?;
        let whole = build(&format!("^(?:{pattern})$"))?;
        let template = parts(template, &whole).map_err(|group| RuleError::Group {
            template: template.into(),
            pattern: pattern.into(),
            group,
            groups: whole.captures_len() - 1,
        })?;
        Ok(Self { source: pattern.into(), whole, template })
    }

    fn zone(&self, host: &str) -> Option<String> {
        let captures = self.whole.captures(host)?;
        let text = |part: &Part| match part {
            Part::Text(text) => text.to_string(),
            Part::Group(group) => captures.get(*group).map_or_else(String::new, |m| m.as_str().to_owned()),
        };
        Some(self.template.iter().map(text).collect())
    }
}

/// Takes a template apart; the name of a group that is not there is an error.
fn parts(template: &str, pattern: &Regex) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((text, behind)) = rest.split_once('$') {
        parts.push(Part::Text(text.into()));
        if let Some(behind) = behind.strip_prefix('$') {
            parts.push(Part::Text("$".into()));
            rest = behind;
            continue;
        }
        let group = match behind.strip_prefix('{').map(|braced| braced.split_once('}').ok_or(behind)) {
            Some(braced) => braced?.0,
            None => &behind[..behind.bytes().take_while(u8::is_ascii_digit).count()],
        };
        let number = group.parse().ok().filter(|&n: &usize| n < pattern.captures_len());
        let named = || pattern.capture_names().position(|n| n == Some(group));
        parts.push(Part::Group(number.or_else(named).ok_or(group)?));
        rest = &behind[group.len() + if behind.starts_with('{') { 2 } else { 0 }..];
    }
    parts.push(Part::Text(rest.into()));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn of_host(rule: &ZoneRule, host: &str) -> Result<String, ZoneError> {
        rule.zone(host, |_| None).map(|n| n.as_str().to_owned())
    }

    #[test]
    fn hi_1_a_zone_is_named_outright() {
        assert_eq!(of_host(&ZoneRule::named(name("a")), "anything"), Ok("a".into()));
    }

    /// HI-1: the paper's racks.
    #[test]
    fn hi_1_a_zone_follows_from_the_host_name() {
        let shapes = [(r"rack(\d+)-.*", "rack$1"), (r"(?i)io-(?<room>[a-z]+)\d*", "room.${room}-$2"), ("gpu.*", "gpu")];
        assert!(matches!(ZoneRule::from_host(shapes), Err(RuleError::Group { group, groups: 1, .. }) if group == "2"));
        let shapes = [(r"rack(\d+)-.*", "rack$1"), (r"(?i)io-(?<room>[a-z]+)\d*", "room.${room}"), ("gpu.*", "gpu")];
        let rule = ZoneRule::from_host(shapes).unwrap();
        assert_eq!(of_host(&rule, "rack17-n003"), Ok("rack17".into()));
        assert_eq!(of_host(&rule, "IO-east4"), Ok("room.east".into()));
        assert_eq!(of_host(&rule, "gpu9"), Ok("gpu".into()));
        let lost = of_host(&rule, "xrack17-n003").unwrap_err();
        assert_eq!(
            lost.to_string(),
            r"host name `xrack17-n003` fits none of `rack(\d+)-.*`, `(?i)io-(?<room>[a-z]+)\d*`, `gpu.*`, and there is no default zone: add a pattern or a default"
        );
        assert_eq!(of_host(&rule.or(name("rest")), "laptop"), Ok("rest".into()));
    }

    #[test]
    fn hi_1_a_zone_follows_from_an_attribute() {
        let rule = ZoneRule::from_attribute("rack");
        let racks = |key: &str| (key == "rack").then_some("r7");
        assert_eq!(rule.zone("h", racks), Ok(name("r7")));
        let lacks = rule.zone("h", |_| None).unwrap_err();
        assert_eq!(lacks, ZoneError::NoAttribute("rack".into()));
        assert!(lacks.to_string().starts_with("attribute `rack` is not set"), "{lacks}");
        let rule = rule.or(name("rest"));
        assert_eq!(rule.zone("h", |_| None), Ok(name("rest")));
        let bad = rule.zone("h", |_| Some("rack 7")).unwrap_err();
        assert_eq!(bad, ZoneError::NotAName { zone: "rack 7".into(), why: NameError::Character(' ') });
        let role = rule.role("h", racks, &Arc::from([Addr::Local(1)])).unwrap();
        assert_eq!(role, Role::Base { zone: name("r7"), supervisors: Arc::from([Addr::Local(1)]) });
    }

    #[test]
    fn a_group_that_took_no_part_is_empty_and_an_empty_zone_is_no_name() {
        let rule = ZoneRule::from_host([("a(x)?(.*)", "$1")]).unwrap().or(name("rest"));
        assert_eq!(of_host(&rule, "ab"), Err(ZoneError::NotAName { zone: String::new(), why: NameError::Length(0) }));
    }

    #[test]
    fn templates_are_taken_apart() {
        for (template, zone) in
            [("$0", "ab"), ("x$1y$2", "xayb"), ("${1}0-$2", "a0-b"), ("$1$1", "aa"), ("plain", "plain")]
        {
            assert_eq!(of_host(&ZoneRule::from_host([("(a)(b)", template)]).unwrap(), "ab").as_deref(), Ok(zone));
        }
        for template in ["$", "$x", "${1", "${}", "$3", "${no}"] {
            assert!(matches!(ZoneRule::from_host([("(a)(b)", template)]), Err(RuleError::Group { .. })), "{template}");
        }
        let dollar = of_host(&ZoneRule::from_host([("a", "$$1")]).unwrap(), "a");
        assert_eq!(dollar, Err(ZoneError::NotAName { zone: "$1".into(), why: NameError::Character('$') }));
    }

    #[test]
    fn a_bad_pattern_is_told_when_the_rule_is_made() {
        for pattern in ["rack(", "a)(b", "(a{1000}){1000}"] {
            let error = ZoneRule::from_host([(pattern, "x")]).unwrap_err();
            assert!(matches!(&error, RuleError::Pattern { pattern: p, .. } if p == pattern), "{error}");
        }
        assert_eq!(ZoneRule::from_host([]).unwrap_err(), RuleError::Patterns(0));
        let long = "x".repeat(RULE_MAX + 1);
        assert!(matches!(ZoneRule::from_host([(&*long, "x")]), Err(RuleError::TooLong(_))));
    }
}
