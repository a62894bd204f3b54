//! Tensor core instructions of a warp: fragments from registers and memory, and back.

use super::access::Kind;
use super::exchange::Sync;
use super::machine::{Flow, Machine};
use super::products::Product;
use super::shared::{Checks, Shared};
use super::warp::Warp;
use super::worker::{Fragments, MOST};
use crate::code::{Address, NONE, Space, Src, Tensor};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;
use crate::options::Rate;
use crate::tensor::{self, Type, Words, movmatrix};

/// Memory of the host, by its addresses, which have been checked.
struct Host;

impl tensor::Space for Host {
    type Error = Fault;

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: `Machine::resolve` has checked as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), address as *mut u8, from.len()) };
        Ok(())
    }
}

/// A state space, checked access by access.
pub(super) struct View<'a, 'm, 'e> {
    pub machine: &'a mut Machine<'m, 'e>,
    pub space: Space,
    /// The sector of global memory that was used last: a row that is read in pieces is one request.
    sector: u64,
    /// The first read of bytes that nothing has written.
    missing: Option<Fault>,
    /// Whether what is written is undefined.
    undefined: bool,
}

impl<'a, 'm, 'e> View<'a, 'm, 'e> {
    pub fn new(machine: &'a mut Machine<'m, 'e>, space: Space) -> Self {
        Self { machine, space, sector: u64::MAX, missing: None, undefined: false }
    }

    fn one(&mut self, address: u64, bytes: usize, kind: Kind) -> Result<u64, Fault> {
        let before = self.machine.worker.counts.sectors;
        let space = self.space;
        let (at, fault) = self.machine.lenient(|machine| machine.one(space, address, bytes as u32, kind))?;
        self.missing = self.missing.take().or(fault);
        let sectors = &mut self.machine.worker.counts.sectors;
        *sectors -= u64::from(*sectors > before && address / 32 == self.sector);
        self.sector = (address + bytes as u64 - 1) / 32;
        Ok(at)
    }
}

impl tensor::Space for View<'_, '_, '_> {
    type Error = Fault;

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let at = self.one(address, into.len(), Kind::Read)?;
        Host.read(at, into)
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Fault> {
        let at = self.one(address, from.len(), Kind::Write)?;
        if !self.machine.suspects.is_empty() {
            self.machine.judge(&[address; LANES], 1, from.len() as u32, |_, _, byte| from[byte])?;
        }
        if self.undefined {
            (0..from.len() as u64).for_each(|byte| self.machine.unwrite(self.space, address + byte, 0));
        }
        Host.write(at, from)
    }
}

/// The block's own shared memory, as descriptors address it.
pub(super) struct Own<'a> {
    pub shared: &'a mut Shared,
    pub warp: &'a Warp,
    pub checks: Checks,
    pub bytes: u32,
    /// The first read of bytes that nothing has written.
    pub missing: Option<Fault>,
}

impl tensor::Space for Own<'_> {
    type Error = Fault;

    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let size = into.len() as u32;
        if address + into.len() as u64 > u64::from(self.bytes) {
            let what = format!("read of {size} bytes at {address:#x} of shared memory, which has {} bytes", self.bytes);
            return Err(Fault::new(FaultKind::OutOfBounds, what));
        }
        match self.shared.look(self.warp, address as u32, size, self.checks) {
            Err(fault) if fault.kind() == FaultKind::Uninitialised => {
                let lenient = Checks { uninitialised: false, ..self.checks };
                self.shared.look(self.warp, address as u32, size, lenient)?;
                self.missing.get_or_insert(fault);
            }
            looked => looked?,
        }
        Host.read(self.shared.start() + address, into)
    }

    fn write(&mut self, address: u64, _from: &[u8]) -> Result<(), Fault> {
        Err(Fault::new(FaultKind::Unsupported, format!("a write at {address:#x} by a descriptor")))
    }
}

