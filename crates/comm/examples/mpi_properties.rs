//! Checks the properties of this crate on processes: `mpirun -n 4 mpi_properties PROPERTY [G]` fails if the property does
//! not hold, on the machines of the processes or as if each machine had G of them. Ranks that are threads provide the
//! expected results. `tests/mpi/run.sh` runs all properties.

use burn::tensor::{DType, Device, Float, Int, Tensor, TensorData};
use comm::{
    Collective, CommError, Communicator, HierarchicalEngine, Kind, MpiWorld, Reduce, Timeouts, run_ranks_on_machines,
};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

type Property = fn(&Communicator) -> Result<(), CommError>;

/// The properties, each with the time that a rank waits for the others in a call; until all have met, it waits [`PATIENCE`].
const PROPERTIES: [(&str, Property, Duration); 13] = [
    ("collectives", collectives, PATIENCE),
    ("small_parts", small_parts, PATIENCE),
    ("mismatch", mismatch, PATIENCE),
    ("abort", abort, PATIENCE),
    ("under_way", under_way, PATIENCE),
    ("slow_to_drop", slow_to_drop, PATIENCE),
    ("leave", leave, PATIENCE),
    ("moving_mail", moving_mail, PATIENCE),
    ("agreed", agreed, PATIENCE),
    ("agreed_leave", agreed_leave, PATIENCE),
    ("agreed_abort", agreed_abort, PATIENCE),
    ("timeout", timeout, SHORT),
    ("panic", panics, PATIENCE),
];

/// Long enough to distinguish a property that waits this long from one that does not.
const PATIENCE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(1);

/// The rank that fails, leaves or is late.
const GUILTY: usize = 2;

/// The machine of each rank.
static MACHINES: OnceLock<Vec<usize>> = OnceLock::new();

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let per_machine: Option<usize> = std::env::args().nth(2).and_then(|count| count.parse().ok());
    let Some((_, property, call)) = PROPERTIES.into_iter().find(|(known, ..)| *known == name) else {
        eprintln!("usage: mpirun -n 4 mpi_properties {}", PROPERTIES.map(|(name, ..)| name).join("|"));
        return ExitCode::FAILURE;
    };
    let world = match MpiWorld::start() {
        Ok(Some(world)) if world.world_size() > GUILTY + 1 => world,
        Ok(_) => {
            eprintln!("start this with mpirun, on {} processes or more", GUILTY + 2);
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let world = match per_machine {
        Some(count) => {
            let machines = (0..world.world_size()).map(|rank| rank / count).collect();
            world.on_machines(machines)
        }
        None => world,
    };
    MACHINES.set(world.machines().to_vec()).expect("set once");
    let timeouts = Timeouts { init: PATIENCE, call };
    let result = match name.as_str() {
        "small_parts" => {
            let engine = HierarchicalEngine::saving(Arc::new(world.engine(Device::flex(), timeouts)), 0);
            property(&Communicator::new(engine)).map_err(|error| error.to_string())
        }
        _ => world.run(Device::flex(), timeouts, |comm| property(&comm)).map_err(|failure| failure.to_string()),
    };
    if let Err(failure) = result {
        eprintln!("{failure}");
        world.abort_process(1);
    }
    if world.rank() == 0 {
        let machines = world.machines().iter().collect::<BTreeSet<_>>().len();
        println!("{name} holds on {} processes, machines: {machines}", world.world_size());
    }
    ExitCode::SUCCESS
}

/// Every collective gives bitwise the same results on processes as on threads, for all dtypes, for short and long
/// tensors, and in groups that are split off.
fn collectives(comm: &Communicator) -> Result<(), CommError> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let work = |comm: &Communicator| -> Result<Vec<TensorData>, CommError> {
        let mut results = vec![];
        for len in [0, 1, 3, 5_000, 40_000] {
            for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
                results.extend(every::<Float>(comm, |len, seed| floats(len, seed).cast(dtype), len)?);
            }
            for dtype in [DType::I64, DType::I32, DType::I8, DType::U8] {
                results.extend(every::<Int>(comm, |len, seed| floats(len, seed).abs().int().cast(dtype), len)?);
            }
        }
        let parity = comm.split(comm.rank() % 2)?;
        let alone = parity.split(parity.rank())?;
        for group in [&parity, &alone, comm] {
            results.extend(every::<Float>(group, floats, 7)?);
        }
        Ok(results)
    };
    let found = work(comm)?;
    let machines = MACHINES.get().expect("set at the start").clone();
    let expected = run_ranks_on_machines(vec![Device::flex(); n], machines, PATIENCE, move |comm| work(&comm));
    let expected = expected.expect("threads do");
    assert_eq!(found.len(), expected[rank].len());
    for (i, (found, expected)) in found.iter().zip(&expected[rank]).enumerate() {
        assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "result {i} on rank {rank}");
        assert!(found.as_bytes() == expected.as_bytes(), "result {i} on rank {rank} has other bits");
    }
    in_step(comm)
}

