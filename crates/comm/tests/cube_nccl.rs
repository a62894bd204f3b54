//! Collectives and messages by NCCL between CUDA GPUs, one rank on each, with `KILN_KERNEL_DEVICE=cuda`. Ranks are
//! threads, and with the feature `mpi` also processes. Values are whole numbers that all dtypes add exactly, so the order
//! of sums does not matter, and results have the bits of those on the CPU.
#![cfg(feature = "nccl")]

mod common;

use burn::tensor::{DType, Device, Float, Int, Tensor, TensorData};
use comm::{
    Collective, CommError, Communicator, Cost, Engine, LocalEngine, Metered, Payload, Reduce, Signature, Summands,
    run_ranks,
};
use common::*;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The GPUs, set up as for training: with one CubeCL stream each. None without `KILN_KERNEL_DEVICE=cuda`.
static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let mut config = CubeClRuntimeConfig::default().override_from_env();
    config.streaming.max_streams = 1;
    CubeClRuntimeConfig::try_set(config);
    match std::env::var("KILN_KERNEL_DEVICE").as_deref() {
        Ok("cuda") => Device::enumerate(burn::tensor::DeviceType::Cuda).into_iter().collect(),
        _ => vec![],
    }
});

/// The GPUs of three ranks. One test at a time uses them: nothing orders the calls of two worlds.
fn devices() -> Option<(Vec<Device>, MutexGuard<'static, ()>)> {
    static GPUS: Mutex<()> = Mutex::new(());
    if DEVICES.len() < 3 {
        eprintln!("skipped, since there are {} CUDA GPUs: collectives between three by NCCL", DEVICES.len());
    }
    Some((DEVICES.get(0..3)?.to_vec(), GPUS.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// An engine of threads that panics if a tensor on a GPU reaches it. Below NCCL, none may: a copy waits for all that a GPU
/// has queued, and so for calls of NCCL that wait for other ranks.
struct CpuOnly(Arc<dyn Engine>);

impl CpuOnly {
    fn check_place(payload: &Payload) {
        let device = match payload {
            Payload::Float(tensor) => tensor.device(),
            Payload::Int(tensor) => tensor.device(),
        };
        assert_eq!(device, Device::flex(), "a tensor on a GPU does not move by NCCL");
    }
}

impl Engine for CpuOnly {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world_size(&self) -> usize {
        self.0.world_size()
    }

    fn device(&self) -> &Device {
        self.0.device()
    }

    fn exchange(&self, signature: &Signature, parts: Vec<Option<Payload>>) -> Metered<Vec<Option<Payload>>> {
        parts.iter().flatten().for_each(Self::check_place);
        self.0.exchange(signature, parts)
    }

    fn all_gather(&self, signature: &Signature, shard: Payload) -> Metered<Payload> {
        Self::check_place(&shard);
        self.0.all_gather(signature, shard)
    }

    fn chunks(&self, signature: &Signature, full: Payload) -> Metered<Summands> {
        Self::check_place(&full);
        self.0.chunks(signature, full)
    }

    fn all_reduce(&self, signature: &Signature, tensor: Payload, how: Reduce) -> Metered<Payload> {
        Self::check_place(&tensor);
        self.0.all_reduce(signature, tensor, how)
    }

    fn agree(&self, signature: &Signature) -> Result<Cost, CommError> {
        self.0.agree(signature)
    }

    fn send(&self, payload: Payload, to: usize) -> Result<(), CommError> {
        Self::check_place(&payload);
        self.0.send(payload, to)
    }

    fn recv(&self, from: usize) -> Result<Payload, CommError> {
        self.0.recv(from)
    }

    fn try_recv(&self, from: usize) -> Result<Option<Payload>, CommError> {
        self.0.try_recv(from)
    }

    fn split(&self, members: &[usize]) -> Result<Arc<dyn Engine>, CommError> {
        Ok(Arc::new(Self(self.0.split(members)?)))
    }

    fn check(&self, collective: Collective) -> Result<(), CommError> {
        self.0.check(collective)
    }

    fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }
}

/// Returns the results of `work` on a rank for each device, by NCCL over threads.
fn by_nccl<T: Send>(devices: Vec<Device>, work: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let start = |engine: LocalEngine| {
            let below = Communicator::new(Arc::new(CpuOnly(Arc::new(engine))));
            let work = &work;
            scope.spawn(move || work(&below.by_nccl(HANG).unwrap()))
        };
        let threads: Vec<_> = LocalEngine::world(devices, HANG).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn floats(comm: &Communicator, dtype: DType, len: usize) -> Tensor<1> {
    Tensor::from_data(floats_of(comm.rank(), len).convert_dtype(dtype), (comm.device(), dtype))
}

/// The values of a rank.
fn floats_of(rank: usize, len: usize) -> TensorData {
    let value = |i| noise((rank * 100_000 + i) as u64, 33) as f32 - 16.0;
    TensorData::new((0..len).map(value).collect::<Vec<_>>(), [len])
}

fn ints(comm: &Communicator, len: usize) -> Tensor<1, Int> {
    let data = TensorData::new((0..len).map(|i| (comm.rank() * 1000 + i) as i32).collect::<Vec<_>>(), [len]);
    Tensor::from_data(data, (comm.device(), DType::I32))
}

fn values(data: TensorData) -> Vec<f64> {
    data.iter::<f64>().collect()
}

/// Returns each collective's result on a rank.
fn everything(comm: &Communicator, dtype: DType, len: usize) -> Vec<(&'static str, Vec<f64>)> {
    let (me, n) = (comm.rank(), comm.world_size());
    // Some parts are empty.
    let counts: Vec<_> = (0..n).map(|to| (me + 2 * to) % n * (len / 20)).collect();
    let onto = floats(comm, if dtype == DType::F64 { dtype } else { DType::F32 }, len);
    let pair = comm.split(me % 2).unwrap();
    let found = every_collective(comm, len, |len| floats(comm, dtype, len), || ints(comm, len), onto, &counts);
    let of_pair = pair.all_gather(floats(comm, dtype, len)).unwrap().into_data();
    let numbers = comm.all_reduce_numbers(&[me as f64, 0.5], Reduce::Mean).unwrap();
    let found = found.into_iter().chain([("all_gather of a part of the ranks", of_pair)]);
    found.map(|(name, data)| (name, values(data))).chain([("all_reduce_numbers", numbers)]).collect()
}

/// The cases of a dtype and a length.
const CASES: [(DType, usize); 4] = [(DType::F32, 60), (DType::F32, 9001), (DType::BF16, 60), (DType::F16, 60)];

/// Compares each collective's result on a rank with that on the CPU.
fn compare(rank: usize, found: Vec<(&str, Vec<f64>)>, expected: Vec<(&str, Vec<f64>)>, dtype: DType, len: usize) {
    assert_eq!(found.len(), expected.len());
    for ((name, found), (_, expected)) in found.into_iter().zip(expected) {
        assert!(found == expected, "{name} of {len} {dtype:?} on rank {rank}");
    }
}

#[test]
fn every_collective_by_nccl_gives_what_threads_give_on_the_cpu() {
    let Some((devices, _alone)) = devices() else { return };
    for (dtype, len) in CASES {
        let expected = on_ranks(devices.len(), |comm| everything(comm, dtype, len));
        let found = by_nccl(devices.clone(), |comm| everything(comm, dtype, len));
        for (rank, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            compare(rank, found, expected, dtype, len);
        }
    }
}

/// `mpirun` starts this program again, with this as the only test.
#[cfg(feature = "mpi")]
#[test]
fn every_collective_of_processes_by_nccl_gives_what_threads_give_on_the_cpu() {
    const NAME: &str = "every_collective_of_processes_by_nccl_gives_what_threads_give_on_the_cpu";
    let Some((devices, _alone)) = devices() else { return };
    let Some(world) = comm::MpiWorld::start().unwrap() else {
        let program = std::env::current_exe().unwrap();
        let mut mpirun = test_kit::mpirun(devices.len());
        assert!(mpirun.arg(program).args(["--exact", NAME, "--nocapture"]).status().unwrap().success());
        return;
    };
    let done = world.run(devices[world.rank()].clone(), comm::TIMEOUT, |comm| {
        let comm = comm.by_nccl(comm::TIMEOUT)?;
        for (dtype, len) in CASES {
            let mut expected = on_ranks(devices.len(), |comm| everything(comm, dtype, len));
            compare(comm.rank(), everything(&comm, dtype, len), expected.swap_remove(comm.rank()), dtype, len);
        }
        Ok::<_, CommError>(())
    });
    done.unwrap();
}

/// As a training does that gathers parameters and reduces gradients while it computes. Without an order of their own,
/// calls of two communicators would wait for each other.
#[test]
fn threads_of_a_rank_use_their_own_groups_at_once() {
    let Some((devices, _alone)) = devices() else { return };
    const CALLS: usize = 12;
    let n = devices.len();
    by_nccl(devices, |comm| {
        let groups: Vec<_> = (0..2).map(|_| comm.split(0).unwrap()).collect();
        thread::scope(|scope| {
            for (number, group) in groups.iter().enumerate() {
                scope.spawn(move || {
                    for call in 0..CALLS {
                        let mine = Tensor::<1>::full([50], (call + number) as f32, group.device());
                        let sum = group.all_reduce(mine, Reduce::Sum).unwrap();
                        assert_eq!(values(sum.into_data()), vec![(n * (call + number)) as f64; 50]);
                    }
                });
            }
        });
    });
}

/// All ranks send to both neighbors before they receive, as the stages of a pipeline may, while another thread runs
/// collectives of the same ranks.
#[test]
fn messages_cross_each_other_and_collectives() {
    let Some((devices, _alone)) = devices() else { return };
    const CALLS: usize = 6;
    by_nccl(devices, |comm| {
        let (group, (me, n)) = (comm.split(0).unwrap(), (comm.rank(), comm.world_size()));
        let neighbors = [(me + 1) % n, (me + n - 1) % n];
        thread::scope(|scope| {
            scope.spawn(|| {
                for call in 0..CALLS {
                    let sum = group.all_reduce(Tensor::<1>::full([50], call as f32, group.device()), Reduce::Sum);
                    assert_eq!(values(sum.unwrap().into_data()), vec![(n * call) as f64; 50]);
                }
            });
            for call in 0..CALLS {
                let len = 100 * call; // the first is empty
                for to in neighbors {
                    comm.send(floats(comm, DType::F32, len), to).unwrap();
                    comm.send(ints(comm, 9), to).unwrap();
                    // These move by the engine below.
                    comm.send(Tensor::<1>::from_data(floats_of(me, 3), &Device::flex()), to).unwrap();
                }
                for from in neighbors {
                    let on_card = comm.recv::<Float>(from).unwrap();
                    assert_eq!(on_card.device(), *comm.device());
                    assert_eq!(values(on_card.into_data()), values(floats_of(from, len)), "from {from} to {me}");
                    let numbers = values(comm.recv::<Int>(from).unwrap().into_data());
                    assert_eq!(numbers, (0..9).map(|i| (from * 1000 + i) as f64).collect::<Vec<_>>());
                    let on_cpu = comm.recv::<Float>(from).unwrap();
                    assert_eq!(on_cpu.device(), Device::flex());
                    assert_eq!(values(on_cpu.into_data()), values(floats_of(from, 3)));
                }
            }
        });
    });
}

/// Rank 0 sends and goes on to a collective, which waits for rank 1, which waits for the message.
#[test]
fn a_collective_that_waits_for_the_receiver_does_not_hold_up_the_message() {
    let Some((devices, _alone)) = devices() else { return };
    by_nccl(devices, |comm| {
        for call in 0..3 {
            match comm.rank() {
                0 => comm.send(floats(comm, DType::F32, 50), 1).unwrap(),
                1 => {
                    thread::sleep(Duration::from_millis(200));
                    let found = comm.recv::<Float>(0).unwrap();
                    assert_eq!(values(found.into_data()), values(floats_of(0, 50)), "{call}");
                }
                _ => {}
            }
            comm.all_gather(floats(comm, DType::F32, 5)).unwrap();
        }
    });
}

#[test]
fn ranks_that_disagree_fail_or_are_late_end_the_others_calls() {
    let Some((devices, _alone)) = devices() else { return };
    let start = Instant::now();
    let run = |work: fn(&Communicator) -> Result<(), CommError>| {
        run_ranks(devices.clone(), Duration::from_secs(20), move |comm| {
            let comm = comm.by_nccl(Duration::from_secs(20))?;
            comm.all_gather(floats(&comm, DType::F32, 5))?;
            work(&comm)
        })
        .unwrap_err()
        .to_string()
    };
    let other_lengths = run(|comm| comm.all_gather(floats(comm, DType::F32, 5 + comm.rank())).map(drop));
    assert!(other_lengths.contains("ranks disagree"), "{other_lengths}");
    let narrow = run(|comm| comm.all_gather(ints(comm, 5).cast(DType::I16)).map(drop));
    assert!(narrow.contains("NCCL has no 16-bit integers"), "{narrow}");
    let apart = run(|comm| match comm.rank() {
        1 => comm.all_gather(Tensor::<1>::zeros([5], &Device::flex())).map(drop),
        _ => comm.all_gather(floats(comm, DType::F32, 5)).map(drop),
    });
    assert!(apart.contains("some tensors are on the CPU and some on the GPU"), "{apart}");
    let failed = run(|comm| match comm.rank() {
        1 => Err(CommError::Engine("on purpose".into())),
        _ => comm.all_gather(floats(comm, DType::F32, 5)).map(drop),
    });
    assert!(failed.contains("on purpose"), "{failed}");
    // The postman of rank 0 waits for rank 2, which never asks, and rank 2 for rank 1.
    let failed = run(|comm| match comm.rank() {
        0 => comm.send(floats(comm, DType::F32, 5), 2),
        1 => Err(CommError::Engine("on purpose".into())),
        _ => comm.recv::<Float>(1).map(drop),
    });
    assert!(failed.contains("on purpose"), "{failed}");
    let shared = vec![devices[0].clone(), devices[1].clone(), devices[1].clone()];
    let shared = run_ranks(shared, HANG, |comm| comm.by_nccl(HANG).map(drop)).unwrap_err().to_string();
    assert!(shared.contains("ranks 1 and 2 both have cuda:1"), "{shared}");
    assert!(start.elapsed() < Duration::from_secs(20), "nobody has waited for the timeout");
}
