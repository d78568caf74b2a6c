//! What a daemon keeps on disk: who it is, the cluster's keys, its last incarnation, and whom it knew last.
//!
//! Small files of text in one directory, each replaced as a whole (written beside, synced, renamed), so that a power cut
//! leaves the old one or the new one. A daemon locks its directory. What cannot be read is an error, never a reason to
//! begin anew: a node that came back under another identity would be a stranger to everybody.
//!
//! | file | holds |
//! |---|---|
//! | `identity` | the seed of the node's Ed25519 key, in hex |
//! | `keys` | `epoch N`, how often they were changed; then the keys, one on a line: id, key in hex; the first one seals |
//! | `incarnation` | the last one that was used |
//! | `members` | addresses of members that were there lately |

use phalanx_protocol::link::seal::{KeyRing, RING_MAX, cluster_key};
use phalanx_protocol::member::Name;
use phalanx_protocol::rumour::keys::FIRST;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Only its owner may read what a daemon keeps.
pub(crate) const FILE_MODE: u32 = 0o600;
pub(crate) const DIR_MODE: u32 = 0o700;
/// Addresses that are kept of members.
pub const MEMBERS_KEPT: usize = 128;

/// A key of the cluster, with the number by which packets name it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its number.
    pub id: u8,
    /// The key itself.
    pub key: [u8; 32],
}

/// Why something could not be kept, or read. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The system refused.
    #[error("cannot {doing} {}: {why}{}", path.display(), advice(why))]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} is damaged ({what}): restore it from a backup, or move it away to begin anew as another node", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// Another daemon uses the directory.
    #[error("{} is in use by another daemon: give each its own --data-dir", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
}

fn advice(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::PermissionDenied => " (start as the user who owns it, or choose another --data-dir)",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => " (the disk is full: make room and start again)",
        io::ErrorKind::ReadOnlyFilesystem => " (choose a --data-dir that can be written)",
        _ => "",
    }
}

/// The directory of a daemon, locked.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    _lock: nix::fcntl::Flock<File>,
}

impl Store {
    /// Opens the directory, and makes it when it is missing.
    ///
    /// # Errors
    /// When it cannot be made or locked.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let fail = |doing, path: &Path| {
            let path = path.to_owned();
            move |why| StoreError::Io { doing, path, why }
        };
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir).map_err(fail("create", dir))?;
        let path = dir.join("lock");
        let lock = OpenOptions::new().create(true).append(true).mode(FILE_MODE).open(&path);
        let lock = lock.map_err(fail("open", &path))?;
        let lock = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusiveNonblock)
            .map_err(|_| StoreError::Locked { path: dir.to_owned() })?;
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The seed of the node's key; drawn and kept when there is none.
    ///
    /// # Errors
    /// When it cannot be read or kept: nobody may start under an identity that the next start would not find.
    pub fn identity(&self) -> Result<[u8; 32], StoreError> {
        if let Some(text) = self.read("identity")? {
            return unhex(text.trim()).ok_or_else(|| self.damaged("identity", "it is not 64 hexadecimal digits"));
        }
        let mut seed = [0; 32];
        let random = getrandom::fill(&mut seed).map_err(|e| io::Error::other(e.to_string()));
        random.map_err(|why| self.io("draw", "identity", why))?;
        self.replace("identity", &format!("{}\n", hex(&seed)))?;
        Ok(seed)
    }

    /// The incarnation of this start, higher than all before: by the clock, unless it was set back. It is kept first.
    ///
    /// # Errors
    /// When the last one cannot be read, or this one not kept.
    pub fn next_incarnation(&self) -> Result<u64, StoreError> {
        let last = match self.read("incarnation")? {
            Some(text) => text.trim().parse().map_err(|_| self.damaged("incarnation", "it is not a number"))?,
            None => 0,
        };
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let next = clock.max(last + 1);
        self.replace("incarnation", &format!("{next}\n"))?;
        Ok(next)
    }

    /// The cluster's keys, the sealing one first, and how often they were changed; `None` when there are none.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn keys(&self) -> Result<Option<(Vec<Key>, u64)>, StoreError> {
        let Some(text) = self.read("keys")? else { return Ok(None) };
        let (epoch, lines) = match text.strip_prefix("epoch ").and_then(|t| t.split_once('\n')) {
            Some((epoch, lines)) => (epoch.parse().ok(), lines),
            None => (Some(FIRST), text.as_str()),
        };
        let keys: Option<Vec<Key>> = lines.lines().map(parse_key).collect();
        match (keys, epoch) {
            (Some(keys), Some(epoch)) if ring(&keys, "").is_some() => Ok(Some((keys, epoch))),
            _ => Err(self.damaged("keys", "a line is not an id and a key, or an id is there twice")),
        }
    }

    /// Keeps the cluster's keys.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn keep_keys(&self, keys: &[Key], epoch: u64) -> Result<(), StoreError> {
        let mut text = format!("epoch {epoch}\n");
        for Key { id, key } in keys {
            let _ = writeln!(text, "{id} {}", hex(key));
        }
        self.replace("keys", &text)
    }

    /// Members that were there lately. What makes no sense there is left out: this is a hint.
    #[must_use]
    pub fn members(&self) -> Vec<SocketAddr> {
        let text = self.read("members").ok().flatten().unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).take(MEMBERS_KEPT).collect()
    }

    /// Keeps the addresses of members, the first [`MEMBERS_KEPT`] of them.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn keep_members(&self, members: impl Iterator<Item = SocketAddr>) -> Result<(), StoreError> {
        let text: String = members.take(MEMBERS_KEPT).map(|addr| format!("{addr}\n")).collect();
        self.replace("members", &text)
    }

    /// The zone in which the node was last, when it found that by itself. What makes no sense is left out: this is a hint.
    #[must_use]
    pub fn zone(&self) -> Option<Name> {
        Name::new(self.read("zone").ok().flatten()?.trim()).ok()
    }

    /// Keeps the zone in which the node is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_zone(&self, zone: &str) -> Result<(), StoreError> {
        self.replace("zone", &format!("{zone}\n"))
    }

    fn read(&self, name: &'static str) -> Result<Option<String>, StoreError> {
        match fs::read(self.dir.join(name)) {
            Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| self.damaged(name, "it is not text")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(self.io("read", name, why)),
        }
    }

    fn replace(&self, name: &'static str, text: &str) -> Result<(), StoreError> {
        let (path, new) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        let write = || {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(|why| {
            // A half-written file takes room on a full disk.
            let _ = fs::remove_file(&new);
            self.io("write", name, why)
        })
    }

    fn io(&self, doing: &'static str, name: &str, why: io::Error) -> StoreError {
        StoreError::Io { doing, path: self.dir.join(name), why }
    }

    fn damaged(&self, name: &str, what: &'static str) -> StoreError {
        StoreError::Damaged { path: self.dir.join(name), what }
    }
}