/// Returns the results of every collective on tensors of about `len` elements.
fn every<K: Kind>(
    comm: &Communicator,
    tensor: impl Fn(usize, usize) -> Tensor<1, K>,
    len: usize,
) -> Result<Vec<TensorData>, CommError> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let root = n - 1;
    let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
    let mut results = vec![
        comm.all_gather(tensor(len, rank))?,
        comm.reduce_scatter(tensor(n * len, rank))?,
        comm.broadcast(tensor(len, rank), root)?,
        comm.all_reduce(tensor(len, rank), Reduce::Sum)?,
        comm.all_reduce(tensor(len, rank), Reduce::Mean)?,
        comm.all_reduce(tensor(len, rank), Reduce::Max)?,
        comm.scatter((rank == root).then(|| (0..n).map(|to| tensor(len + to, to)).collect()), root)?,
    ];
    results.extend(comm.gather(tensor(len + rank, rank), root)?);
    let counts: Vec<usize> = (0..n).map(|to| len + to * rank).collect();
    let (rows, counts) = comm.all_to_all(tensor(counts.iter().sum(), rank), &counts)?;
    results.push(rows);
    comm.barrier()?;
    // Two sends to the next rank precede the receives from the previous one: a send must not wait for its receiver.
    comm.send(tensor(len, rank), next)?;
    comm.send(tensor(len + 1, rank), next)?;
    results.extend([comm.recv(previous)?, comm.recv(previous)?]);
    let counts: Vec<i64> = counts.iter().map(|count| *count as i64).collect();
    let data = results.into_iter().map(Tensor::into_data);
    Ok(data.chain([TensorData::new(counts, [n])]).collect())
}

/// Returns values that differ for every element and seed and use all bits of the mantissa.
fn floats(len: usize, seed: usize) -> Tensor<1> {
    let values = (0..len).map(|i| ((i * 7919 + seed * 104_729) % 9973) as f32 / 99.7 - 31.4);
    Tensor::from_data(TensorData::new(values.collect::<Vec<f32>>(), [len]), &Device::flex())
}

/// Rounds do not mix, whichever rank is late.
fn in_step(comm: &Communicator) -> Result<(), CommError> {
    let (rank, n) = (comm.rank(), comm.world_size());
    for round in 0..400 {
        if (round * 7 + rank * 5) % 11 == 0 {
            thread::sleep(Duration::from_micros(300));
        }
        let mine = Tensor::<1>::from_floats([rank as f32, round as f32], comm.device());
        let sum = comm.all_reduce(mine, Reduce::Sum)?.into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(sum, [(0..n).sum::<usize>() as f32, (n * round) as f32], "round {round} on rank {rank}");
    }
    Ok(())
}

/// Small parts arrive whole and in order, in two steps even on few ranks, with and without headers.
fn small_parts(comm: &Communicator) -> Result<(), CommError> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let group = comm.split(0)?;
    for round in 0..100 {
        if round == 50 {
            group.expect_agreement();
        }
        // In the last rounds, one part is too large for two steps.
        let len = |from: usize, to: usize| match (from, to) {
            (1, 2) if round % 50 > 40 => 5_000,
            _ => (from * 7 + to * 3 + round) % 11,
        };
        let part = |from: usize, to: usize| floats(len(from, to), from * n + to);
        let rows = Tensor::cat((0..n).map(|to| part(rank, to)).collect(), 0);
        let (came, counts) = group.all_to_all(rows, &(0..n).map(|to| len(rank, to)).collect::<Vec<_>>())?;
        assert_eq!(counts, (0..n).map(|from| len(from, rank)).collect::<Vec<_>>());
        let expected = Tensor::cat((0..n).map(|from| part(from, rank)).collect(), 0);
        assert_eq!(came.into_data(), expected.into_data());
    }
    in_step(&group)
}

