//! Measures NCCL between the GPUs of this machine, as Kiln uses it: one thread a GPU, and the host waits for each call.
//!
//! ```sh
//! cargo run --release -p kiln-nccl --example bandwidth            # up to 256 MiB
//! cargo run --release -p kiln-nccl --example bandwidth -- 1048576 # up to these bytes
//! ```
//!
//! `bytes` and bandwidths are those of nccl-tests. `bytes` are what a rank has of the larger of input and output;
//! `algbw` is bytes by time. `busbw` is what the links carry: `algbw` times 2 (n - 1) / n for an all-reduce, and times
//! (n - 1) / n for the others. Each time is the shortest of several, of the slowest rank, with the launch and the wait.

use cudarc::driver::result::{self, ctx, device, primary_ctx};
use nccl::{Call, Communicator, Element, NcclError, Reduction, UniqueId};
use std::error::Error;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const TRIES: usize = 6;
const LARGEST: usize = 256 << 20;
const NAMES: [&str; 4] = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"];

fn main() -> Result<(), Box<dyn Error>> {
    let largest = std::env::args().nth(1).map_or(Ok(LARGEST), |bytes| bytes.parse())?;
    result::init()?;
    let n = device::get_count()? as usize;
    if n < 2 {
        return Err(format!("{n} GPU: bandwidth between GPUs needs two").into());
    }
    println!("NCCL {} between {n} GPUs: {}", nccl::version()?, device::get_name(device::get(0)?)?);
    println!("{:>14} {:>12} {:>10} {:>12} {:>12}", "call", "bytes", "us", "algbw GB/s", "busbw GB/s");
    let (id, met) = (UniqueId::new()?, Barrier::new(n));
    let times = thread::scope(|scope| {
        let rank = |rank| {
            let met = &met;
            scope.spawn(move || measure(id, rank, n, largest, met).map_err(|error| error.to_string()))
        };
        let threads: Vec<_> = (0..n).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect::<Result<Vec<_>, _>>()
    })?;
    for (row, (name, bytes, _)) in times[0].iter().enumerate() {
        // A try takes as long as its slowest rank.
        let tries = (0..TRIES).map(|i| times.iter().map(|of_rank| of_rank[row].2[i]).max().unwrap_or_default());
        let seconds = tries.min().unwrap_or_default().as_secs_f64();
        let (algbw, rounds) = (*bytes as f64 / seconds / 1e9, if *name == NAMES[0] { 2.0 } else { 1.0 });
        let busbw = algbw * rounds * (n - 1) as f64 / n as f64;
        println!("{name:>14} {bytes:>12} {:>10.1} {algbw:>12.3} {busbw:>12.3}", seconds * 1e6);
    }
    Ok(())
}

/// The call, its bytes, and the time of each try.
type Row = (&'static str, usize, Vec<Duration>);

fn measure(id: UniqueId, rank: usize, n: usize, largest: usize, met: &Barrier) -> Result<Vec<Row>, Box<dyn Error>> {
    let never = || Ok::<(), NcclError>(());
    let mut comm = Communicator::new(id, rank, n, rank, never)?;
    // SAFETY: the GPU exists, and its context is never released.
    unsafe { ctx::set_current(primary_ctx::retain(device::get(rank as i32)?)?)? };
    let (whole, element, how) = (largest.next_multiple_of(4 * n), Element::F32, Reduction::Sum);
    let ones = vec![1.0f32; whole / 4];
    // SAFETY: both have so many bytes.
    let (from, to) = unsafe {
        let (from, to) = (result::malloc_sync(whole)?, result::malloc_sync(whole)?);
        result::memcpy_htod_sync(from, &ones)?;
        result::memcpy_htod_sync(to, &ones)?;
        (from, to)
    };
    let mut rows = vec![];
    for (index, name) in NAMES.into_iter().enumerate() {
        let mut size = (1 << 10).min(largest);
        while size <= largest {
            let part = size.div_ceil(4 * n);
            let (count, bytes) = (n * part, 4 * part);
            let at = |address: u64, peer: usize| address + (peer * bytes) as u64;
            let calls = match index {
                0 => vec![Call::AllReduce { from, to, count, element, how }],
                1 => vec![Call::AllGather { from, to, count: part, element }],
                2 => vec![Call::ReduceScatter { from, to, count: part, element, how }],
                _ => (0..n)
                    .flat_map(|peer| {
                        [
                            Call::Send { from: at(from, peer), bytes, to: peer },
                            Call::Recv { to: at(to, peer), bytes, from: peer },
                        ]
                    })
                    .collect(),
            };
            let mut times = vec![];
            for _ in 0..TRIES {
                met.wait();
                let start = Instant::now();
                // SAFETY: the memory is larger than any call, and nobody else uses it.
                unsafe { comm.run(&calls, || {}, never)? };
                times.push(start.elapsed());
            }
            let mut found = [0.0f32];
            // SAFETY: there are at least four bytes.
            unsafe { result::memcpy_dtoh_sync(&mut found, to)? };
            let expected = if index % 2 == 0 { n as f32 } else { 1.0 };
            if found != [expected] {
                return Err(format!("rank {rank}: {name} of {size} bytes gave {found:?}, not {expected}").into());
            }
            rows.push((name, 4 * count, times));
            size *= 4;
        }
    }
    Ok(rows)
}
