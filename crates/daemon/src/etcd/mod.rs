//! Seats of casts that are kept outside the cluster, in etcd.
//!
//! ST-2, 001 §3.1: who comes registers, gets a number (its *seat*), and learns where its neighbours are. The cluster
//! can do this itself; where an etcd is run already, this keeps the seats there.
//!
//! | key, after the prefix | value | lease |
//! |---|---|---|
//! | `seat/0000000007` | who holds the seat, as JSON | the holder's |
//! | `life/0000000007` | the life of its latest holder | none: it only grows |
//!
//! A claim writes both keys in one transaction, and only if neither changed since they were read. So two never hold
//! one seat, and each holder's life is higher than those before, through crashes of everybody and of etcd.
//!
//! It speaks etcd's JSON gateway (etcd 3.4 or newer), without TLS and without users: put a local proxy in front of an
//! etcd that wants these.

mod error;
mod gateway;
mod keeper;
mod words;

pub use error::EtcdError;
pub use keeper::{Keeper, Update};

use gateway::Gateway;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use words::{Entry, Granted, Ignored, KeptAlive, Range, Streamed, Txn};

/// How often one claim tries when others are faster.
const TRIES_MAX: u32 = 64;
/// Who lost a race waits a random part of this, of twice as much the next time, and so on: many may start at once.
const YIELD_MIN: Duration = Duration::from_millis(8);
const YIELD_MAX: Duration = Duration::from_secs(1);
/// How long one endpoint may take to answer: a part of the lease, so that others can still be asked in time.
const PATIENCE_MIN: Duration = Duration::from_millis(500);
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// What etcd says about a lease that is not there.
const NOT_FOUND: u32 = 5;

/// ST-2: the seats of one tree, in etcd, and the one that we hold.
///
/// A seat is held as long as its lease is [kept](Etcd::keep). Dropping this leaves it to run out.
#[derive(Debug)]
pub struct Etcd {
    gateway: Gateway,
    prefix: String,
    ttl: Duration,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    lease: i64,
    /// None while a claim is under way.
    number: Option<u32>,
}

/// Who sits somewhere, and where to reach it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// Of the daemon, in hex.
    pub identity: String,
    /// For people.
    pub name: String,
    /// Where the daemon listens.
    pub addr: SocketAddr,
}

/// A place in the tree that is taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seat {
    /// The logical id of its holder.
    pub number: u32,
    /// Higher than that of each earlier holder of this seat.
    pub life: u64,
    /// Who sits there.
    pub holder: Holder,
}

/// Which seat a newcomer gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reuse {
    /// The lowest free one: holes are filled first.
    #[default]
    Lowest,
    /// The one behind all that are taken: holes stay.
    Last,
}

/// What differs whenever seats do: how many there are, and when the newest was written. A seat that came is the
/// newest; if none came, one that went makes them fewer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mark {
    count: i64,
    newest: i64,
}

/// A seat's value.
#[derive(Serialize, Deserialize)]
struct Sitting {
    life: u64,
    #[serde(flatten)]
    holder: Holder,
}

/// A seat's key as it was read.
struct Taken {
    revision: i64,
    /// None when nobody can read it: the seat is taken all the same.
    sitting: Option<Sitting>,
}

impl Etcd {
    /// Seats beneath `prefix`, which ends with `/`, at the first of `endpoints` (`http://HOST:PORT`) that answers.
    /// Leases last `ttl`, in whole seconds; etcd may grant longer ones. Nothing is sent yet.
    ///
    /// # Errors
    /// When an endpoint, the prefix or the time makes no sense.
    pub fn new<T: AsRef<str>>(
        endpoints: impl IntoIterator<Item = T>,
        prefix: impl Into<String>,
        ttl: Duration,
    ) -> Result<Self, EtcdError> {
        let prefix = prefix.into();
        if prefix.len() < 2 || !prefix.ends_with('/') {
            return Err(EtcdError::Prefix(prefix));
        }
        if ttl < Duration::from_secs(1) {
            return Err(EtcdError::Ttl(ttl));
        }
        let gateway = Gateway::new(endpoints, (ttl / 6).clamp(PATIENCE_MIN, PATIENCE_MAX))?;
        Ok(Self { gateway, prefix, ttl, held: None })
    }

