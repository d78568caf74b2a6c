//! What a network looks like: leaf networks, the routers between them, and which way leads where.
//!
//! Routers make no rings: who multicasts would be heard twice, and for as long as its TTL lasts.

use std::collections::VecDeque;

/// Networks of a plan, at most: one byte of an address.
pub const NETWORKS_MAX: usize = 250;
/// Hosts of a plan, at most. The last byte of an address says which host it is, wherever it moves.
pub const HOSTS_MAX: usize = 200;
/// Routers of a plan, at most: they have the last bytes that hosts leave.
pub const ROUTERS_MAX: usize = 50;
const _: () = assert!(HOSTS_MAX + ROUTERS_MAX < 255);
/// Networks on a router, at most: the kernel routes multicast among so many interfaces (MAXVIFS), less one for its own use.
const PORTS_MAX: usize = 31;

/// Networks with hosts, and routers between networks; all are numbered as they come.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// How many hosts each network has.
    networks: Vec<usize>,
    /// Which networks each router joins.
    routers: Vec<Vec<usize>>,
}

/// Shapes.
impl Plan {
    /// One network.
    #[must_use]
    pub fn lan(hosts: usize) -> Self {
        Self::apart(1, hosts)
    }

    /// Networks that nothing joins.
    #[must_use]
    pub fn apart(networks: usize, hosts: usize) -> Self {
        let mut plan = Self::default();
        (0..networks).for_each(|_| _ = plan.add_network(hosts));
        plan
    }

    /// Networks around one router. The paper's five networks of twenty (003 §5.2) are `star(5, 20)`.
    #[must_use]
    pub fn star(networks: usize, hosts: usize) -> Self {
        let mut plan = Self::apart(networks, hosts);
        plan.add_router(&(0..networks).collect::<Vec<_>>());
        plan
    }

    /// Networks in a row, with a router between each and the next.
    #[must_use]
    pub fn row(networks: usize, hosts: usize) -> Self {
        let mut plan = Self::apart(networks, hosts);
        (1..networks).for_each(|next| _ = plan.add_router(&[next - 1, next]));
        plan
    }

    /// 003 Fig. 5: three networks in a row with two routers between each and the next. With a TTL of 3 the first and the last hear
    /// the middle one and not each other; with 2 nobody hears anybody.
    #[must_use]
    pub fn figure_5(hosts: usize) -> Self {
        let mut plan = Self::apart(3, hosts);
        for (this, next) in [(0, 1), (1, 2)] {
            let between = plan.add_network(0);
            plan.add_router(&[this, between]);
            plan.add_router(&[between, next]);
        }
        plan
    }

    /// One more network. Gives its number.
    ///
    /// # Panics
    /// When there are too many networks or hosts.
    pub fn add_network(&mut self, hosts: usize) -> usize {
        self.networks.push(hosts);
        assert!(self.networks.len() <= NETWORKS_MAX && self.hosts() <= HOSTS_MAX, "they have one byte each");
        self.networks.len() - 1
    }

    /// A router that joins networks. Gives its number.
    ///
    /// # Panics
    /// When there are too many routers, or it would close a ring.
    pub fn add_router(&mut self, networks: &[usize]) -> usize {
        assert!(self.routers.len() < ROUTERS_MAX && networks.len() <= PORTS_MAX, "too many routers, or ports of one");
        for (n, &this) in networks.iter().enumerate() {
            assert!(this < self.networks.len(), "there is no network {this}");
            for &that in &networks[..n] {
                assert!(self.routers_between(this, that).is_none(), "{networks:?} would be a ring");
            }
        }
        self.routers.push(networks.to_vec());
        self.routers.len() - 1
    }
}

/// What is where.
impl Plan {
    /// How many networks there are.
    #[must_use]
    pub fn networks(&self) -> usize {
        self.networks.len()
    }

    /// How many hosts there are.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.networks.iter().sum()
    }

    /// Which networks each router joins.
    #[must_use]
    pub fn routers(&self) -> &[Vec<usize>] {
        &self.routers
    }

    /// In which network each host begins: those of the first network come first.
    #[must_use]
    pub fn homes(&self) -> Vec<usize> {
        self.networks.iter().enumerate().flat_map(|(network, &hosts)| std::iter::repeat_n(network, hosts)).collect()
    }

    /// How many routers are between two networks; `None` when no way leads there. Multicast needs a TTL of one more.
    #[must_use]
    pub fn routers_between(&self, from: usize, to: usize) -> Option<usize> {
        let mut far = vec![None; self.networks.len()];
        far[from] = Some(0);
        let mut queue = VecDeque::from([from]);
        while let Some(here) = queue.pop_front() {
            if here == to {
                return far[here];
            }
            for next in self.routers.iter().filter(|ports| ports.contains(&here)).flatten().copied() {
                if far[next].is_none() {
                    far[next] = far[here].map(|routers| routers + 1);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// The router that takes packets of network `from` towards network `to`; `None` when it is the same one, or no way leads there.
    pub(crate) fn gateway(&self, from: usize, to: usize) -> Option<usize> {
        let nearer = self.routers_between(from, to)?.checked_sub(1)?;
        let leads = |ports: &Vec<usize>| ports.iter().any(|&next| self.routers_between(next, to) == Some(nearer));
        (0..self.routers.len()).find(|&router| self.routers[router].contains(&from) && leads(&self.routers[router]))
    }

    /// Of a router's networks the one that is nearest to network `to`; `None` when no way leads there.
    pub(crate) fn port_towards(&self, router: usize, to: usize) -> Option<usize> {
        let ways = self.routers[router].iter().filter_map(|&port| Some((self.routers_between(port, to)?, port)));
        ways.min().map(|(_, port)| port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_network_by_network() {
        let mut plan = Plan::star(2, 3);
        assert_eq!((plan.networks(), plan.hosts(), plan.homes()), (2, 6, vec![0, 0, 0, 1, 1, 1]));
        assert_eq!((plan.add_network(1), plan.homes()[6], plan.routers_between(0, 2)), (2, 2, None));
    }

    #[test]
    fn routers_are_counted_along_the_way() {
        let star = Plan::star(5, 20);
        assert_eq!([0, 1, 4].map(|to| star.routers_between(0, to)), [Some(0), Some(1), Some(1)]);
        let row = Plan::row(3, 1);
        assert_eq!([0, 1, 2].map(|to| row.routers_between(0, to)), [Some(0), Some(1), Some(2)]);
        let chain = Plan::figure_5(1);
        assert_eq!([0, 1, 2].map(|to| chain.routers_between(0, to)), [Some(0), Some(2), Some(4)]);
        assert_eq!(Plan::apart(2, 1).routers_between(0, 1), None);
    }

    #[test]
    fn gateways_lead_there_step_by_step() {
        let chain = Plan::figure_5(1);
        let (mut here, mut way) = (0, Vec::new());
        while let Some(router) = chain.gateway(here, 2) {
            here = chain.port_towards(router, 2).unwrap();
            way.push((router, here));
        }
        assert_eq!(way, [(0, 3), (1, 1), (2, 4), (3, 2)]);
        assert_eq!(Plan::apart(2, 1).gateway(0, 1), None);
    }

    #[test]
    #[should_panic(expected = "would be a ring")]
    fn a_ring_is_refused() {
        Plan::row(3, 1).add_router(&[0, 2]);
    }
}
