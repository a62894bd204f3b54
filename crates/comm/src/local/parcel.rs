//! Tensors that ranks hand to each other, and their transfer to other devices.
//!
//! A rank on the sender's device shares its memory. A rank on another device copies what it needs on its own thread,
//! without holding a lock: directly between CUDA GPUs, otherwise through Burn and the host.

use super::cards::{Piece, Source, fill};
use crate::Payload;
use burn::tensor::Device;
use std::ops::Range;

/// A tensor on its way to other ranks.
pub struct Parcel {
    payload: Payload,
    /// Its memory as a source for other GPUs.
    source: Option<Source>,
}

impl Parcel {
    /// Creates a parcel for each rank that is given a tensor. `is_elsewhere` tells which ranks have a different device
    /// from this one.
    pub fn all(payloads: Vec<Option<Payload>>, is_elsewhere: impl Fn(usize) -> bool) -> Vec<Option<Self>> {
        let leaving = payloads.iter().enumerate().map(|(to, part)| part.as_ref().filter(|_| is_elsewhere(to)));
        let sources = Source::all(leaving);
        let parcel = |(part, source): (Option<Payload>, _)| Some(Self { payload: part?.handed_over(), source });
        payloads.into_iter().zip(sources).map(parcel).collect()
    }

    /// Returns the tensor on its device.
    pub fn into_payload(self) -> Payload {
        self.payload
    }

    /// Returns whether the tensor is on the CPU.
    pub fn is_on_cpu(&self) -> bool {
        self.payload.is_on_cpu()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.payload.len()
    }

    /// Returns the bytes of these elements, if another GPU may read them.
    fn piece(&self, range: &Range<usize>) -> Option<Piece<'_>> {
        let size = self.payload.dtype().size();
        Some(Piece { source: self.source.as_ref()?, bytes: range.start * size..range.end * size })
    }

    /// Returns a new tensor on another GPU and the piece to fill it with.
    fn to_card(&self, range: &Range<usize>, device: &Device) -> Option<(Payload, Vec<Piece<'_>>)> {
        let piece = self.piece(range).filter(|_| self.payload.device() != *device)?;
        Some((self.payload.empty_on(device, range.len()), vec![piece]))
    }

    /// Moves these elements to a device with Burn.
    fn by_burn(&self, range: &Range<usize>, device: &Device) -> Payload {
        let all = self.payload.clone();
        let part = if *range == (0..self.len()) { all } else { all.slice(range.clone()) };
        if part.device() == *device { part } else { part.to_device(device) }
    }
}

/// Fetches ranges of parcels, each as a tensor on `device`.
pub fn fetch(parts: &[(&Parcel, Range<usize>)], device: &Device) -> Vec<Payload> {
    let copies: Vec<_> = parts.iter().map(|(parcel, range)| parcel.to_card(range, device)).collect();
    let filled = fill(copies.iter().flatten());
    let fetched = parts.iter().zip(copies).map(|((parcel, range), copy)| match copy {
        Some((tensor, _)) if filled => tensor,
        _ => parcel.by_burn(range, device),
    });
    fetched.collect()
}

/// Fetches whole parcels as tensors on `device`.
pub fn fetch_whole(parcels: &[Parcel], device: &Device) -> Vec<Payload> {
    let whole: Vec<_> = parcels.iter().map(|parcel| (parcel, 0..parcel.len())).collect();
    fetch(&whole, device)
}

/// Concatenates parcels into one tensor on `device`.
pub fn join(parcels: &[Parcel], device: &Device) -> Payload {
    if let Some(pieces) = parcels.iter().map(|parcel| parcel.piece(&(0..parcel.len()))).collect() {
        let len = parcels.iter().map(Parcel::len).sum();
        let joined = (parcels[0].payload.empty_on(device, len), pieces);
        if fill([&joined].into_iter()) {
            return joined.0;
        }
    }
    Payload::cat(fetch_whole(parcels, device))
}
