//! The ledger: what a node's part of the manager must not forget, on disk, written by a thread of its own.
//!
//! CM, MM-3: nothing of it may be acted upon before it is durable, and the loop never waits for a disk. So each entry has a token, and the
//! loop is told which tokens are on the disk. Entries that wait while the disk syncs are synced together.
//!
//! | file in `manager/` | holds |
//! |---|---|
//! | `order.N` | records of the order of epoch N: length, checksum, bytes; begun anew with a record that replaces those before it |
//! | one for each page | the page that was kept last |
//!
//! A record whose end is missing was never confirmed: it is cut off. Any other damage is an error, never a reason to begin anew: a replica
//! that forgot what it promised could contradict itself.

use crate::store::{DIR_MODE, FILE_MODE, StoreError};
use phalanx_wire::crc32c;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Length and checksum before each record, and checksum before each page.
const HEAD: usize = 8;
/// Between two tries on a disk that refuses.
const RETRY: Duration = Duration::from_secs(1);

/// Something to keep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// One more record of an order; those of its epoch before it are forgotten when it replaces them.
    Record {
        /// Of which epoch.
        epoch: u32,
        /// It does.
        replaces: bool,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A page: of each name the last one is kept.
    Page {
        /// Its name.
        name: &'static str,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Orders of epochs before this one are not needed any more.
    Forget {
        /// The first that is.
        before: u32,
    },
}

/// What was kept by an earlier start.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Kept {
    /// Records of orders with their epochs, oldest first.
    pub records: Vec<(u32, Vec<u8>)>,
    /// Pages, in the order in which they were asked for; empty where there is none.
    pub pages: Vec<Vec<u8>>,
}

/// Writes what is to be kept. When it is dropped, all of it is on the disk, or was refused.
#[derive(Debug)]
pub struct Ledger {
    entries: Option<mpsc::Sender<(u64, Entry)>>,
    thread: Option<JoinHandle<()>>,
}

