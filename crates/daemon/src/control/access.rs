//! Who may ask.
//!
//! Over the Unix socket: the daemon's own user and root may do anything. Others reach it only where `socket_group` lets them: they may
//! look, but not at keys, and run jobs of their own.
//!
//! Over TCP:
//!
//! | where | without a token | with a token |
//! |---|---|---|
//! | loopback | may look; changes go through the Unix socket | may do anything |
//! | elsewhere | not served at all | may do anything, over TLS |
//!
//! Everybody may ask `/healthz` and `/readyz`. On loopback without a token, the name in `Host` must be one of this machine:
//! a page in somebody's browser must not read the cluster by a name that it points here.

use super::routes::Refused;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use phalanx_api::path;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

/// A token is not shorter.
const TOKEN_MIN: usize = 16;

/// Who asks over the Unix socket, as the system says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Caller {
    pub(super) user: u32,
    pub(super) group: u32,
}

impl Caller {
    /// Who asks over TCP, with a token: as the daemon's own user.
    pub(super) fn daemon() -> Self {
        Self { user: nix::unistd::geteuid().as_raw(), group: nix::unistd::getegid().as_raw() }
    }

    fn is_master(self) -> bool {
        self.user == 0 || self.user == nix::unistd::geteuid().as_raw()
    }
}

/// How the API is served over TCP.
#[derive(Clone, Debug)]
pub struct Http {
    pub(super) addr: SocketAddr,
    pub(super) token: Option<Token>,
    pub(super) tls: Option<Arc<rustls::ServerConfig>>,
}

/// What a request must show.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Why the API is not served over TCP as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// Open to others, and unprotected.
    #[error(
        "the HTTP port at {0} can be reached by others: it needs http_cert, http_key and http_token_file, or bind it to 127.0.0.1"
    )]
    Open(SocketAddr),
    /// Half of a pair.
    #[error("http_cert and http_key belong together: give both, or neither")]
    Half,
    /// Certificate or key.
    #[error("cannot use {}: {why}", path.display())]
    File {
        /// Which file.
        path: std::path::PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The token.
    #[error("the token in {} has fewer than {TOKEN_MIN} characters: make one with `openssl rand -hex 32`", .0.display())]
    Token(std::path::PathBuf),
}

impl Http {
    /// Serves at `addr`, to who shows the token in `token_file`, encrypted with the certificate and key in PEM files.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub fn new(
        addr: SocketAddr,
        token_file: Option<&Path>,
        cert: Option<&Path>,
        key: Option<&Path>,
    ) -> Result<Self, HttpError> {
        let token = token_file.map(read_token).transpose()?;
        let tls = match (cert, key) {
            (Some(cert), Some(key)) => Some(tls(cert, key)?),
            (None, None) => None,
            _ => return Err(HttpError::Half),
        };
        if !addr.ip().is_loopback() && (token.is_none() || tls.is_none()) {
            return Err(HttpError::Open(addr));
        }
        Ok(Self { addr, token, tls })
    }
}

fn read_token(path: &Path) -> Result<Token, HttpError> {
    let text =
        std::fs::read_to_string(path).map_err(|e| HttpError::File { path: path.to_owned(), why: e.to_string() })?;
    let token = text.trim();
    if token.len() < TOKEN_MIN {
        return Err(HttpError::Token(path.to_owned()));
    }
    Ok(Token(token.to_owned()))
}

fn tls(cert: &Path, key: &Path) -> Result<Arc<rustls::ServerConfig>, HttpError> {
    let wrong =
        |path: &Path, why: &dyn std::fmt::Display| HttpError::File { path: path.to_owned(), why: why.to_string() };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let chain = chain.map_err(|e| wrong(cert, &e))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, &e))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| wrong(cert, &e))?.with_no_client_auth();
    builder.with_single_cert(chain, private).map(Arc::new).map_err(|e| wrong(cert, &e))
}

impl Token {
    /// Compares in a time that says nothing about where they differ.
    fn is(&self, shown: &str) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), shown.as_bytes());
        let differ = ours.iter().zip(theirs).fold(ours.len() ^ theirs.len(), |d, (a, b)| d | usize::from(a ^ b));
        differ == 0
    }
}

/// Lets a request through, or not.
pub(super) async fn check(State(token): State<Option<Token>>, request: Request, next: Next) -> Response<Body> {
    match refusal(token.as_ref(), request.method(), request.uri().path(), request.headers()) {
        None => next.run(request).await,
        Some(refused) => refused.into_response(),
    }
}

/// Lets a request over the Unix socket through, or not.
pub(super) async fn check_caller(Extension(caller): Extension<Caller>, request: Request, next: Next) -> Response<Body> {
    if caller.is_master() || may_anybody(request.method(), request.uri().path()) {
        return next.run(request).await;
    }
    let why = "only the daemon's own user and root may do that: ask them";
    Refused::new(StatusCode::FORBIDDEN, why).into_response()
}

