//! The control API over TCP: who may ask, and what bad clients get.

use phalanx_cluster::{Cluster, Node, PATIENCE};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where a daemon serves HTTP, as its log says.
fn port(node: &Node) -> SocketAddr {
    let began = Instant::now();
    loop {
        let log = node.log();
        let line = log.lines().find(|l| l.contains("serving HTTP"));
        if let Some(addr) = line.and_then(|l| l.split("addr=").nth(1)) {
            return addr.trim().parse().unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "{log}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn exchange(stream: &mut (impl Read + Write), request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A server that closes without a farewell has said all the same.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn ask(at: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange(&mut stream, request)
}

fn get(at: SocketAddr, path: &str) -> String {
    ask(at, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0)
}

#[test]
fn on_loopback_anybody_may_look_and_nobody_may_change() {
    let mut cluster = Cluster::empty();
    let node = cluster.add(&["--http", "127.0.0.1:0"]);
    let at = port(cluster.node(node));
    let members = get(at, "/v1/members");
    assert!(status(&members) == 200 && members.contains("\"name\":\"n0\""), "{members}");
    for path in
        ["/v1/status", "/v1/zones", "/v1/census", "/v1/attrs", "/v1/services", "/v1/keys", "/healthz", "/v1/rtt"]
    {
        assert_eq!(status(&get(at, path)), 200, "{path}");
    }
    let metrics = get(at, "/metrics");
    assert!(metrics.contains("phalanx_members 1") && metrics.ends_with("# EOF\n"), "{metrics}");
    let openapi = get(at, "/v1/openapi.json");
    assert!(openapi.contains("\"/v1/members\"") && openapi.contains("\"openapi\":\"3."), "{openapi}");
    let leave = ask(at, "POST /v1/leave HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert!(status(&leave) == 403 && leave.contains("Unix socket"), "{leave}");
    let rebound = ask(at, "GET /v1/members HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert_eq!(status(&rebound), 403, "{rebound}");
    assert_eq!(status(&get(at, "/v1/nothing")), 404);
    assert_eq!(cluster.node(node).status().alive, 1, "it still runs");
}

#[test]
fn bad_clients_are_bounded() {
    let mut cluster = Cluster::empty();
    let token = std::env::temp_dir().join(format!("phalanx-token-{}", std::process::id()));
    std::fs::write(&token, "0123456789abcdef0123\n").unwrap();
    let file = cluster.write("http.toml", &format!("http = '127.0.0.1:0'\nhttp_token_file = '{}'\n", token.display()));
    let node = cluster.add(&["--config", &file]);
    let at = port(cluster.node(node));
    let head = "Host: x\r\nAuthorization: Bearer 0123456789abcdef0123\r\nConnection: close\r\n";
    assert_eq!(status(&ask(at, &format!("GET /v1/members HTTP/1.1\r\n{head}\r\n"))), 200);
    assert_eq!(status(&get(at, "/v1/members")), 401);
    assert_eq!(status(&ask(at, "nonsense\r\n\r\n")), 400);
    let huge = format!(
        "POST /v1/event HTTP/1.1\r\n{head}Content-Type: application/json\r\nContent-Length: 99999999\r\n\r\n{{"
    );
    assert_eq!(status(&ask(at, &huge)), 413);
    let bad =
        format!("POST /v1/event HTTP/1.1\r\n{head}Content-Type: application/json\r\nContent-Length: 3\r\n\r\n{{x}}");
    assert_eq!(status(&ask(at, &bad)), 400);
    let method = format!("DELETE /v1/members HTTP/1.1\r\n{head}\r\n");
    assert_eq!(status(&ask(at, &method)), 405);
    // Heads without an end: many of them, none keeps others out, and each is closed in the end.
    let mut slow: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(at).unwrap()).collect();
    slow.iter_mut().for_each(|s| s.write_all(b"GET /v1/members HTTP/1.1\r\n").unwrap());
    assert_eq!(status(&ask(at, &format!("GET /v1/members HTTP/1.1\r\n{head}\r\n"))), 200);
    slow[0].set_read_timeout(Some(PATIENCE)).unwrap();
    let mut rest = Vec::new();
    slow[0].read_to_end(&mut rest).expect("the server closes it in time");
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&rest));
    std::fs::remove_file(&token).unwrap();
}

#[test]
fn elsewhere_it_is_served_encrypted_to_who_has_the_token() {
    let mut cluster = Cluster::empty();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let cert = cluster.write("cert.pem", &made.cert.pem());
    let key = cluster.write("key.pem", &made.signing_key.serialize_pem());
    let token = cluster.write("token", "0123456789abcdef0123\n");
    let text = format!("http = '0.0.0.0:0'\nhttp_cert = '{cert}'\nhttp_key = '{key}'\nhttp_token_file = '{token}'\n");
    let file = cluster.write("http.toml", &text);
    let node = cluster.add(&["--config", &file]);
    let at = SocketAddr::from(([127, 0, 0, 1], port(cluster.node(node)).port()));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(&cert).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let ask = |authorization: &str| {
        let name = ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, TcpStream::connect(at).unwrap());
        exchange(
            &mut stream,
            &format!("GET /v1/members HTTP/1.1\r\nHost: x\r\n{authorization}Connection: close\r\n\r\n"),
        )
    };
    assert_eq!(status(&ask("")), 401);
    let members = ask("Authorization: Bearer 0123456789abcdef0123\r\n");
    assert!(status(&members) == 200 && members.contains("\"n0\""), "{members}");
    // Who does not speak TLS learns nothing.
    assert_ne!(status(&get(at, "/healthz")), 200);
}
