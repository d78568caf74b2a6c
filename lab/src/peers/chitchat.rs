//! chitchat in one process: a server task for each member, with a socket of its own.
//!
//! Gossip once a second, as in its own demonstration; its failure detector as it comes; the newer of its two formats, which
//! is the smaller one. Its sockets are wrapped so that a member can be stopped.

use super::gate::{Gate, Keeper};
use super::ground::{address, member_named, name, rss_mb};
use super::measure::System;
use super::sight::{Sighting, Watch, now_ms};
use crate::error::Error;
use async_trait::async_trait;
use chitchat::transport::{RecvOutcome, SendOutcome, Socket, Transport, UdpTransport};
use chitchat::{
    ChitchatConfig, ChitchatEnvelope, ChitchatHandle, ChitchatId, FailureDetectorConfig, ProtocolVersion,
    spawn_chitchat,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

const GOSSIP: Duration = Duration::from_secs(1);
/// How long removed keys are remembered; there are none.
const GRACE: Duration = Duration::from_secs(3600);

/// A cluster of its members.
pub(super) struct Cluster {
    runtime: Runtime,
    tell: Sender<Sighting>,
    members: Vec<Option<Member>>,
    /// How often each was started.
    lives: Vec<u64>,
}

struct Member {
    server: ChitchatHandle,
    /// Tells what the server sees.
    reader: JoinHandle<()>,
    keeper: Keeper,
}

impl Cluster {
    pub(super) fn new(members: usize, tell: Sender<Sighting>) -> Result<Self, Error> {
        Ok(Self {
            runtime: Builder::new_multi_thread().enable_all().build()?,
            tell,
            members: (0..members).map(|_| None).collect(),
            lives: vec![0; members],
        })
    }

    fn start(&mut self, member: usize, join: Option<usize>) -> Result<(), Error> {
        self.lives[member] += 1;
        let at = address(member);
        let config = ChitchatConfig {
            chitchat_id: ChitchatId {
                node_id: name(member).into(),
                generation_id: self.lives[member],
                gossip_advertise_addr: at,
            },
            cluster_id: "peers".into(),
            gossip_interval: GOSSIP,
            listen_addr: at,
            seed_nodes: join.map(|other| address(other).to_string()).into_iter().collect(),
            failure_detector_config: FailureDetectorConfig::default(),
            marked_for_deletion_grace_period: GRACE,
            catchup_callback: None,
            extra_liveness_predicate: None,
            protocol_version: ProtocolVersion::V1,
        };
        let (keeper, gate) = Keeper::new();
        let (tell, runtime) = (self.tell.clone(), &self.runtime);
        let (server, mut live) = runtime
            .block_on(async {
                let server = spawn_chitchat(config, Vec::new(), &Gated(gate)).await?;
                let live = server.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await;
                Ok::<_, anyhow::Error>((server, live))
            })
            .map_err(Error::peer("chitchat"))?;
        let reader = runtime.spawn(async move {
            let mut known = BTreeSet::new();
            loop {
                let now: BTreeSet<usize> =
                    live.borrow_and_update().keys().filter_map(|id| member_named(&id.node_id)).collect();
                let came = now.difference(&known).map(|&subject| (subject, true));
                let went = known.difference(&now).map(|&subject| (subject, false));
                for (subject, alive) in came.chain(went) {
                    if tell.send(Sighting::now(member, subject, alive)).is_err() {
                        return;
                    }
                }
                known = now;
                if live.changed().await.is_err() {
                    return;
                }
            }
        });
        self.members[member] = Some(Member { server, reader, keeper });
        Ok(())
    }

    /// Ends a member and waits until its socket is closed.
    fn end(&mut self, member: usize) {
        if let Some(Member { server, reader, keeper }) = self.members[member].take() {
            reader.abort();
            server.abort();
            let ended = server.termination_watcher();
            // It was cancelled, which is what it says.
            let _ = self.runtime.block_on(async { tokio::time::timeout(GOSSIP, ended).await });
            drop(keeper);
        }
    }
}

impl System for Cluster {
    fn boot(&mut self) -> Result<f64, Error> {
        self.start(0, None)?;
        let began = now_ms();
        for member in 1..self.members.len() {
            self.start(member, Some(0))?;
        }
        Ok(began)
    }

    fn crash(&mut self, member: usize) -> Result<(), Error> {
        self.end(member);
        Ok(())
    }

    fn mend(&mut self, member: usize, watch: &mut Watch) -> Result<(), Error> {
        self.end(member);
        watch.restarted(member);
        self.start(member, Some(usize::from(member == 0)))
    }

    fn stop(&mut self, member: usize, stopped: bool) -> Result<(), Error> {
        self.members[member].iter().for_each(|member| member.keeper.close(stopped));
        Ok(())
    }

    fn rss_mb(&self) -> Option<f64> {
        Some(rss_mb(std::process::id())? / self.members.len() as f64)
    }
}

/// Its own UDP, behind a gate.
struct Gated(Gate);

struct GatedSocket {
    socket: Box<dyn Socket>,
    gate: Gate,
}

#[async_trait]
impl Transport for Gated {
    async fn open(&self, listen_addr: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        Ok(Box::new(GatedSocket { socket: UdpTransport.open(listen_addr).await?, gate: self.0.clone() }))
    }
}

#[async_trait]
impl Socket for GatedSocket {
    fn local_addr(&self) -> anyhow::Result<SocketAddr> {
        self.socket.local_addr()
    }

    async fn send(&mut self, to: SocketAddr, envelope: ChitchatEnvelope) -> anyhow::Result<SendOutcome> {
        self.gate.pass().await;
        self.socket.send(to, envelope).await
    }

    /// Can be cancelled: what has arrived is taken only when the gate is open.
    async fn recv(&mut self) -> anyhow::Result<RecvOutcome> {
        self.gate.pass().await;
        self.socket.recv().await
    }
}
