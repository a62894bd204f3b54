//! `atom` and `red`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::access::Kind;
use super::machine::Machine;
use super::span::{Addresses, each};
use crate::code::{Atom, AtomOp, AtomType, NONE, PARAM_WINDOW, SHARED_WINDOW, Space, WINDOW};
use crate::fault::Fault;
use crate::lanes::LANES;
use crate::lanes::double::canonical;
use crate::lanes::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::lanes::single::{least, most};
use crate::tensor::Reduction;

/// Bytes of a value.
fn size(of: AtomType) -> u32 {
    match of {
        AtomType::B16 | AtomType::F16 | AtomType::Bf16 => 2,
        AtomType::U64 | AtomType::S64 | AtomType::F64 => 8,
        AtomType::B128 => 16,
        _ => 4,
    }
}

fn small(op: AtomOp, a: f32, b: f32) -> f32 {
    match op {
        AtomOp::Min => least(0, a, b),
        AtomOp::Max => most(0, a, b),
        _ => a + b,
    }
}

fn half(op: AtomOp, a: u16, b: u16) -> u16 {
    f32_to_f16(small(op, f16_to_f32(a), f16_to_f32(b)))
}

fn brain(op: AtomOp, a: u16, b: u16) -> u16 {
    f32_to_bf16(small(op, bf16_to_f32(a), bf16_to_f32(b)))
}

fn pair(op: AtomOp, a: u32, b: u32, one: fn(AtomOp, u16, u16) -> u16) -> u64 {
    let (low, high) = (one(op, a as u16, b as u16), one(op, (a >> 16) as u16, (b >> 16) as u16));
    u64::from(u32::from(low) | u32::from(high) << 16)
}

/// The value that replaces `old`.
fn apply(op: AtomOp, of: AtomType, old: u64, b: u64, c: u64) -> u64 {
    use AtomType as T;
    match (op, of) {
        (AtomOp::Cas, _) => {
            if old == b {
                c
            } else {
                old
            }
        }
        (AtomOp::Exch, _) => b,
        (AtomOp::And, _) => old & b,
        (AtomOp::Or, _) => old | b,
        (AtomOp::Xor, _) => old ^ b,
        (AtomOp::Inc, _) => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        (AtomOp::Dec, _) => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        (_, T::F16) => half(op, old as u16, b as u16).into(),
        (_, T::Bf16) => brain(op, old as u16, b as u16).into(),
        (_, T::F16x2) => pair(op, old as u32, b as u32, half),
        (_, T::Bf16x2) => pair(op, old as u32, b as u32, brain),
        (_, T::F32) => {
            let sum = f32::from_bits(old as u32) + f32::from_bits(b as u32);
            u64::from(if sum.is_nan() { 0x7fff_ffff } else { sum.to_bits() })
        }
        (_, T::F64) => canonical(f64::from_bits(old) + f64::from_bits(b)).to_bits(),
        (AtomOp::Add, T::U64 | T::S64) => old.wrapping_add(b),
        (AtomOp::Add, _) => u64::from((old as u32).wrapping_add(b as u32)),
        (AtomOp::Min, T::S32) => u64::from((old as i32).min(b as i32) as u32),
        (AtomOp::Max, T::S32) => u64::from((old as i32).max(b as i32) as u32),
        (AtomOp::Min, T::S64) => (old as i64).min(b as i64) as u64,
        (AtomOp::Max, T::S64) => (old as i64).max(b as i64) as u64,
        (AtomOp::Min, _) => old.min(b),
        (AtomOp::Max, _) => old.max(b),
    }
}

/// The bits of an `f32`, of a subnormal one those of zero.
fn flush(bits: u64) -> u64 {
    if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits }
}

/// Combines elements with those at an address, each at once.
///
/// # Safety
///
/// As many bytes at `to` are valid and aligned to the elements.
pub(super) unsafe fn reduce_bytes(reduce: Reduction, to: u64, from: &[u8]) {
    let size = reduce.size();
    for (i, new) in from.chunks_exact(size).enumerate() {
        let new = new.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
        let at = to + (i * size) as u64;
        macro_rules! update {
            ($atomic:ty, $t:ty) => {{
                // SAFETY: as the caller says.
                let cell = unsafe { &*(at as *const $atomic) };
                cell.fetch_update(Relaxed, Relaxed, |old| Some(reduce.apply(old.into(), new) as $t)).ok();
            }};
        }
        match size {
            2 => update!(AtomicU16, u16),
            8 => update!(AtomicU64, u64),
            _ => update!(AtomicU32, u32),
        }
    }
}

