//! Seeds by DNS: the hosts and ports that an SRV record names.

use hickory_resolver::TokioResolver;
use hickory_resolver::proto::rr::RData;
use std::time::Duration;

/// How long a name server may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The hosts of an SRV record, as HOST:PORT, those of low priority value first.
pub(super) fn look_up(name: &str) -> Result<Vec<String>, String> {
    with(name, || TokioResolver::builder_tokio()?.build())
}

fn with(
    name: &str,
    resolver: impl FnOnce() -> Result<TokioResolver, hickory_resolver::net::NetError>,
) -> Result<Vec<String>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let resolver = resolver().map_err(|e| e.to_string())?;
        let found = tokio::time::timeout(PATIENCE, resolver.srv_lookup(name)).await;
        let found = found.map_err(|_| "the name server does not answer".to_owned())?.map_err(|e| e.to_string())?;
        let mut hosts: Vec<(u16, String)> = found
            .answers()
            .iter()
            .filter_map(|record| match &record.data {
                RData::SRV(srv) => {
                    let host = srv.target.to_utf8();
                    Some((srv.priority, format!("{}:{}", host.trim_end_matches('.'), srv.port)))
                }
                _ => None,
            })
            .collect();
        hosts.sort();
        Ok(hosts.into_iter().map(|h| h.1).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
    use hickory_resolver::net::runtime::TokioRuntimeProvider;
    use std::net::UdpSocket;

    /// A name server that answers one question with two SRV records.
    fn name_server() -> u16 {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let mut packet = [0; 512];
            let (length, from) = socket.recv_from(&mut packet).unwrap();
            let end = 12 + packet[12..length].iter().position(|&b| b == 0).unwrap() + 1 + 4;
            let mut answer = packet[..2].to_vec();
            answer.extend_from_slice(&[0x81, 0x80, 0, 1, 0, 2, 0, 0, 0, 0]);
            answer.extend_from_slice(&packet[12..end]);
            for (priority, port, host) in [(20u16, 7000u16, "b"), (10, 7946, "a")] {
                let target = [&[1], host.as_bytes(), &[7], b"example", &[0]].concat();
                // The name of the question, SRV, IN, a minute.
                answer.extend_from_slice(&[0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60]);
                answer.extend_from_slice(&(6 + target.len() as u16).to_be_bytes());
                answer.extend_from_slice(&priority.to_be_bytes());
                answer.extend_from_slice(&[0, 0]);
                answer.extend_from_slice(&port.to_be_bytes());
                answer.extend_from_slice(&target);
            }
            socket.send_to(&answer, from).unwrap();
        });
        port
    }

    #[test]
    fn hosts_come_in_the_order_of_their_priority() {
        let port = name_server();
        let mut connection = ConnectionConfig::udp();
        connection.port = port;
        let server = NameServerConfig::new("127.0.0.1".parse().unwrap(), true, vec![connection]);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let build = || TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).build();
        assert_eq!(with("_phalanx._udp.example.", build).unwrap(), ["a.example:7946", "b.example:7000"]);
    }
}
