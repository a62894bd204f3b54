//! Times how long a rank waits for a message if the sender, the receiver or both compute while it moves:
//!
//! ```text
//! mpirun -n 2 mpi_overlap ROUNDS MILLISECONDS KIB...
//! ```
//!
//! Rank 0 sends a message and rank 1 receives it. Computing is sleeping here, so that cores are free for messages. It
//! prints the median of the milliseconds that rank 1 spends in `recv`, and the CPU time of both processes per second.

use burn::tensor::{Device, Float, Tensor};
use comm::{CommError, Communicator, MpiWorld};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let numbers: Option<Vec<usize>> = std::env::args().skip(1).map(|number| number.parse().ok()).collect();
    let (Some([rounds, millis, sizes @ ..]), Ok(Some(world))) = (numbers.as_deref(), MpiWorld::start()) else {
        eprintln!("usage: mpirun -n 2 mpi_overlap ROUNDS MILLISECONDS KIB...");
        return ExitCode::FAILURE;
    };
    let result = world.run(Device::flex(), TIMEOUT, |comm| measure(&comm, *rounds, *millis as u64, sizes));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            world.abort_process(1)
        }
    }
}

fn measure(comm: &Communicator, rounds: usize, millis: u64, sizes: &[usize]) -> Result<(), CommError> {
    let compute = || thread::sleep(Duration::from_millis(millis));
    if comm.rank() == 1 {
        println!(
            "| message | nobody computes | sender computes | receiver computes | both compute | CPU, % of a core |"
        );
        println!("|---|---:|---:|---:|---:|---:|");
    }
    for kib in sizes {
        let message = Tensor::<1>::ones([kib * 256], comm.device());
        let mut waits = vec![];
        let (started, cpu_before) = (Instant::now(), cpu_seconds());
        for [sender, receiver] in [[false, false], [true, false], [false, true], [true, true]] {
            let mut seconds = vec![];
            for _ in 0..=rounds {
                comm.barrier()?;
                if comm.rank() == 0 {
                    comm.send(message.clone(), 1)?;
                    if sender {
                        compute();
                    }
                    comm.recv::<Float>(1)?;
                } else {
                    if receiver {
                        compute();
                    }
                    let start = Instant::now();
                    comm.recv::<Float>(0)?;
                    seconds.push(start.elapsed().as_secs_f64());
                    comm.send(Tensor::<1>::ones([1], comm.device()), 0)?;
                }
            }
            seconds.sort_by(f64::total_cmp);
            waits.push(
                seconds.get(seconds.len() / 2).map_or_else(String::new, |seconds| format!("{:.1}", seconds * 1e3)),
            );
        }
        let load = (cpu_seconds() - cpu_before) / started.elapsed().as_secs_f64() * 100.0;
        let loads = comm.all_gather(Tensor::<1>::from_floats([load as f32], comm.device()))?.into_data();
        if comm.rank() == 1 {
            let loads: Vec<String> = loads.iter::<f32>().map(|load| format!("{load:.0}")).collect();
            println!("| {kib} KiB | {} | {} |", waits.join(" | "), loads.join(", "));
        }
    }
    Ok(())
}

/// Returns the CPU time of this process, from Linux.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
