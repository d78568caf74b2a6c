//! The cluster's keys, at an agent: told, changed, kept.

use super::Agent;
use crate::store::{self, Key, unhex};
use phalanx_api::What;
use phalanx_api::operate::{KeyChange, KeyInfo, KeyRing};
use phalanx_protocol::rumour::keys::{ChangeError, Keys};
use std::sync::Arc;

/// Hexadecimal digits of a fingerprint.
const FINGERPRINT: usize = 8;

/// Why keys were not changed. They are as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The change makes no sense.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The text is no key.
    #[error("a key is 64 hexadecimal digits")]
    Text,
    /// That key is there.
    #[error("this key is there already, as key {0}")]
    Known(u8),
    /// No random numbers.
    #[error("the system has no random numbers: {0}")]
    Random(getrandom::Error),
    /// Somebody else changed them at the same time, or the node has left.
    #[error("somebody else changed the keys just now: look at them and try again")]
    Overtaken,
}

/// A key whose number is free.
fn draw(keys: &Keys) -> Result<[u8; 32], KeyError> {
    loop {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(KeyError::Random)?;
        if keys.keys.iter().all(|k| k.0 != store::key_id(&key)) {
            return Ok(key);
        }
    }
}

impl Agent {
    /// The cluster's keys, as this node has them.
    #[must_use]
    pub fn key_ring(&self) -> KeyRing {
        let Some(keys) = self.driver.node().rumours().map(|r| r.keys()) else {
            return KeyRing { epoch: 0, keys: Vec::new() };
        };
        let info = |(at, (id, key)): (usize, &(u8, [u8; 32]))| KeyInfo {
            id: *id,
            fingerprint: store::fingerprint(key)[..FINGERPRINT].to_owned(),
            seals: at == 0,
        };
        KeyRing { epoch: keys.epoch, keys: keys.keys.iter().enumerate().map(info).collect() }
    }

    /// Changes the cluster's keys, at all members. Says what they are then.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn change_keys(&mut self, change: &KeyChange) -> Result<KeyRing, KeyError> {
        let keys = self.driver.node().rumours().map(|r| r.keys().clone()).unwrap_or_default();
        let changed = match change {
            KeyChange::Add { key } => {
                let key = match key {
                    Some(text) => unhex(text.trim()).ok_or(KeyError::Text)?,
                    None => draw(&keys)?,
                };
                if let Some((id, _)) = keys.keys.iter().find(|k| k.1 == key) {
                    return Err(KeyError::Known(*id));
                }
                keys.with(store::key_id(&key), key)?
            }
            KeyChange::Use { id } => keys.sealing(*id)?,
            KeyChange::Remove { id } => keys.without(*id)?,
        };
        self.driver.act(|node, now, out| node.rekey(now, changed, out)).map_err(|_| KeyError::Overtaken)?;
        self.write_news();
        Ok(self.key_ring())
    }

    /// The cluster has other keys now: we use them, and keep them for the next start.
    pub(super) fn on_keys(&mut self, keys: &Keys) {
        let kept: Vec<Key> = keys.keys.iter().map(|&(id, key)| Key { id, key }).collect();
        let Some(ring) = store::ring(&kept, &self.cluster) else { return };
        let ring = Arc::new(ring);
        self.driver.act(|node, _, _| node.link_mut().set_ring(Arc::clone(&ring)));
        self.wires.set_ring(ring);
        if let Some(scribe) = &self.scribe {
            scribe.keep_keys(kept, keys.epoch);
        }
        tracing::info!(epoch = keys.epoch, sealing = keys.keys[0].0, "the cluster's keys were changed");
        self.journal.add(What::Keys { epoch: keys.epoch });
    }
}
