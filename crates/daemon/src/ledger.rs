//! The ledger: what a node's part of the manager must not forget, on disk, written by a thread of its own.
//!
//! CM, MM-3: nothing of it may be acted upon before it is durable, and the loop never waits for a disk. So each entry has a token, and the
//! loop is told which tokens are on the disk. Entries that wait while the disk syncs are synced together, records first.
//!
//! | file in `manager/` | holds |
//! |---|---|
//! | `order.N` | records of the order of epoch N in frames, then zeros; begun anew with a record that replaces those before it |
//! | one for each page | the page that was kept last |
//! | one for each mark | the last two, each in its place |
//!
//! A start of a job waits for three records, so what a record costs matters: it is written over zeros that are there already, and marks over
//! older ones. A file that does not grow has no news for the file system's journal, whose thread a busy machine lets wait for milliseconds
//! (measured, with a load of four for each processor: 8 ms for a record that was appended, 0.07 for one that was written over zeros).
//!
//! A frame is what was written at once: length, checksum, records. The last one may be there in part, in whatever part: it was never
//! confirmed, and is cut off. Any other damage is an error, never a reason to begin anew: a replica that forgot what it promised could
//! contradict itself.

use crate::store::{DIR_MODE, FILE_MODE, StoreError};
use phalanx_wire::crc32c;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Length and checksum before each frame.
const HEAD: usize = 8;
/// Frames begin at multiples of this: no head lies in two sectors.
const ALIGN: usize = 8;
/// In a frame's length: it holds records. Without, it is one, as it was written before there were frames.
const FRAME: u32 = 1 << 31;
/// Zeros that are written behind the last frame when there is no room.
const AHEAD: usize = 256 << 10;
/// The place of a mark: a sector.
const PLACE: usize = 512;
/// Checksum, number and length before each mark.
const MARK_HEAD: usize = 4 + 8 + 4;
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
    /// A small page that is written often.
    Mark {
        /// Its name.
        name: &'static str,
        /// Its bytes: fewer than 496.
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
    /// Pages and marks, in the order in which they were asked for; empty where there is none.
    pub pages: Vec<Vec<u8>>,
}

/// Writes what is to be kept. When it is dropped, all of it is on the disk, or was refused.
#[derive(Debug)]
pub struct Ledger {
    entries: Option<mpsc::Sender<(u64, Entry)>>,
    thread: Option<JoinHandle<()>>,
}

impl Ledger {
    /// Opens the ledger in `dir`, and reads what is there. `told` hears of tokens that are on the disk: of those of records, and of those of
    /// all others, in the order in which they came.
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
    orders: BTreeMap<u32, Log>,
    marks: BTreeMap<&'static str, Marked>,
}

/// The file of an order.
struct Log {
    file: File,
    /// Where the next frame begins.
    end: usize,
    /// How long the file is.
    room: usize,
}

/// The file of a mark.
struct Marked {
    file: File,
    /// The number of the last one.
    number: u64,
}

