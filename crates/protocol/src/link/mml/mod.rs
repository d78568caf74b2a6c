//! tmp
use super::sign::Signer;
use phalanx_core::*;
pub use phalanx_wire::mml::Kind;
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Config {
    pub(crate) largest_plain: u16,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sums {}
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Channel {}
impl Channel {
    pub(crate) fn new(_: Instant) -> Self {
        Self {}
    }
    pub(crate) fn send(&mut self, _: Instant, _: Kind, _: Port, _: Port, _: &[u8], _: &Config) -> Result<u64, Code> {
        Ok(0)
    }
    pub(crate) fn receive(
        &mut self,
        _: Instant,
        _: &[u8],
        _: &Config,
        _: &mut Sums,
        _: &mut impl FnMut(Kind, Port, Port, &[u8]),
    ) {
    }
    pub(crate) fn has_work(&self) -> bool {
        false
    }
    pub(crate) fn transmit(&mut self, _: Instant, _: &mut Buf, _: &Signer, _: &Config, _: &mut Sums) -> bool {
        false
    }
    pub(crate) fn deadline(&self) -> Instant {
        Instant::NEVER
    }
    pub(crate) fn expire(&mut self, _: Instant, _: &Config, _: &mut Sums) -> Result<(), Code> {
        Ok(())
    }
    pub(crate) fn undelivered(&mut self) -> Vec<u64> {
        vec![]
    }
    pub(crate) fn fingerprint(&self, _: &mut Fingerprint) {}
}
