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
    /// Names, each with a list of hosts: NAME=HOSTS; a table in the file, in the environment with blanks between them.
    Places,
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
    Entry::new("attributes", Kind::List, "", "what the node says of itself from its start: KEY=VALUE"),
    Entry::new("bind", Kind::Text, "0.0.0.0:7946", "where it listens, UDP and TCP; port 0 takes any"),
    Entry::new(
        "cast_directory",
        Kind::Text,
        "cluster",
        "who hands out the seats of that tree: cluster, or etcd:http://HOST:2379[,http://…]; all nodes must have the same",
    ),
    Entry::new(
        "cast_fan_out",
        Kind::Text,
        "3",
        "children of each node in the tree of casts; all nodes must have the same",
    ),
    Entry::new(
        "cast_repair",
        Kind::OneOf(&["at-once", "lazy", "manual"]),
        "lazy",
        "when the seat of a dead node in that tree is filled",
    ),
    Entry::new("cluster", Kind::Text, "", "the cluster's name: nodes with another one stay outside"),
    Entry::new("data_centre", Kind::Text, "", "the name of the cluster's data centre, in a federation"),
    Entry::new("data_dir", Kind::Text, "/var/lib/phalanx", "where identity, keys and incarnation are kept"),
    Entry::new(
        "discover",
        Kind::OneOf(&["auto", "on", "off"]),
        "auto",
        "find others on the local network by multicast: auto does unless told whom to join, a zone, or a loopback address",
    ),
    Entry::new(
        "engine",
        Kind::OneOf(&["zone", "segment"]),
        "zone",
        "how members find and watch each other: see docs/operations.md; all nodes must have the same",
    ),
    Entry::new(
        "expect",
        Kind::Text,
        "0",
        "jobs are managed once so many nodes are there: more than half of all, the same everywhere; 0 waits for a manager that others found",
    ),
    Entry::new(
        "federation",
        Kind::Places,
        "",
        "other data centres, and a few nodes of each: NAME=HOSTS; their clusters must have the same key and name",
    ),
    Entry::new("federation_period", Kind::Seconds, "5", "from one summary for other data centres to the next"),
    Entry::new("http", Kind::Text, "", "where the control API is served over TCP, too, such as 127.0.0.1:7947"),
    Entry::new("http_cert", Kind::Text, "", "the certificate of the HTTP port, PEM; needed off loopback"),
    Entry::new("http_key", Kind::Text, "", "the key of that certificate, PEM"),
    Entry::new(
        "http_token_file",
        Kind::Text,
        "",
        "a file with the token that HTTP requests must show; needed off loopback",
    ),
    Entry::new(
        "join",
        Kind::List,
        "",
        "where other members may be: HOST, HOST:PORT, hosts:node[1-9], srv:NAME, file:PATH",
    ),
    Entry::new("key", Kind::Text, "", "the cluster's key, 64 hexadecimal digits; drawn when there is none").secret(),
    Entry::new("key_file", Kind::Text, "", "a file that holds the key"),
    Entry::new("leave_timeout", Kind::Seconds, "2", "how long a farewell may take"),
    Entry::new("load", Kind::Flag, "false", "tell others how busy the machine is, as attribute phalanx.load"),
    Entry::new("log", Kind::OneOf(&["error", "warn", "info", "debug", "trace"]), "info", "how much is logged"),
    Entry::new("log_format", Kind::OneOf(&["text", "json"]), "text", "how the log is written, to standard error"),
    Entry::new("name", Kind::Text, "", "what the node is called; the host's name unless set"),
    Entry::new(
        "name_conflict",
        Kind::OneOf(&["refuse", "rename"]),
        "refuse",
        "what to do when another member has the name",
    ),
    Entry::new("on", Kind::List, "", "scripts to run when something happens: WHAT=COMMAND, see docs/operations.md"),
    Entry::new("profile", Kind::OneOf(&["lan", "wan", "local", "paper"]), "lan", "how it watches and speaks"),
    Entry::new(
        "role",
        Kind::OneOf(&["member", "supervisor"]),
        "member",
        "supervisors watch over all zones, and are in none",
    ),
    Entry::new("run_as_root", Kind::Flag, "false", "jobs of root run here, as root"),
    Entry::new(
        "segment_group",
        Kind::Text,
        "4096",
        "the first of eight multicast groups, 239.77.x.y: a number; all nodes must have the same",
    ),
    Entry::new(
        "segment_ttl",
        Kind::Text,
        "4",
        "the largest TTL of multicast, 1 to 8: routers between segments, and one",
    ),
    Entry::new(
        "segments",
        Kind::Places,
        "",
        "engine segment without multicast: the hosts of each segment, NAME=HOSTS; all nodes must have the same",
    ),
    Entry::new("slots", Kind::Text, "", "ranks of jobs that the node takes; one for each processor unless set"),
    Entry::new("socket", Kind::Text, "/run/phalanx/phalanx.sock", "where the control API listens"),
    Entry::new(
        "socket_group",
        Kind::Text,
        "",
        "a group of users who may look and run jobs of their own; nobody else unless set",
    ),
    Entry::new("supervisors", Kind::List, "", "where supervisors are, for members of a zone; as `join`"),
    Entry::new("tripwires", Kind::Flag, "true", "hold an idle TCP stream to each neighbour, to notice a crash at once"),
    Entry::new("zone", Kind::Text, "", "the zone the node is in, where there are several"),
    Entry::new("zone_attribute", Kind::Text, "", "the attribute that names the zone"),
    Entry::new("zone_pattern", Kind::List, "", "host names to zones, the first that fits: rack(\\d+)-.*=rack$1"),
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
