//! What the layers of configuration come to.

use phalanx_core::Addr;
use phalanx_daemon::agent::handlers::Handler;
use phalanx_daemon::agent::{Conflict, Running, Settings};
use phalanx_daemon::config::Layers;
use phalanx_daemon::control::access::Http;
use phalanx_daemon::places::{Found, Places};
use phalanx_daemon::seating::DirectoryError;
use phalanx_daemon::seeds::{PORT, Seeds, addresses};
use phalanx_daemon::store::{Key, Store, key_id, unhex};
use phalanx_protocol::cast::Tree;
use phalanx_protocol::federation::FederationConfig;
use phalanx_protocol::member::Name;
use phalanx_protocol::node::scout::ScoutConfig;
use phalanx_protocol::node::{Profile, casts};
use phalanx_protocol::rumour::keys::FIRST;
use phalanx_protocol::segment::{LEVELS_MAX, SegmentConfig, SegmentMap};
use phalanx_protocol::zone::Config;
use phalanx_protocol::zone::hierarchy::Role;
use phalanx_protocol::zone::rule::ZoneRule;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What an agent is started with.
pub(super) struct Plan {
    pub(super) settings: Settings,
    /// The key was drawn just now.
    pub(super) fresh: bool,
    pub(super) seeds: Seeds,
    /// Seeds that were not found, and why.
    pub(super) missing: Vec<(String, String)>,
    pub(super) http: Option<Http>,
    pub(super) socket: PathBuf,
    /// Users who may look and run jobs.
    pub(super) socket_group: Option<u32>,
    pub(super) live: Live,
}

/// What can be changed while it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Live {
    pub(super) handlers: Vec<Handler>,
    pub(super) attributes: BTreeMap<String, String>,
}

impl Live {
    pub(super) fn of(layers: &Layers) -> Result<Self, String> {
        let wrong = |key: &'static str, why: &dyn Display| layers.wrong(key, why).to_string();
        let handlers = layers.list("on").iter().map(|text| Handler::parse(text)).collect::<Result<_, _>>();
        let mut attributes = BTreeMap::new();
        for text in layers.list("attributes") {
            let Some((key, value)) = text.split_once('=') else {
                return Err(wrong("attributes", &format!("`{text}` is no KEY=VALUE")));
            };
            attributes.insert(key.to_owned(), value.to_owned());
        }
        Ok(Self { handlers: handlers.map_err(|e| wrong("on", &e))?, attributes })
    }
}

/// Where other members may be.
pub(super) fn seeds(layers: &Layers) -> Result<Seeds, String> {
    Seeds::parse(layers.list("join").iter().map(String::as_str)).map_err(|e| layers.wrong("join", e).to_string())
}

pub(super) fn plan(layers: &Layers) -> Result<Plan, String> {
    let wrong = |key: &'static str, why: &dyn Display| layers.wrong(key, why).to_string();
    let name = layers.text("name").map_or_else(host_name, |n| Ok(n.to_owned()))?;
    let name = Name::new(&name).map_err(|e| wrong("name", &e))?;
    let address = |key: &'static str| -> Result<Option<SocketAddr>, String> {
        let found = layers.text(key).map(addresses).transpose().map_err(|e| wrong(key, &e))?;
        Ok(found.map(|addrs| addrs[0]))
    };
    let bind = address("bind")?.ok_or_else(|| wrong("bind", &"give an address"))?;
    let advertise = address("advertise")?;
    let live = Live::of(layers)?;
    let role = role(layers, &live)?;
    let http = http(layers, address("http")?)?;
    let seeds = seeds(layers)?;
    let (found, missing) = seeds.resolve();
    let data = PathBuf::from(layers.text("data_dir").ok_or_else(|| wrong("data_dir", &"give a directory"))?);
    let store = Store::open(&data).map_err(|e| e.to_string())?;
    let Keys { keys, epoch, fresh } = keys(layers, &store)?;
    let profile = profile(layers, advertise.unwrap_or(bind))?;
    if let (Profile::Segment(_) | Profile::Unicast(..), Role::Base { .. } | Role::Management) = (&profile, &role) {
        return Err(wrong("engine", &"segments find their groups by themselves: leave out zone and role"));
    }
    let scout = scout(layers, bind, &role)?;
    let settings = Settings {
        name,
        bind,
        advertise,
        keys,
        epoch,
        cluster: layers.text("cluster").unwrap_or_default().to_owned(),
        seeds: found,
        profile,
        role,
        scout,
        federation: federation(layers, advertise.unwrap_or(bind))?,
        casts: casts(layers)?,
        directory: layers
            .text("cast_directory")
            .unwrap_or_default()
            .parse()
            .map_err(|e: DirectoryError| wrong("cast_directory", &e))?,
        leave_timeout: phalanx_core::Duration::from_secs_f64(layers.seconds("leave_timeout").unwrap_or(2.0)),
        conflict: if layers.text("name_conflict") == Some("rename") { Conflict::Rename } else { Conflict::Refuse },
        running: running(layers)?,
        store: Some(store),
    };
    let socket_group = socket_group(layers)?;
    let socket = PathBuf::from(layers.text("socket").unwrap_or_default());
    Ok(Plan { settings, fresh, seeds, missing, http, socket, socket_group, live })
}

