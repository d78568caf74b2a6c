//! Other data centres, in the API's words.

use super::Agent;
use phalanx_api::federation::{Centre, Federation, Reach};
use phalanx_protocol::federation::Status;

impl Agent {
    /// What this node knows of other data centres.
    #[must_use]
    pub fn federation(&self) -> Federation {
        let driver = self.driver();
        let Some(federation) = driver.node().federation() else { return Federation::default() };
        let (now, (name, home)) = (driver.now(), federation.home());
        let centres = federation.centres().map(|centre| Centre {
            name: centre.name.to_string(),
            reach: match centre.status {
                Status::Unheard => Reach::Unheard,
                Status::Well => Reach::Well,
                Status::Deaf => Reach::Deaf,
                Status::Silent => Reach::Silent,
            },
            age_ms: centre.heard_at.map(|at| now.since(at).as_millis()),
            members: centre.members,
            services: centre.services.iter().map(|(name, count)| (name.to_string(), *count)).collect(),
            more: centre.more,
        });
        Federation { name: Some(name.to_string()), speaks: home.speaks, centres: centres.collect() }
    }
}
