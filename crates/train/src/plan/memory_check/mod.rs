//! Checks that a run fits into memory before anything is allocated.
//!
//! ```text
//! config ─> activations ─> fsdp's forecast ─> need: rows of each memory     available: /proc, control groups, CUDA
//!                                               '── more than available? ──> refused, with the table and advice
//! ```
//!
//! Resident state is exact; activations are estimated from what each operation keeps. docs/memory.md compares both with
//! measurements.

mod advice;
pub(crate) mod available;
mod estimate;
pub(super) mod need;
mod rows;
#[cfg(test)]
mod tests;
#[cfg(feature = "vulkan")]
mod vulkan;

use crate::config::Config;
use crate::host::device::Devices;
use crate::host::launch::Launch;
use crate::program;
use advice::Patient;
use available::Available;
pub(crate) use available::Watched;
pub(crate) use estimate::Estimate;
pub(crate) use need::{
    Machine, Need, Pool, at_least, forecast, of_device_alone, of_run, over_step, without_checkpoints,
};
pub(crate) use rows::Row;

/// Fraction of the available memory above which the user is warned.
const NEARLY: f64 = 0.9;
/// Bytes of GPUs that may be had, such as an H100, an H200 and a B200 of 192 GB.
pub(crate) const AVAILABLE_SIZES: [f64; 3] = [80e9, 141e9, 192e9];

/// Rejects a run that needs more memory than is available, unless it is forced; the message has the table and advice.
/// Returns a warning if the run may proceed but memory is scarce or unknown.
pub(crate) fn check(
    config: &Config,
    launch: &Launch,
    devices: &Devices,
    force: bool,
) -> Result<Option<String>, String> {
    let ranks = launch.ranks_here(config.parallel.gpus);
    let machine = Machine { ranks, devices: devices.distinct, threads: launch.processes().is_none() };
    let available = |pool| match pool {
        Pool::Host => available::of_host(),
        Pool::Device => available::of_devices(devices),
    };
    judge(config, machine, devices.here, &available, force)
}

/// Rejects a model whose fp32 parameters do not fit into CPU memory.
pub(crate) fn check_model(config: &Config) -> Result<(), String> {
    let needed = config.parameter_count() as f64 * size_of::<f32>() as f64;
    match available::of_host().filter(|has| needed > has.bytes as f64) {
        Some(has) => {
            Err(format!("the model needs {} of memory, and {} {}", gb(needed), has.source, gb(has.bytes as f64)))
        }
        None => Ok(()),
    }
}

/// Rejects gathering the whole model on rank 0 for a final sample if it does not fit into the memory that is free by
/// then.
pub(crate) fn check_sample(config: &Config) -> Result<(), String> {
    judge_sample(need::of_whole_model(config), available::of_rank_0(&config.train.device))
}

/// [`check_sample`] for a model of `needed` bytes; a tenth of the memory stays free for what is computed from it.
fn judge_sample(needed: f64, available: Option<Available>) -> Result<(), String> {
    match available.filter(|has| needed > NEARLY * has.bytes as f64) {
        Some(has) => Err(format!(
            "no sample is written: it takes the whole model on rank 0, {}, and {} {}: run `{} generate` where the model fits, and set \
             train.sample_tokens to 0",
            gb(needed),
            has.source,
            gb(has.bytes as f64),
            program::name()
        )),
        None => Ok(()),
    }
}

/// [`check`] for a machine with this many devices and this much available memory.
fn judge(
    config: &Config,
    machine: Machine,
    devices: usize,
    available: &dyn Fn(Pool) -> Option<Available>,
    force: bool,
) -> Result<Option<String>, String> {
    let share =
        |need: &Need| available(need.pool).map_or(0.0, |available| need.of_all.total() / available.bytes as f64);
    let needs = need::of_run(config, machine);
    let worst = needs.iter().max_by(|a, b| share(a).total_cmp(&share(b))).expect("a run needs memory");
    let Some(has) = available(worst.pool) else {
        let needs = figures(&needs);
        return Ok(Some(format!("how much memory there is is not known here, and not checked; the run needs {needs}")));
    };
    let (needed, has) = (gb(worst.of_all.total()), format!("{} {}", has.source, gb(has.bytes as f64)));
    match share(worst) {
        share if share <= NEARLY => Ok(None),
        share if share <= 1.0 => Ok(Some(format!("memory is scarce: the run needs about {needed}, and {has}"))),
        _ if force => Ok(Some(format!("--force: the run needs about {needed}, and {has}: it may be killed"))),
        _ => {
            let help = what_helps(config, machine, devices, &AVAILABLE_SIZES, &share);
            Err(format!(
                "the run needs about {needed} of memory, and {has}\n\n{}\n\n{help}\n\n--force tries all the same.",
                table(worst)
            ))
        }
    }
}

/// What would help a run that does not fit on a machine with so many devices, where devices of these bytes may be had;
/// `share` is the part of the available memory that a need takes.
pub(crate) fn what_helps(
    config: &Config,
    machine: Machine,
    devices: usize,
    sizes: &[f64],
    share: &dyn Fn(&Need) -> f64,
) -> String {
    let share = |needs: &[Need]| needs.iter().map(share).fold(0.0, f64::max);
    let advice = Patient { config, machine, devices, sizes, share: &share }.advice().join("\n");
    format!("What would help, and what the run would need then:\n{advice}")
}

/// What takes the most of a memory in a run whose ranks are threads, as a table.
pub(crate) fn table_of(config: &Config) -> String {
    let machine = Machine { ranks: config.parallel.gpus, devices: 1, threads: true };
    let needs = need::of_run(config, machine);
    needs.iter().max_by(|a, b| a.of_all.total().total_cmp(&b.of_all.total())).map_or(String::new(), table)
}

/// The rows in GB, per rank and for all ranks that share the memory.
fn table(need: &Need) -> String {
    let all = match need.ranks {
        1 => String::new(),
        ranks => format!("{:>20}", format!("GB of {ranks} ranks")),
    };
    let line = |name: &str, of_rank: f64, of_all: f64| {
        let all = if need.ranks == 1 { String::new() } else { format!("{:>20.3}", of_all / 1e9) };
        format!("\n  {name:<12}{:>12.3}{all}", of_rank / 1e9)
    };
    let rows = Row::ALL.into_iter().filter(|row| need.of_all[*row] > 0.0);
    let rows = rows.map(|row| line(&row.name(), need.of_rank[row], need.of_all[row]));
    format!(
        "  {:<12}{:>12}{all}{}{}",
        "",
        "GB per rank",
        rows.collect::<String>(),
        line("all", need.of_rank.total(), need.of_all.total())
    )
}

/// The need of each memory.
fn figures(needs: &[Need]) -> String {
    let figure = |need: &Need| match (need.pool, needs.len()) {
        (Pool::Host, 1) => gb(need.of_all.total()),
        (Pool::Host, _) => format!("{} of the CPU's memory", gb(need.of_all.total())),
        (Pool::Device, _) => format!("{} per device", gb(need.of_all.total())),
    };
    needs.iter().map(figure).collect::<Vec<_>>().join(" and ")
}

fn gb(bytes: f64) -> String {
    match bytes / 1e9 {
        gb if gb < 10.0 => format!("{gb:.2} GB"),
        gb if gb < 10_000.0 => format!("{gb:.1} GB"),
        gb => format!("{:.1} TB", gb / 1e3),
    }
}
