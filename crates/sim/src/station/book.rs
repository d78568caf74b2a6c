//! Whom a station talks with: peers by number and by the link's slot, and how far each stream to them is.

use super::content::{Layer, Name};
use super::note::Note;
use phalanx_core::{NodeId, Port};

/// The to-port's bit that says: I close after this message.
pub(super) const CLOSING: u16 = 0x4000;
/// The to-port's bit that says: another machine reads this.
pub(super) const OPAQUE: u16 = 0x8000;

const NOBODY: u32 = u32::MAX;

/// What a station keeps of one peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Talk {
    pub(super) peer: u32,
    /// The link's number for it; `None` until something is sent.
    pub(super) node: Option<NodeId>,
    /// How often we had to begin anew with it.
    pub(super) generation: u32,
    /// Messages sent by each layer, in this generation; datagrams count through.
    numbers: [u32; Layer::COUNT],
    /// We began to close, and forget the peer once both sides have.
    pub(super) closing: bool,
}

/// All peers of a station.
#[derive(Default)]
pub(super) struct Book {
    /// Sorted by peer.
    talks: Vec<Talk>,
    /// The peer in each of the link's slots.
    slots: Vec<u32>,
}

impl Book {
    pub(super) fn talk(&mut self, peer: u32) -> &mut Talk {
        let at = match self.talks.binary_search_by_key(&peer, |t| t.peer) {
            Ok(at) => at,
            Err(at) => {
                let fresh = Talk { peer, node: None, generation: 0, numbers: [0; Layer::COUNT], closing: false };
                self.talks.insert(at, fresh);
                at
            }
        };
        &mut self.talks[at]
    }

    pub(super) fn talks(&self) -> impl Iterator<Item = &Talk> {
        self.talks.iter()
    }

    /// The link's slot `node` is `peer` from now on.
    pub(super) fn enter(&mut self, node: NodeId, peer: u32) {
        if self.slots.len() <= node.slot() {
            self.slots.resize(node.slot() + 1, NOBODY);
        }
        self.slots[node.slot()] = peer;
    }

    /// Who is in the link's slot `node`.
    pub(super) fn peer(&self, node: NodeId) -> Option<u32> {
        self.slots.get(node.slot()).copied().filter(|&p| p != NOBODY)
    }

    /// What was under way to `peer` may be lost: numbers begin anew.
    pub(super) fn begin_anew(&mut self, peer: u32) {
        let talk = self.talk(peer);
        talk.generation += 1;
        talk.closing = false;
        let datagrams = talk.numbers[Layer::Datagram as usize];
        talk.numbers = [0; Layer::COUNT];
        talk.numbers[Layer::Datagram as usize] = datagrams;
    }
}

impl Talk {
    /// The name of the next message of a layer.
    pub(super) fn next(&self, from: u32, boot: u32, layer: Layer) -> Name {
        // Datagrams may wait for a session longer than a generation lasts.
        let generation = if layer == Layer::Datagram { 0 } else { self.generation };
        Name { from, boot, to: self.peer, layer, generation, number: self.numbers[layer as usize] }
    }

    /// The link took that message.
    pub(super) fn sent(&mut self, name: &Name) -> Note {
        self.numbers[name.layer as usize] = name.number.wrapping_add(1);
        Note::Sent { peer: self.peer, layer: name.layer, generation: name.generation, number: name.number }
    }
}

/// From and to: the low bits of number and generation travel with each message, even an empty one.
pub(super) fn ports(name: &Name, marks: u16) -> (Port, Port) {
    (Port(name.number as u16), Port(u16::from(name.generation as u8) | marks))
}
