//! Copies between CUDA GPUs: each byte moves once, by the copy engines of the GPUs, and no thread waits.
//!
//! Burn's `to_device` between two GPUs goes through the host. If it finds NCCL, it reads memory that the sender may
//! have reused meanwhile (CubeCL 0.11.3 lets no stream wait for a send). Here the driver copies instead:
//!
//! ```text
//! sender     ... kernels | ready            later work waits for done |
//! receiver   ... kernels | fresh            later work waits for done |
//! copies into the receiver     ready, fresh -> copy, copy, .. -> done
//! ```
//!
//! * *ready*: the sender's tensor is written. *fresh*: earlier uses of the receiver's new memory have ended.
//! * The sender's memory is held until all later work on its GPU waits for *done*, so it is neither reused nor written
//!   in place. The last rank that has the [`Source`] releases it.

mod card;

use crate::Payload;
use burn_cubecl::{Cube, CubeBackend, CubeDevice, kernel, tensor::CubeTensor};
use card::{Card, Event};
use cubecl::cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A tensor's memory on a GPU. While this lives, the memory stays in place and nobody writes to it.
pub(crate) struct Memory {
    card: &'static Card,
    address: u64,
    bytes: usize,
    held: Mutex<Box<dyn Any + Send>>,
}

impl Memory {
    /// Returns the memory of a tensor, or `None` if it is not on a GPU. The tensor's kernels are in the GPU's queue
    /// afterwards.
    pub fn of(payload: &Payload) -> Option<Self> {
        let bytes = payload.bytes();
        let (number, tensor) = on_card(payload)?;
        let tensor = kernel::into_contiguous(tensor);
        let held = tensor.client.get_resource::<<CudaRuntime as Runtime>::Server>(tensor.handle.clone());
        let held = held.unwrap_or_else(|error| panic!("cuda:{number} has no {bytes} bytes for a collective: {error}"));
        let resource = held.resource();
        assert!(resource.size as usize >= bytes, "a tensor of {bytes} bytes has {} of memory", resource.size);
        let address = resource.ptr;
        Some(Self { card: Card::get(number), address, bytes, held: Mutex::new(Box::new((tensor, held))) })
    }

    /// Returns the number of its GPU.
    #[cfg(feature = "nccl")]
    pub fn number(&self) -> usize {
        self.card.number()
    }

    /// Returns its address on the GPU.
    #[cfg(feature = "nccl")]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size of the tensor in bytes.
    #[cfg(feature = "nccl")]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Returns the tensor and its GPU's number, or `None` if it is not on a GPU.
fn on_card(payload: &Payload) -> Option<(usize, CubeTensor)> {
    macro_rules! resolved {
        ($tensor:expr, $resolve:ident) => {{
            let tensor = $tensor.clone().try_into_primitive::<Cube>().ok()?;
            let client = tensor.client.clone();
            let CubeDevice::Cuda(device) = client.device().clone() else { return None };
            Some((device.index, client.$resolve::<CubeBackend>(tensor)))
        }};
    }
    match payload {
        Payload::Float(tensor) => resolved!(tensor, resolve_tensor_float),
        Payload::Int(tensor) => resolved!(tensor, resolve_tensor_int),
    }
}

/// A tensor on a GPU, as a source for ranks with other GPUs.
pub struct Source {
    memory: Memory,
    ready: Arc<Event>,
    /// The events at the ends of the copies from it.
    done: Mutex<Vec<Arc<Event>>>,
}

impl Source {
    /// Creates sources for these tensors, in order; `None` for those that are not on a GPU. Call it on the thread that
    /// computes them.
    pub fn all<'a>(payloads: impl Iterator<Item = Option<&'a Payload>>) -> Vec<Option<Self>> {
        let memory: Vec<_> = payloads.map(|payload| payload.and_then(Memory::of)).collect();
        // One event suffices for all: a rank has one device.
        let ready = memory.iter().flatten().next().map(|memory| Arc::new(memory.card.event_after_all()));
        let source = |memory| Some(Self { memory: memory?, ready: ready.clone()?, done: Mutex::default() });
        memory.into_iter().map(source).collect()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let done = std::mem::take(self.done.get_mut().unwrap_or_else(PoisonError::into_inner));
        if done.iter().any(|done| self.memory.card.wait_for(done).is_err()) {
            // The GPU is lost. Its memory must never be reused.
            let held = self.memory.held.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::replace(held, Box::new(())));
        }
    }
}

/// A range of a source's bytes.
pub struct Piece<'a> {
    /// The source.
    pub source: &'a Source,
    /// The range.
    pub bytes: Range<usize>,
}

/// Fills new tensors on one device, each with its pieces one after another. Any thread may use them at once.
///
/// Returns false and fills nothing if they are not on a GPU.
pub fn fill<'a>(tensors: impl Iterator<Item = &'a (Payload, Vec<Piece<'a>>)> + Clone) -> bool {
    let memory: Option<Vec<_>> = tensors.clone().map(|(payload, _)| Memory::of(payload)).collect();
    let Some(memory) = memory.filter(|memory| !memory.is_empty()) else { return false };
    let card = memory[0].card;
    card.copies_wait_for(&card.event_after_all());
    for (memory, (_, pieces)) in memory.iter().zip(tensors.clone()) {
        let mut start = 0;
        for Piece { source, bytes } in pieces {
            let (from, len) = (&source.memory, bytes.len());
            assert!(bytes.end <= from.bytes && start + len <= memory.bytes, "a piece does not fit");
            if len > 0 {
                card.copies_wait_for(&source.ready);
                // SAFETY: both ranges are within memory that is held until `done`, or until all later work waits for
                // it. The copy comes after `ready` and after earlier uses of the new memory.
                unsafe { card.copy(memory.address + start as u64, from.card, from.address + bytes.start as u64, len) };
            }
            start += len;
        }
    }
    let done = Arc::new(card.event_after_copies());
    for piece in tensors.flat_map(|(_, pieces)| pieces) {
        piece.source.done.lock().unwrap_or_else(PoisonError::into_inner).push(done.clone());
    }
    if let Err(error) = card.wait_for(&done) {
        panic!("a collective's copies cannot be waited for: {error}");
    }
    true
}
