//! What is lost on the way.
//!
//! Faults are rules of the switches (`nft`, family `bridge`): packets vanish there in silence, as in a real one; a rule on the sending
//! host would come back as an error of its `sendto`. They look at a packet where it leaves the last switch, at the port of the host
//! that shall not get it: so a multicast is lost for one and heard by others, and is judged once, however many switches it has crossed.
//! Rules name the kinds of packets: an ARP (in IPv6: a neighbour's solicitation) that is lost would make each one-way cut a two-way one.

use crate::Network;
use crate::plumbing::obey;

/// Something that happens to packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Nothing comes from this host, nor gets to it.
    Blackhole(usize),
    /// So many of a hundred packets that some send to others are lost.
    OneWay { from: Vec<usize>, to: Vec<usize>, percent: u8 },
    /// So many of a hundred packets are lost, whoever sends them to whom.
    Everywhere { percent: u8 },
    /// No multicast gets anywhere, as in clouds.
    Multicast,
}

/// Faults. Each panics when the switch would not have it.
impl Network {
    /// Nothing comes from these hosts, nor gets to them.
    pub fn blackhole(&mut self, hosts: &[usize]) {
        self.faults.extend(hosts.iter().copied().map(Fault::Blackhole));
        self.apply();
    }

    /// So many of a hundred packets that `from` send to `to` are lost, multicasts too; none the other way.
    pub fn lose_one_way(&mut self, from: &[usize], to: &[usize], percent: u8) {
        self.faults.push(Fault::OneWay { from: from.to_vec(), to: to.to_vec(), percent });
        self.apply();
    }

    /// What `from` sends to `to` is lost, multicasts too; the other way is open.
    pub fn cut_one_way(&mut self, from: &[usize], to: &[usize]) {
        self.lose_one_way(from, to, 100);
    }

    /// Nothing passes between these and those.
    pub fn cut(&mut self, these: &[usize], those: &[usize]) {
        self.cut_one_way(these, those);
        self.cut_one_way(those, these);
    }

    /// So many of a hundred packets are lost, wherever they go.
    pub fn lose(&mut self, percent: u8) {
        self.faults.push(Fault::Everywhere { percent });
        self.apply();
    }

    /// No multicast gets anywhere from now on, as in clouds; but for what addresses need.
    pub fn lose_multicast(&mut self) {
        self.faults.push(Fault::Multicast);
        self.apply();
    }

    /// Nothing is lost any more. Switches that are dead stay so.
    pub fn heal(&mut self) {
        self.faults.clear();
        self.apply();
    }

    /// All rules of a switch are put in place at once: no packet sees half of them.
    pub(crate) fn apply(&self) {
        for switch in 0..self.plan.networks() {
            let rules = self.faults.iter().flat_map(|fault| self.rules(switch, fault)).collect::<Vec<_>>().join("\n");
            let text = format!(
                "table bridge faults\ndelete table bridge faults\ntable bridge faults {{\nchain forward {{\n\
                 type filter hook forward priority 0; policy accept;\n{rules}\n}}\n}}\n"
            );
            let arguments = ["netns", "exec", &self.switch(switch), "nft", "-f", "-"];
            obey("ip", &arguments, &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        }
    }

    /// What a fault is at a switch.
    fn rules(&self, switch: usize, fault: &Fault) -> Vec<String> {
        const SIX: &str = "ether type ip6 ip6 nexthdr != ipv6-icmp";
        let is_here = |host: &&usize| self.homes[**host] == switch;
        match fault {
            Fault::Blackhole(host) if is_here(&host) => {
                ["iifname", "oifname"].map(|way| format!("{way} \"h{host}\" drop")).into()
            }
            Fault::Blackhole(_) => Vec::new(),
            Fault::OneWay { from, to, percent } => {
                let ports = list(to.iter().filter(is_here).map(|host| format!("\"h{host}\"")));
                let (four, six) =
                    (list(from.iter().map(|&h| self.addr(h))), list(from.iter().map(|&h| self.addr_v6(h))));
                if ports.is_empty() || four.is_empty() {
                    return Vec::new();
                }
                let chance = chance(*percent);
                vec![
                    format!("oifname {{ {ports} }} ether type ip ip saddr {{ {four} }} {chance} drop"),
                    format!("oifname {{ {ports} }} {SIX} ip6 saddr {{ {six} }} {chance} drop"),
                ]
            }
            Fault::Multicast => {
                let groups = ["ether type ip ip daddr 224.0.0.0/4".to_owned(), format!("{SIX} ip6 daddr ff00::/8")];
                groups.map(|what| format!("{what} drop")).into()
            }
            Fault::Everywhere { percent } => {
                ["ether type ip", SIX].map(|kind| format!("oifname \"h*\" {kind} {} drop", chance(*percent))).into()
            }
        }
    }
}

fn list(words: impl Iterator<Item = impl ToString>) -> String {
    words.map(|word| word.to_string()).collect::<Vec<_>>().join(", ")
}

/// What holds for so many of a hundred packets.
fn chance(percent: u8) -> String {
    if percent >= 100 { String::new() } else { format!("numgen random mod 100 < {percent}") }
}