    /// Takes a free seat, or takes back the one that this identity still holds: in a new life, as its holder may have
    /// started anew.
    ///
    /// # Errors
    /// When etcd cannot be asked, or others were faster each time. What an unfinished claim leaves runs out by itself,
    /// and so does what was held before.
    pub async fn claim(&mut self, who: &Holder, reuse: Reuse) -> Result<Seat, EtcdError> {
        let lease = self.grant().await?;
        self.held = Some(Held { lease, number: None });
        let mut pause = YIELD_MIN;
        for _ in 0..TRIES_MAX {
            let taken = self.taken().await?;
            let own = taken.iter().find(|(_, t)| t.sitting.as_ref().is_some_and(|s| s.holder.identity == who.identity));
            let (number, seen) = match own {
                Some((&number, taken)) => (number, taken.revision),
                None => (free(&taken, reuse).ok_or(EtcdError::Full)?, 0),
            };
            let (last, life_seen) = self.last_life(number).await?;
            let life = last.checked_add(1).ok_or(EtcdError::Full)?;
            let seat = Seat { number, life, holder: who.clone() };
            if self.take(&seat, seen, life_seen, lease).await? {
                self.held = Some(Held { lease, number: Some(number) });
                return Ok(seat);
            }
            tokio::time::sleep(part_of(pause)).await;
            pause = (pause * 2).min(YIELD_MAX);
        }
        Err(EtcdError::Crowded)
    }

    /// Makes the lease last for its whole time again, and looks whether the seat is still ours.
    ///
    /// # Errors
    /// [`EtcdError::Lost`] when it is not: claim anew. Others leave everything as it was.
    pub async fn keep(&mut self) -> Result<(), EtcdError> {
        let Some(Held { lease, number: Some(number) }) = self.held else { return Err(EtcdError::Lost) };
        let kept: Streamed<KeptAlive> =
            self.gateway.ask("/v3/lease/keepalive", &json!({ "ID": lease.to_string() })).await?;
        // A lease can live on without its seat: taken back by a daemon with our identity, or removed by somebody's hand.
        let ours = kept.result.ttl > 0 && self.entry(&self.seat_key(number)).await?.is_some_and(|e| e.lease == lease);
        if !ours {
            self.held = None;
            return Err(EtcdError::Lost);
        }
        Ok(())
    }

    /// Everybody's seats, the lowest first. One that cannot be read is left out.
    ///
    /// # Errors
    /// When etcd cannot be asked.
    pub async fn seats(&self) -> Result<Vec<Seat>, EtcdError> {
        let taken = self.taken().await?.into_iter();
        Ok(taken.filter_map(|(number, t)| t.sitting.map(|s| Seat { number, life: s.life, holder: s.holder })).collect())
    }

    /// Gives the seat back; nothing happens if there is none.
    ///
    /// # Errors
    /// When etcd cannot be asked: the seat runs out by itself, or release it again.
    pub async fn release(&mut self) -> Result<(), EtcdError> {
        let Some(Held { lease, .. }) = self.held else { return Ok(()) };
        let ask = json!({ "ID": lease.to_string() });
        match self.gateway.ask::<Ignored>("/v3/lease/revoke", &ask).await {
            Err(e) if !e.is_refusal(NOT_FOUND) => return Err(e),
            _ => self.held = None,
        }
        Ok(())
    }

    /// Tells cheaply whether seats changed, for those who look again and again.
    async fn mark(&self) -> Result<Mark, EtcdError> {
        let range: Range = self.gateway.ask("/v3/kv/range", &words::newest(&self.seats_key())).await?;
        Ok(Mark { count: range.count, newest: range.kvs.first().map_or(0, |newest| newest.revision) })
    }

    async fn grant(&self) -> Result<i64, EtcdError> {
        let seconds = self.ttl.as_secs() + u64::from(self.ttl.subsec_nanos() > 0);
        let granted: Granted = self.gateway.ask("/v3/lease/grant", &json!({ "TTL": seconds.to_string() })).await?;
        Ok(granted.id)
    }

    /// Writes a seat and its life, if the seat's key and the life's are still as they were seen (0: not there).
    async fn take(&self, seat: &Seat, seen: i64, life_seen: i64, lease: i64) -> Result<bool, EtcdError> {
        let sitting = Sitting { life: seat.life, holder: seat.holder.clone() };
        let sitting = serde_json::to_vec(&sitting).map_err(|e| EtcdError::Data(e.to_string()))?;
        let (seat_key, life_key) = (self.seat_key(seat.number), self.life_key(seat.number));
        let ask = json!({
            "compare": [words::unchanged(&seat_key, seen), words::unchanged(&life_key, life_seen)],
            "success": [
                words::put(&seat_key, &sitting, Some(lease)),
                words::put(&life_key, seat.life.to_string().as_bytes(), None),
            ],
        });
        match self.gateway.ask::<Txn>("/v3/kv/txn", &ask).await {
            // The claim took longer than its lease.
            Err(e) if e.is_refusal(NOT_FOUND) => Err(EtcdError::Lost),
            answer => answer.map(|txn| txn.succeeded),
        }
    }

    async fn taken(&self) -> Result<BTreeMap<u32, Taken>, EtcdError> {
        let range: Range = self.gateway.ask("/v3/kv/range", &words::beneath(&self.seats_key())).await?;
        let entries = range.kvs.into_iter();
        Ok(entries.filter_map(|e| Some((self.number_of(&e.key)?, taken(&e)))).collect())
    }