/// Mismatched calls give the same error on every rank, and the ranks can continue.
fn mismatch(comm: &Communicator) -> Result<(), CommError> {
    let guilty = comm.rank() == GUILTY;
    let ones = |len| Tensor::<1>::ones([len], comm.device());
    let found = [
        comm.all_gather(ones(if guilty { 3 } else { 2 })).map(drop),
        comm.all_gather(ones(2).cast(if guilty { DType::F64 } else { DType::F32 })).map(drop),
        comm.broadcast(ones(1), if guilty { 1 } else { 0 }).map(drop),
        if guilty { comm.barrier() } else { comm.reduce_scatter(ones(12)).map(drop) },
    ];
    let expected = [
        ("all_gather of [2] F32", "all_gather of [3] F32"),
        ("all_gather of [2] F32", "all_gather of [2] F64"),
        ("broadcast from rank 0 of [1] F32", "broadcast from rank 1 of [1] F32"),
        ("reduce_scatter of [12] F32", "barrier"),
    ];
    for (found, (first, other)) in found.into_iter().zip(expected) {
        assert_eq!(found, Err(CommError::Mismatch { first: first.into(), other_rank: GUILTY, other: other.into() }));
    }
    in_step(comm)
}

/// All other ranks learn which rank failed: those that wait for it and those that wait in a group without it.
fn abort(comm: &Communicator) -> Result<(), CommError> {
    let (rank, started) = (comm.rank(), Instant::now());
    let group = comm.split(usize::from(rank == GUILTY || rank == 0))?;
    // A call in flight when the world ends may fail on some ranks only; here all ranks have completed theirs.
    let done = Tensor::<1>::ones([1], comm.device());
    if rank == GUILTY {
        for other in (0..comm.world_size()).filter(|other| *other != GUILTY) {
            comm.recv::<Float>(other)?;
        }
        comm.abort("out of paper");
    } else {
        comm.send(done, GUILTY)?;
    }
    // Rank 1 waits for rank 3, which never arrives, in a group without the guilty rank.
    let found = if rank == 3 { comm.recv::<Float>(GUILTY).map(drop) } else { group.barrier() };
    let collective = if rank == 3 { Collective::Recv(GUILTY) } else { Collective::Barrier };
    let reason = "failed: out of paper".to_string();
    assert_eq!(found, Err(CommError::RankFailed { rank, collective, failed: GUILTY, reason }));
    assert!(started.elapsed() < PATIENCE / 4, "waited {:?}", started.elapsed());
    Ok(())
}

/// If a rank fails between two calls, all others get the error: in the call in flight, which some may complete, or in
/// the next one, which nobody completes.
fn under_way(comm: &Communicator) -> Result<(), CommError> {
    const CALLS: usize = 50;
    let rank = comm.rank();
    // Parts of 4 MB take a while, so ranks are in the middle of a call when the mark arrives.
    let gather = || comm.all_gather(Tensor::<1>::ones([1 << 20], comm.device())).map(drop);
    if rank == GUILTY {
        (0..CALLS).try_for_each(|_| gather())?;
        comm.abort("out of paper");
        return Ok(());
    }
    let mut done = 0;
    let error = loop {
        match gather() {
            Ok(()) => done += 1,
            Err(error) => break error,
        }
    };
    let reason = "failed: out of paper".to_string();
    let collective = Collective::AllGather;
    assert_eq!(error, CommError::RankFailed { rank, collective, failed: GUILTY, reason });
    assert!(done == CALLS || done == CALLS - 1, "rank {rank} has completed {done} calls of {CALLS}");
    Ok(())
}

/// A state that takes long to drop, like one that waits for a slow disk.
struct SlowToDrop;

impl Drop for SlowToDrop {
    fn drop(&mut self) {
        thread::sleep(PATIENCE / 4);
    }
}

/// A failing rank notifies the others before it drops its state.
fn slow_to_drop(comm: &Communicator) -> Result<(), CommError> {
    let (rank, started) = (comm.rank(), Instant::now());
    if rank == GUILTY {
        let _state = SlowToDrop;
        let failed = comm.abort_on_failure(|| Err::<(), _>(CommError::Engine("disk full".into())));
        assert!(failed.is_err());
        return Ok(());
    }
    let (collective, reason) = (Collective::Barrier, "failed: disk full".to_string());
    assert_eq!(comm.barrier(), Err(CommError::RankFailed { rank, collective, failed: GUILTY, reason }));
    assert!(started.elapsed() < PATIENCE / 8, "waited {:?}", started.elapsed());
    Ok(())
}

/// The ranks that still need a rank learn that it has left.
fn leave(comm: &Communicator) -> Result<(), CommError> {
    let (rank, started) = (comm.rank(), Instant::now());
    if rank == GUILTY {
        return comm.barrier();
    }
    // The second barrier ends the world, perhaps while another rank is still in the first one.
    let found = comm.barrier().and_then(|()| comm.barrier());
    let (collective, reason) = (Collective::Barrier, "left before the call was complete".to_string());
    assert_eq!(found, Err(CommError::RankFailed { rank, collective, failed: GUILTY, reason }));
    assert!(started.elapsed() < PATIENCE / 4, "waited {:?}", started.elapsed());
    Ok(())
}