/// The engine, and how it watches and speaks.
fn profile(layers: &Layers, ours: SocketAddr) -> Result<Profile, String> {
    let wrong = |key: &'static str, why: &dyn Display| layers.wrong(key, why).to_string();
    let name = layers.text("profile");
    if layers.text("engine") != Some("segment") {
        if !layers.list("segments").is_empty() {
            return Err(wrong("segments", &"they are for engine segment: set `engine`, or leave them out"));
        }
        let config = match name {
            Some("wan") => Config::wan(),
            Some("local") => Config::local(),
            Some("paper") => Config::paper(),
            _ => Config::lan(),
        };
        return Ok(Profile::Zone(Config { tripwires: layers.flag("tripwires"), ..config }));
    }
    let (group, ttl) = groups(layers)?;
    let config = match name {
        Some("paper") => SegmentConfig::paper(group, ttl),
        Some("lan") | None => SegmentConfig::lan(group, ttl),
        Some(other) => return Err(wrong("profile", &format!("segments have lan and paper, not {other}"))),
    };
    Ok(match segments(layers, ours)? {
        Some(map) => Profile::Unicast(config, map),
        None => Profile::Segment(config),
    })
}

/// TG-8: the segments of a network without multicast; `None` where there is multicast.
fn segments(layers: &Layers, ours: SocketAddr) -> Result<Option<Arc<SegmentMap>>, String> {
    let wrong = |why: &dyn Display| layers.wrong("segments", why).to_string();
    let places = Places::parse(layers.list("segments").iter().map(String::as_str)).map_err(|e| wrong(&e))?;
    if places.is_empty() {
        return Ok(None);
    }
    let Found { places, missing } = places.resolve(PORT, ours.ip()).map_err(|e| wrong(&e))?;
    for (host, why) in missing {
        tracing::warn!(host, "{why} (of `segments`: nobody is looked for there until the daemon is restarted)");
    }
    let addrs = places.into_iter().map(|(_, addrs)| addrs.into_iter().map(Addr::Ip));
    Ok(Some(Arc::new(SegmentMap::new(addrs))))
}

/// TG-9: the cluster's data centre, and the others.
fn federation(layers: &Layers, ours: SocketAddr) -> Result<Option<FederationConfig>, String> {
    let wrong = |key: &'static str, why: &dyn Display| layers.wrong(key, why).to_string();
    let others = layers.list("federation");
    let Some(name) = layers.text("data_centre") else {
        return match others.is_empty() {
            true => Ok(None),
            false => Err(wrong("federation", &"name our own data centre, too: set data_centre")),
        };
    };
    let name = Name::new(name).map_err(|e| wrong("data_centre", &e))?;
    // Zones speak for themselves, and none of them for all.
    let zones = ["zone", "zone_attribute", "zone_pattern", "role"];
    let is_set =
        |key: &&'static str| layers.text(key).is_some_and(|value| value != "member") || !layers.list(key).is_empty();
    if let Some(key) = zones.into_iter().find(is_set) {
        return Err(wrong(
            "data_centre",
            &format!("a data centre is one zone, or runs on engine segment: leave out {key}"),
        ));
    }
    let places = Places::parse(others.iter().map(String::as_str)).map_err(|e| wrong("federation", &e))?;
    let found = places.resolve(PORT, ours.ip()).map_err(|e| wrong("federation", &e))?;
    for (host, why) in found.missing {
        tracing::warn!(host, "{why} (of `federation`: it is not spoken to until the daemon is restarted)");
    }
    let centres = found.places.into_iter().map(|(name, addrs)| (name, addrs.into_iter().map(Addr::Ip).collect()));
    let wan = FederationConfig::wan(name, centres.collect());
    let period = layers.seconds("federation_period").map_or(wan.period, phalanx_core::Duration::from_secs_f64);
    Ok(Some(FederationConfig { period, patience: period * SILENT_AFTER, ..wan }))
}

