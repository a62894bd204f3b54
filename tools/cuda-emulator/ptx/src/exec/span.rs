//! Where the addresses of a warp's lanes lie, and what that costs a card.

use crate::lanes::LANES;

/// Addresses of all lanes.
pub(super) type Addresses = [u64; LANES];

/// Calls for each lane of a mask.
#[inline(always)]
pub(super) fn each(mask: u32, mut visit: impl FnMut(usize)) {
    let mut left = mask;
    while left != 0 {
        visit(left.trailing_zeros() as usize);
        left &= left - 1;
    }
}

/// The least and the greatest address of the lanes, the bits that any has, and whether they lie one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub least: u64,
    pub most: u64,
    pub any: u64,
    pub dense: bool,
    /// First words of the lanes, counted from the least, where all lie within 256 bytes.
    pub words: u64,
}

/// Finds the span of addresses; those of other lanes become that of the first.
pub(super) type Survey = unsafe fn(at: &mut Addresses, mask: u32, size: u64) -> Span;

#[inline(always)]
fn survey_lanes(at: &mut Addresses, mask: u32, size: u64) -> Span {
    let first = at[mask.trailing_zeros() as usize % LANES];
    if mask != u32::MAX {
        for (lane, at) in at.iter_mut().enumerate() {
            *at = if mask >> lane & 1 != 0 { *at } else { first };
        }
    }
    // Signed: quicker to compare, and an address with the highest bit is none.
    let (mut least, mut most, mut any, mut gaps) = (i64::MAX, i64::MIN, 0, 0);
    for (lane, &at) in at.iter().enumerate() {
        least = least.min(at as i64);
        most = most.max(at as i64);
        any |= at;
        gaps |= at ^ first.wrapping_add(lane as u64 * size);
    }
    let dense = gaps == 0 && mask == u32::MAX;
    if least < 0 {
        return Span { least: 0, most: u64::MAX, any, dense: false, words: 0 };
    }
    let mut words = 0;
    if most - least < 256 && !dense {
        for at in at.iter() {
            words |= 1u64 << (((at.wrapping_sub(least as u64)) / 4) & 63);
        }
    }
    Span { least: least as u64, most: most as u64, any, dense, words }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn survey_avx2(at: &mut Addresses, mask: u32, size: u64) -> Span {
    survey_lanes(at, mask, size)
}

unsafe fn survey_plain(at: &mut Addresses, mask: u32, size: u64) -> Span {
    survey_lanes(at, mask, size)
}

/// The function for this processor.
pub(super) fn survey() -> Survey {
    #[cfg(target_arch = "x86_64")]
    if crate::lanes::has_avx2() {
        return survey_avx2;
    }
    survey_plain
}

/// Distinct sectors of 32 bytes that lanes access, each at a multiple of its size.
pub(super) fn sectors(at: &Addresses, mask: u32, size: u32, least: u64, most: u64) -> u64 {
    let first = least / 32;
    if most / 32 - first < 62 {
        let mut bits = 0u64;
        each(mask, |lane| {
            bits |= 1 << (at[lane] / 32 - first) | 1 << ((at[lane] + u64::from(size) - 1) / 32 - first);
        });
        return bits.count_ones().into();
    }
    let (mut found, mut count) = ([0; LANES], 0);
    each(mask, |lane| {
        found[count] = at[lane] / 32;
        count += 1;
    });
    let found = &mut found[..count];
    found.sort_unstable();
    1 + found.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64
}

/// Cycles of a shared access beyond those that it needs without conflicts: none where all words lie within 128 bytes.
pub(super) fn conflicts(at: &Addresses, mask: u32, size: u32) -> u64 {
    // Wide accesses run for half or a quarter of the lanes at a time.
    let lanes = (128 / size.max(4)).clamp(1, 32) as usize;
    let mut extra = 0;
    for phase in (0..LANES).step_by(lanes) {
        // Distinct words of each bank, as a list of lanes.
        let (mut heads, mut next, mut counts) = ([32u8; 32], [32u8; LANES], [0u8; 32]);
        for lane in (phase..phase + lanes).filter(|lane| mask >> lane & 1 != 0) {
            let word = at[lane] / 4;
            let bank = (word % 32) as usize;
            let mut other = heads[bank];
            while other < 32 && at[usize::from(other)] / 4 != word {
                other = next[usize::from(other)];
            }
            if other == 32 {
                next[lane] = heads[bank];
                heads[bank] = lane as u8;
                counts[bank] += 1;
            }
        }
        extra += u64::from(counts.iter().copied().max().unwrap_or(0).max(1)) - 1;
    }
    extra
}