impl Book {
    fn open(dir: &Path, pages: &[&'static str]) -> Result<(Self, Kept), StoreError> {
        let fail = |doing, path: &Path| {
            let path = path.to_owned();
            move |why| StoreError::Io { doing, path, why }
        };
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir).map_err(fail("create", dir))?;
        let damaged = |path: &Path, what| StoreError::Damaged { path: path.to_owned(), what };
        let mut book = Self { dir: dir.to_owned(), orders: BTreeMap::new(), marks: BTreeMap::new() };
        let mut kept = Kept::default();
        for epoch in epochs(dir).map_err(fail("read", dir))? {
            let path = book.order_path(epoch);
            let bytes = fs::read(&path).map_err(fail("read", &path))?;
            let (records, whole) = records(&bytes).map_err(|what| damaged(&path, what))?;
            // What is left of a frame could be read as one some day.
            let cut = open_again(&path).and_then(|file| {
                file.set_len(whole as u64)?;
                file.sync_all()?;
                Ok(Log { file, end: whole, room: whole })
            });
            book.orders.insert(epoch, cut.map_err(fail("write", &path))?);
            kept.records.extend(records.into_iter().map(|record| (epoch, record)));
        }
        for name in pages {
            let path = dir.join(name);
            kept.pages.push(match fs::read(&path) {
                Ok(bytes) => match (page(&bytes), mark(&bytes)) {
                    (Some(page), _) => page.to_vec(),
                    (None, Some((number, last))) => {
                        let file = open_again(&path).map_err(fail("write", &path))?;
                        book.marks.insert(name, Marked { file, number });
                        last.to_vec()
                    }
                    (None, None) => return Err(damaged(&path, "its checksum is wrong")),
                },
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
    fn order(&mut self, epoch: u32) -> io::Result<&mut Log> {
        let path = self.order_path(epoch);
        match self.orders.entry(epoch) {
            std::collections::btree_map::Entry::Occupied(open) => Ok(open.into_mut()),
            std::collections::btree_map::Entry::Vacant(closed) => {
                let file = OpenOptions::new().create(true).truncate(false).write(true).mode(FILE_MODE).open(path)?;
                File::open(&self.dir)?.sync_all()?;
                Ok(closed.insert(Log { file, end: 0, room: 0 }))
            }
        }
    }

    fn write_all(&mut self, heard: &mpsc::Receiver<(u64, Entry)>, mut told: impl FnMut(Vec<u64>)) {
        while let Ok(first) = heard.recv() {
            let batch: Vec<(u64, Entry)> = std::iter::once(first).chain(heard.try_iter()).collect();
            let tokens = |of_records| {
                let is_one = move |e: &&(u64, Entry)| matches!(e.1, Entry::Record { .. }) == of_records;
                batch.iter().filter(is_one).map(|(token, _)| *token).collect::<Vec<_>>()
            };
            let (records, others) = (tokens(true), tokens(false));
            let mut written = 0;
            self.insist(|book| book.write_records(&batch, &mut written));
            // Somebody waits for these, and only for these.
            if !records.is_empty() {
                told(records);
            }
            self.insist(|book| book.write_pages(&batch));
            self.insist(|book| book.write_marks(&batch));
            self.insist(|book| book.forget(&batch));
            if !others.is_empty() {
                told(others);
            }
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
        let records = run[begin.unwrap_or(0)..].iter().filter_map(|(_, entry)| match entry {
            Entry::Record { bytes, .. } => Some(&bytes[..]),
            _ => None,
        });
        let mut bytes = frame(records);
        if bytes.is_empty() {
            return Ok(());
        }
        if begin.is_some() {
            self.replace(&order_name(epoch), &bytes)?;
            let (file, end) = (open_again(&self.order_path(epoch))?, bytes.len());
            self.orders.insert(epoch, Log { file, end, room: end });
            return Ok(());
        }
        let log = self.order(epoch)?;
        let end = log.end + bytes.len();
        if end <= log.room {
            log.file.write_all_at(&bytes, log.end as u64)?;
            log.file.sync_data()?;
        } else {
            bytes.resize(bytes.len() + AHEAD, 0);
            log.file.write_all_at(&bytes, log.end as u64)?;
            log.file.sync_all()?;
            log.room = end + AHEAD;
        }
        log.end = end;
        Ok(())
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

    /// Of each mark the last one, over the one before the last.
    fn write_marks(&mut self, batch: &[(u64, Entry)]) -> io::Result<()> {
        let marks = batch.iter().filter_map(|(_, entry)| match entry {
            Entry::Mark { name, bytes } => Some((*name, bytes)),
            _ => None,
        });
        for (name, bytes) in marks.collect::<BTreeMap<_, _>>() {
            let Some(Marked { file, number }) = self.marks.get_mut(name) else {
                // The other place holds none.
                let mut both = place(1, bytes)?;
                both.resize(2 * PLACE, 0);
                self.replace(name, &both)?;
                let file = open_again(&self.dir.join(name))?;
                self.marks.insert(name, Marked { file, number: 1 });
                continue;
            };
            let next = *number + 1;
            file.write_all_at(&place(next, bytes)?, (next + 1) % 2 * PLACE as u64)?;
            file.sync_data()?;
            *number = next;
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

/// A file that is there, to be written over.
fn open_again(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Records as they are written at once; nothing of none.
fn frame<'r>(records: impl Iterator<Item = &'r [u8]>) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    for record in records {
        bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
        bytes.extend_from_slice(record);
    }
    if bytes.len() == HEAD {
        return Vec::new();
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
    let (length, sum) = (bytes.len() - HEAD, crc32c(&bytes[HEAD..]));
    bytes[..4].copy_from_slice(&(length as u32 | FRAME).to_le_bytes());
    bytes[4..HEAD].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The records, and how many bytes they take; what is left over is zeros, and before them perhaps a part of a frame.
fn records(bytes: &[u8]) -> Result<(Vec<Vec<u8>>, usize), &'static str> {
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some((word, rest)) = bytes[at..].split_first_chunk() {
        let word = u32::from_le_bytes(*word);
        let Some((sum, rest)) = rest.split_first_chunk().filter(|_| word != 0) else { break };
        let length = (word & !FRAME) as usize;
        let Some(body) = rest.get(..length) else { break };
        if u32::from_le_bytes(*sum) != crc32c(body) {
            // Nothing is written behind one that is not there as a whole.
            if rest[length..].iter().all(|byte| *byte == 0) {
                break;
            }
            return Err("a record's checksum is wrong");
        }
        if word & FRAME == 0 {
            records.push(body.to_vec());
        } else {
            unframe(body, &mut records).ok_or("a frame makes no sense")?;
        }
        at += HEAD + length;
    }
    Ok((records, at))
}

/// Adds what a frame holds.
fn unframe(mut body: &[u8], records: &mut Vec<Vec<u8>>) -> Option<()> {
    while let Some((length, rest)) = body.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 {
            break;
        }
        let (record, rest) = rest.split_at_checked(length)?;
        records.push(record.to_vec());
        body = rest;
    }
    Some(())
}

fn page(bytes: &[u8]) -> Option<&[u8]> {
    let (sum, page) = bytes.split_first_chunk()?;
    (u32::from_le_bytes(*sum) == crc32c(page)).then_some(page)
}

/// A mark as it is written.
fn place(number: u64, bytes: &[u8]) -> io::Result<Vec<u8>> {
    if bytes.len() > PLACE - MARK_HEAD {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a mark is too long"));
    }
    let mut place = vec![0; 4];
    place.extend_from_slice(&number.to_le_bytes());
    place.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    place.extend_from_slice(bytes);
    place.resize(PLACE, 0);
    let sum = crc32c(&place[4..]);
    place[..4].copy_from_slice(&sum.to_le_bytes());
    Ok(place)
}

/// The later mark of a file, and its number: while one is written the other one is whole.
fn mark(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let read = |place: &'_ [u8]| -> Option<(u64, usize)> {
        page(place)?;
        let number = u64::from_le_bytes(place.get(4..12)?.try_into().ok()?);
        let length = u32::from_le_bytes(place.get(12..MARK_HEAD)?.try_into().ok()?) as usize;
        (number > 0 && length <= PLACE - MARK_HEAD).then_some((number, length))
    };
    if bytes.len() != 2 * PLACE {
        return None;
    }
    let both = bytes.chunks(PLACE).filter_map(|place| Some((read(place)?, place)));
    let ((number, length), place) = both.max_by_key(|(read, _)| read.0)?;
    Some((number, &place[MARK_HEAD..MARK_HEAD + length]))
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
        let is_record = |token: &u64| matches!(entries[*token as usize], Entry::Record { .. });
        let (records, others): (Vec<u64>, Vec<u64>) = tokens.iter().partition(|t| is_record(t));
        assert!(records.is_sorted() && others.is_sorted(), "{tokens:?}");
        tokens.sort_unstable();
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

    /// The file of an order, and where the last of its frames begins and ends.
    fn last_frame(dir: &Dir) -> (PathBuf, Vec<u8>, std::ops::Range<usize>) {
        let path = dir.0.join("order.1");
        let bytes = fs::read(&path).unwrap();
        let (mut at, mut last) = (0, 0..0);
        while let Some(word) = bytes[at..].first_chunk().map(|w| u32::from_le_bytes(*w)).filter(|w| *w != 0) {
            last = at..at + HEAD + (word & !FRAME) as usize;
            at = last.end;
        }
        (path, bytes, last)
    }

    #[test]
    fn a_record_that_was_half_written_was_never_there() {
        let dir = Dir::new("torn");
        keep(&dir, &[record(false, "one")]);
        keep(&dir, &[record(false, "second"), record(false, "and third")]);
        let (path, whole, last) = last_frame(&dir);
        assert!(whole.len() > last.end, "zeros are there for the next one");
        let written = last.end - 1 - whole[last.clone()].iter().rev().position(|b| *b != 0).unwrap();
        // The file ended there, or zeros stayed there, or only what comes behind it was written.
        for cut in last.start + 1..=written {
            let zeros_behind = [&whole[..cut], &vec![0; whole.len() - cut]].concat();
            let zeros_before = [&whole[..last.start], &vec![0; cut - last.start], &whole[cut..]].concat();
            // A head lies in one sector, so it is there or it is not.
            let parts = [whole[..cut].to_vec(), zeros_behind, zeros_before];
            for part in &parts[..if cut < last.start + HEAD { 2 } else { 3 }] {
                fs::write(&path, part).unwrap();
                assert_eq!(keep(&dir, &[]).records, told(&[(1, "one")]), "cut {cut}");
                assert_eq!(fs::metadata(&path).unwrap().len(), last.start as u64, "cut {cut}");
            }
        }
        // Written again behind the cut, it is whole.
        keep(&dir, &[record(false, "third")]);
        assert_eq!(keep(&dir, &[]).records, told(&[(1, "one"), (1, "third")]));
    }

    /// Records as they were written before there were frames are read, and go on with frames.
    #[test]
    fn records_without_frames_are_read() {
        let dir = Dir::new("plain");
        fs::create_dir_all(&dir.0).unwrap();
        let plain = |text: &str| {
            [&(text.len() as u32).to_le_bytes()[..], &crc32c(text.as_bytes()).to_le_bytes(), text.as_bytes()].concat()
        };
        fs::write(dir.0.join("order.1"), [plain("one"), plain("two"), plain("cut")[..9].to_vec()].concat()).unwrap();
        keep(&dir, &[record(false, "three")]);
        assert_eq!(keep(&dir, &[]).records, told(&[(1, "one"), (1, "two"), (1, "three")]));
    }

    /// What is written over zeros is found behind what was there, however much it is.
    #[test]
    fn records_fill_what_room_there_is() {
        let dir = Dir::new("room");
        let texts: Vec<String> = (0..60).map(|n| format!("{n} {}", "x".repeat(n * 331))).collect();
        texts.iter().for_each(|text| _ = keep(&dir, &[record(false, text)]));
        let again: Vec<Entry> = texts.iter().map(|text| record(false, text)).collect();
        keep(&dir, &again);
        let kept = keep(&dir, &[]).records;
        assert!(kept.iter().map(|r| &r.1[..]).eq(texts.iter().chain(&texts).map(String::as_bytes)));
    }

    /// A mark is written over an older one: while that happens the last one is whole.
    #[test]
    fn a_mark_that_was_half_written_leaves_the_one_before() {
        let dir = Dir::new("mark");
        let mark = |text: &str| Entry::Mark { name: "state", bytes: text.into() };
        let path = dir.0.join("state");
        // One that was kept as a page becomes a mark.
        keep(&dir, &[Entry::Page { name: "state", bytes: b"page".into() }]);
        assert_eq!(keep(&dir, &[mark("one")]).pages[1], b"page");
        for (last, next) in [("one", "two"), ("two", "three"), ("three", "four")] {
            let before = fs::read(&path).unwrap();
            assert_eq!(keep(&dir, &[mark(next)]).pages[1], last.as_bytes());
            let after = fs::read(&path).unwrap();
            assert_eq!(after.len(), 2 * PLACE);
            let changed: Vec<usize> = (0..after.len()).filter(|&at| before[at] != after[at]).collect();
            for &torn in &changed {
                fs::write(&path, [&after[..torn], &before[torn..]].concat()).unwrap();
                assert_eq!(keep(&dir, &[]).pages[1], last.as_bytes(), "torn at {torn}");
            }
            fs::write(&path, after).unwrap();
        }
        assert_eq!(keep(&dir, &[]).pages[1], b"four");
        let long = Entry::Mark { name: "state", bytes: vec![7; PLACE - MARK_HEAD] };
        keep(&dir, &[long]);
        assert_eq!(keep(&dir, &[]).pages[1], [7; PLACE - MARK_HEAD]);
    }

    #[test]
    fn damage_is_told_and_nothing_begins_anew() {
        let dir = Dir::new("damage");
        keep(&dir, &[record(false, "one"), Entry::Page { name: "group", bytes: vec![7] }]);
        keep(&dir, &[record(false, "two")]);
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
