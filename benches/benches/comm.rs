//! Collectives between four ranks that are threads, next to a copy of the bytes that each rank must at least write.
//!
//! A payload is the full tensor of one rank, in bytes: the result of `all_gather`, the input of `reduce_scatter`, the
//! input and result of `all_to_all`. With 16 to 256 ranks and little data, the time of a call is the time of
//! synchronizing. `peers/comm_gloo.py` measures the same in PyTorch's gloo, and `peers/compare.py` computes the ratio.

use benches::RankThreads;
use burn::tensor::Tensor;
use comm::{Communicator, Reduce};
use criterion::{BenchmarkId, Criterion, Throughput};
use std::hint::black_box;
use std::time::Duration;

const RANKS: usize = 4;

/// Numbers of ranks, and the bytes that each contributes, for the time of synchronizing.
const MANY: [usize; 4] = [16, 64, 128, 256];
const LITTLE: usize = 256 * size_of::<f32>();

const PAYLOADS: [(&str, usize); 5] =
    [("1 KB", 1 << 10), ("16 KB", 16 << 10), ("256 KB", 256 << 10), ("4 MB", 4 << 20), ("64 MB", 64 << 20)];

/// Creates a rank's round for a payload in bytes.
type Work = fn(&Communicator, usize) -> Box<dyn FnMut()>;

/// Name, the divisor n (a rank writes 1/n of the payload), and the call.
const COLLECTIVES: [(&str, usize, Work); 3] =
    [("all_gather", 1, all_gather), ("reduce_scatter", RANKS, reduce_scatter), ("all_to_all", 1, all_to_all)];

fn main() {
    benches::keep_memory();
    let mut criterion = Criterion::default()
        .sample_size(15)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .configure_from_args();
    let ranks = RankThreads::start(RANKS);
    for (name, part, work) in COLLECTIVES {
        let mut group = criterion.benchmark_group(format!("comm/{name}"));
        for (size, payload) in PAYLOADS {
            group.throughput(Throughput::Bytes(payload as u64));
            let mut bench = |function: &str, work: Work, payload: usize| {
                group.bench_function(BenchmarkId::new(function, size), |bencher| {
                    bencher.iter_custom(|rounds| ranks.time(rounds, move |comm| work(comm, payload)));
                });
            };
            bench("collective", work, payload);
            bench("memcpy", memcpy, payload / part);
        }
    }
    drop(ranks);
    for ranks in MANY {
        let threads = RankThreads::start(ranks);
        let calls: [(&str, Work); 4] = [
            ("barrier", |comm, _| {
                let comm = comm.clone();
                Box::new(move || comm.barrier().unwrap())
            }),
            ("all_reduce", |comm, bytes| {
                let (comm, tensor) = (comm.clone(), ones(comm, bytes));
                Box::new(move || drop(black_box(comm.all_reduce(tensor.clone(), Reduce::Sum).unwrap())))
            }),
            ("all_gather", |comm, bytes| {
                let (comm, shard) = (comm.clone(), ones(comm, bytes));
                Box::new(move || drop(black_box(comm.all_gather(shard.clone()).unwrap())))
            }),
            ("reduce_scatter", reduce_scatter),
        ];
        let mut group = criterion.benchmark_group("comm/many");
        for (name, work) in calls {
            group.bench_function(BenchmarkId::new(name, ranks), |bencher| {
                bencher.iter_custom(|rounds| threads.time(rounds, move |comm| work(comm, LITTLE)));
            });
        }
    }
    criterion.final_summary();
}

fn ones(comm: &Communicator, bytes: usize) -> Tensor<1> {
    Tensor::ones([bytes / size_of::<f32>()], comm.device())
}

fn all_gather(comm: &Communicator, payload: usize) -> Box<dyn FnMut()> {
    let (comm, shard) = (comm.clone(), ones(comm, payload / RANKS));
    Box::new(move || drop(black_box(comm.all_gather(shard.clone()).unwrap())))
}

fn reduce_scatter(comm: &Communicator, payload: usize) -> Box<dyn FnMut()> {
    let (comm, full) = (comm.clone(), ones(comm, payload));
    Box::new(move || drop(black_box(comm.reduce_scatter(full.clone()).unwrap())))
}

fn all_to_all(comm: &Communicator, payload: usize) -> Box<dyn FnMut()> {
    let (comm, full) = (comm.clone(), ones(comm, payload));
    let counts = [full.dims()[0] / RANKS; RANKS];
    Box::new(move || drop(black_box(comm.all_to_all(full.clone(), &counts).unwrap())))
}

/// A copy into allocated memory, on every rank at once.
fn memcpy(_comm: &Communicator, bytes: usize) -> Box<dyn FnMut()> {
    let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
    Box::new(move || black_box(&mut to).copy_from_slice(black_box(&from)))
}