impl Ledger {
    /// Opens the ledger in `dir`, and reads what is there. `told` hears of tokens that are on the disk, in the order in which they came.
    ///
    /// # Errors
    /// When it cannot be read or opened.
    pub fn open(
        dir: &Path,
        pages: &[&'static str],
        told: impl FnMut(Vec<u64>) + Send + 'static,
    ) -> Result<(Self, Kept), StoreError> {
        let (mut book, kept) = Book::open(dir, pages)?;
        let (entries, heard) = mpsc::channel();
        let builder = std::thread::Builder::new().name("ledger".into()).stack_size(128 * 1024);
        let thread = builder.spawn(move || book.write_all(&heard, told));
        let thread = thread.map_err(|why| StoreError::Io { doing: "start a thread for", path: dir.to_owned(), why })?;
        Ok((Self { entries: Some(entries), thread: Some(thread) }, kept))
    }

    /// Keeps an entry, in the order in which they come.
    pub fn keep(&self, token: u64, entry: Entry) {
        if let Some(entries) = &self.entries {
            // The thread ends only with us.
            let _ = entries.send((token, entry));
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.entries = None;
        if let Some(thread) = self.thread.take() {
            // It holds nothing that a panic could have broken.
            let _ = thread.join();
        }
    }
}

/// The files.
struct Book {
    dir: PathBuf,
    orders: BTreeMap<u32, File>,
}

impl Book {
    fn open(dir: &Path, pages: &[&'static str]) -> Result<(Self, Kept), StoreError> {
        let fail = |doing, path: &Path| {
            let path = path.to_owned();
            move |why| StoreError::Io { doing, path, why }
        };
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir).map_err(fail("create", dir))?;
        let damaged = |path: &Path, what| StoreError::Damaged { path: path.to_owned(), what };
        let (mut book, mut kept) = (Self { dir: dir.to_owned(), orders: BTreeMap::new() }, Kept::default());
        for epoch in epochs(dir).map_err(fail("read", dir))? {
            let path = book.order_path(epoch);
            let bytes = fs::read(&path).map_err(fail("read", &path))?;
            let (records, whole) = records(&bytes).map_err(|what| damaged(&path, what))?;
            // What follows behind a half record could not be read.
            let cut = book.order(epoch).and_then(|file| file.set_len(whole as u64).and_then(|()| file.sync_all()));
            cut.map_err(fail("write", &path))?;
            kept.records.extend(records.into_iter().map(|record| (epoch, record)));
        }
        for name in pages {
            let path = dir.join(name);
            kept.pages.push(match fs::read(&path) {
                Ok(bytes) => page(&bytes).ok_or_else(|| damaged(&path, "its checksum is wrong"))?.to_vec(),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
                Err(why) => return Err(fail("read", &path)(why)),
            });
        }
        Ok((book, kept))
    }

    fn order_path(&self, epoch: u32) -> PathBuf {
        self.dir.join(order_name(epoch))
    }

    /// The file of an epoch's order; made when it is missing.
    fn order(&mut self, epoch: u32) -> io::Result<&mut File> {
        let path = self.order_path(epoch);
        match self.orders.entry(epoch) {
            std::collections::btree_map::Entry::Occupied(open) => Ok(open.into_mut()),
            std::collections::btree_map::Entry::Vacant(closed) => {
                let file = OpenOptions::new().create(true).append(true).read(true).mode(FILE_MODE).open(path)?;
                File::open(&self.dir)?.sync_all()?;
                Ok(closed.insert(file))
            }
        }
    }

    fn write_all(&mut self, heard: &mpsc::Receiver<(u64, Entry)>, mut told: impl FnMut(Vec<u64>)) {
        while let Ok(first) = heard.recv() {
            let batch: Vec<(u64, Entry)> = std::iter::once(first).chain(heard.try_iter()).collect();
            let mut written = 0;
            self.insist(|book| book.write_records(&batch, &mut written));
            self.insist(|book| book.write_pages(&batch));
            self.insist(|book| book.forget(&batch));
            told(batch.iter().map(|(token, _)| *token).collect());
        }
    }

    /// Tries until the disk takes it.
    fn insist(&mut self, mut write: impl FnMut(&mut Self) -> io::Result<()>) {
        let mut refused = false;
        while let Err(why) = write(self) {
            if !std::mem::replace(&mut refused, true) {
                let dir = self.dir.display();
                tracing::error!("cannot write to {dir}: {why}; the manager's replica here waits for it");
            }
            std::thread::sleep(RETRY);
        }
        if refused {
            tracing::info!("the disk takes what the manager's replica writes again");
        }
    }

    /// Writes all records of a batch and syncs them. Those of an epoch are written, or none of them.
    fn write_records(&mut self, batch: &[(u64, Entry)], written: &mut usize) -> io::Result<()> {
        while let Some((_, entry)) = batch.get(*written) {
            let &Entry::Record { epoch, .. } = entry else {
                *written += 1;
                continue;
            };
            let same = |(_, e): &(u64, Entry)| !matches!(e, Entry::Record { epoch: other, .. } if *other != epoch);
            let run = &batch[*written..];
            let run = &run[..run.iter().position(|e| !same(e)).unwrap_or(run.len())];
            self.write_run(epoch, run)?;
            *written += run.len();
        }
        Ok(())
    }

    /// Records of one epoch.
    fn write_run(&mut self, epoch: u32, run: &[(u64, Entry)]) -> io::Result<()> {
        let begin = run.iter().rposition(|(_, e)| matches!(e, Entry::Record { replaces: true, .. }));
        let mut framed = Vec::new();
        for (_, entry) in &run[begin.unwrap_or(0)..] {
            let Entry::Record { bytes, .. } = entry else { continue };
            framed.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            framed.extend_from_slice(&crc32c(bytes).to_le_bytes());
            framed.extend_from_slice(bytes);
        }
        if begin.is_some() {
            self.replace(&order_name(epoch), &framed)?;
            self.orders.remove(&epoch);
            return Ok(());
        }
        let file = self.order(epoch)?;
        let before = file.metadata()?.len();
        file.write_all(&framed).and_then(|()| file.sync_data()).or_else(|why| {
            // Half a record in the middle would make all that follows unreadable.
            file.set_len(before)?;
            Err(why)
        })
    }

    /// Orders that nobody needs any more.
    fn forget(&mut self, batch: &[(u64, Entry)]) -> io::Result<()> {
        for (_, entry) in batch {
            let &Entry::Forget { before } = entry else { continue };
            for epoch in epochs(&self.dir)?.into_iter().filter(|&epoch| epoch < before) {
                self.orders.remove(&epoch);
                fs::remove_file(self.order_path(epoch))?;
            }
        }
        Ok(())
    }

    /// Of each page the last one.
    fn write_pages(&mut self, batch: &[(u64, Entry)]) -> io::Result<()> {
        for (at, (_, entry)) in batch.iter().enumerate() {
            let Entry::Page { name, bytes } = entry else { continue };
            let is_last = !batch[at + 1..].iter().any(|(_, e)| matches!(e, Entry::Page { name: n, .. } if n == name));
            if is_last {
                let mut framed = crc32c(bytes).to_le_bytes().to_vec();
                framed.extend_from_slice(bytes);
                self.replace(name, &framed)?;
            }
        }
        Ok(())
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (path, new) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(&self.dir)?.sync_all()
    }
}

fn order_name(epoch: u32) -> String {
    format!("order.{epoch}")
}

/// Epochs of whose order there are records, ascending.
fn epochs(dir: &Path) -> io::Result<Vec<u32>> {
    let mut epochs = Vec::new();
    for file in fs::read_dir(dir)? {
        let name = file?.file_name();
        epochs.extend(name.to_str().and_then(|name| name.strip_prefix("order.")?.parse::<u32>().ok()));
    }
    epochs.sort_unstable();
    Ok(epochs)
}

/// The records, and how many bytes they take; what is left over at the end is the beginning of one.
fn records(bytes: &[u8]) -> Result<(Vec<Vec<u8>>, usize), &'static str> {
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some((length, rest)) = bytes[at..].split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((sum, rest)) = rest.split_first_chunk() else { break };
        let Some(record) = rest.get(..length) else { break };
        if u32::from_le_bytes(*sum) != crc32c(record) {
            // The last one may have been half written, with its length first.
            let is_last = rest.len() == length;
            if is_last {
                break;
            }
            return Err("a record's checksum is wrong");
        }
        records.push(record.to_vec());
        at += HEAD + length;
    }
    Ok((records, at))
}

