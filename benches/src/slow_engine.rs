//! An engine that simulates a slow network.

use burn::tensor::Device;
use comm::{Collective, CommError, Cost, Engine, Metered, Payload, Signature};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// An engine with a slow network: after each call it sleeps for every byte that came from another rank.
///
/// Threads exchange tensors at the speed of memory, which would hide whether communication overlaps with computation. A
/// sleeping rank uses no CPU, like one that waits for a network card, so prefetch can be measured on a machine whose
/// cores are all busy computing.
pub struct SlowEngine {
    engine: Arc<dyn Engine>,
    /// Sleep per byte, in seconds.
    per_byte: f64,
}

impl SlowEngine {
    /// Slows an engine down to `1 / per_byte` bytes a second, where `per_byte` is in seconds.
    pub fn new(engine: Arc<dyn Engine>, per_byte: f64) -> Self {
        Self { engine, per_byte }
    }

    fn sleep(&self, bytes: usize) {
        thread::sleep(Duration::from_secs_f64(bytes as f64 * self.per_byte));
    }
}

impl Engine for SlowEngine {
    fn rank(&self) -> usize {
        self.engine.rank()
    }

    fn world_size(&self) -> usize {
        self.engine.world_size()
    }

    fn device(&self) -> &Device {
        self.engine.device()
    }

    fn exchange(&self, signature: &Signature, parts: Vec<Option<Payload>>) -> Metered<Vec<Option<Payload>>> {
        let (found, cost) = self.engine.exchange(signature, parts)?;
        let others = found.iter().enumerate().filter(|(from, _)| *from != self.rank());
        self.sleep(others.filter_map(|(_, part)| part.as_ref()).map(Payload::bytes).sum());
        Ok((found, cost))
    }

    fn all_gather(&self, signature: &Signature, shard: Payload) -> Metered<Payload> {
        let own = shard.bytes();
        let (full, cost) = self.engine.all_gather(signature, shard)?;
        self.sleep(full.bytes() - own);
        Ok((full, cost))
    }

    fn agree(&self, signature: &Signature) -> Result<Cost, CommError> {
        self.engine.agree(signature)
    }

    fn check(&self, collective: Collective) -> Result<(), CommError> {
        self.engine.check(collective)
    }

    fn send(&self, payload: Payload, to: usize) -> Result<(), CommError> {
        self.engine.send(payload, to)
    }

    fn recv(&self, from: usize) -> Result<Payload, CommError> {
        let payload = self.engine.recv(from)?;
        self.sleep(payload.bytes());
        Ok(payload)
    }

    fn split(&self, members: &[usize]) -> Result<Arc<dyn Engine>, CommError> {
        Ok(Arc::new(Self::new(self.engine.split(members)?, self.per_byte)))
    }

    fn abort(&self, reason: &str) {
        self.engine.abort(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Tensor;
    use comm::{Communicator, LocalEngine, TIMEOUT};
    use std::time::Instant;

    #[test]
    fn every_byte_from_another_rank_takes_its_time_and_no_other() {
        const PER_BYTE: f64 = 1e-4;
        let work = |comm: &Communicator| {
            let ones = Tensor::<1>::ones([128], comm.device());
            let started = Instant::now();
            let gathered = comm.all_gather(ones.clone()).unwrap(); // 512 bytes from the other rank
            let sum = comm.reduce_scatter(gathered).unwrap(); // as many
            (started.elapsed(), sum.into_data())
        };
        thread::scope(|scope| {
            let ranks: Vec<_> = LocalEngine::world(vec![Device::flex(); 2], TIMEOUT)
                .into_iter()
                .map(|engine| {
                    let comm = Communicator::new(Arc::new(SlowEngine::new(Arc::new(engine), PER_BYTE)));
                    scope.spawn(move || work(&comm))
                })
                .collect();
            for rank in ranks {
                let (elapsed, sum) = rank.join().unwrap();
                assert!(elapsed >= Duration::from_secs_f64(1024.0 * PER_BYTE), "{elapsed:?}");
                assert_eq!(sum.try_to_vec::<f32>().unwrap(), [2.0; 128]);
            }
        });
    }
}
