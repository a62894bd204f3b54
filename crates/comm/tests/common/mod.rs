//! Helpers that the tests of this crate share.
#![allow(dead_code, reason = "each of them uses some of it")]

use burn::tensor::{DType, Device, Float, Int, Tensor, TensorData};
use comm::{Collective, CommError, Communicator, LocalEngine, Reduce, run_ranks_on_machines};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
pub use test_kit::noise;

/// Long enough to tell a test that waits for it from one that does not.
pub const HANG: Duration = Duration::from_secs(60);

pub const COLLECTIVES: [Collective; 8] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce(Reduce::Sum),
    Collective::Broadcast(1),
    Collective::Gather(1),
    Collective::Scatter(1),
    Collective::AllToAll,
    Collective::Barrier,
];

/// Runs a test of timeouts with longer and longer ones.
pub fn patiently(test: impl Fn(Duration)) {
    test_kit::patiently([20, 200, 2_000, 10_000].map(Duration::from_millis), test);
}

pub fn ranks(n: usize) -> Vec<Device> {
    vec![Device::flex(); n]
}

/// Returns the results of `work` on `n` ranks. Errors of collectives are results too and do not end the group. `work`
/// may borrow, because no rank is left behind.
pub fn on_ranks<T: Send>(n: usize, work: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    on(ranks(n), work)
}

/// Does the same as [`on_ranks`] with one rank per number of a machine, as if the rank were on that machine.
pub fn on_machines<T: Send + 'static>(
    machines: &[usize],
    work: impl Fn(&Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let work = move |comm: Communicator| Ok::<_, CommError>(work(&comm));
    run_ranks_on_machines(ranks(machines.len()), machines.to_vec(), HANG, work).unwrap()
}

/// Does the same as [`on_ranks`] with one rank per device.
pub fn on<T: Send>(devices: Vec<Device>, work: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let start = |engine| scope.spawn(move || work(&Communicator::new(Arc::new(engine))));
        let threads: Vec<_> = LocalEngine::world(devices, HANG).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn tensor(comm: &Communicator, values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, comm.device())
}

/// Returns the bits of a tensor, so that equality means identical values.
pub fn bits(tensor: Result<Tensor<1>, CommError>) -> Vec<u32> {
    tensor.unwrap().into_data().try_to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

pub fn bits_of(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub fn ints(comm: &Communicator, values: &[i64]) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::from(values), (comm.device(), DType::I64))
}

pub fn int_values(tensor: Tensor<1, Int>) -> Vec<i64> {
    tensor.into_data().iter::<i64>().collect()
}

/// Runs a collective on `len` ones.
pub fn call(comm: &Communicator, collective: Collective, len: usize) -> Result<(), CommError> {
    call_with(comm, collective, Tensor::ones([len], comm.device()))
}

pub fn call_with(comm: &Communicator, collective: Collective, tensor: Tensor<1>) -> Result<(), CommError> {
    let n = comm.world_size();
    match collective {
        Collective::AllGather => comm.all_gather(tensor).map(drop),
        Collective::ReduceScatter => comm.reduce_scatter(tensor).map(drop),
        Collective::AllReduce(how) => comm.all_reduce(tensor, how).map(drop),
        Collective::Broadcast(root) => comm.broadcast(tensor, root).map(drop),
        Collective::Gather(root) => comm.gather(tensor, root).map(drop),
        Collective::Scatter(root) => {
            let parts = (comm.rank() == root).then(|| vec![tensor; n]);
            comm.scatter(parts, root).map(drop)
        }
        Collective::AllToAll => {
            let counts = vec![tensor.dims()[0] / n; n];
            comm.all_to_all(tensor, &counts).map(drop)
        }
        Collective::Send(to) => comm.send(tensor, to),
        Collective::Recv(from) => comm.recv::<Float>(from).map(drop),
        Collective::Barrier => comm.barrier(),
    }
}

/// Delays a rank by some microseconds, so that ranks arrive in a different order each time.
pub fn nap(seed: u64, limit: u64) {
    thread::sleep(Duration::from_micros(noise(seed, limit)));
}

/// Returns the result of each collective on a rank, given its tensors of a length. `counts` are the lengths of the parts
/// that it sends to each rank, and `onto` is what it adds to.
pub fn every_collective(
    comm: &Communicator,
    len: usize,
    floats: impl Fn(usize) -> Tensor<1>,
    ints: impl Fn() -> Tensor<1, Int>,
    onto: Tensor<1>,
    counts: &[usize],
) -> Vec<(&'static str, TensorData)> {
    let (me, n) = (comm.rank(), comm.world_size());
    let (next, previous, root) = ((me + 1) % n, (me + n - 1) % n, n / 2);
    let (mine, many, rows) = (|| floats(len), || floats(n * len), || floats(counts.iter().sum()));
    comm.send(mine(), next).unwrap();
    let mut found = vec![
        ("all_gather", comm.all_gather(mine()).unwrap()),
        ("all_gather of nothing", comm.all_gather(mine().slice(0..0)).unwrap()),
        ("reduce_scatter", comm.reduce_scatter(many()).unwrap()),
        ("reduce_scatter_onto", comm.reduce_scatter_onto(many(), Some(onto)).unwrap()),
        ("all_reduce", comm.all_reduce(mine(), Reduce::Sum).unwrap()),
        ("all_reduce, few", comm.all_reduce(mine().slice(0..3), Reduce::Sum).unwrap()),
        ("all_reduce, max", comm.all_reduce(mine(), Reduce::Max).unwrap()),
        ("broadcast", comm.broadcast(mine(), root).unwrap()),
        (
            "scatter",
            comm.scatter((me == root).then(|| (0..n).map(|to| many().slice(to..to + len)).collect()), root).unwrap(),
        ),
        ("all_to_all", comm.all_to_all(rows(), counts).unwrap().0),
        ("recv", comm.recv(previous).unwrap()),
    ];
    found.extend(comm.gather(rows(), root).unwrap().into_iter().map(|part| ("gather", part)));
    let ints = [
        ("all_gather of integers", comm.all_gather(ints()).unwrap()),
        ("all_reduce of integers", comm.all_reduce(ints(), Reduce::Sum).unwrap()),
    ];
    let floats = found.into_iter().map(|(name, tensor)| (name, tensor.into_data()));
    floats.chain(ints.into_iter().map(|(name, tensor)| (name, tensor.into_data()))).collect()
}
