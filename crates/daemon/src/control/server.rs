//! Connections of the control API: bounded in number, and in how slow they may be.

use super::access::{self, Caller, Http};
use axum::middleware::from_fn;
use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

/// Connections of one listener; more wait until one is closed.
const CONNECTIONS_MAX: usize = 256;
/// A request's head, and a TLS handshake, may take this long.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// When the system has no more descriptors.
const BREATH: Duration = Duration::from_millis(100);

pub(super) async fn serve_unix(listener: &UnixListener, app: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                // The system says who it is; who cannot be told is nobody.
                let Ok(peer) = stream.peer_cred() else { continue };
                let caller = Caller { user: peer.uid(), group: peer.gid() };
                let app = app.clone().layer(from_fn(access::check_caller)).layer(Extension(caller));
                tokio::spawn(serve(stream, app, place));
            }
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

/// Never ends; without a listener nothing happens.
pub(super) async fn serve_tcp(http: Option<(TcpListener, Http)>, app: Router) {
    let Some((listener, http)) = http else { return std::future::pending().await };
    let app = app.layer(from_fn_with_state(http.token, access::check));
    let tls = http.tls.map(TlsAcceptor::from);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match (listener.accept().await, tls.clone()) {
            (Ok((stream, _)), None) => _ = tokio::spawn(serve(stream, app.clone(), place)),
            (Ok((stream, _)), Some(tls)) => {
                let app = app.clone();
                tokio::spawn(async move {
                    if let Ok(Ok(stream)) = tokio::time::timeout(HEAD_PATIENCE, tls.accept(stream)).await {
                        serve(stream, app, place).await;
                    }
                });
            }
            (Err(_), _) => tokio::time::sleep(BREATH).await,
        }
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, app: Router, _place: OwnedSemaphorePermit) {
    let service = TowerToHyperService::new(app);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
    // Who sends nonsense is answered as far as that makes sense; nobody here cares how it ended.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}