/// What those may do whom `socket_group` lets in.
fn may_anybody(method: &Method, at: &str) -> bool {
    let below = |path: &str| at == path || at.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    match *method {
        Method::GET | Method::HEAD => !below(path::KEYS),
        // Whose jobs they are is asked where they are known.
        Method::POST => at == path::RUN || below(path::RUNS),
        Method::DELETE => below(path::RUNS),
        _ => false,
    }
}

fn refusal(token: Option<&Token>, method: &Method, at: &str, headers: &HeaderMap) -> Option<Refused> {
    if at == path::HEALTHZ || at == path::READYZ {
        return None;
    }
    let text = |name| headers.get(name).and_then(|v: &axum::http::HeaderValue| v.to_str().ok());
    let Some(token) = token else {
        if !text(header::HOST).is_some_and(is_this_machine) {
            return Some(Refused::new(StatusCode::FORBIDDEN, "ask for localhost or 127.0.0.1"));
        }
        if text(header::ORIGIN).is_some() || text("sec-fetch-site".parse().ok()?).is_some_and(|s| s == "cross-site") {
            return Some(Refused::new(
                StatusCode::FORBIDDEN,
                "pages of a browser need a token here: set http_token_file",
            ));
        }
        if method != Method::GET && method != Method::HEAD {
            let why = "changes need a token here: use the Unix socket, or set http_token_file";
            return Some(Refused::new(StatusCode::FORBIDDEN, why));
        }
        return None;
    };
    let shown = text(header::AUTHORIZATION).and_then(|v| v.strip_prefix("Bearer "));
    if shown.is_some_and(|shown| token.is(shown.trim())) {
        return None;
    }
    Some(Refused::new(StatusCode::UNAUTHORIZED, "show the token: Authorization: Bearer TOKEN"))
}

/// True for `localhost`, `127.0.0.1`, `[::1]`, with or without a port.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, _)) => name,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &str, authorization: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        authorization.map(|a| headers.insert(header::AUTHORIZATION, a.parse().unwrap()));
        headers
    }

    #[test]
    fn without_a_token_this_machine_may_look() {
        let may = |method: &Method, host: &str| refusal(None, method, path::MEMBERS, &headers(host, None)).is_none();
        assert!(["localhost:7947", "127.0.0.1", "[::1]:7947", "LOCALHOST"].iter().all(|h| may(&Method::GET, h)));
        assert!(["evil.example:7947", "10.0.0.1", "", "localhost.evil.example"].iter().all(|h| !may(&Method::GET, h)));
        assert!(!may(&Method::POST, "localhost") && !may(&Method::DELETE, "localhost"));
        assert!(refusal(None, &Method::GET, path::HEALTHZ, &headers("x", None)).is_none());
    }

    #[test]
    fn with_a_token_all_who_show_it_may_do_anything() {
        let token = Token("0123456789abcdef".into());
        let may =
            |shown: Option<&str>| refusal(Some(&token), &Method::POST, path::LEAVE, &headers("x", shown)).is_none();
        assert!(may(Some("Bearer 0123456789abcdef")));
        for bad in [
            None,
            Some("Bearer "),
            Some("Bearer 0123456789abcdeF"),
            Some("0123456789abcdef"),
            Some("Bearer 0123456789abcdef0"),
        ] {
            assert!(!may(bad), "{bad:?}");
        }
    }

    #[test]
    fn others_may_look_and_run_jobs_and_nothing_else() {
        let may = [(Method::GET, path::MEMBERS), (Method::POST, path::RUN), (Method::DELETE, "/v1/runs/7")];
        assert!(may.iter().all(|(method, at)| may_anybody(method, at)));
        let must_not = [
            (Method::GET, path::KEYS),
            (Method::GET, "/v1/keys/members"),
            (Method::POST, path::LEAVE),
            (Method::POST, "/v1/runaway"),
            (Method::PUT, "/v1/slots/n1/drain"),
            (Method::POST, path::MANAGERS),
            (Method::POST, path::FAULTS),
        ];
        assert!(!must_not.iter().any(|(method, at)| may_anybody(method, at)));
    }

    #[test]
    fn a_port_that_others_reach_is_protected_or_not_opened() {
        let open = "0.0.0.0:7947".parse().unwrap();
        assert!(matches!(Http::new(open, None, None, None), Err(HttpError::Open(_))));
        let loopback = "127.0.0.1:0".parse().unwrap();
        assert!(Http::new(loopback, None, None, None).is_ok());
        assert!(matches!(Http::new(loopback, None, Some(Path::new("c")), None), Err(HttpError::Half)));
        let missing = Path::new("/nonexistent/cert.pem");
        assert!(matches!(Http::new(loopback, None, Some(missing), Some(missing)), Err(HttpError::File { .. })));
        assert!(matches!(Http::new(loopback, Some(missing), None, None), Err(HttpError::File { .. })));
    }
}
