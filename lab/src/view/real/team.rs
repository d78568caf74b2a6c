//! The nodes of a tree, as processes or shared over the threads of this one, and the experiment's way to speak with them.

use super::bare::{Bare, BareTcp, BareUdp};
use super::serve::{Node, alone, bell, ringer, together};
use super::task::Tasked;
use super::words::{Answer, Order};
use crate::child::Child;
use crate::error::Error;
use crate::experiment::Role;
use phalanx_daemon::{Tcp, Udp, Waker};
use std::collections::VecDeque;
use std::fmt;
use std::io::BufRead;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What a child process plays.
pub(super) const ROLE: Role = Role { name: "view-node", play };
/// Whoever takes longer to answer is stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// Over what.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Udp { "UDP" } else { "TCP" })
    }
}

/// How the nodes share the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Layout {
    /// Each is a process.
    Processes,
    /// A thread for each core has its share of them.
    InProcess,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Processes { "processes" } else { "in-process" })
    }
}

/// What the nodes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// Tasks of a job.
    Tasks,
    /// The same tree without a protocol.
    Bare,
}

/// All nodes of one tree. They end when this drops.
pub(super) struct Team {
    hands: Hands,
    pub(super) size: usize,
}

enum Hands {
    Processes(Vec<Child>),
    Threads { crews: Vec<Crew>, answers: Receiver<(usize, Answer)>, early: VecDeque<(usize, Answer)> },
}

