//! What a client takes from its surroundings: time, randomness, and a place for its keeper to live.
//!
//! Gathered here so that a simulation can replace all three and replay one seed to the letter.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::{ClaimId, Clock};

/// A client's surroundings.
#[derive(Clone, Debug)]
pub struct Environment {
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
    pub(crate) home: Home,
}

/// Where random numbers come from.
#[derive(Clone, Debug)]
pub(crate) enum Entropy {
    /// The kernel, on every draw: a forked child never repeats its parent's ids.
    Kernel,
    /// A seed.
    Seeded(Arc<Mutex<u64>>),
}

/// Where a client's keeper lives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home {
    /// On a thread of its own, so that nothing the user's executor does can starve it.
    OwnThread,
    /// On the current runtime: a simulation has one thread.
    Here,
}

impl Environment {
    /// The real world.
    pub fn real() -> Self {
        Environment { clock: Clock::Boot, entropy: Entropy::Kernel, home: Home::OwnThread }
    }

    /// A simulated one: tokio's (paused) clock, one seed, one thread. Call it inside the runtime it shall live on.
    pub fn simulated(clock: Clock, seed: u64) -> Self {
        Environment { clock, entropy: Entropy::Seeded(Arc::new(Mutex::new(seed))), home: Home::Here }
    }

    pub(crate) fn claim_id(&self) -> ClaimId {
        let mut bytes = [0; 16];
        self.entropy.fill(&mut bytes);
        ClaimId::from_bytes(bytes)
    }

    /// A random duration between `low` and `high`.
    pub(crate) fn between(&self, low: Duration, high: Duration) -> Duration {
        let mut bytes = [0; 8];
        self.entropy.fill(&mut bytes);
        let share = u64::from_le_bytes(bytes) as f64 / u64::MAX as f64;
        low + high.saturating_sub(low).mul_f64(share)
    }
}

impl Entropy {
    fn fill(&self, bytes: &mut [u8]) {
        match self {
            Entropy::Kernel => getrandom::fill(bytes).expect("the kernel has random numbers"),
            Entropy::Seeded(state) => {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                for chunk in bytes.chunks_mut(8) {
                    chunk.copy_from_slice(&splitmix(&mut state).to_le_bytes()[..chunk.len()]);
                }
            }
        }
    }
}

/// Random bytes, straight from the kernel: a forked child never repeats its parent's.
///
/// # Panics
/// Where the kernel has none.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    Entropy::Kernel.fill(&mut bytes);
    bytes
}

/// At random, up to `longest`.
pub fn jitter(longest: Duration) -> Duration {
    Environment::real().between(Duration::ZERO, longest)
}

/// SplitMix64: enough to tell seeds apart, and short enough to read.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
