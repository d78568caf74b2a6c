//! What MPI ranks want of the cluster: names for their ports, so that other jobs find them; more ranks.
//!
//! A name is an attribute of the node where it was published, so it is known in the whole zone, and gone with the node. It goes with its job,
//! too. More ranks for a job that runs (`MPI_Comm_spawn`) the manager cannot give yet: that is refused with a reason.

use super::managed::Managed;
use super::{Jobs, Order};
use crate::agent::Agent;
use crate::shepherd::pmi::{Answer, Errand};
use crate::shepherd::words::ToShepherd;
use phalanx_protocol::member::Engine;

/// The attribute of a published name; the name behind it.
const NAME: &str = "phalanx.mpi.";

impl Jobs {
    /// A rank wants something; its shepherd is told what came of it.
    pub(super) fn on_errand(&self, job: &str, rank: u32, errand: Errand) {
        let (jobs, job) = (self.clone(), job.to_owned());
        self.0.runtime.spawn(async move {
            let published = match &errand {
                Errand::Publish { service, .. } => Some((service.clone(), true)),
                Errand::Unpublish { service } => Some((service.clone(), false)),
                _ => None,
            };
            let Ok(answer) = jobs.0.remote.ask(move |agent| agent.run_errand(&errand)).await else { return };
            if let (Some((service, there)), Answer::Done) = (published, &answer) {
                jobs.note_name(&job, service, there);
            }
            jobs.order(&job, Order::Say(ToShepherd::Answer { rank, answer }));
        });
    }

    fn note_name(&self, job: &str, service: String, there: bool) {
        if let Some(managed) = self.managed().by_name.get_mut(job) {
            if there {
                managed.published.insert(service);
            } else {
                managed.published.remove(&service);
            }
        }
    }

    /// A job's names go with it.
    pub(super) fn withdraw_names(&self, managed: &mut Managed) {
        for service in std::mem::take(&mut managed.published) {
            self.0.remote.tell(move |agent| _ = agent.run_errand(&Errand::Unpublish { service }));
        }
    }
}

impl Agent {
    pub(crate) fn run_errand(&mut self, errand: &Errand) -> Answer {
        match errand {
            Errand::Publish { service, port } => {
                let elsewhere = self.find_port(service).filter(|found| found != port);
                match elsewhere {
                    Some(_) => Answer::Refused { why: format!("{service} is published already: take another name") },
                    None => self.write_port(service, Some(port)),
                }
            }
            Errand::Lookup { service } => Answer::Port { port: self.find_port(service) },
            Errand::Unpublish { service } => self.write_port(service, None),
            Errand::Spawn { .. } => Answer::Refused {
                why: "jobs do not grow by MPI_Comm_spawn yet: start more ranks with run -n".to_owned(),
            },
        }
    }

    fn write_port(&mut self, service: &str, port: Option<&str>) -> Answer {
        match self.set_reserved(&format!("{NAME}{service}"), port) {
            Ok(()) => Answer::Done,
            Err(why) => Answer::Refused { why: why.to_string() },
        }
    }

    fn find_port(&self, service: &str) -> Option<String> {
        let (engine, key) = (self.engine(), format!("{NAME}{service}"));
        let mut found = engine.members().filter_map(|(slot, _)| engine.attribute(slot, &key));
        found.next().map(|port| String::from_utf8_lossy(port).into_owned())
    }
}
