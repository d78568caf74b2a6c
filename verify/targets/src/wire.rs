//! Packets: no bytes panic, lengths hold, and what is read is written back as it was.

use phalanx_wire::hello::Hello;
use phalanx_wire::layer::{Ports, layer_of};
use phalanx_wire::mml::{self, Packet};
use phalanx_wire::outer::{Kind, Long, Short, kind_of};
use phalanx_wire::rcl::{self, Frames, Header};

/// The headers that a network sees, the hello, and CL's ports.
pub fn wire_outer(bytes: &[u8]) {
    if let Ok(short) = Short::parse(bytes) {
        let mut out = [0; Short::LEN];
        short.encode(&mut out);
        assert_eq!((out[1], &out[4..]), (bytes[1], &bytes[4..Short::LEN]));
    }
    if let Ok(long) = Long::parse(bytes) {
        assert_eq!(Ok(long.kind), kind_of(bytes));
        assert_ne!(long.kind, Kind::Data);
        let mut out = [0; Long::LEN];
        long.encode(&mut out);
        assert_eq!((&out[..2], &out[4..6], &out[8..]), (&bytes[..2], &bytes[4..6], &bytes[8..Long::LEN]));
    }
    if let Ok(hello) = Hello::parse(bytes) {
        let mut out = Vec::new();
        hello.encode(&mut out);
        assert_eq!(Hello::parse(&out), Ok(hello));
    }
    if let (Ok(_), Ok(ports)) = (layer_of(bytes), Ports::parse(bytes)) {
        let mut out = [0; Ports::LEN];
        ports.encode(&mut out);
        assert_eq!(out[2..], bytes[2..Ports::LEN]);
    }
}

/// Reliable packets. The checksum is made right first: a fuzzer would hardly ever guess it.
pub fn wire_rcl(bytes: &[u8]) {
    let _ = Header::parse(bytes);
    let mut bytes = bytes.to_vec();
    if bytes.len() >= Header::LEN {
        rcl::finish(&mut bytes);
    }
    let Ok(header) = Header::parse(&bytes) else { return };
    assert_eq!(header.sack(&bytes).count(), usize::from(header.words));
    let frames = &bytes[header.len()..];
    let mut read = 0;
    for (n, frame) in Frames::new(frames, 0).enumerate() {
        assert!(n <= frames.len(), "frames without end");
        let Ok(frame) = frame else { break };
        assert_eq!(frame.payload.len(), frame.length, "nothing is attached");
        read += frame.length + rcl::CONTINUATION;
        let mut out = Vec::new();
        rcl::put_frame(&mut out, frame.begins, frame.ends, frame.length);
        out.extend_from_slice(frame.payload);
        let again = Frames::new(&out, 0).next();
        // Two zeros are padding: an empty frame that neither begins nor ends anything is none.
        assert!(again == Some(Ok(frame)) || out[..2] == [0, 0]);
    }
    assert!(read <= frames.len(), "more read than there is");
    let words: Vec<u64> = header.sack(&bytes).collect();
    let mut out = Vec::new();
    header.encode(&words, &mut out);
    rcl::finish(&mut out);
    assert_eq!(Header::parse(&out), Ok(header));
}

/// Management packets, as they are and with a right checksum.
pub fn wire_mml(bytes: &[u8]) {
    let read = |bytes: &[u8]| {
        let Ok(packet) = Packet::parse(bytes) else { return };
        assert_eq!(packet.signed.len() + packet.kind.proof(), bytes.len());
        assert_eq!(packet.payload.len() + Packet::HEADER, packet.signed.len());
        assert_eq!(packet.signature.is_empty(), !packet.kind.is_signed());
    };
    read(bytes);
    let mut summed = bytes.to_vec();
    summed.extend_from_slice(&mml::checksum(bytes));
    read(&summed);
}