/// Summaries that another data centre may leave out before it is silent.
const SILENT_AFTER: u64 = 6;

/// The first of the multicast groups, and how far they may reach.
fn groups(layers: &Layers) -> Result<(u16, u8), String> {
    let wrong = |key: &'static str, why: &dyn Display| layers.wrong(key, why).to_string();
    let number = |key: &'static str| layers.text(key).unwrap_or_default().parse::<u16>().ok();
    let group = number("segment_group").filter(|&n| n <= u16::MAX - u16::from(LEVELS_MAX));
    let group = group.ok_or_else(|| wrong("segment_group", &"give a number from 0 to 65527"))?;
    let ttl = number("segment_ttl").filter(|n| (1..=u16::from(LEVELS_MAX)).contains(n));
    let ttl = ttl.ok_or_else(|| wrong("segment_ttl", &format!("give a number from 1 to {LEVELS_MAX}")))?;
    Ok((group, ttl as u8))
}

/// Whether the node looks around: when it is told to, or told nothing.
fn scout(layers: &Layers, bind: SocketAddr, role: &Role) -> Result<Option<ScoutConfig>, String> {
    let wrong = |key: &'static str, why: &dyn Display| layers.wrong(key, why).to_string();
    let is_told = !layers.list("join").is_empty() || *role != Role::Alone;
    let (is_on, engine) = (layers.text("discover"), layers.text("engine"));
    match (is_on, engine) {
        (Some("on"), Some("segment")) => {
            return Err(wrong("discover", &"engine segment finds others anyway: leave it out"));
        }
        (_, Some("segment")) | (Some("off"), _) => return Ok(None),
        (Some("on"), _) if *role == Role::Management => {
            return Err(wrong("discover", &"a supervisor is in no zone, and looks for others by `join`"));
        }
        (Some("on"), _) => {}
        _ if is_told || bind.ip().is_loopback() => return Ok(None),
        _ => {}
    }
    let (group, ttl) = groups(layers)?;
    Ok(Some(ScoutConfig {
        segment: SegmentConfig::lan(group, ttl),
        zones: !is_told && layers.text("data_centre").is_none(),
    }))
}

/// The node's part in parallel jobs.
fn running(layers: &Layers) -> Result<Running, String> {
    let wrong = |key: &'static str, why: &dyn Display| layers.wrong(key, why).to_string();
    let expect = layers.text("expect").unwrap_or_default().parse();
    let expect = expect.map_err(|_| wrong("expect", &"give a number of nodes, or 0"))?;
    let slots = match layers.text("slots") {
        Some(text) => text.parse().map_err(|_| wrong("slots", &"give a number of ranks"))?,
        None => Running::default().slots,
    };
    Ok(Running { expect, slots, as_root: layers.flag("run_as_root") })
}

/// Who may ask beside the daemon's own user.
fn socket_group(layers: &Layers) -> Result<Option<u32>, String> {
    let wrong = |why: &dyn Display| layers.wrong("socket_group", why).to_string();
    let Some(name) = layers.text("socket_group") else { return Ok(None) };
    let group = nix::unistd::Group::from_name(name).map_err(|e| wrong(&e))?;
    group.map(|g| Some(g.gid.as_raw())).ok_or_else(|| wrong(&format!("there is no group {name}: see /etc/group")))
}

/// How the node casts.
fn casts(layers: &Layers) -> Result<casts::Config, String> {
    let text = |key: &'static str| layers.text(key).unwrap_or_default();
    let wrong = |key: &'static str, why: &dyn Display| layers.wrong(key, why).to_string();
    let fan_out = text("cast_fan_out").parse().map_err(|_| wrong("cast_fan_out", &"give a number from 2 on"))?;
    Tree::new(fan_out, 1).map_err(|e| wrong("cast_fan_out", &e))?;
    let repair = text("cast_repair").parse().map_err(|e| wrong("cast_repair", &e))?;
    Ok(casts::Config { fan_out, repair, ..casts::Config::default() })
}