struct Crew {
    orders: Sender<(usize, Order)>,
    waker: Waker,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Drop for Crew {
    fn drop(&mut self) {
        // It may have ended by itself, with an error that its silence has told of.
        let _ = self.orders.send((0, Order::End));
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Team {
    /// So many nodes in a tree of that arity; each knows its neighbours when this returns.
    pub(super) fn start(
        layout: Layout,
        transport: Transport,
        side: Side,
        size: usize,
        arity: u32,
    ) -> Result<Self, Error> {
        let (hands, all) = match (layout, transport, side) {
            (Layout::Processes, ..) => Hands::processes(transport, side, size)?,
            (_, Transport::Udp, Side::Tasks) => Hands::threads(size, Tasked::<Udp>::open)?,
            (_, Transport::Tcp, Side::Tasks) => Hands::threads(size, Tasked::<Tcp>::open)?,
            (_, Transport::Udp, Side::Bare) => Hands::threads(size, Bare::<BareUdp>::open)?,
            (_, Transport::Tcp, Side::Bare) => Hands::threads(size, Bare::<BareTcp>::open)?,
        };
        let mut team = Self { hands, size };
        team.all(&Order::Meet { arity, all })?;
        team.all(&Order::Take)?;
        Ok(team)
    }

    /// Tells one node something.
    pub(super) fn tell(&mut self, node: usize, order: &Order) -> Result<(), Error> {
        match &mut self.hands {
            Hands::Processes(children) => {
                children[node].tell(&serde_json::to_string(order).map_err(Error::peer("serde_json"))?)
            }
            Hands::Threads { crews, .. } => {
                let crew = &crews[node % crews.len()];
                crew.orders.send((node / crews.len(), order.clone())).map_err(Error::peer("a crew ended"))?;
                crew.waker.wake();
                Ok(())
            }
        }
    }

    /// What one node says next.
    pub(super) fn hear(&mut self, node: usize) -> Result<Answer, Error> {
        match &mut self.hands {
            Hands::Processes(children) => {
                let line = children[node].line(PATIENCE)?;
                serde_json::from_str(&line).map_err(|_| children[node].said(&line))
            }
            Hands::Threads { answers, early, .. } => {
                if let Some(i) = early.iter().position(|(from, _)| *from == node) {
                    return Ok(early.remove(i).expect("it is there").1);
                }
                let until = Instant::now() + PATIENCE;
                loop {
                    let left = until.saturating_duration_since(Instant::now());
                    let silent = |_| Error::Silent { role: format!("node {node}"), seconds: PATIENCE.as_secs_f64() };
                    let (from, answer) = answers.recv_timeout(left).map_err(silent)?;
                    if from == node {
                        return Ok(answer);
                    }
                    early.push_back((from, answer));
                }
            }
        }
    }

    /// Tells all nodes, and waits until they have done so.
    pub(super) fn all(&mut self, order: &Order) -> Result<(), Error> {
        (0..self.size).try_for_each(|node| self.tell(node, order))?;
        (0..self.size).try_for_each(|node| self.hear(node).map(|_| ()))
    }

    /// How long the root's wave took, in µs.
    pub(super) fn took(&mut self, order: &Order) -> Result<f64, Error> {
        self.tell(0, order)?;
        match self.hear(0)? {
            Answer::Took { ns } => Ok(ns as f64 / 1e3),
            other => Err(Error::Child { role: ROLE.name.into(), said: format!("{other:?}") }),
        }
    }
}

impl Hands {
    fn processes(transport: Transport, side: Side, size: usize) -> Result<(Self, Vec<SocketAddr>), Error> {
        let args = |me: usize| vec![transport.to_string(), format!("{side:?}"), me.to_string()];
        let children = (0..size).map(|me| Child::start_told(ROLE.name, &args(me))).collect::<Result<Vec<_>, _>>()?;
        let mut all = Vec::with_capacity(size);
        for child in &children {
            let line = child.line(PATIENCE)?;
            match serde_json::from_str(&line) {
                Ok(Answer::At(at)) => all.push(at),
                _ => return Err(child.said(&line)),
            }
        }
        Ok((Self::Processes(children), all))
    }

    fn threads<N: Node + Send + 'static>(
        size: usize,
        open: impl Fn(u32, bool) -> Result<(N, SocketAddr), Error>,
    ) -> Result<(Self, Vec<SocketAddr>), Error> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(size);
        let mut shares: Vec<Vec<N>> = (0..threads).map(|_| Vec::new()).collect();
        let mut all = Vec::with_capacity(size);
        for me in 0..size {
            let (node, at) = open(me as u32, true)?;
            shares[me % threads].push(node);
            all.push(at);
        }
        let (tell, answers) = channel();
        let crews = shares.into_iter().enumerate().map(|(share, nodes)| {
            let (bell, (orders, given), tell) = (bell()?, channel(), tell.clone());
            let waker = ringer(&bell);
            let thread = thread::Builder::new().name("crew".into()).spawn(move || {
                let mut say = |at: usize, answer| {
                    // Who asked may have given up.
                    let _ = tell.send((at * threads + share, answer));
                };
                together(nodes, &bell, &given, &mut say)
            })?;
            Ok(Crew { orders, waker, thread: Some(thread) })
        });
        let crews = crews.collect::<Result<Vec<_>, Error>>()?;
        Ok((Self::Threads { crews, answers, early: VecDeque::new() }, all))
    }
}

/// A child process: one node, told by lines.
fn play(args: &[String]) -> Result<(), Error> {
    let unfit = || Error::UnknownRole(args.join(" "));
    let [transport, side, me] = args else { return Err(unfit()) };
    let me = me.parse().map_err(|_| unfit())?;
    match (transport.as_str(), side.as_str()) {
        ("UDP", "Tasks") => attend(Tasked::<Udp>::open(me, false)?),
        ("TCP", "Tasks") => attend(Tasked::<Tcp>::open(me, false)?),
        ("UDP", "Bare") => attend(Bare::<BareUdp>::open(me, false)?),
        ("TCP", "Bare") => attend(Bare::<BareTcp>::open(me, false)?),
        _ => Err(unfit()),
    }
}

fn attend(node: (impl Node, SocketAddr)) -> Result<(), Error> {
    let (node, at) = node;
    let mut say = |_, answer: Answer| {
        println!("{}", serde_json::to_string(&answer).expect("an answer always encodes"));
    };
    say(0, Answer::At(at));
    let bell = bell()?;
    let own = node.waker();
    let waker = own.clone().unwrap_or_else(|| ringer(&bell));
    let (orders, given) = channel();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else { break };
            if orders.send((0, order)).is_err() {
                break;
            }
            waker.wake();
        }
        // Whoever gave orders is gone.
        drop(orders);
        waker.wake();
    });
    if own.is_some() { alone(node, &given, &mut say) } else { together(vec![node], &bell, &given, &mut say) }
}
