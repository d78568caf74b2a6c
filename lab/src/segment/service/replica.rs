//! A replica: offers its documents through the directory of its node, and answers who asks for one.
//!
//! Over UDP, because all processes are on one host: the kernel of a living host says at once that a process is gone which had a stream, or a
//! connected socket. Nobody hears that here, and a node that is killed is as silent as a host without power.

use super::{DOCUMENTS, REPLICA, SERVICE};
use crate::daemons::said;
use crate::error::Error;
use phalanx_client::api::Offer;
use phalanx_client::blocking::Client;
use phalanx_core::Rng;
use std::net::UdpSocket;

/// The number of a request, then that of a document.
pub(super) const ASKS: usize = 12;
/// Bytes of a document.
const TEXT: usize = 512;

/// A request.
pub(super) fn request(number: u64, document: u32) -> [u8; ASKS] {
    let mut bytes = [0; ASKS];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes[8..].copy_from_slice(&document.to_be_bytes());
    bytes
}

/// Number and document of a request, or of an answer, which begins as its request does.
pub(super) fn asked(bytes: &[u8]) -> Option<(u64, u32)> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), u32::from_be_bytes(*rest.first_chunk()?)))
}

/// What a document says, the same on all replicas.
pub(super) fn text(document: u32) -> Vec<u8> {
    let mut rng = Rng::new(document.into(), 0);
    (0..TEXT).map(|_| rng.u32() as u8).collect()
}

/// Answers until it is killed. Told: where its daemon answers.
pub(super) fn play(args: &[String]) -> Result<(), Error> {
    let [socket] = args else { return Err(Error::UnknownRole(REPLICA.into())) };
    let documents: Vec<Vec<u8>> = (0..DOCUMENTS).map(text).collect();
    let answers = UdpSocket::bind("127.0.0.1:0")?;
    let port = Some(answers.local_addr()?.port());
    Client::new(socket).offer(&Offer { name: SERVICE.into(), port, ..Offer::default() }).map_err(said)?;
    println!("offered");
    let mut packet = [0; ASKS];
    loop {
        let (length, from) = answers.recv_from(&mut packet)?;
        let Some((_, document)) = asked(&packet[..length]) else { continue };
        let Some(text) = documents.get(document as usize) else { continue };
        // Who asked may be gone.
        let _ = answers.send_to(&[&packet[..], text].concat(), from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_understood_and_documents_differ() {
        assert_eq!(asked(&request(7 << 40, 9)), Some((7 << 40, 9)));
        assert_eq!(asked(&request(1, 2)[1..]), None);
        assert!(text(1) == text(1) && text(1) != text(2));
    }
}
