//! What a service can be asked about, and in which order a key is looked up (TG-4).

use super::{Fields, Value};

/// Keys that each service has.
pub const BUILT_IN: [&str; 5] = ["name", "port", "partition", "tag", "node"];
/// Attributes under this prefix are services: `svc/NAME` or `svc/NAME:PORT`.
pub const PREFIX: &str = "svc/";
/// The attribute that holds the load of a member; queries know it as `load`.
pub const LOAD: &str = "phalanx.load";

/// A service of a member, wherever it is kept. [`Query::matches`](super::Query::matches) takes it by reference to
/// [`Service::fields`].
pub trait Service {
    /// What it is called.
    fn name(&self) -> &str;
    /// What the member is called that offers it.
    fn node(&self) -> &str;
    /// Where it listens.
    fn port(&self) -> Option<u16>;
    /// The partitions that it serves, from first to last.
    fn partitions(&self) -> impl Iterator<Item = (u32, u32)>;
    /// Its tags.
    fn tags(&self) -> impl Iterator<Item = &str>;
    /// One of its parameters.
    fn parameter(&self, key: &str) -> Option<&str>;
    /// What its member says of itself under this key.
    fn attribute(&self, key: &str) -> Option<Value<'_>>;
    /// The zone of its member, for those that say nothing else.
    fn zone(&self) -> Option<&str>;

    /// The same as queries look at it.
    fn fields(&self) -> impl Fields
    where
        Self: Sized,
    {
        Facts(self)
    }
}

struct Facts<'s, S>(&'s S);

impl<S: Service> Fields for Facts<'_, S> {
    fn any(&self, key: &str, test: &mut dyn FnMut(Value<'_>) -> bool) -> bool {
        let service = self.0;
        match key {
            "name" => return test(Value::Text(service.name())),
            "node" => return test(Value::Text(service.node())),
            "port" => return service.port().is_some_and(|port| test(Value::Span(port.into(), port.into()))),
            "partition" => return service.partitions().any(|(first, last)| test(Value::Span(first, last))),
            "tag" => return service.tags().any(|tag| test(Value::Text(tag))),
            _ => {}
        }
        if let Some(value) = service.parameter(key) {
            return test(Value::Text(value));
        }
        let reserved = || if key == "load" { service.attribute(LOAD) } else { None };
        match service.attribute(key).or_else(reserved) {
            Some(value) => test(value),
            None => key == "zone" && service.zone().is_some_and(|zone| test(Value::Text(zone))),
        }
    }
}