/// Large messages move while the sender, which is outside of MPI until the receiver has them, computes; and they arrive in
/// order, though the receiver asks for them late.
fn moving_mail(comm: &Communicator) -> Result<(), CommError> {
    const MESSAGES: usize = 10;
    let (rank, group) = (comm.rank(), comm.split(comm.rank() / 2)?);
    let id = TensorData::new(vec![i64::from(std::process::id())], [1]);
    let id = group.broadcast(Tensor::<1, Int>::from_data(id, (comm.device(), DType::I64)), 0)?.into_data();
    let received = std::env::temp_dir().join(format!("kiln-moving-mail-{}", id.iter::<i64>().next().unwrap_or(0)));
    if group.rank() == 0 {
        for seed in 0..MESSAGES {
            group.send(floats(1 << 20, seed), 1)?;
        }
        let start = Instant::now();
        while !received.exists() {
            assert!(start.elapsed() < PATIENCE, "rank {} has not received while this rank computes", rank + 1);
            thread::sleep(Duration::from_millis(1));
        }
    } else {
        for seed in 0..MESSAGES {
            assert_eq!(group.recv::<Float>(0)?.into_data(), floats(1 << 20, seed).into_data(), "message {seed}");
        }
        std::fs::write(&received, "").map_err(|error| CommError::Engine(error.to_string()))?;
    }
    comm.barrier()?;
    let _ = std::fs::remove_file(received);
    Ok(())
}

/// A group whose ranks have agreed on their calls has the same results without headers, also among calls with them.
fn agreed(comm: &Communicator) -> Result<(), CommError> {
    let group = comm.split(0)?;
    group.expect_agreement();
    let control = |comm: &Communicator| comm.traffic().0.values().map(|traffic| traffic.control).sum::<u64>();
    let expected = comm.all_reduce(floats(1000, comm.rank()), Reduce::Sum)?.into_data();
    let before = control(comm);
    for _ in 0..100 {
        let sum = group.all_reduce(floats(1000, comm.rank()), Reduce::Sum)?;
        assert_eq!(sum.into_data(), expected);
        group.broadcast(floats(7, 1), 1)?;
    }
    assert_eq!(control(comm), before, "no call has a header");
    collectives(&group)
}

/// The ranks that still need a rank learn that it has left, without headers too.
fn agreed_leave(comm: &Communicator) -> Result<(), CommError> {
    let (rank, started, group) = (comm.rank(), Instant::now(), comm.split(0)?);
    group.expect_agreement();
    let call = || group.all_gather(floats(5, rank));
    if rank == GUILTY {
        return call().map(drop);
    }
    let found = call().and_then(|_| call()).map(drop);
    let (collective, reason) = (Collective::AllGather, "left before the call was complete".to_string());
    assert_eq!(found, Err(CommError::RankFailed { rank, collective, failed: GUILTY, reason }));
    assert!(started.elapsed() < PATIENCE / 4, "waited {:?}", started.elapsed());
    Ok(())
}

/// [`abort`] in a group without headers.
fn agreed_abort(comm: &Communicator) -> Result<(), CommError> {
    let (rank, group) = (comm.rank(), comm.split(0)?);
    group.expect_agreement();
    if rank == GUILTY {
        thread::sleep(SHORT); // the others have split the group by then, and wait in their call
        comm.abort("out of paper");
        return Ok(());
    }
    let (collective, reason) = (Collective::AllGather, "failed: out of paper".to_string());
    let found = group.all_gather(floats(5, rank)).map(drop);
    assert_eq!(found, Err(CommError::RankFailed { rank, collective, failed: GUILTY, reason }));
    Ok(())
}

/// The other ranks learn which rank is late, and so does the late rank itself, except during the first call.
fn timeout(comm: &Communicator) -> Result<(), CommError> {
    let rank = comm.rank();
    let late = || (rank == GUILTY).then(|| thread::sleep(SHORT * 4));
    late();
    comm.barrier()?;
    late();
    let error = comm.all_gather(Tensor::<1>::ones([1], comm.device())).unwrap_err();
    let (collective, missing) = (Collective::AllGather, vec![GUILTY]);
    let reason = format!("did not enter all_gather within {SHORT:?}");
    let named = CommError::RankFailed { rank, collective, failed: GUILTY, reason };
    let waited = CommError::Timeout { rank, collective, missing, timeout: SHORT };
    assert!(error == named || (rank != GUILTY && error == waited), "{error}");
    Ok(())
}

/// This property fails: a rank panics while the others wait for it.
fn panics(comm: &Communicator) -> Result<(), CommError> {
    if comm.rank() == GUILTY {
        panic!("out of ink");
    }
    comm.barrier()
}
