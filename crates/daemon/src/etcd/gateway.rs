//! Asking etcd: one request over HTTP/1.1, at the next endpoint when one does not answer.
//!
//! Each request may be sent twice, as an endpoint can do what it was asked for and fail to say so. All that we ask for
//! bears that: a lease too many runs out, and a claim that went through is seen and taken back by the next try.

use super::EtcdError;
use super::words;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;

/// The port unless another is named.
const PORT: u16 = 2379;
/// The longest answer that is read: the seats of a hundred thousand daemons.
const ANSWER_MAX: usize = 64 << 20;
/// Codes of gRPC by which one endpoint says that another may do better: too late, and not available.
const ELSEWHERE: [u32; 2] = [4, 14];

#[derive(Debug)]
pub(super) struct Gateway {
    endpoints: Vec<Endpoint>,
    /// The endpoint that answered last, asked first.
    first: AtomicUsize,
    /// How long each may take.
    patience: Duration,
}

#[derive(Debug)]
struct Endpoint {
    /// Without brackets.
    host: String,
    port: u16,
}

/// Why one endpoint did not do it.
enum Failure {
    /// It does not answer now.
    Silent(String),
    /// It may not be etcd at all.
    Odd(String),
    /// It said no, and so would others.
    Refused { code: u32, said: String },
}

impl Gateway {
    pub(super) fn new<T: AsRef<str>>(
        endpoints: impl IntoIterator<Item = T>,
        patience: Duration,
    ) -> Result<Self, EtcdError> {
        let endpoints: Vec<_> = endpoints.into_iter().map(|e| Endpoint::parse(e.as_ref())).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(EtcdError::Nowhere);
        }
        Ok(Self { endpoints, first: AtomicUsize::new(0), patience })
    }

    /// Asks one endpoint after the other, each once.
    pub(super) async fn ask<A: DeserializeOwned>(&self, path: &str, question: &Value) -> Result<A, EtcdError> {
        let body = Bytes::from(question.to_string());
        let first = self.first.load(Ordering::Relaxed);
        let (mut silent, mut odd) = (Vec::new(), None);
        for index in (0..self.endpoints.len()).map(|n| (first + n) % self.endpoints.len()) {
            let endpoint = &self.endpoints[index];
            let answer = tokio::time::timeout(self.patience, endpoint.ask(path, body.clone())).await;
            let answer = answer.unwrap_or_else(|_| Err(Failure::Silent(format!("nothing within {:?}", self.patience))));
            match answer.and_then(|bytes| read(&bytes)) {
                Ok(answer) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(Failure::Refused { code, said }) => {
                    return Err(EtcdError::Refused { endpoint: endpoint.to_string(), code, said });
                }
                Err(Failure::Silent(why)) => silent.push(format!("{endpoint}: {why}")),
                Err(Failure::Odd(why)) => odd = Some(EtcdError::Odd { endpoint: endpoint.to_string(), why }),
            }
        }
        // Something that is not etcd will not get better by itself: the more useful thing to say.
        Err(odd.unwrap_or_else(|| EtcdError::Unreachable(silent.join("; "))))
    }
}

impl Endpoint {
    fn parse(text: &str) -> Result<Self, EtcdError> {
        let wrong = |why: &str| EtcdError::Url { text: text.to_owned(), why: why.to_owned() };
        let url: Uri = text.trim().parse().map_err(|e| wrong(&format!("{e}")))?;
        match url.scheme_str() {
            // A bare HOST:PORT is an authority, a bare HOST too.
            None | Some("http") => {}
            Some("https") => return Err(EtcdError::Tls(text.to_owned())),
            Some(_) => return Err(wrong("it is not http")),
        }
        let authority = url.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("users are not supported"));
        }
        if !matches!(url.path(), "" | "/") || url.query().is_some() {
            return Err(wrong("nothing may follow the port"));
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if authority.as_str() == authority.host() => PORT,
            None => return Err(wrong("its port is no number")),
        };
        Ok(Self { host: authority.host().trim_matches(['[', ']']).to_owned(), port })
    }

    async fn ask(&self, path: &str, body: Bytes) -> Result<Bytes, Failure> {
        let silent = |e: &dyn fmt::Display| Failure::Silent(e.to_string());
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|e| silent(&e))?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| silent(&e))?;
        // It ends with the sender.
        tokio::spawn(connection);
        let request = Request::post(path).header("host", self.authority()).header("content-type", "application/json");
        let request = request.body(Full::new(body)).map_err(|e| silent(&e))?;
        let answer = sender.send_request(request).await.map_err(|e| match e.is_parse() {
            true => Failure::Odd(format!("it does not speak HTTP: {e}")),
            false => silent(&e),
        })?;
        let status = answer.status();
        let bytes = Limited::new(answer.into_body(), ANSWER_MAX).collect().await.map_err(|e| silent(&e))?.to_bytes();
        judge(status, bytes)
    }

    fn authority(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority())
    }
}

