//! Results that are the same for all ranks of a call, computed once per device by the first rank that needs them there.

use super::parcel::Parcel;
use crate::Payload;
use burn::tensor::Device;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A tensor that is the same for all ranks.
pub enum Same {
    /// It exists on the device that all ranks share.
    Here(Payload),
    /// The ranks of each device compute it from all ranks' parcels.
    OfParcels(Vec<Parcel>, Made),
}

/// The results that exist or are being computed, by device.
#[derive(Default)]
pub struct Made(Mutex<Vec<(Device, Arc<OnceLock<Payload>>)>>);

impl Same {
    /// Returns the tensor on a device. The first rank there calls `make`, and others that share the device wait for it.
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
