//! A digest that is there at any time, whatever the size of what it stands for.
//!
//! CM-4: replicas compare their states by digest, after each entry. Hashing all nodes and jobs each time would make an entry as dear as the
//! whole state. So each table carries the sum of the hashes of its entries; a change takes the old hash out and puts the new one in. An entry
//! whose bytes changed behind the table's back spoils the sum the next time it is touched, which is what a digest is for.

use phalanx_core::{Fingerprint, Instant};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, btree_map};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// The hash of a value: the same on every machine and with every compiler.
pub(super) fn print(value: &impl Hash) -> u64 {
    let mut print = Fingerprint::at(Instant(0));
    value.hash(&mut print);
    // Sums of hashes are only as good as each hash's highest and lowest bits: stir once more.
    let mut hash = print.finish();
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

/// A map that knows the sum of its entries' hashes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Summed<K, V> {
    map: BTreeMap<K, V>,
    sum: u64,
}

impl<K, V> Default for Summed<K, V> {
    fn default() -> Self {
        Self { map: BTreeMap::new(), sum: 0 }
    }
}

impl<K: Ord + Hash, V: Hash> Summed<K, V> {
    pub(super) fn insert(&mut self, key: K, value: V) {
        let hash = print(&(&key, &value));
        if let Some(old) = self.map.get(&key) {
            self.sum = self.sum.wrapping_sub(print(&(&key, old)));
        }
        self.sum = self.sum.wrapping_add(hash);
        self.map.insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let value = self.map.remove(key)?;
        self.sum = self.sum.wrapping_sub(print(&(key, &value)));
        Some(value)
    }

    /// What `change` makes of the value; nothing when it is not there.
    pub(super) fn edit<R>(&mut self, key: &K, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let value = self.map.get_mut(key)?;
        self.sum = self.sum.wrapping_sub(print(&(key, &*value)));
        let result = change(value);
        self.sum = self.sum.wrapping_add(print(&(key, &*value)));
        Some(result)
    }

    /// The sum as it should be.
    #[cfg(test)]
    pub(super) fn counted(&self) -> u64 {
        self.map.iter().fold(0, |sum, entry| sum.wrapping_add(print(&entry)))
    }
}

impl<K: Ord, V> Summed<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }

    pub(super) fn iter(&self) -> btree_map::Iter<'_, K, V> {
        self.map.iter()
    }

    pub(super) fn values(&self) -> btree_map::Values<'_, K, V> {
        self.map.values()
    }

    pub(super) fn keys(&self) -> btree_map::Keys<'_, K, V> {
        self.map.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    #[cfg(test)]
    pub(super) fn sum(&self) -> u64 {
        self.sum
    }
}

impl<K, V> Hash for Summed<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.map.len() as u64);
        state.write_u64(self.sum);
    }
}

impl<K: Ord + Hash, V: Hash> FromIterator<(K, V)> for Summed<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let map = BTreeMap::from_iter(entries);
        let sum = map.iter().fold(0u64, |sum, entry| sum.wrapping_add(print(&entry)));
        Self { map, sum }
    }
}

impl<K: Serialize, V: Serialize> Serialize for Summed<K, V> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.map.serialize(to)
    }
}

impl<'de, K: Deserialize<'de> + Ord + Hash, V: Deserialize<'de> + Hash> Deserialize<'de> for Summed<K, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(from).map(Self::from_iter)
    }
}

/// A value that never changes: hashed once, shared by copies of the state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fixed<T> {
    value: Arc<T>,
    print: u64,
}

impl<T: Hash> From<T> for Fixed<T> {
    fn from(value: T) -> Self {
        let print = print(&value);
        Self { value: Arc::new(value), print }
    }
}

impl<T> Deref for Fixed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Hash for Fixed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.print);
    }
}

impl<T: Serialize> Serialize for Fixed<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(to)
    }
}

impl<'de, T: Deserialize<'de> + Hash> Deserialize<'de> for Fixed<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::deserialize(from).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::words::{decode, encode};

    #[test]
    fn the_sum_depends_on_what_is_there_and_not_on_how_it_came() {
        let mut one: Summed<u32, String> = Summed::default();
        one.insert(1, "a".into());
        one.insert(2, "c".into());
        one.insert(2, "b".into());
        one.insert(3, "c".into());
        assert_eq!(one.remove(&3), Some("c".into()));
        assert_eq!(one.edit(&1, |text| text.push('!')), Some(()));
        let other: Summed<u32, String> = [(2, "b".into()), (1, "a!".into())].into_iter().collect();
        assert_eq!(one, other);
        assert_eq!(one.sum(), one.counted());
        let swapped: Summed<u32, String> = [(1, "b".into()), (2, "a!".into())].into_iter().collect();
        assert_ne!(one.sum(), swapped.sum());
        assert_eq!(decode::<Summed<u32, String>>(&encode(&one)), Some(one));
    }

    #[test]
    fn a_value_that_changed_by_itself_spoils_the_sum() {
        let mut table: Summed<u32, u32> = [(1, 10), (2, 20)].into_iter().collect();
        *table.map.get_mut(&1).unwrap() = 11;
        table.edit(&1, |value| *value = 10);
        assert_ne!(table.sum(), Summed::from_iter([(1u32, 10u32), (2, 20)]).sum());
    }
}
