//! Messages from one rank to another.

use super::{Communicator, whole};
use crate::error::panic_message;
use crate::{Collective, CommError, Cost, Kind, Signature};
use burn::tensor::Tensor;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

impl Communicator {
    /// Sends a tensor to rank `to`, which receives tensors in the order of sending ([`recv`](Self::recv)). The call may
    /// return before the tensor is received.
    pub fn send<K: Kind>(&self, tensor: Tensor<1, K>, to: usize) -> Result<(), CommError> {
        let (collective, tensor) = (Collective::Send(to), K::forget(tensor));
        self.check_root(collective, to)?;
        self.check_tracked(collective, &tensor)?;
        self.metered(&whole(collective, &tensor), || self.engine.send(tensor, to).map(|()| ((), Cost::default())))
    }

    /// Returns the next tensor from rank `from`.
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

    /// Returns the next `count` tensors from rank `from`, which are received while `work` runs.
    ///
    /// ```text
    /// this thread    | work                      | join |
    /// another one    | recv, recv, ..  |                       if messages only move while somebody asks for them
    /// ```
    pub fn recv_during<K: Kind, T>(
        &self,
        from: usize,
        count: usize,
        work: impl FnOnce() -> T,
    ) -> (Result<Vec<Tensor<1, K>>, CommError>, T) {
        let receive = || (0..count).map(|_| self.recv(from)).collect();
        if count == 0 || self.engine.receives_unasked() {
            let done = work();
            return (receive(), done);
        }
        thread::scope(|scope| {
            let receiving = scope.spawn(receive);
            // A panic must not wait here until the other thread times out.
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
                self.abort(&format!("panicked: {}", panic_message(&*panic)));
                resume_unwind(panic)
            });
            let receiver = receiving.thread().id();
            let received = self.flight.joining(receiver, || receiving.join());
            (received.unwrap_or_else(|panic| resume_unwind(panic)), done)
        })
    }
}
