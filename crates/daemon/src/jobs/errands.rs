//! What MPI ranks want of the cluster: names for their ports, so that other jobs find them; more ranks.
//!
//! A name is an attribute of the node where it was published, so it is known in the whole zone, and gone with the node. It goes with its job,
//! too. What a rank spawns (`MPI_Comm_spawn`) is a job of its own, whose console is the shepherd of that rank.

use super::managed::{self, Managed};
use super::{Jobs, Order};
use crate::agent::Agent;
use crate::agent::manager::{ANSWER_PATIENCE, ManagerError};
use crate::shepherd::pmi::{Answer, Errand};
use crate::shepherd::words::ToShepherd;
use nix::unistd::{getegid, geteuid};
use phalanx_api::run::RunWanted;
use phalanx_protocol::manager::words::{self, Ask};
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

    /// A rank spawns a job. Its shepherd becomes the console of that, and tells the rank.
    pub(super) fn on_spawn(
        &self,
        parent: &str,
        rank: u32,
        wanted: RunWanted,
        puts: Vec<(String, String)>,
        user: Option<(u32, u32)>,
    ) {
        let (jobs, parent) = (self.clone(), parent.to_owned());
        let user = user.unwrap_or_else(|| (geteuid().as_raw(), getegid().as_raw()));
        self.0.runtime.spawn(async move {
            let words = match jobs.spawn(wanted, puts, user).await {
                Ok((job, socket)) => ToShepherd::Attend { rank, job, socket },
                Err(why) => ToShepherd::Answer { rank, answer: Answer::Refused { why } },
            };
            jobs.order(&parent, Order::Say(words));
        });
    }

    /// Asks the manager for a job whose console comes here; gives its name and where that is awaited.
    async fn spawn(
        &self,
        wanted: RunWanted,
        puts: Vec<(String, String)>,
        user: (u32, u32),
    ) -> Result<(String, String), String> {
        let ranks = wanted.ranks();
        let asked = managed::asked(wanted, user, puts).map_err(|length| ManagerError::TooLong(length).to_string())?;
        let told = self.0.remote.ask(move |agent| agent.ask_manager(Ask::Run(asked))).await;
        let told = told.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        match tokio::time::timeout(ANSWER_PATIENCE, told).await {
            Ok(Ok(words::Answer::Taken { job, name })) => {
                let socket = self.open_console(job, &name, ranks, Some(user)).await?;
                Ok((name, socket.to_string_lossy().into_owned()))
            }
            Ok(Ok(words::Answer::Refused(why))) => Err(why),
            _ => Err(ManagerError::Silent.to_string()),
        }
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
            // Its shepherd says what that means.
            Errand::Spawn { .. } => Answer::Refused { why: "no job was named".to_owned() },
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