fn page(bytes: &[u8]) -> Option<&[u8]> {
    let (sum, page) = bytes.split_first_chunk()?;
    (u32::from_le_bytes(*sum) == crc32c(page)).then_some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("phalanx-ledger-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            Self(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn record(replaces: bool, text: &str) -> Entry {
        Entry::Record { epoch: 1, replaces, bytes: text.into() }
    }

    /// Keeps all of these, and waits until they are on the disk.
    fn keep(dir: &Dir, entries: &[Entry]) -> Kept {
        let (tell, told) = mpsc::channel();
        let (ledger, kept) =
            Ledger::open(&dir.0, &["group", "state"], move |tokens| tell.send(tokens).unwrap()).unwrap();
        entries.iter().enumerate().for_each(|(token, entry)| ledger.keep(token as u64, entry.clone()));
        let mut tokens = Vec::new();
        while tokens.len() < entries.len() {
            tokens.extend(told.recv().unwrap());
        }
        assert!(tokens.iter().copied().eq(0..entries.len() as u64));
        kept
    }

    #[test]
    fn cm_1_what_was_kept_is_there_at_the_next_start() {
        let dir = Dir::new("kept");
        let page = |name, text: &str| Entry::Page { name, bytes: text.into() };
        let nothing = Kept { records: vec![], pages: vec![vec![], vec![]] };
        assert_eq!(keep(&dir, &[record(false, "one"), page("group", "a"), record(false, "two")]), nothing);
        let kept = keep(&dir, &[page("group", "b"), page("state", "c"), record(false, "three")]);
        assert_eq!(kept, Kept { records: told(&[(1, "one"), (1, "two")]), pages: vec!["a".into(), vec![]] });
        let kept = keep(&dir, &[record(false, "four"), record(true, "all"), record(false, "five")]);
        assert_eq!(kept.records.len(), 3);
        assert_eq!(kept.pages, [b"b", b"c"]);
        assert_eq!(keep(&dir, &[]).records, told(&[(1, "all"), (1, "five")]));
    }

    #[test]
    fn orders_of_several_epochs_do_not_touch_each_other() {
        let dir = Dir::new("epochs");
        let of = |epoch, replaces, text: &str| Entry::Record { epoch, replaces, bytes: text.into() };
        keep(&dir, &[of(2, false, "a"), of(10, false, "b"), of(2, false, "c"), of(10, true, "d"), of(10, false, "e")]);
        let kept = keep(&dir, &[Entry::Forget { before: 10 }, of(11, false, "f")]);
        assert_eq!(kept.records, told(&[(2, "a"), (2, "c"), (10, "d"), (10, "e")]));
        assert_eq!(keep(&dir, &[]).records, told(&[(10, "d"), (10, "e"), (11, "f")]));
    }

    fn told(records: &[(u32, &str)]) -> Vec<(u32, Vec<u8>)> {
        records.iter().map(|&(epoch, text)| (epoch, text.into())).collect()
    }

    #[test]
    fn a_record_that_was_half_written_was_never_there() {
        let dir = Dir::new("torn");
        keep(&dir, &[record(false, "one"), record(false, "second")]);
        let path = dir.0.join("order.1");
        let whole = fs::read(&path).unwrap();
        for cut in 1..=HEAD + 6 {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            assert_eq!(keep(&dir, &[]).records, told(&[(1, "one")]), "cut {cut}");
        }
        // Written again behind the cut, it is whole.
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        keep(&dir, &[record(false, "third")]);
        assert_eq!(keep(&dir, &[]).records, told(&[(1, "one"), (1, "third")]));
    }

    #[test]
    fn damage_is_told_and_nothing_begins_anew() {
        let dir = Dir::new("damage");
        keep(&dir, &[record(false, "one"), record(false, "two"), Entry::Page { name: "group", bytes: vec![7] }]);
        let path = dir.0.join("order.1");
        let mut bytes = fs::read(&path).unwrap();
        bytes[HEAD] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let open = || Ledger::open(&dir.0, &["group"], |_| {}).map(|(_, kept)| kept);
        assert!(matches!(open(), Err(StoreError::Damaged { .. })));
        bytes[HEAD] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(open().unwrap().records.len(), 2);
        fs::write(dir.0.join("group"), [1, 2, 3, 4, 7]).unwrap();
        assert!(matches!(open(), Err(StoreError::Damaged { .. })));
    }
}