impl Machine<'_, '_> {
    pub fn atom(&mut self, atom: &Atom, mask: u32) -> Result<(), Fault> {
        let bytes = size(atom.of);
        let mut at = self.addresses(&atom.address);
        // An exchange whose result nobody uses is how compilers store, also into fresh memory.
        let kind = if atom.op == AtomOp::Exch { Kind::Write } else { Kind::Update };
        if atom.release {
            self.fence();
        }
        let flushed =
            if (atom.op, atom.of) == (AtomOp::Add, AtomType::F32) { self.globals(atom, &at, mask) } else { 0 };
        self.resolve(atom.address.space, &mut at, mask, bytes * u32::from(atom.count), kind, true)?;
        self.combine(atom, mask, &at, flushed);
        if atom.returns {
            self.acquire_at(atom.address.space);
        }
        Ok(())
    }

    /// Updates memory at addresses of the host; sums of the lanes in `flushed` flush subnormal numbers.
    fn combine(&mut self, atom: &Atom, mask: u32, at: &Addresses, flushed: u32) {
        let bytes = size(atom.of);
        if atom.of == AtomType::B128 {
            return self.pairs(atom, mask, at);
        }
        for i in 0..usize::from(atom.count) {
            let mut olds = [0; LANES];
            let wide = bytes == 8;
            let value = |machine: &Self, source: u32, lane: usize| match () {
                () if source == NONE => 0,
                () if wide => machine.wide(source)[lane],
                () => u64::from(machine.row(source)[lane]),
            };
            each(mask, |lane| {
                let (b, c) = (value(self, atom.b[i], lane), value(self, atom.c, lane));
                let address = at[lane] + i as u64 * u64::from(bytes);
                macro_rules! update {
                    ($atomic:ty, $t:ty) => {{
                        // SAFETY: `resolve` has checked it, and that it is aligned.
                        let cell = unsafe { &*(address as *const $atomic) };
                        let (b, c) = (u64::from(b as $t), u64::from(c as $t));
                        let new = |old: $t| {
                            let old = u64::from(old);
                            let new = if flushed >> lane & 1 != 0 {
                                flush(apply(atom.op, atom.of, flush(old), flush(b), c))
                            } else {
                                apply(atom.op, atom.of, old, b, c)
                            };
                            Some(new as $t)
                        };
                        u64::from(cell.fetch_update(Relaxed, Relaxed, new).unwrap_or_default())
                    }};
                }
                olds[lane] = match bytes {
                    2 => update!(AtomicU16, u16),
                    4 => update!(AtomicU32, u32),
                    _ => update!(AtomicU64, u64),
                };
            });
            if wide {
                self.set_wide(atom.d[i], mask, &olds);
            } else {
                self.set(atom.d[i], mask, &olds.map(|old| old as u32));
            }
        }
    }

    /// The lanes whose address is one of global memory: sums of `f32` flush subnormal numbers there, and only there.
    fn globals(&self, atom: &Atom, at: &Addresses, mask: u32) -> u32 {
        let mut found = 0;
        each(mask, |lane| {
            let is = match atom.address.space {
                Space::Generic => !(SHARED_WINDOW..PARAM_WINDOW + WINDOW).contains(&at[lane]),
                space => space == Space::Global,
            };
            found |= u32::from(is) << lane;
        });
        found
    }

    /// `atom.exch` and `atom.cas` of 128 bits at addresses of the host. These are atomic among themselves.
    fn pairs(&mut self, atom: &Atom, mask: u32, at: &Addresses) {
        static LOCK: Mutex<()> = Mutex::new(());
        let _lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut olds = [[0; LANES]; 2];
        each(mask, |lane| {
            let value = |source: u32| [0, 2].map(|half| self.wide(source + half)[lane]);
            // SAFETY: `resolve` has checked 16 bytes and that they are aligned.
            let cells = unsafe { &*(at[lane] as *const [AtomicU64; 2]) };
            let old = [0, 1].map(|half| cells[half].load(Relaxed));
            let new = match atom.op {
                AtomOp::Exch => value(atom.b[0]),
                _ if old == value(atom.b[0]) => value(atom.c),
                _ => old,
            };
            for half in 0..2 {
                cells[half].store(new[half], Relaxed);
                olds[half][lane] = old[half];
            }
        });
        if atom.d[0] != NONE {
            self.set_wide(atom.d[0], mask, &olds[0]);
            self.set_wide(atom.d[0] + 2, mask, &olds[1]);
        }
    }
}
