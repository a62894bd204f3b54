//! Copies from card to card: each byte once, by the cards' copy engines, while no thread waits.
//!
//! Burn's `to_device` between two cards goes through the host, or, where it finds NCCL, reads memory that the giver may
//! have reused meanwhile (CubeCL 0.11.3 lets no stream wait for a send). So the driver copies here:
//!
//! ```text
//! giver    ... kernels | ready            what comes later waits for done |
//! taker    ... kernels | fresh            what comes later waits for done |
//! copies of the taker          ready, fresh -> copy, copy, .. -> done
//! ```
//!
//! * *ready*: the giver's tensor is written. *fresh*: what used the taker's new memory before has ended.
//! * The giver's memory is held, so that it is neither reused nor written in place, until what the giver's card gets
//!   from then on waits for *done*. The last rank that has the [`Source`] lets go of it.

mod card;

use crate::Payload;
use burn_cubecl::{Cube, CubeBackend, CubeDevice, kernel, tensor::CubeTensor};
use card::{Card, Event};
use cubecl::cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A tensor's memory on a card. As long as this lives, it stays where it is and nobody writes it in place.
struct Memory {
    card: &'static Card,
    address: u64,
    bytes: usize,
    held: Mutex<Box<dyn Any + Send>>,
}

impl Memory {
    /// That of a tensor, whose kernels are in the card's queue from now on; None if no card has it.
    fn of(payload: &Payload) -> Option<Self> {
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
}

/// The tensor and its card's number, if a card has it.
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

/// A tensor on a card, for ranks with other cards.
pub struct Source {
    memory: Memory,
    ready: Arc<Event>,
    /// Ends of the copies out of it.
    done: Mutex<Vec<Arc<Event>>>,
}

impl Source {
    /// These tensors, in their order; None for those that no card has. To be called by the thread that computes them.
    pub fn all<'a>(payloads: impl Iterator<Item = Option<&'a Payload>>) -> Vec<Option<Self>> {
        let memory: Vec<_> = payloads.map(|payload| payload.and_then(Memory::of)).collect();
        // One event for all: a rank has one device.
        let ready = memory.iter().flatten().next().map(|memory| Arc::new(memory.card.event_after_all()));
        let source = |memory| Some(Self { memory: memory?, ready: ready.clone()?, done: Mutex::default() });
        memory.into_iter().map(source).collect()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let done = std::mem::take(self.done.get_mut().unwrap_or_else(PoisonError::into_inner));
        if done.iter().any(|done| self.memory.card.wait_for(done).is_err()) {
            // The card is lost. Its memory is not given to anybody else.
            let held = self.memory.held.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::replace(held, Box::new(())));
        }
    }
}

/// Bytes of a source.
pub struct Piece<'a> {
    /// Whose.
    pub source: &'a Source,
    /// Which.
    pub bytes: Range<usize>,
}

/// Fills new tensors, all of one device, each with its pieces one after another. They may be used at once, by any thread.
///
/// Returns false, and fills nothing, if no card has them.
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
                // SAFETY: both ranges are within memory that is held until `done`, or until what is queued later waits
                // for that. The copy comes after `ready` and after the use that the new memory had before.
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
