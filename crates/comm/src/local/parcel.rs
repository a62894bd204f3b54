//! What a rank hands to others: a tensor, and how those on other devices come by it.
//!
//! A rank that shares the giver's device shares its memory. One that does not copies what it needs, in its own thread
//! and under no lock: between CUDA cards from card to card, else through Burn and the host.

use super::cards::{Piece, Source, fill};
use crate::Payload;
use burn::tensor::Device;
use std::ops::Range;

/// A tensor on its way to other ranks.
pub struct Parcel {
    payload: Payload,
    /// Where it lies, for other cards.
    source: Option<Source>,
}

impl Parcel {
    /// For each rank what it is given, or nothing. `is_elsewhere` tells which of them have other devices than this one.
    pub fn all(payloads: Vec<Option<Payload>>, is_elsewhere: impl Fn(usize) -> bool) -> Vec<Option<Self>> {
        let leaving = payloads.iter().enumerate().map(|(to, part)| part.as_ref().filter(|_| is_elsewhere(to)));
        let sources = Source::all(leaving);
        let parcel = |(part, source): (Option<Payload>, _)| Some(Self { payload: part?.handed_over(), source });
        payloads.into_iter().zip(sources).map(parcel).collect()
    }

    /// The tensor, on its device.
    pub fn into_payload(self) -> Payload {
        self.payload
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.payload.len()
    }

    /// Those bytes of its memory, if another card may read it.
    fn piece(&self, range: &Range<usize>) -> Option<Piece<'_>> {
        let size = self.payload.dtype().size();
        Some(Piece { source: self.source.as_ref()?, bytes: range.start * size..range.end * size })
    }

    /// A new tensor on another card, and the piece that it will consist of.
    fn to_card(&self, range: &Range<usize>, device: &Device) -> Option<(Payload, Vec<Piece<'_>>)> {
        let piece = self.piece(range).filter(|_| self.payload.device() != *device)?;
        Some((self.payload.empty_on(device, range.len()), vec![piece]))
    }

    /// These elements as Burn brings them to a device.
    fn by_burn(&self, range: &Range<usize>, device: &Device) -> Payload {
        let all = self.payload.clone();
        let part = if *range == (0..self.len()) { all } else { all.slice(range.clone()) };
        if part.device() == *device { part } else { part.to_device(device) }
    }
}

/// These elements of parcels, each as a tensor on a device.
pub fn fetch(parts: &[(&Parcel, Range<usize>)], device: &Device) -> Vec<Payload> {
    let copies: Vec<_> = parts.iter().map(|(parcel, range)| parcel.to_card(range, device)).collect();
    let filled = fill(copies.iter().flatten());
    let fetched = parts.iter().zip(copies).map(|((parcel, range), copy)| match copy {
        Some((tensor, _)) if filled => tensor,
        _ => parcel.by_burn(range, device),
    });
    fetched.collect()
}

/// Parcels as tensors on a device.
pub fn fetch_whole(parcels: &[Parcel], device: &Device) -> Vec<Payload> {
    let whole: Vec<_> = parcels.iter().map(|parcel| (parcel, 0..parcel.len())).collect();
    fetch(&whole, device)
}

/// Parcels as one tensor on a device, one after another.
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