    /// The life of a seat's latest holder, and the revision of its key.
    async fn last_life(&self, number: u32) -> Result<(u64, i64), EtcdError> {
        let key = self.life_key(number);
        let Some(entry) = self.entry(&key).await? else { return Ok((0, 0)) };
        let life = std::str::from_utf8(&entry.value).ok().and_then(|text| text.parse().ok());
        Ok((life.ok_or_else(|| EtcdError::Data(format!("the key {key} holds no number")))?, entry.revision))
    }

    async fn entry(&self, key: &str) -> Result<Option<Entry>, EtcdError> {
        let range: Range = self.gateway.ask("/v3/kv/range", &words::one(key)).await?;
        Ok(range.kvs.into_iter().next())
    }

    /// What the keys of all seats begin with.
    fn seats_key(&self) -> String {
        format!("{}seat/", self.prefix)
    }

    // Ten digits, so that etcd's order is that of the numbers.
    fn seat_key(&self, number: u32) -> String {
        format!("{}seat/{number:010}", self.prefix)
    }

    fn life_key(&self, number: u32) -> String {
        format!("{}life/{number:010}", self.prefix)
    }

    /// The seat that a key is of; None when it is not one of ours.
    fn number_of(&self, key: &[u8]) -> Option<u32> {
        let key = std::str::from_utf8(key).ok()?;
        let number = key.rsplit_once('/')?.1.parse().ok()?;
        (self.seat_key(number) == key).then_some(number)
    }
}

fn taken(entry: &Entry) -> Taken {
    Taken { revision: entry.revision, sitting: serde_json::from_slice(&entry.value).ok() }
}

fn free(taken: &BTreeMap<u32, Taken>, reuse: Reuse) -> Option<u32> {
    match reuse {
        Reuse::Lowest => (0..u32::MAX).find(|number| !taken.contains_key(number)),
        Reuse::Last => taken.last_key_value().map_or(Some(0), |(last, _)| last.checked_add(1)),
    }
}

/// A random part of it.
fn part_of(whole: Duration) -> Duration {
    whole.mul_f64(f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd() -> Etcd {
        Etcd::new(["http://127.0.0.1:1"], "/phalanx/c/z/", Duration::from_secs(3)).unwrap()
    }

    fn seats(numbers: &[u32]) -> BTreeMap<u32, Taken> {
        numbers.iter().map(|&n| (n, Taken { revision: 1, sitting: None })).collect()
    }

    #[test]
    fn st_2_newcomers_fill_holes_or_go_to_the_end() {
        for (numbers, lowest, last) in [(&[][..], 0, 0), (&[0, 1, 2], 3, 3), (&[0, 2, 5], 1, 6), (&[4], 0, 5)] {
            assert_eq!(free(&seats(numbers), Reuse::Lowest), Some(lowest), "{numbers:?}");
            assert_eq!(free(&seats(numbers), Reuse::Last), Some(last), "{numbers:?}");
        }
        assert_eq!(free(&seats(&[u32::MAX]), Reuse::Last), None, "nothing is behind the last number");
    }

    #[test]
    fn st_2_keys_sort_as_numbers_do_and_strangers_are_not_seats() {
        let etcd = etcd();
        assert_eq!(etcd.seat_key(7), "/phalanx/c/z/seat/0000000007");
        assert!(etcd.seat_key(9) < etcd.seat_key(10) && etcd.seat_key(10) < etcd.seat_key(u32::MAX));
        assert_eq!(etcd.number_of(etcd.seat_key(u32::MAX).as_bytes()), Some(u32::MAX));
        let strangers = ["7", "/phalanx/c/z/seat/7", "/phalanx/c/z/seat/a", "/phalanx/c/z/seat/seat/0000000007"];
        for key in strangers {
            assert_eq!(etcd.number_of(key.as_bytes()), None, "{key}");
        }
        assert_eq!(etcd.number_of(b"\xff"), None);
    }

    #[test]
    fn a_seat_that_nobody_can_read_is_taken_all_the_same() {
        let entry = |value: &[u8]| Entry { key: Vec::new(), value: value.to_vec(), revision: 3, lease: 0 };
        assert!(taken(&entry(b"hello")).sitting.is_none());
        let value = br#"{"life":4,"identity":"ab","name":"n","addr":"[::1]:7","of":"a later version"}"#;
        let sitting = taken(&entry(value)).sitting.unwrap();
        assert_eq!((sitting.life, sitting.holder.addr), (4, "[::1]:7".parse().unwrap()));
    }

    #[test]
    fn what_makes_no_sense_is_refused_at_once() {
        let new =
            |prefix: &str, ttl| Etcd::new(["http://127.0.0.1:1"], prefix, Duration::from_millis(ttl)).unwrap_err();
        assert_eq!(new("/phalanx", 5000), EtcdError::Prefix("/phalanx".to_owned()));
        assert_eq!(new("/", 5000), EtcdError::Prefix("/".to_owned()));
        assert_eq!(new("/p/", 999), EtcdError::Ttl(Duration::from_millis(999)));
    }
}