impl Machine<'_, '_> {
    /// Registers as the words of a fragment; those of 64 bits become two words each.
    fn words(&self, sources: &[Src], of: Type, into: &mut [Words; MOST]) -> usize {
        if of != Type::F64 {
            for (word, &source) in into.iter_mut().zip(sources) {
                *word = *self.row(source);
            }
            return sources.len();
        }
        for (pair, &source) in into.as_chunks_mut::<2>().0.iter_mut().zip(sources) {
            let values = self.wide(source);
            *pair = [values.map(|value| value as u32), values.map(|value| (value >> 32) as u32)];
        }
        2 * sources.len()
    }

    fn set_words(&mut self, registers: &[u32], of: Type, words: &[Words]) {
        if of != Type::F64 {
            registers.iter().zip(words).for_each(|(register, words)| self.set_all(*register, words));
            return;
        }
        for (&register, [low, high]) in registers.iter().zip(words.as_chunks::<2>().0) {
            let values = std::array::from_fn(|lane| u64::from(low[lane]) | u64::from(high[lane]) << 32);
            self.set_wide(register, u32::MAX, &values);
        }
    }

    /// Writes all lanes.
    pub fn set_all(&mut self, row: u32, values: &Words) {
        let to = self.row_mut(row);
        // SAFETY: a row of the frame.
        unsafe { (*to).0 = *values };
    }

    /// The address that all lanes have.
    fn uniform_address(&mut self, address: &Address) -> Result<u64, Fault> {
        let at = self.addresses(address);
        match (1..LANES).find(|lane| at[*lane] != at[0]) {
            None => Ok(at[0]),
            Some(lane) => {
                self.lane = lane;
                let what = format!("lanes 0 and {lane} give different addresses, {:#x} and {:#x}", at[0], at[lane]);
                Err(Fault::new(FaultKind::Mask, what))
            }
        }
    }

    /// Waits for all lanes of the warp: `None` if they have not come.
    pub fn whole_warp(&mut self, mask: u32) -> Result<Option<Flow>, Fault> {
        let (lanes, flow) = match self.gather(NONE, mask)? {
            Sync::All(lanes) => (lanes, Flow::Next),
            Sync::Some(lanes) => (lanes, Flow::Select),
            Sync::Wait => return Ok(None),
        };
        if lanes != u32::MAX {
            self.lane = (!lanes).trailing_zeros() as usize;
            let what = format!("lane {} does not execute this, which all 32 lanes of a warp have to", self.lane);
            return Err(Fault::new(FaultKind::Mask, what));
        }
        Ok(Some(flow))
    }

    pub fn tensor(&mut self, step: &Tensor, mask: u32) -> Result<Flow, Fault> {
        let apart = !self.env.options.partial_stores && matches!(step, Tensor::WmmaStore { .. });
        let flow = match apart {
            true => Flow::Next,
            false => match self.whole_warp(mask)? {
                Some(flow) => flow,
                None => return Ok(Flow::Select),
            },
        };
        if let Tensor::WgmmaWait(count) = step {
            return Ok(if self.wait_products(*count)? { flow } else { Flow::Select });
        }
        let lanes = if apart { mask } else { u32::MAX };
        let mut fragments = self.worker.fragments.take().unwrap_or_default();
        let done = self.tensor_with(step, lanes, &mut fragments);
        self.worker.fragments = Some(fragments);
        done.map(|()| flow)
    }

    fn count_flops(&mut self, factor: Type, flops: u64) {
        self.worker.counts.tensor_flops[Rate::of(factor) as usize] += flops;
    }

