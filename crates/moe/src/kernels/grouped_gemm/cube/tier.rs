//! The kernels of the grouped product by name, and the choice between them.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

/// A kernel of the grouped product. Device, dtype and widths determine it unless it is [forced](force_tier).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Without tensor cores, on every device.
    Simt,
    /// cubek's matrix multiplication, on tensor cores if the device has them.
    MultiLevel,
    /// Hopper's `wgmma` and TMA. No GPU has run it, only an emulated one, so it is used only if forced.
    Wgmma,
}

impl Tier {
    /// Slowest first.
    pub const ALL: [Self; 3] = [Self::Simt, Self::MultiLevel, Self::Wgmma];
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Simt => "simt",
            Self::MultiLevel => "multi_level",
            Self::Wgmma => "wgmma",
        })
    }
}

impl FromStr for Tier {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let tier = Self::ALL.into_iter().find(|tier| tier.to_string() == name);
        tier.ok_or_else(|| format!("no tier {name:?}: there are {}", Self::ALL.map(|tier| tier.to_string()).join(", ")))
    }
}

/// The forced tier, as its index in [`Tier::ALL`] plus 1.
static FORCED: AtomicU8 = AtomicU8::new(0);

/// Makes every grouped product of this process run on `tier`, for tests and benchmarks; `None` lets the device decide
/// again. A product that the tier cannot compute panics and says why.
pub fn force_tier(tier: Option<Tier>) {
    FORCED.store(tier.map_or(0, |tier| tier as u8 + 1), Ordering::Relaxed);
}

pub(super) fn forced() -> Option<Tier> {
    FORCED.load(Ordering::Relaxed).checked_sub(1).map(|i| Tier::ALL[i as usize])
}
