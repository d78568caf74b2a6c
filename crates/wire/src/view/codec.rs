//! How lists of tasks are written.

use super::terms::Task;
use crate::Malformed;
pub(super) use crate::codec::{Reader, put_number};

/// Appends a list of tasks, which are in order and different.
pub(super) fn put_tasks(tasks: &[Task], out: &mut Vec<u8>) {
    debug_assert!(tasks.is_sorted_by(|a, b| a < b), "lists of tasks are in order: {tasks:?}");
    put_number(tasks.len() as u64, out);
    let mut next = 0;
    for task in tasks {
        put_number(u64::from(task.0 - next), out);
        next = task.0.wrapping_add(1);
    }
}

impl Reader<'_> {
    pub(super) fn task(&mut self) -> Result<Task, Malformed> {
        self.u32().map(Task)
    }

    pub(super) fn tasks(&mut self) -> Result<Vec<Task>, Malformed> {
        let mut next = Some(0u32);
        self.list(|r| {
            let task = next.and_then(|n| n.checked_add(r.u32().ok()?)).ok_or(Malformed::Inconsistent)?;
            next = task.checked_add(1);
            Ok(Task(task))
        })
    }
}
