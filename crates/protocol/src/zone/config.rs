//! Profiles: how a zone watches, gathers and connects.

use super::attributes;
use super::pace::Paces;
use phalanx_core::Duration;

/// The parameters of a zone. All members of a zone should have the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// ZN-4, K_s: successors on the ring that a member connects to and watches.
    pub successors: usize,
    /// ZN-4, K_r: random neighbours.
    pub randoms: usize,
    /// ZN-5, Θ: reporters that make a suspect failed. At most K_s.
    pub threshold: usize,
    /// ZN-7: how news is aggregated.
    pub paces: Paces,
    /// Between beats to neighbours on the ring.
    pub beat: Duration,
    /// A neighbour that is silent for so long, beats included, is doubted.
    pub patience: Duration,
    /// A doubt is confirmed by probes, direct ones and through others, before it becomes a suspicion. Without, a doubt is
    /// a suspicion, as in the paper.
    pub probes: bool,
    /// How long probes may stay unanswered when a tripwire broke, and when a neighbour fell silent.
    pub tripped: Duration,
    /// See `tripped`.
    pub silent: Duration,
    /// A doubt that nobody seconds is believed after so many times that long: rather we are out of reach ourselves. By
    /// then those who do not hear from us must have found that out, and so do not believe us.
    pub isolated: u64,
    /// Members asked to probe a doubted one, in each round.
    pub helpers: usize,
    /// Neighbours hold tripwires.
    pub tripwires: bool,
    /// A driver that calls so late was starved: what its member did not hear says nothing.
    pub late: Duration,
    /// From a change of the view to the search for neighbours that it asks for.
    pub mend: Duration,
    /// How long a would-be neighbour may take to answer.
    pub connect: Duration,
    /// ZN-3: the first wait between discoveries, and the longest.
    pub discover_first: Duration,
    /// See `discover_first`.
    pub discover_last: Duration,
    /// ZN-2: how long, and how many, removed members are remembered.
    pub history_age: Duration,
    /// See `history_age`.
    pub history: usize,
    /// Members that a roster may hold, removed ones included.
    pub members: usize,
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Config {
    /// For one switched network: the default.
    #[must_use]
    pub const fn lan() -> Self {
        Self {
            successors: 2,
            randoms: 3,
            threshold: 1,
            paces: Paces { lone: true, shortest: Duration::from_micros(500), brisk: 8, longest: ms(64) },
            beat: ms(1250),
            patience: ms(1400),
            probes: true,
            tripped: ms(20),
            silent: ms(300),
            isolated: 40,
            helpers: 3,
            tripwires: true,
            late: ms(100),
            mend: ms(20),
            connect: ms(1000),
            discover_first: ms(10),
            discover_last: Duration::from_secs(30),
            history_age: Duration::from_secs(600),
            history: 4096,
            members: 65_536,
        }
    }

    /// 002 §5: τ = 200 ms, Θ = 1, K_r = 3, K_s = 1, and no extras.
    #[must_use]
    pub const fn paper() -> Self {
        Self {
            successors: 1,
            randoms: 3,
            threshold: 1,
            paces: Paces { lone: false, shortest: ms(200), brisk: 0, longest: ms(200) },
            beat: ms(1000),
            patience: ms(3000),
            probes: false,
            mend: ms(200),
            discover_first: ms(200),
            ..Self::lan()
        }
    }

    /// For networks with tens of milliseconds of delay, and loss.
    #[must_use]
    pub const fn wan() -> Self {
        Self {
            paces: Paces { lone: true, shortest: ms(10), brisk: 4, longest: ms(500) },
            beat: ms(3000),
            patience: ms(4000),
            tripped: ms(1000),
            silent: ms(3000),
            mend: ms(200),
            connect: ms(5000),
            discover_first: ms(200),
            ..Self::lan()
        }
    }

    /// For processes of one machine.
    #[must_use]
    pub const fn local() -> Self {
        Self { beat: ms(500), patience: ms(700), silent: ms(200), ..Self::lan() }
    }
}

impl Config {
    /// How attributes are replicated: at the pace of other news.
    #[must_use]
    pub(super) const fn attributes(&self) -> attributes::Config {
        attributes::Config { paces: self.paces, patience: self.connect }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::lan()
    }
}
