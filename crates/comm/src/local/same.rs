//! What all ranks of a call get alike: made once for each device, by the first of its ranks that comes for it.

use super::parcel::Parcel;
use crate::Payload;
use burn::tensor::Device;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The same tensor for all ranks.
pub enum Same {
    /// It is there, on the one device of all.
    Here(Payload),
    /// Each device's ranks make it of what all gave.
    OfParcels(Vec<Parcel>, Made),
}

/// What is made or being made, by device.
#[derive(Default)]
pub struct Made(Mutex<Vec<(Device, Arc<OnceLock<Payload>>)>>);

impl Same {
    /// The tensor on a device. The first rank there calls `make`, while those that share the device wait.
    pub fn on(&self, device: &Device, make: impl FnOnce(&[Parcel]) -> Payload) -> Payload {
        match self {
            Self::Here(payload) => payload.clone(),
            Self::OfParcels(parcels, made) => made.slot(device).get_or_init(|| make(parcels).handed_over()).clone(),
        }
    }
}

impl Made {
    fn slot(&self, device: &Device) -> Arc<OnceLock<Payload>> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, slot)) = made.iter().find(|(of, _)| of == device) {
            return slot.clone();
        }
        let slot = Arc::<OnceLock<Payload>>::default();
        made.push((device.clone(), slot.clone()));
        slot
    }
}