/// The answer, unless it says no. Streams say no after they have begun with success.
fn judge(status: StatusCode, bytes: Bytes) -> Result<Bytes, Failure> {
    match words::refusal(&bytes) {
        Some((code, said)) if ELSEWHERE.contains(&code) => Err(Failure::Silent(said)),
        Some((code, said)) => Err(Failure::Refused { code, said }),
        None if status.is_success() => Ok(bytes),
        None if status.is_server_error() => Err(Failure::Silent(status.to_string())),
        None => Err(Failure::Odd(status.to_string())),
    }
}

fn read<A: DeserializeOwned>(bytes: &[u8]) -> Result<A, Failure> {
    serde_json::from_slice(bytes).map_err(|e| Failure::Odd(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::words::Range;
    use serde_json::json;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};

    const PATIENCE: Duration = Duration::from_millis(300);

    /// Answers each connection with this text, or never when there is none.
    fn server(text: Option<&'static str>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                if let Some(text) = text {
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(text.as_bytes());
                } else {
                    open.push(stream);
                }
            }
        });
        addr
    }

    fn closed() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn ask(endpoints: &[SocketAddr]) -> (Result<Range, EtcdError>, usize) {
        let gateway = Gateway::new(endpoints.iter().map(|e| format!("http://{e}")), PATIENCE).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(gateway.ask("/v3/kv/range", &json!({})));
        (answer, gateway.first.into_inner())
    }

    const GOOD: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"header\":{}}";
    const STRANGER: &str = "HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\nno such page";
    const LEADERLESS: &str = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n\
                              {\"error\":\"etcdserver: no leader\",\"message\":\"etcdserver: no leader\",\"code\":14}";
    const FORBIDDEN: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n\
                             {\"error\":\"user name is empty\",\"message\":\"user name is empty\",\"code\":3}";

    #[test]
    fn the_next_endpoint_is_asked_and_remembered() {
        let (answer, first) =
            ask(&[closed(), server(None), server(Some(LEADERLESS)), server(Some(STRANGER)), server(Some(GOOD))]);
        assert!(answer.unwrap().kvs.is_empty());
        assert_eq!(first, 4);
    }

    #[test]
    fn who_does_not_answer_is_told_with_its_reason() {
        let endpoints = [closed(), server(None), server(Some(LEADERLESS))];
        let Err(EtcdError::Unreachable(why)) = ask(&endpoints).0 else { panic!("nobody can answer") };
        for (endpoint, reason) in endpoints.iter().zip(["refused", "nothing within 300ms", "no leader"]) {
            let told = why.split("; ").find(|w| w.starts_with(&format!("http://{endpoint}: "))).expect(&why);
            assert!(told.contains(reason), "{told}");
        }
    }

    #[test]
    fn a_refusal_and_an_odd_answer_are_told_apart() {
        let refused = ask(&[server(Some(FORBIDDEN)), server(Some(GOOD))]).0.unwrap_err();
        assert!(refused.is_refusal(3) && refused.to_string().contains("user name is empty"), "{refused}");
        for text in [STRANGER, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<html>", "220 mail.example ESMTP\r\n"] {
            let odd = ask(&[server(Some(text)), closed()]).0.unwrap_err();
            assert!(matches!(odd, EtcdError::Odd { .. }), "{text}: {odd}");
        }
    }

    #[test]
    fn endpoints_are_understood_or_refused_with_a_reason() {
        let good = |text: &str| Endpoint::parse(text).unwrap().to_string();
        assert_eq!(good("http://a.example:1"), "http://a.example:1");
        assert_eq!(good("http://10.0.0.1/"), "http://10.0.0.1:2379");
        assert_eq!(good("10.0.0.1:5"), "http://10.0.0.1:5");
        assert_eq!(good("node7"), "http://node7:2379");
        assert_eq!(good("http://[::1]:5"), "http://[::1]:5");
        assert_eq!(good("http://[::1]"), "http://[::1]:2379");
        for text in ["", "http://", "ftp://a:1", "http://a:1/x", "http://u:p@a:1", "http://a:99999", "http://a:", "/a"]
        {
            assert!(matches!(Endpoint::parse(text), Err(EtcdError::Url { .. })), "{text}");
        }
        let tls = Endpoint::parse("https://a:1").unwrap_err();
        assert!(tls.to_string().contains("put a local proxy"), "{tls}");
        assert!(matches!(Gateway::new([""; 0], PATIENCE), Err(EtcdError::Nowhere)));
    }
}
