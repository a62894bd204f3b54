//! Times collectives in one step and in two ([`comm::HierarchicalEngine`]) on processes that are on several machines:
//!
//! ```text
//! mpirun -n 4 hierarchical ROUNDS MIB...
//! ```
//!
//! For tensors of so many MiB, it prints the median seconds of ROUNDS calls, both ways in turn, with the fastest call in
//! parentheses. It fails unless the bytes that a rank receives from other machines are those of the closed forms.
//! `scripts/mpi-hierarchical.sh` emulates the machines.

use burn::tensor::{Device, Tensor};
use comm::{CommError, Communicator, HierarchicalEngine, MpiWorld, Reduce};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(120);

/// Sizes of the parts of an `all_to_all`, in KiB. All take two steps here, on few ranks too.
const PARTS: [usize; 2] = [1, 8];

fn main() -> ExitCode {
    let numbers: Option<Vec<usize>> = std::env::args().skip(1).map(|number| number.parse().ok()).collect();
    let (Some([rounds, sizes @ ..]), Ok(Some(world))) = (numbers.as_deref(), MpiWorld::start()) else {
        eprintln!("usage: mpirun -n RANKS hierarchical ROUNDS MIB...");
        return ExitCode::FAILURE;
    };
    match measure(&world, *rounds, sizes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            world.abort_process(1)
        }
    }
}

/// The ranks of the world, with calls in one step and in two.
struct Ranks {
    flat: Communicator,
    levels: Communicator,
    machines: usize,
    rounds: usize,
}

fn measure(world: &MpiWorld, rounds: usize, sizes: &[usize]) -> Result<(), CommError> {
    let machines = world.machines().iter().collect::<BTreeSet<_>>().len();
    let engine = Arc::new(world.engine(Device::flex(), TIMEOUT));
    let levels = Communicator::new(HierarchicalEngine::saving(engine.clone(), 0));
    let ranks = Ranks { flat: Communicator::new(engine), levels, machines, rounds };
    ranks.flat.expect_agreement(); // as a training step does
    let (n, me, h) = (world.world_size(), world.rank(), machines);
    let g = n / h;
    if me == 0 {
        println!(
            "| {h} machines x {g} ranks | tensor | one step, s | two steps, s | ratio | MB into a machine, one step | two steps |"
        );
        println!("|---|---:|---:|---:|---:|---:|---:|");
    }
    for mib in sizes {
        let len = mib * (1 << 20) / 4 / n * n;
        let full = Tensor::<1>::ones([len], &Device::flex());
        let (shard, full) = (|| full.clone().slice(0..len / n), || full.clone());
        let (bytes, what) = (4 * len, format!("{mib} MiB"));
        // Bytes that a rank receives from other machines: (1 - 1/H) F, times g in one step, divided by g ranks.
        let [flat, levels] = [bytes - bytes / h, (bytes - bytes / h) / g];
        ranks.compare("all_gather", &what, [flat, levels], |comm| comm.all_gather(shard()).map(drop))?;
        ranks.compare("reduce_scatter", &what, [flat, levels], |comm| comm.reduce_scatter(full()).map(drop))?;
        let twice = [2 * flat, 2 * levels];
        ranks.compare("all_reduce", &what, twice, |comm| comm.all_reduce(full(), Reduce::Sum).map(drop))?;
    }
    for kib in PARTS {
        let part = kib * 256;
        let across = 4 * part * (n - g);
        // The sizes of the parts travel too: g + 1 numbers from each other machine.
        let sizes = if h > 1 && g > 1 { 8 * (g + 1) * (h - 1) } else { 0 };
        let rows = Tensor::<1>::ones([n * part], &Device::flex());
        let call = |comm: &Communicator| comm.all_to_all(rows.clone(), &vec![part; n]).map(drop);
        ranks.compare("all_to_all", &format!("parts of {kib} KiB"), [across, across + sizes], call)?;
    }
    Ok(())
}

impl Ranks {
    /// Times a call both ways, and checks the bytes that this rank receives from other machines.
    fn compare(
        &self,
        name: &'static str,
        tensor: &str,
        across: [usize; 2],
        call: impl Fn(&Communicator) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        let mut seconds = [vec![], vec![]];
        for round in 0..=self.rounds {
            for (i, comm) in [&self.flat, &self.levels].into_iter().enumerate() {
                let received = |comm: &Communicator| comm.traffic().0.get(name).map_or(0, |traffic| traffic.across);
                let before = received(comm);
                self.flat.barrier()?;
                let start = Instant::now();
                call(comm)?;
                let elapsed = start.elapsed().as_secs_f64();
                assert_eq!(received(comm) - before, across[i] as u64, "{name} on rank {}", comm.rank());
                let slowest = self.flat.all_reduce_numbers(&[elapsed], Reduce::Max)?[0];
                if round > 0 {
                    seconds[i].push(slowest); // the first round connects
                }
            }
        }
        let [(flat, fastest_flat), (levels, fastest_levels)] = seconds.map(median_and_fastest);
        let per_machine = across.map(|bytes| (bytes * self.flat.world_size() / self.machines) as f64 / 1e6);
        if self.flat.rank() == 0 {
            let [one, two] = per_machine;
            let seconds = format!("{flat:.4} ({fastest_flat:.4}) | {levels:.4} ({fastest_levels:.4})");
            println!("| `{name}` | {tensor} | {seconds} | {:.2} | {one:.2} | {two:.2} |", flat / levels);
        }
        Ok(())
    }
}

fn median_and_fastest(mut seconds: Vec<f64>) -> (f64, f64) {
    seconds.sort_by(f64::total_cmp);
    (seconds[seconds.len() / 2], seconds[0])
}
