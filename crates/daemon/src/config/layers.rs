//! Where values come from: the command line, the environment, the file, the default.

use super::table::{Entry, Kind, TABLE};
use super::{ConfigError, nearest};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value stands.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// Nowhere: it is the default.
    Default,
    /// In this file.
    File(PathBuf),
    /// In the environment, under this name.
    Environment(String),
    /// On the command line, as this option.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "option --{name}"),
        }
    }
}

/// Values of settings, each with its origin; later layers win.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    values: BTreeMap<&'static str, (Vec<String>, Origin)>,
}

impl Layers {
    /// The file, which must not hold anything that is unknown.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|why| ConfigError::Read { path: path.to_owned(), why: why.to_string() })?;
        self.read_text(path, &text)
    }

    /// The text of a file at `path`.
    ///
    /// # Errors
    /// When it cannot be understood.
    pub fn read_text(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let origin = Origin::File(path.to_owned());
        let fail = |why: String| ConfigError::Text { path: path.to_owned(), why };
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| fail(e.to_string()))?;
        for (key, value) in table {
            let entry = find(&key, &origin)?;
            let (values, shape) = match (value, entry.kind) {
                (toml::Value::Table(table), Kind::Places) => (
                    table.iter().map(place).collect(),
                    "give each name a text or a list of texts: rack1 = [\"10.0.0.[1-20]\"]",
                ),
                (value, kind) => (
                    texts(&value),
                    if kind == Kind::Places {
                        "give a table: { rack1 = [\"10.0.0.[1-20]\"] }, or a list of NAME=HOSTS"
                    } else {
                        "give a text, a number, yes or no, or a list of texts"
                    },
                ),
            };
            let wrong = || ConfigError::Value { origin: origin.clone(), key: entry.key, why: shape.to_owned() };
            let values = values.ok_or_else(wrong)?;
            self.set(entry, values, origin.clone())?;
        }
        Ok(())
    }

    /// The environment: all variables that begin with `PHALANX_` and are settings. Others belong to somebody else.
    ///
    /// # Errors
    /// When a value makes no sense.
    pub fn read_environment(&mut self, variables: impl Iterator<Item = (String, String)>) -> Result<(), ConfigError> {
        for (name, value) in variables {
            let Some(entry) = TABLE.iter().find(|e| e.variable() == name) else { continue };
            let values = match entry.kind {
                Kind::Places => {
                    value.split([' ', '\t', '\n', ';']).filter(|v| !v.is_empty()).map(str::to_owned).collect()
                }
                Kind::List => value.split(',').map(|v| v.trim().to_owned()).filter(|v| !v.is_empty()).collect(),
                _ => vec![value],
            };
            self.set(entry, values, Origin::Environment(name))?;
        }
        Ok(())
    }

    /// An option of the command line.
    ///
    /// # Errors
    /// When there is no such setting, or the value makes no sense.
    pub fn read_flag(&mut self, option: &str, values: Vec<String>) -> Result<(), ConfigError> {
        let origin = Origin::Flag(option.to_owned());
        let entry = find(&option.replace('-', "_"), &origin)?;
        self.set(entry, values, origin)
    }

    /// The value of a setting; `None` when it is nothing.
    #[must_use]
    pub fn text(&self, key: &'static str) -> Option<&str> {
        let value = match self.values.get(key) {
            Some((values, _)) => values.first().map_or("", String::as_str),
            None => TABLE.iter().find(|e| e.key == key).map_or("", |e| e.default),
        };
        (!value.is_empty()).then_some(value)
    }

    /// The values of a list.
    #[must_use]
    pub fn list(&self, key: &'static str) -> &[String] {
        self.values.get(key).map_or(&[], |v| &v.0)
    }

    /// A setting that is yes or no.
    #[must_use]
    pub fn flag(&self, key: &'static str) -> bool {
        self.text(key) == Some("true")
    }

    /// A number of seconds.
    #[must_use]
    pub fn seconds(&self, key: &'static str) -> Option<f64> {
        self.text(key)?.parse().ok()
    }

    /// Where a setting's value stands.
    #[must_use]
    pub fn origin(&self, key: &'static str) -> Origin {
        self.values.get(key).map_or(Origin::Default, |v| v.1.clone())
    }

    /// Something is wrong with the value of a setting.
    #[must_use]
    pub fn wrong(&self, key: &'static str, why: impl fmt::Display) -> ConfigError {
        ConfigError::Value { origin: self.origin(key), key, why: why.to_string() }
    }

    /// All settings with their values and origins, by name. Secrets are hidden.
    pub fn show(&self) -> impl Iterator<Item = (&'static Entry, String, Origin)> + '_ {
        TABLE.iter().map(|entry| {
            let value = match self.values.get(entry.key) {
                Some(_) if entry.secret => "(hidden)".to_owned(),
                Some((values, _)) => values.join(if entry.kind == Kind::Places { " " } else { "," }),
                None => entry.default.to_owned(),
            };
            (entry, value, self.origin(entry.key))
        })
    }

    fn set(&mut self, entry: &'static Entry, values: Vec<String>, origin: Origin) -> Result<(), ConfigError> {
        let wrong = |why: String| ConfigError::Value { origin: origin.clone(), key: entry.key, why };
        if !matches!(entry.kind, Kind::List | Kind::Places) && values.len() != 1 {
            return Err(wrong("give one value".to_owned()));
        }
        let values: Vec<String> =
            values.into_iter().map(|v| checked(entry.kind, v)).collect::<Result<_, _>>().map_err(wrong)?;
        let stronger = self.values.get(entry.key).is_none_or(|known| rank(&known.1) <= rank(&origin));
        if stronger {
            self.values.insert(entry.key, (values, origin));
        }
        Ok(())
    }
}

