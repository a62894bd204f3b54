//! Messages from one rank to another.

use super::{Communicator, whole};
use crate::{Collective, CommError, Cost, Kind, Signature};
use burn::tensor::Tensor;

impl Communicator {
    /// Sends a tensor to rank `to`, which receives tensors in the order of sending ([`recv`](Self::recv)). The call may
    /// return before the tensor is received, which moves while both ranks compute.
    pub fn send<K: Kind>(&self, tensor: Tensor<1, K>, to: usize) -> Result<(), CommError> {
        let (collective, tensor) = (Collective::Send(to), K::forget(tensor));
        self.check_root(collective, to)?;
        self.check_tracked(collective, &tensor)?;
        self.metered(&whole(collective, &tensor), || self.engine.send(tensor, to).map(|()| ((), Cost::default())))
    }

    /// Returns the next tensor from rank `from`. One that was on the CPU there is on the CPU here, whatever the rank's
    /// device.
    ///
    /// # Errors
    /// Also returns an error if the tensor is of another kind.
    pub fn recv<K: Kind>(&self, from: usize) -> Result<Tensor<1, K>, CommError> {
        let collective = Collective::Recv(from);
        self.check_root(collective, from)?;
        let signature = Signature { collective, len: None, dtype: None };
        let payload = self.metered(&signature, || {
            let payload = self.engine.recv(from)?;
            let cost = Cost::received(&*self.engine, [(from, payload.bytes())]);
            Ok((payload, cost))
        })?;
        if !K::is(&payload) {
            let reason = format!("rank {from} sent [{}] {:?}, another kind", payload.len(), payload.dtype());
            return Err(self.bad_argument(collective, reason));
        }
        Ok(K::remember(payload))
    }
}
