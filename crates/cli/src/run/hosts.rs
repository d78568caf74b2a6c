//! Which nodes a job may use: `--host` lists and host files, as hydra and Open MPI write them.

use phalanx_client::api::manage::NodeSlots;
use phalanx_client::api::run::HostSlots;
use phalanx_daemon::seeds;
use std::path::Path;

/// Nodes of a list: `a,b:2,node[01-16]:4`.
pub(super) fn listed(list: &str) -> Result<Vec<HostSlots>, String> {
    let bare: String = list.chars().filter(|c| !c.is_whitespace()).collect();
    named(&bare).map_err(|why| format!("--host {list}: {why}"))
}

/// Nodes of a file, one in each line.
pub(super) fn read(file: &Path) -> Result<Vec<HostSlots>, String> {
    Ok(lines(file)?.into_iter().map(|(_, host)| host).collect())
}

/// Says which line of a file names a node that is not there.
pub(super) fn check(file: &Path, nodes: &[NodeSlots]) -> Result<(), String> {
    match lines(file)?.iter().find(|(_, host)| nodes.iter().all(|n| n.node != host.node)) {
        None => Ok(()),
        Some((line, host)) => {
            let (file, node) = (file.display(), &host.node);
            Err(format!("{file}, line {}: no node is called {node}: `phalanx drain` lists them all", line + 1))
        }
    }
}

/// Nodes of a file, and the line of each, from 0.
fn lines(file: &Path) -> Result<Vec<(usize, HostSlots)>, String> {
    let text =
        std::fs::read_to_string(file).map_err(|e| format!("cannot read the host file {}: {e}", file.display()))?;
    let wrong = |line: usize, why: String| format!("{}, line {}: {why}", file.display(), line + 1);
    let mut hosts: Vec<(usize, HostSlots)> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(first) = words.next() else { continue };
        let mut these = named(first).map_err(|why| wrong(at, why))?;
        for word in words {
            let slots = match word.split_once('=') {
                Some(("slots", slots)) => number(slots).map_err(|why| wrong(at, why))?,
                // How many there may be at most; we never start more than there are slots.
                Some(("max_slots" | "max-slots", _)) => continue,
                _ => {
                    return Err(wrong(
                        at,
                        format!("`{word}` means nothing here: write NAME, NAME:SLOTS or NAME slots=N"),
                    ));
                }
            };
            these.iter_mut().for_each(|h| h.slots = Some(slots));
        }
        for host in these {
            if hosts.iter().any(|(_, h)| h.node == host.node) {
                return Err(wrong(at, format!("{} is there twice: give it its slots in one line", host.node)));
            }
            hosts.push((at, host));
        }
    }
    if hosts.is_empty() { Err(format!("{} names no nodes", file.display())) } else { Ok(hosts) }
}

/// `NAME`, `NAME:SLOTS`, where a name may be many: `node[01-16]`.
fn named(text: &str) -> Result<Vec<HostSlots>, String> {
    let names = seeds::expand(text).map_err(|e| e.to_string())?.into_iter();
    let host = |name: String| match name.rsplit_once(':') {
        Some((node, slots)) => Ok(HostSlots { node: node.to_owned(), slots: Some(number(slots)?) }),
        None => Ok(HostSlots { node: name, slots: None }),
    };
    names.map(host).collect()
}

fn number(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(slots @ 1..) => Ok(slots),
        _ => Err(format!("`{text}` is no number of slots: 1 or more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Vec<(String, Option<u32>)>, String> {
        let path = std::env::temp_dir().join(format!(
            "phalanx-hosts-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::write(&path, text).unwrap();
        let read = read(&path);
        std::fs::remove_file(&path).unwrap();
        read.map(|hosts| hosts.into_iter().map(|h| (h.node, h.slots)).collect())
    }

    #[test]
    fn lists_and_files_of_both_kinds_are_read() {
        let listed = listed("n[2,4-5]:2, login").unwrap();
        let seen: Vec<_> = listed.iter().map(|h| (h.node.as_str(), h.slots)).collect();
        assert_eq!(seen, [("n2", Some(2)), ("n4", Some(2)), ("n5", Some(2)), ("login", None)]);
        let read = file("# ours\nn1:4\n\nn2 slots=2 max_slots=4 # the small one\nn3\n").unwrap();
        assert_eq!(read, [("n1".into(), Some(4)), ("n2".into(), Some(2)), ("n3".into(), None)]);
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, line, word) in [
            ("n1\nn2:x\n", "line 2", "number of slots"),
            ("n1 slots=0", "line 1", "number of slots"),
            ("n1\n\nn2 cores=3", "line 3", "cores=3"),
            ("n1\nn2\nn1", "line 3", "twice"),
            ("n[1-", "line 1", "n[1-"),
        ] {
            let why = file(text).unwrap_err();
            assert!(why.contains(line) && why.contains(word), "{why}");
        }
        assert!(file("# nobody\n").unwrap_err().contains("no nodes"));
    }
}