    fn tensor_with(&mut self, step: &Tensor, lanes: u32, [wa, wb, wc, wd]: &mut Fragments) -> Result<(), Fault> {
        match step {
            Tensor::Mma { op, d, a, b, c } => {
                let (a, b) = (self.words(a, op.a, wa), self.words(b, op.b, wb));
                let (c, n) = (self.words(c, op.c, wc), op.words()[3]);
                op.execute(&wa[..a], &wb[..b], &wc[..c], &mut wd[..n]);
                self.set_words(d, op.d, &wd[..n]);
                self.count_flops(op.a, op.flops());
            }
            Tensor::WmmaMma { op, d, a, b, c } => {
                let [ta, tb, tc, td] = op.types();
                let (a, b) = (self.words(a, ta, wa), self.words(b, tb, wb));
                let (c, n) = (self.words(c, tc, wc), op.words()[3]);
                op.execute(&wa[..a], &wb[..b], &wc[..c], &mut wd[..n]);
                self.set_words(d, td, &wd[..n]);
                self.count_flops(ta, op.flops());
            }
            Tensor::Ldmatrix { op, d, address } => {
                let asked = self.addresses(address);
                let lanes = u32::MAX >> (32 - 8 * op.count);
                let (at, fault) = self.lenient(|machine| {
                    let mut at = asked;
                    machine.resolve(address.space, &mut at, lanes, 16, Kind::Read, false).map(|()| at)
                })?;
                op.execute(&at, &mut Host, &mut wd[..op.count])?;
                self.set_words(d, Type::F16, &wd[..op.count]);
                if let Some(fault) = fault {
                    self.shade_matrices(*op, d, address.space, &asked, lanes, &fault)?;
                }
            }
            Tensor::Stmatrix { op, from, address } => {
                let mut at = self.addresses(address);
                let lanes = u32::MAX >> (32 - 8 * op.count);
                let count = self.words(from, Type::F16, wa);
                self.resolve(address.space, &mut at, lanes, 16, Kind::Write, false)?;
                op.execute(&at, &wa[..count], &mut Host)?;
                if self.any_undefined(from) {
                    let asked = self.addresses(address);
                    self.store_undefined_matrices(from, address.space, &asked);
                }
            }
            Tensor::Movmatrix { d, a } => {
                let moved = movmatrix(self.row(*a));
                self.set_all(*d, &moved);
            }
            Tensor::WmmaLoad { op, d, address, stride } => {
                let at = self.uniform_address(address)?;
                let stride = (*stride != NONE).then(|| u64::from(self.row(*stride)[0]));
                let n = op.words();
                let mut view = View::new(self, address.space);
                op.execute(at, stride, &mut view, &mut wd[..n])?;
                let missing = view.missing;
                self.set_words(d, if d.len() == n { Type::F32 } else { Type::F64 }, &wd[..n]);
                if let Some(fault) = missing {
                    self.shade_fragment(d, &fault);
                }
            }
            Tensor::WmmaStore { op, from, address, stride } => {
                let first = lanes.trailing_zeros() as usize;
                let at =
                    if lanes == u32::MAX { self.uniform_address(address)? } else { self.addresses(address)[first] };
                let stride = (*stride != NONE).then(|| u64::from(self.row(*stride)[first]));
                let of = if from.len() == op.words() { Type::F32 } else { Type::F64 };
                let n = self.words(from, of, wa);
                let undefined = self.any_undefined(from);
                op.execute(at, stride, &wa[..n], lanes, &mut View { undefined, ..View::new(self, address.space) })?;
            }
            Tensor::WgmmaFence | Tensor::WgmmaWait(_) => {}
            Tensor::WgmmaCommit => self.cluster.ctas[self.cta].products[self.warp.number].commit(),
            Tensor::Wgmma { op, d, a, a_descriptor, b_descriptor, scale_d, negate, transpose } => {
                let count = self.words(a, Type::F32, wa);
                let scales = self.predicate(*scale_d);
                let scale = tensor::Scale { d: scales & 1 != 0, negate_a: negate[0], negate_b: negate[1] };
                let left = if a.is_empty() {
                    Err(tensor::Descriptor::decode(self.wide(*a_descriptor)[0]))
                } else {
                    Ok(op.left_in_registers(&wa[..count]))
                };
                let right = tensor::Descriptor::decode(self.wide(*b_descriptor)[0]);
                let undefined = self.any_undefined(a);
                let product =
                    Product { op: *op, left, right, scale, transpose: *transpose, sum: 0, group: 0, undefined };
                self.start_product(product, d)?;
                // Four warps execute it together.
                self.count_flops(op.a, op.flops() / 4);
            }
        }
        Ok(())
    }
}