/// The ring of these keys in the cluster of this name; `None` when there are none, too many, or two with one id.
#[must_use]
pub fn ring(keys: &[Key], cluster: &str) -> Option<KeyRing> {
    let (first, rest) = keys.split_first()?;
    if rest.len() >= RING_MAX {
        return None;
    }
    let mut ring = KeyRing::new(first.id, cluster_key(&first.key, cluster));
    rest.iter().try_for_each(|k| ring.add(k.id, cluster_key(&k.key, cluster))).ok()?;
    Some(ring)
}

/// The number of a key: it follows from the key, so that who is given the key alone names it as all others do.
#[must_use]
pub fn key_id(key: &[u8; 32]) -> u8 {
    let ring = KeyRing::new(1, cluster_key(key, "phalanx key id"));
    ring.prove(1, b"id").unwrap_or_default()[0].max(1)
}

/// What may be told of a key: equal keys have equal ones, and nothing follows from it.
#[must_use]
pub fn fingerprint(key: &[u8; 32]) -> String {
    let ring = KeyRing::new(1, cluster_key(key, "phalanx fingerprint"));
    hex(&ring.prove(1, b"fingerprint").unwrap_or_default())
}

/// Bytes as people write them.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A key as people write it: 64 hexadecimal digits.
#[must_use]
pub fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

fn parse_key(line: &str) -> Option<Key> {
    let (id, key) = line.split_once(' ')?;
    Some(Key { id: id.parse().ok()?, key: unhex(key)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("phalanx-store-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            Self(dir)
        }

        fn open(&self) -> Store {
            Store::open(&self.0).unwrap()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_kept_is_found_at_the_next_start() {
        let dir = Dir::new("kept");
        let keys = vec![Key { id: 2, key: [5; 32] }, Key { id: 1, key: [9; 32] }];
        let members: Vec<SocketAddr> = vec!["10.0.0.1:7946".parse().unwrap(), "[fd00::2]:7946".parse().unwrap()];
        let (identity, first) = {
            let store = dir.open();
            assert_eq!(store.keys().unwrap().map(|k| k.0.len()), None);
            store.keep_keys(&keys, 7).unwrap();
            store.keep_members(members.iter().copied()).unwrap();
            (store.identity().unwrap(), store.next_incarnation().unwrap())
        };
        let store = dir.open();
        assert_eq!(store.identity().unwrap(), identity);
        assert!(store.keys().unwrap().unwrap() == (keys, 7));
        assert_eq!(store.members(), members);
        assert!(store.next_incarnation().unwrap() > first);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_bring_an_old_incarnation_back() {
        let (dir, future) = (Dir::new("clock"), 1 << 40);
        let store = dir.open();
        store.replace("incarnation", &format!("{future}\n")).unwrap();
        assert_eq!(store.next_incarnation().unwrap(), future + 1);
        assert_eq!(store.next_incarnation().unwrap(), future + 2);
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_stays_as_it_is() {
        let dir = Dir::new("damaged");
        let store = dir.open();
        for (name, text) in [("identity", "abc\n"), ("keys", "1 zz\n"), ("incarnation", "soon\n")] {
            fs::write(dir.0.join(name), text).unwrap();
        }
        fs::write(dir.0.join("members"), "nonsense\n10.0.0.1:1\n").unwrap();
        let said = [
            store.identity().unwrap_err().to_string(),
            store.keys().err().unwrap().to_string(),
            store.next_incarnation().unwrap_err().to_string(),
        ];
        assert!(said.iter().all(|s| s.contains("is damaged")), "{said:?}");
        assert_eq!(fs::read_to_string(dir.0.join("identity")).unwrap(), "abc\n");
        assert_eq!(store.members().len(), 1, "a hint is taken as far as it goes");
    }

    #[test]
    fn two_daemons_cannot_share_a_directory() {
        let dir = Dir::new("lock");
        let first = dir.open();
        assert!(matches!(Store::open(&dir.0), Err(StoreError::Locked { .. })));
        drop(first);
        assert!(Store::open(&dir.0).is_ok());
    }

    #[test]
    fn only_the_owner_reads_secrets() {
        use std::os::unix::fs::PermissionsExt;
        let dir = Dir::new("mode");
        let store = dir.open();
        store.identity().unwrap();
        store.keep_keys(&[Key { id: 1, key: [1; 32] }], 1).unwrap();
        for name in ["identity", "keys"] {
            assert_eq!(fs::metadata(dir.0.join(name)).unwrap().permissions().mode() & 0o777, FILE_MODE);
        }
    }
}
