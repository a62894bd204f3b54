//! One allocation as kernels see it: an address range, its bytes on the host and the shadow of what is written.

use super::GRAIN;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// A range of addresses and where its bytes are. Valid while the allocation lives and its `Memory` exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub start: u64,
    pub end: u64,
    host: *mut u8,
    /// One bit a byte, from `start` on; null for host memory, which counts as written.
    shadow: *const AtomicU64,
    /// One word for each [`GRAIN`] bytes: of writes, and of reads. Null for host memory.
    traces: [*const AtomicU64; 2],
}

impl Region {
    /// A region that holds nothing.
    pub const EMPTY: Self =
        Self { start: 1, end: 0, host: std::ptr::null_mut(), shadow: std::ptr::null(), traces: [std::ptr::null(); 2] };

    pub fn of_device(start: u64, size: u64, host: *mut u8, shadow: *mut u8, traces: [*mut u8; 2]) -> Self {
        Self {
            start,
            end: start + size,
            host,
            shadow: shadow.cast(),
            traces: traces.map(|map| map.cast_const().cast()),
        }
    }

    pub fn of_host(start: u64, size: u64) -> Self {
        Self {
            start,
            end: start + size,
            host: start as *mut u8,
            shadow: std::ptr::null(),
            traces: [std::ptr::null(); 2],
        }
    }

    #[inline(always)]
    pub fn holds(&self, first: u64, end: u64) -> bool {
        first >= self.start && end <= self.end
    }

    /// The host's address of a byte inside.
    #[inline(always)]
    pub fn host(&self, address: u64) -> *mut u8 {
        debug_assert!(address >= self.start && address <= self.end);
        // SAFETY: callers stay inside the region.
        unsafe { self.host.add((address - self.start) as usize) }
    }

    /// Whether accesses of this memory leave traces.
    #[inline(always)]
    pub fn is_traced(&self) -> bool {
        !self.traces[0].is_null()
    }

    /// The traces of the write and the read of the [`GRAIN`] bytes around an address inside.
    #[inline(always)]
    pub fn traces(&self, address: u64) -> [&AtomicU64; 2] {
        // SAFETY: there is a word for each `GRAIN` bytes of the region, which starts at a multiple of 256.
        self.traces.map(|map| unsafe { &*map.add(((address - self.start) / GRAIN) as usize) })
    }

    /// Words of the shadow that cover a range, each with the bits of the range.
    #[inline(always)]
    fn words(&self, address: u64, len: u64, mut visit: impl FnMut(&AtomicU64, u64) -> bool) -> bool {
        let (first, end) = (address - self.start, address - self.start + len);
        let mut at = first;
        while at < end {
            let bits = (end - at).min(64 - at % 64);
            let mask = (u64::MAX >> (64 - bits)) << (at % 64);
            // SAFETY: the shadow has a bit for each byte of the region.
            if !visit(unsafe { &*self.shadow.add((at / 64) as usize) }, mask) {
                return false;
            }
            at += bits;
        }
        true
    }

    /// Whether all bytes of a range have been written.
    #[inline(always)]
    pub fn written(&self, address: u64, len: u64) -> bool {
        self.shadow.is_null() || self.words(address, len, |word, mask| word.load(Relaxed) & mask == mask)
    }

    /// Marks a range as written.
    #[inline(always)]
    pub fn mark(&self, address: u64, len: u64) {
        if self.shadow.is_null() {
            return;
        }
        self.words(address, len, |word, mask| {
            if mask == u64::MAX {
                word.store(mask, Relaxed);
            } else if word.load(Relaxed) & mask != mask {
                word.fetch_or(mask, Relaxed);
            }
            true
        });
    }

    /// Copies bytes out; other threads may write meanwhile.
    pub fn read(&self, address: u64, bytes: &mut [u8]) {
        let from = self.host(address);
        each_word(bytes.len(), from as usize, |at, wide| {
            // SAFETY: inside the region and, where wide, aligned.
            unsafe {
                if wide {
                    let word = (*from.add(at).cast::<AtomicU64>()).load(Relaxed);
                    bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
                } else {
                    bytes[at] = (*from.add(at).cast::<AtomicU8>()).load(Relaxed);
                }
            }
        });
    }

    /// Copies bytes in; other threads may read meanwhile.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        let to = self.host(address);
        each_word(bytes.len(), to as usize, |at, wide| {
            // SAFETY: inside the region and, where wide, aligned.
            unsafe {
                if wide {
                    let word = u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
                    (*to.add(at).cast::<AtomicU64>()).store(word, Relaxed);
                } else {
                    (*to.add(at).cast::<AtomicU8>()).store(bytes[at], Relaxed);
                }
            }
        });
    }

    /// Copies bytes and shadow from another region.
    pub fn copy(&self, to: u64, source: &Self, from: u64, len: u64) {
        const STEP: u64 = 1 << 16;
        let mut buffer = vec![0; len.min(STEP) as usize];
        let parts = len.div_ceil(STEP);
        let downward = std::ptr::eq(self.host, source.host) && to > from;
        for part in 0..parts {
            let at = STEP * if downward { parts - 1 - part } else { part };
            let size = STEP.min(len - at);
            let bytes = &mut buffer[..size as usize];
            let shadow: Option<Vec<bool>> = (!source.written(from + at, size))
                .then(|| (0..size).map(|byte| source.written(from + at + byte, 1)).collect());
            source.read(from + at, bytes);
            self.write(to + at, bytes);
            self.mark(to + at, size);
            for (byte, _) in shadow.iter().flatten().enumerate().filter(|(_, written)| !**written) {
                self.unmark(to + at + byte as u64);
            }
        }
    }

    /// Takes back that a byte has been written.
    pub fn unmark(&self, address: u64) {
        if !self.shadow.is_null() {
            self.words(address, 1, |word, mask| {
                word.fetch_and(!mask, Relaxed);
                true
            });
        }
    }
}

/// Calls for single bytes up to a multiple of 8, then for words, then for the bytes that are left.
fn each_word(len: usize, address: usize, mut visit: impl FnMut(usize, bool)) {
    let mut at = 0;
    while at < len {
        let wide = (address + at).is_multiple_of(8) && at + 8 <= len;
        visit(at, wide);
        at += if wide { 8 } else { 1 };
    }
}
