//! Many runs that do not know of each other, on all cores. What each finds depends on its seed alone, so it does not matter
//! who runs beside it, nor in which order they end.

use crate::experiment::Run;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

impl Run {
    /// Does `work` on each of `items`, on as many threads as there are cores, and gives back what came of them, in their
    /// order. Progress says how many are done, and the `name` of the last one.
    pub(crate) fn in_parallel<I: Sync, T: Send>(
        &self,
        items: &[I],
        name: impl Fn(&I) -> String,
        work: impl Fn(&I) -> T + Sync,
    ) -> Vec<T> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
        let next = AtomicUsize::new(0);
        let mut found: Vec<Option<T>> = items.iter().map(|_| None).collect();
        thread::scope(|scope| {
            let (sender, done) = mpsc::channel();
            for _ in 0..threads {
                let (sender, next, work) = (sender.clone(), &next, &work);
                scope.spawn(move || {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(item) = items.get(number) else { return };
                        // Nobody listens any more when another thread has panicked.
                        if sender.send((number, work(item))).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            for (count, (number, result)) in done.into_iter().enumerate() {
                self.progress(&format!("{} of {}: {}", count + 1, items.len(), name(&items[number])));
                found[number] = Some(result);
            }
        });
        found.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Options;

    #[test]
    fn results_come_in_the_order_of_their_items_whoever_ends_first() {
        let run = Run::for_test(Options { quick: true, width: 0.03, max_rounds: 1, budget_s: 1.0, seeds: None });
        let slow = |&n: &u64| {
            thread::sleep(std::time::Duration::from_millis(if n % 3 == 0 { 5 } else { 0 }));
            n * n
        };
        let items: Vec<u64> = (0..20).collect();
        let squares: Vec<u64> = items.iter().map(|n| n * n).collect();
        assert_eq!(run.in_parallel(&items, u64::to_string, slow), squares);
        assert!(run.in_parallel(&[], u64::to_string, slow).is_empty());
    }
}
