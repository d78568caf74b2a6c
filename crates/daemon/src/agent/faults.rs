//! Faults that are injected into a running agent's traffic (FI-3), below the seal.

use super::Agent;
use phalanx_api::operate::Fault;
use phalanx_core::Addr;
use phalanx_fault::{Rule, RuleId};

/// Rules at a time: each packet is held against all of them.
const RULES_MAX: usize = 64;

/// Why a fault is not injected. Nothing changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// The text is no rule.
    #[error("this is no rule: {0} (docs/faults.md has the words)")]
    Text(String),
    /// Nobody is called so.
    #[error("`only` names `{0}`, which is no member: see `phalanx members`")]
    NoMember(String),
    /// There are too many.
    #[error("{RULES_MAX} faults are injected already: heal some")]
    Full,
    /// No such rule.
    #[error("there is no fault {0}: see `phalanx fault ls`")]
    Missing(u32),
}

impl Agent {
    /// Injects what a rule in TOML says, until it is healed.
    ///
    /// # Errors
    /// See [`FaultError`].
    pub fn inject(&mut self, text: &str) -> Result<Fault, FaultError> {
        let rule: Rule = toml::from_str(text).map_err(|e| FaultError::Text(e.to_string().trim().to_owned()))?;
        if self.driver.injector().rules().count() >= RULES_MAX {
            return Err(FaultError::Full);
        }
        let addr_of = |name: &String| self.addr_of(name).ok_or_else(|| FaultError::NoMember(name.clone()));
        let peers: Vec<Addr> = rule.only.iter().flatten().map(addr_of).collect::<Result<_, _>>()?;
        let (now, limited) = (self.driver.now(), rule.only.is_some());
        let injector = self.driver.injector();
        let added = if limited { injector.add_for(now, rule, &peers) } else { injector.add(now, rule) };
        let id = added.map_err(|e| FaultError::Text(e.to_string()))?;
        tracing::warn!(id = id.0, rule = text.trim(), "a fault is injected");
        self.faults().into_iter().find(|f| f.id == id.0).ok_or(FaultError::Missing(id.0))
    }

    /// All faults that are injected.
    pub fn faults(&mut self) -> Vec<Fault> {
        let rules = self.driver.injector().rules();
        rules
            .map(|(id, rule, tally)| Fault {
                id: id.0,
                rule: toml::to_string(rule).unwrap_or_default().trim().replace('\n', ", "),
                hits: tally.injected,
            })
            .collect()
    }

    /// Heals one fault, or all.
    ///
    /// # Errors
    /// When there is no such fault.
    pub fn heal(&mut self, id: Option<u32>) -> Result<(), FaultError> {
        match id {
            None => self.driver.injector().heal_all(),
            Some(id) if self.driver.injector().heal(RuleId(id)) => {}
            Some(id) => return Err(FaultError::Missing(id)),
        }
        tracing::warn!("faults were healed");
        Ok(())
    }
}
