//! The figures of a plan, for a reader.

use crate::config::Config;
use crate::format::{bytes, count, human};
use crate::plan::step_plan::{DeviceMemory, Figures, help};
use plan::Cluster;

/// Seconds of a step from which its times are given in seconds.
const LONG: f64 = 10.0;
/// What is known of the accuracy; docs/plan.md has the tables.
pub const ACCURACY: &str = "GPU rates are checked with runs of other programs, not of Kiln: expect 10 to 20% of error";

/// What `train plan` prints.
pub fn text(config: &Config, cluster: &Cluster, figures: &Figures) -> String {
    let gpus = config.parallel.gpus;
    let nodes = count(cluster.nodes_of(gpus), "node");
    let place = match cluster.is_cpu() {
        true => {
            let cores = count(cluster.device.cpu_cores, "core");
            format!("{} on {nodes} of {}, {cores} each", count(gpus, "rank"), cluster.name)
        }
        false => format!("{gpus} x {} ({nodes} of {})", cluster.name, cluster.devices_per_node),
    };
    let mut text = format!("{}: {} parameters, {place}\n", config.describe_model(), human(config.parameter_count()));
    let (unit, scale) = if figures.time.step < LONG { ("ms", 1e3) } else { ("s ", 1.0) };
    let line = |name: &str, seconds: f64| {
        format!("  {name:<26}{:>10.2} {unit}{:>7.1}%\n", scale * seconds, 100.0 * seconds / figures.time.step)
    };
    text += &format!(
        "\nstep{:>34.2} {unit}   {} tokens, {} tokens/s, {} per rank, {:.1}% MFU\n",
        scale * figures.time.step,
        human(figures.tokens_per_step),
        human(figures.tokens_per_second as usize),
        human((figures.tokens_per_second / gpus as f64) as usize),
        100.0 * figures.mfu,
    );
    text += &line("computation", figures.time.compute);
    for (axes, seconds) in &figures.time.exposed {
        text += &line(&format!("waiting for {axes}"), *seconds);
    }
    text += &line("waiting for stages", figures.time.bubble);
    if !cluster.is_cpu() {
        text += &format!("  {ACCURACY}\n");
    }
    text += &memory(&figures.memory, cluster);
    if !figures.memory.fits {
        text += &format!("\n{}\n", help(config, cluster));
    }
    text
}

/// The rows of memory, and what is too much.
fn memory(memory: &DeviceMemory, cluster: &Cluster) -> String {
    let has = cluster.device.memory as usize;
    let whose = if cluster.is_cpu() { "the ranks of a node" } else { "the fullest device" };
    let mut text = format!("\nmemory of {whose}: {} of {}\n", bytes(memory.most), bytes(has));
    for (name, count) in &memory.rows {
        text += &format!("  {name:<26}{:>13}\n", bytes(*count));
    }
    let too_much = |needs: usize, has: usize| match needs.saturating_sub(has) {
        0 => String::new(),
        over => format!("  This does not fit: {} too much. --find looks for layouts that do.\n", bytes(over)),
    };
    text += &too_much(memory.most, has);
    let Some(host) = memory.host else { return text };
    text += &match cluster.host_memory.map(|has| has as usize) {
        Some(has) => format!("memory of a node's CPUs: {} of {}\n{}", bytes(host), bytes(has), too_much(host, has)),
        None => {
            format!(
                "memory of a node's CPUs: {}; the cluster does not say how much there is (host_memory)\n",
                bytes(host)
            )
        }
    };
    text
}
