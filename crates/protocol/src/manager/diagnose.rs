//! Self-diagnosis: replicas compare what they have, and the one that differs goes.
//!
//! CM-3, 004 §2, §6.3.

use super::wire::Sworn;

/// What was sworn lately.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Doctor {
    sworn: Vec<Sworn>,
}

impl Doctor {
    /// A replica says what it has; its signature was checked.
    pub fn on_sworn(&mut self, sworn: Sworn) {
        self.sworn.clear();
        self.sworn.push(sworn);
    }
}
