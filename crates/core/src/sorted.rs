//! A map for a few entries: sorted, in one piece of memory, and in none when it is empty.
//!
//! A B-tree takes room for eleven entries with the first one. A simulated cluster has a million of such maps, with two.

/// A map as a sorted list. Insertion and removal move what lies behind.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sorted<K, V>(Vec<(K, V)>);

impl<K, V> Default for Sorted<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Sorted<K, V> {
    /// An empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Entries in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All entries, by key.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + ExactSizeIterator {
        self.0.iter().map(|(k, v)| (k, v))
    }

    /// All entries, by key, with values to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(k, v)| (&*k, v))
    }

    /// All keys, lowest first.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(k, _)| k)
    }

    /// All values, by key.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, v)| v)
    }

    /// All values, by key, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, v)| v)
    }

    /// Keeps the entries for which `keep` says so.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(k, v)| keep(k, v));
        self.release();
    }

    fn release(&mut self) {
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }
}

impl<K: Ord, V> Sorted<K, V> {
    fn find(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(k, _)| k.cmp(key))
    }

    /// The value under `key`.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    /// The entry under `key`.
    #[must_use]
    pub fn get_key_value(&self, key: &K) -> Option<(&K, &V)> {
        self.find(key).ok().map(|at| (&self.0[at].0, &self.0[at].1))
    }

    /// The value under `key`, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.find(key).ok().map(|at| &mut self.0[at].1)
    }

    /// True when there is something under `key`.
    #[must_use]
    pub fn contains_key(&self, key: &K) -> bool {
        self.find(key).is_ok()
    }

    /// Puts `value` under `key`; gives what was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.put(at, key, value);
                None
            }
        }
    }

    /// What is under `key`, or `value` from now on.
    pub fn or_insert(&mut self, key: K, value: V) -> &mut V {
        let at = match self.find(&key) {
            Ok(at) => at,
            Err(at) => {
                self.put(at, key, value);
                at
            }
        };
        &mut self.0[at].1
    }

    fn put(&mut self, at: usize, key: K, value: V) {
        // One by one while it is small: most stay so.
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(1 + self.0.len() / 2);
        }
        self.0.insert(at, (key, value));
    }

    /// Takes what is under `key`.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(key).ok()?;
        let (_, value) = self.0.remove(at);
        self.release();
        Some(value)
    }
}

impl<'a, K, V> IntoIterator for &'a Sorted<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = std::iter::Map<std::slice::Iter<'a, (K, V)>, fn(&'a (K, V)) -> (&'a K, &'a V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(k, v)| (k, v))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn it_is_a_map() {
        let (mut rng, mut map, mut model) = (Rng::new(1, 1), Sorted::new(), BTreeMap::new());
        for step in 0..2000u32 {
            let key = rng.below(40);
            match rng.below(4) {
                0 => assert_eq!(map.insert(key, step), model.insert(key, step)),
                1 => assert_eq!(map.remove(&key), model.remove(&key)),
                2 => assert_eq!(map.or_insert(key, step), model.entry(key).or_insert(step)),
                _ => assert_eq!((map.get(&key), map.contains_key(&key)), (model.get(&key), model.contains_key(&key))),
            }
            assert!(map.iter().eq(model.iter()) && map.len() == model.len());
        }
        map.retain(|k, _| k % 2 == 0);
        model.retain(|k, _| k % 2 == 0);
        assert!(map.keys().eq(model.keys()) && map.values().eq(model.values()));
        map.retain(|_, _| false);
        assert_eq!((map.is_empty(), map.0.capacity()), (true, 0));
    }
}
