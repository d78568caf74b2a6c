//! Everything that can be set, in one table: names, kinds, defaults, and what each is for. Help, documentation and checks are
//! made from it.

/// What a value looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// Any text.
    Text,
    /// A text of these.
    OneOf(&'static [&'static str]),
    /// Several texts; in the environment with commas between them.
    List,
    /// A number of seconds.
    Seconds,
    /// Yes or no.
    Flag,
}

/// Something that can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name in the file; the environment has it in capitals behind `PHALANX_`, the command line with hyphens.
    pub key: &'static str,
    /// What it looks like.
    pub kind: Kind,
    /// What it is unless somebody says otherwise; an empty text is nothing.
    pub default: &'static str,
    /// What it is for, in one line.
    pub about: &'static str,
    /// It is not shown to anybody.
    pub secret: bool,
}

impl Entry {
    const fn new(key: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Self {
        Self { key, kind, default, about, secret: false }
    }

    const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    /// Its name in the environment.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("PHALANX_{}", self.key.to_ascii_uppercase())
    }
}

/// Everything that can be set, by name.
pub const TABLE: &[Entry] = &[
    Entry::new("advertise", Kind::Text, "", "where others reach the node, when that is another address than `bind`"),
    Entry::new("bind", Kind::Text, "0.0.0.0:7946", "where it listens, UDP and TCP; port 0 takes any"),
    Entry::new("cluster", Kind::Text, "", "the cluster's name: nodes with another one stay outside"),
    Entry::new("data_dir", Kind::Text, "/var/lib/phalanx", "where identity, keys and incarnation are kept"),
    Entry::new("join", Kind::List, "", "where other members may be: HOST, HOST:PORT, hosts:node[1-9], file:PATH"),
    Entry::new("key", Kind::Text, "", "the cluster's key, 64 hexadecimal digits; drawn when there is none").secret(),
    Entry::new("key_file", Kind::Text, "", "a file that holds the key"),
    Entry::new("leave_timeout", Kind::Seconds, "2", "how long a farewell may take"),
    Entry::new("name", Kind::Text, "", "what the node is called; the host's name unless set"),
    Entry::new("profile", Kind::OneOf(&["lan", "wan", "local", "paper"]), "lan", "how it watches and speaks"),
    Entry::new("socket", Kind::Text, "/run/phalanx/phalanx.sock", "where the control API listens"),
    Entry::new("tripwires", Kind::Flag, "true", "hold an idle TCP stream to each neighbour, to notice a crash at once"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_each_entry_has_a_purpose() {
        assert!(TABLE.is_sorted_by(|a, b| a.key < b.key));
        assert!(
            TABLE.iter().all(|e| !e.about.is_empty() && e.key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        );
    }
}
