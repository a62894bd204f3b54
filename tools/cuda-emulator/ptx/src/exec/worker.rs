//! What a host thread keeps from warp to warp.

use super::span::{Survey, survey};
use crate::lanes::{LANES, Row};
use crate::memory::Region;
use crate::options::Counts;
use crate::tensor::Words;

/// Copies of the regions that were used last.
#[derive(Debug)]
pub(super) struct Regions {
    pub slots: [Region; 32],
    pub generation: u64,
}

impl Regions {
    pub fn new() -> Self {
        Self { slots: [Region::EMPTY; 32], generation: 0 }
    }
}

/// Words of the largest fragment but that of `wgmma`.
pub(super) const MOST: usize = 16;

/// Room for four fragments.
pub(super) type Fragments = [[Words; MOST]; 4];

/// What a host thread keeps from warp to warp.
#[derive(Debug)]
pub(super) struct Worker {
    pub counts: Counts,
    pub regions: Regions,
    /// State of the generator of random orders.
    pub random: u64,
    pub blend: Blend,
    pub survey: Survey,
    pub fragments: Option<Box<Fragments>>,
}

/// Copies the rows of a mask's lanes; two rows each if the last argument says so.
pub(super) type Blend = unsafe fn(*mut Row, *const Row, u32, bool);

impl Worker {
    pub fn new(seed: u64) -> Self {
        Self {
            counts: Counts::default(),
            regions: Regions::new(),
            random: seed | 1,
            blend: blend(),
            survey: survey(),
            fragments: None,
        }
    }

    /// A random number below `bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (((self.random >> 32) * u64::from(bound)) >> 32) as u32
    }
}

/// Copies the lanes of a mask.
#[inline(always)]
unsafe fn blend_lanes(to: *mut Row, from: *const Row, mask: u32, wide: bool) {
    // SAFETY: callers pass two rows each where `wide`.
    unsafe {
        if wide {
            let (to, from) = (&mut *to.cast::<[u64; LANES]>(), &*from.cast::<[u64; LANES]>());
            for lane in 0..LANES {
                to[lane] = if mask >> lane & 1 != 0 { from[lane] } else { to[lane] };
            }
        } else {
            let (to, from) = (&mut (*to).0, &(*from).0);
            for lane in 0..LANES {
                to[lane] = if mask >> lane & 1 != 0 { from[lane] } else { to[lane] };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn blend_avx2(to: *mut Row, from: *const Row, mask: u32, wide: bool) {
    // SAFETY: as the caller says.
    unsafe { blend_lanes(to, from, mask, wide) }
}

fn blend() -> Blend {
    #[cfg(target_arch = "x86_64")]
    if crate::lanes::has_avx2() {
        return blend_avx2;
    }
    blend_lanes
}