/// The higher wins.
const fn rank(origin: &Origin) -> u8 {
    match origin {
        Origin::Default => 0,
        Origin::File(_) => 1,
        Origin::Environment(_) => 2,
        Origin::Flag(_) => 3,
    }
}

fn find(key: &str, origin: &Origin) -> Result<&'static Entry, ConfigError> {
    TABLE.iter().find(|e| e.key == key).ok_or_else(|| ConfigError::Unknown {
        origin: origin.clone(),
        key: key.to_owned(),
        nearest: nearest(key, TABLE.iter().map(|e| e.key)),
    })
}

/// One text or several.
fn texts(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::Array(items) => items.iter().map(plain).collect(),
        value => plain(value).map(|v| vec![v]),
    }
}

/// A name and its hosts, as the command line has them.
fn place((name, hosts): (&String, &toml::Value)) -> Option<String> {
    Some(format!("{name}={}", texts(hosts)?.join(",")))
}

fn plain(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(n) => Some(n.to_string()),
        toml::Value::Float(n) => Some(n.to_string()),
        toml::Value::Boolean(b) => Some(b.to_string()),
        toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => None,
    }
}

/// The value as it is kept, or what is wrong with it.
fn checked(kind: Kind, value: String) -> Result<String, String> {
    match kind {
        Kind::Text | Kind::List | Kind::Places => Ok(value),
        Kind::OneOf(words) if words.contains(&value.as_str()) => Ok(value),
        Kind::OneOf(words) => Err(match nearest(&value, words.iter().copied()) {
            Some(near) => format!("`{value}` is none of {}: did you mean `{near}`?", words.join(", ")),
            None => format!("`{value}` is none of {}", words.join(", ")),
        }),
        Kind::Seconds => match value.parse::<f64>() {
            Ok(n) if n.is_finite() && (0.0..=1e6).contains(&n) => Ok(value),
            _ => Err(format!("`{value}` is no number of seconds")),
        },
        Kind::Flag => match value.as_str() {
            "true" | "yes" | "1" | "on" => Ok("true".to_owned()),
            "false" | "no" | "0" | "off" => Ok("false".to_owned()),
            _ => Err(format!("`{value}` is neither true nor false")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Layers, ConfigError> {
        let mut layers = Layers::default();
        layers.read_text(Path::new("p.toml"), text).map(|()| layers)
    }

    #[test]
    fn the_command_line_wins_over_the_environment_the_file_and_the_default() {
        let mut layers = Layers::default();
        assert_eq!((layers.text("profile"), layers.origin("profile")), (Some("lan"), Origin::Default));
        layers.read_flag("profile", vec!["local".into()]).unwrap();
        layers
            .read_environment(
                [("PHALANX_PROFILE".into(), "wan".into()), ("PHALANX_NAME".into(), "a".into())].into_iter(),
            )
            .unwrap();
        layers.read_text(Path::new("p.toml"), "profile = 'paper'\nname = 'b'\nbind = '[::]:1'\n").unwrap();
        assert_eq!(
            (layers.text("profile"), layers.text("name"), layers.text("bind")),
            (Some("local"), Some("a"), Some("[::]:1"))
        );
        let origins: Vec<String> = ["profile", "name", "bind", "socket"].map(|k| layers.origin(k).to_string()).into();
        assert_eq!(origins, ["option --profile", "environment PHALANX_NAME", "p.toml", "default"]);
    }

    #[test]
    fn what_is_unknown_is_named_with_what_may_have_been_meant() {
        for (text, said) in [
            ("advertize = 'x'", "p.toml: there is no setting `advertize`: did you mean `advertise`?"),
            ("quorum = 3", "p.toml: there is no setting `quorum`: `phalanx config show` lists all of them"),
            ("profile = 'lam'", "p.toml: `profile`: `lam` is none of lan, wan, local, paper: did you mean `lan`?"),
            ("tripwires = 'maybe'", "p.toml: `tripwires`: `maybe` is neither true nor false"),
            ("leave_timeout = -1", "p.toml: `leave_timeout`: `-1` is no number of seconds"),
            ("bind = ['a', 'b']", "p.toml: `bind`: give one value"),
            ("name = { first = 'a' }", "p.toml: `name`: give a text, a number, yes or no, or a list of texts"),
        ] {
            assert_eq!(file(text).unwrap_err().to_string(), said);
        }
        let broken = file("name = \nbind = 3").unwrap_err().to_string();
        assert!(broken.starts_with("p.toml: ") && broken.contains("line 1"), "{broken}");
    }

    #[test]
    fn lists_come_from_everywhere() {
        let layers = file("join = ['a', 'b:1']").unwrap();
        assert_eq!(layers.list("join"), ["a", "b:1"]);
        let mut layers = Layers::default();
        layers.read_environment([("PHALANX_JOIN".into(), "a, b:1,".into())].into_iter()).unwrap();
        assert_eq!(layers.list("join"), ["a", "b:1"]);
        assert_eq!(file("join = 'a'").unwrap().list("join"), ["a"]);
    }

    #[test]
    fn places_are_a_table_a_list_or_words() {
        let table = file("[segments]\nrack1 = ['10.0.0.[1-2]', 'a']\nrack2 = 'b'").unwrap();
        assert_eq!(table.list("segments"), ["rack1=10.0.0.[1-2],a", "rack2=b"]);
        assert_eq!(table, file("segments = ['rack1=10.0.0.[1-2],a', 'rack2=b']").unwrap());
        let mut layers = Layers::default();
        let words = " rack1=10.0.0.[1-2,7],a  rack2=b;rack3=c".to_owned();
        layers.read_environment([("PHALANX_SEGMENTS".into(), words)].into_iter()).unwrap();
        assert_eq!(layers.list("segments"), ["rack1=10.0.0.[1-2,7],a", "rack2=b", "rack3=c"]);
        for (text, said) in [
            ("[segments]\na = {}", "give each name a text or a list of texts: rack1 = [\"10.0.0.[1-20]\"]"),
            ("segments = [{}]", "give a table: { rack1 = [\"10.0.0.[1-20]\"] }, or a list of NAME=HOSTS"),
        ] {
            assert_eq!(file(text).unwrap_err().to_string(), format!("p.toml: `segments`: {said}"));
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let layers = file("key = 'abcd'").unwrap();
        let shown: Vec<_> = layers.show().filter(|(e, ..)| e.key == "key").map(|(_, v, _)| v).collect();
        assert_eq!(shown, ["(hidden)"]);
        assert_eq!(layers.show().count(), TABLE.len());
    }
}