/// The node's place in a hierarchy.
fn role(layers: &Layers, live: &Live) -> Result<Role, String> {
    let wrong = |key: &'static str, why: &dyn Display| layers.wrong(key, why).to_string();
    if layers.text("role") == Some("supervisor") {
        return match ["zone", "zone_attribute", "zone_pattern"].into_iter().find(|k| layers.text(k).is_some()) {
            Some(key) => Err(wrong(key, &"a supervisor is in no zone: leave it out, or set role to member")),
            None => Ok(Role::Management),
        };
    }
    let zone = layers.text("zone").map(|z| Name::new(z).map_err(|e| wrong("zone", &e))).transpose()?;
    let patterns = layers.list("zone_pattern");
    let (key, rule) = match (layers.text("zone_attribute"), patterns.is_empty(), &zone) {
        (Some(_), false, _) => return Err(wrong("zone_attribute", &"give this or zone_pattern, not both")),
        (Some(attribute), true, _) => ("zone_attribute", ZoneRule::from_attribute(attribute)),
        (None, false, _) => {
            let shapes: Option<Vec<(&str, &str)>> = patterns.iter().map(|p| p.rsplit_once('=')).collect();
            let shapes = shapes.ok_or_else(|| wrong("zone_pattern", &"write PATTERN=ZONE"))?;
            ("zone_pattern", ZoneRule::from_host(shapes).map_err(|e| wrong("zone_pattern", &e))?)
        }
        (None, true, Some(zone)) => ("zone", ZoneRule::named(zone.clone())),
        (None, true, None) if layers.list("supervisors").is_empty() => return Ok(Role::Alone),
        (None, true, None) => return Err(wrong("supervisors", &"they watch over zones: give a zone, too")),
    };
    let rule = match zone {
        Some(zone) => rule.or(zone),
        None => rule,
    };
    let supervisors = Seeds::parse(layers.list("supervisors").iter().map(String::as_str));
    let (found, missing) = supervisors.map_err(|e| wrong("supervisors", &e))?.resolve();
    if let Some((place, why)) = missing.first() {
        return Err(wrong("supervisors", &format!("{place}: {why}")));
    }
    let supervisors = found.into_iter().map(Addr::Ip).collect();
    let attribute = |key: &str| live.attributes.get(key).map(String::as_str);
    rule.role(&host_name()?, attribute, &supervisors).map_err(|e| wrong(key, &e))
}

fn http(layers: &Layers, at: Option<SocketAddr>) -> Result<Option<Http>, String> {
    let path = |key: &'static str| layers.text(key).map(Path::new);
    let Some(at) = at else { return Ok(None) };
    let http = Http::new(at, path("http_token_file"), path("http_cert"), path("http_key"));
    http.map(Some).map_err(|e| layers.wrong("http", e).to_string())
}

struct Keys {
    keys: Vec<Key>,
    epoch: u64,
    fresh: bool,
}

/// The cluster's keys: those on disk, or the one that was given, or a new one.
fn keys(layers: &Layers, store: &Store) -> Result<Keys, String> {
    let given = match (layers.text("key"), layers.text("key_file")) {
        (Some(text), _) => Some(("key", text.to_owned())),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(|e| layers.wrong("key_file", e).to_string())?;
            Some(("key_file", text))
        }
        (None, None) => None,
    };
    let given = match given {
        Some((setting, text)) => {
            let why = "a key is 64 hexadecimal digits, as the first node printed it";
            Some((setting, unhex(text.trim()).ok_or_else(|| layers.wrong(setting, why).to_string())?))
        }
        None => None,
    };
    match (store.keys().map_err(|e| e.to_string())?, given) {
        // Keys that were rotated are newer than the one that somebody wrote down once.
        (Some((kept, epoch)), Some((setting, given))) if epoch == FIRST && kept.iter().all(|k| k.key != given) => {
            Err(format!(
                "`{setting}` is not the key in {}: this node belongs to another cluster; leave it out, or move the file \
                 `keys` away",
                store.dir().display()
            ))
        }
        (Some((keys, epoch)), given) => {
            if let Some((setting, _)) = given.filter(|(_, given)| keys.iter().all(|k| k.key != *given)) {
                tracing::warn!(
                    "`{setting}` is not among the keys in {}, which were rotated and count; if this node finds nobody since it \
                     was away for too long, move the file `keys` away and restart",
                    store.dir().display()
                );
            }
            Ok(Keys { keys, epoch, fresh: false })
        }
        (None, given) => {
            let key = match given {
                Some((_, key)) => key,
                None => {
                    let mut key = [0; 32];
                    getrandom::fill(&mut key).map_err(|e| format!("the system has no random numbers: {e}"))?;
                    key
                }
            };
            let keys = vec![Key { id: key_id(&key), key }];
            store.keep_keys(&keys, FIRST).map_err(|e| e.to_string())?;
            Ok(Keys { keys, epoch: FIRST, fresh: given.is_none() })
        }
    }
}

fn host_name() -> Result<String, String> {
    let name = nix::unistd::gethostname().map_err(|e| format!("the host has no name ({e}): give --name"))?;
    Ok(name.to_string_lossy().into_owned())
}
