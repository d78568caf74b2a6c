//! `--set key=value`: changes a scenario's text before it is read, so that what is set is checked like the file.

use super::problem::{Problem, unknown};
use toml::{Table, Value};

/// One change.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Change<'a> {
    /// As it was written.
    pub(crate) written: &'a str,
    /// The path of the field.
    pub(crate) path: &'a str,
    value: Value,
}

impl<'a> Change<'a> {
    /// Reads `key=value`. A value that is no TOML is a string: quotes around `10s` would have to pass the shell.
    pub(crate) fn parse(written: &'a str) -> Result<Self, Problem> {
        let form = "write a field's path and its value, such as network.loss=0.1 or fault.0.at=3s";
        let (path, value) = written.split_once('=').ok_or_else(|| Problem::new("", form))?;
        let path = path.trim();
        if path.is_empty() || path.split('.').any(str::is_empty) {
            return Err(Problem::new("", form));
        }
        let value = toml::from_str::<Table>(&format!("value = {value}")).ok().and_then(|mut t| t.remove("value"));
        let text = || Value::String(written[written.find('=').map_or(0, |at| at + 1)..].trim().to_owned());
        Ok(Self { written, path, value: value.unwrap_or_else(text) })
    }

    /// Makes the change. Tables that are missing on the way are made; list items are not.
    pub(crate) fn apply(&self, table: &mut Table) -> Result<(), Problem> {
        let wrong = |text: String| Problem::new(self.path, text);
        let (way, last) = self.path.rsplit_once('.').unwrap_or(("", self.path));
        let mut place = Place::Table(table);
        for key in way.split('.').filter(|key| !key.is_empty()) {
            place = place.enter(key).map_err(wrong)?;
        }
        match place {
            Place::Table(table) => {
                table.insert(last.to_owned(), self.value.clone());
            }
            Place::List(list) => *item(list, last).map_err(wrong)? = self.value.clone(),
        }
        Ok(())
    }
}

enum Place<'a> {
    Table(&'a mut Table),
    List(&'a mut Vec<Value>),
}

impl<'a> Place<'a> {
    fn enter(self, key: &str) -> Result<Self, String> {
        let value = match self {
            Self::Table(table) => table.entry(key).or_insert_with(|| Value::Table(Table::new())),
            Self::List(list) => item(list, key)?,
        };
        match value {
            Value::Table(table) => Ok(Self::Table(table)),
            Value::Array(list) => Ok(Self::List(list)),
            other => Err(format!("`{key}` has no fields: it holds the {} {other}", other.type_str())),
        }
    }
}

fn item<'a>(list: &'a mut [Value], key: &str) -> Result<&'a mut Value, String> {
    let known: Vec<String> = (0..list.len()).map(|n| n.to_string()).collect();
    let place = known.iter().position(|n| n == key);
    let text = || unknown(key, &known.iter().map(String::as_str).collect::<Vec<_>>());
    place.and_then(|n| list.get_mut(n)).ok_or_else(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str, change: &str) -> Result<String, String> {
        let mut table: Table = toml::from_str(text).unwrap();
        Change::parse(change).and_then(|c| c.apply(&mut table)).map_err(|p| format!("{}: {}", p.path, p.text))?;
        Ok(toml::to_string(&table).unwrap().replace('\n', " ").trim().to_owned())
    }

    #[test]
    fn a_value_is_toml_or_else_a_string() {
        assert_eq!(changed("nodes = 3", "nodes=5").unwrap(), "nodes = 5");
        assert_eq!(changed("", "safety=10s").unwrap(), "safety = \"10s\"");
        assert_eq!(changed("", "loss = 0.5").unwrap(), "loss = 0.5");
        assert_eq!(changed("", "nodes=[1, 2]").unwrap(), "nodes = [1, 2]");
        assert_eq!(changed("", "delivered=>= 10").unwrap(), "delivered = \">= 10\"");
        assert_eq!(changed("", "latency={ kind = 'fixed', us = 5 }").unwrap(), "[latency] kind = \"fixed\" us = 5");
    }

    #[test]
    fn a_path_leads_through_tables_and_lists() {
        assert_eq!(changed("", "network.loss=0.1").unwrap(), "[network] loss = 0.1");
        let two = "[[fault]]\nat = '1s'\n[[fault]]\nat = '2s'";
        assert_eq!(changed(two, "fault.1.at=3s").unwrap(), "[[fault]] at = \"1s\"  [[fault]] at = \"3s\"");
        assert_eq!(changed("a = [1, 2]", "a.0=7").unwrap(), "a = [7, 2]");
    }

    #[test]
    fn what_leads_nowhere_is_refused() {
        for (text, change, wanted) in [
            ("", "nodes", "write a field's path"),
            ("", "=5", "write a field's path"),
            ("", "network..loss=5", "write a field's path"),
            ("nodes = 3", "nodes.deep=5", "nodes.deep: `nodes` has no fields: it holds the integer 3"),
            ("a = [1, 2]", "a.2=7", "a.2: `2` is unknown; known: 0, 1"),
        ] {
            let error = changed(text, change).unwrap_err();
            assert!(error.contains(wanted), "{change}: {error}");
        }
    }
}
