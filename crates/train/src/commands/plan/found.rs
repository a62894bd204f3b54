//! What `train plan --find` prints.

use super::figures::ACCURACY;
use crate::config::Config;
use crate::format::{bytes, count, human};
use crate::plan::search::{Found, Layout};
use crate::plan::step_plan::Rates;
use fsdp::ActivationCheckpointing;
use plan::Cluster;
use schedule::Schedule;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A table of the layouts, what the fastest one waits for, and its configuration.
pub fn text(found: &Found, config: &Config, cluster: &Cluster) -> String {
    let Found { best, valid, examined, smallest_too, without_checkpoints, .. } = found;
    let mut text = format!(
        "{} on {} of {}: {valid} valid layouts; memory forecast for the {examined} that are estimated to be the fastest{}\n\n{:>12}{:>14}{:>8}{:>12}   layout\n",
        config.describe_model(),
        config.parallel.gpus,
        cluster.name,
        if *smallest_too { " or the smallest" } else { "" },
        "step, ms",
        "tokens/s",
        "MFU",
        "memory",
    );
    for layout in best {
        let Rates { tokens_per_second, mfu } = Rates::new(&layout.config, cluster, layout.time.step);
        text += &format!(
            "{:>12.1}{:>14}{:>7.1}%{:>12}   {}\n",
            1e3 * layout.time.step,
            human(tokens_per_second as usize),
            100.0 * mfu,
            bytes(layout.memory.most),
            describe(&layout.config)
        );
    }
    let fastest = &best[0];
    let part = |seconds: f64| format!("{:.0}%", 100.0 * seconds / fastest.time.step);
    let mut parts = vec![format!("{} computation", part(fastest.time.compute))];
    parts.extend(fastest.time.exposed.iter().map(|(axes, seconds)| format!("{} waiting for {axes}", part(*seconds))));
    parts.push(format!("{} waiting for stages", part(fastest.time.bubble)));
    text += &format!("\nthe fastest: {}", parts.join(", "));
    if !cluster.is_cpu() {
        text += &format!("\n{ACCURACY}");
    }
    if *without_checkpoints > 0 {
        text += &format!(
            "\nwithout checkpoints on the way (checkpoint.every=0, checkpoint.keep_best=false) {} that may be faster may fit",
            count(*without_checkpoints, "more layout")
        );
    }
    text
}

/// The layouts as JSON.
pub fn json(found: &Found, config: &Config, cluster: &Cluster) -> String {
    let layout = |layout: &Layout| {
        let Rates { tokens_per_second, mfu } = Rates::new(&layout.config, cluster, layout.time.step);
        json!({
            "time": layout.time, "memory": layout.memory, "tokens_per_second": tokens_per_second, "mfu": mfu,
            "set": settings(layout),
        })
    };
    let best: Vec<Value> = found.best.iter().map(layout).collect();
    let found = json!({
        "model": config.describe_model(), "cluster": cluster.name, "gpus": config.parallel.gpus,
        "device_memory": cluster.device.memory, "host_memory": cluster.host_memory, "valid": found.valid,
        "examined": found.examined, "without_checkpoints": found.without_checkpoints, "best": best,
    });
    serde_json::to_string_pretty(&found).expect("figures are plain data")
}

/// The keys that the search sets, with their values.
pub fn settings(layout: &Layout) -> BTreeMap<&'static str, Value> {
    let parallel = &layout.config.parallel;
    let mut settings = BTreeMap::from([
        ("parallel.gpus", json!(parallel.gpus)),
        ("parallel.strategy", json!(parallel.strategy)),
        ("parallel.activation_checkpointing", json!(parallel.activation_checkpointing)),
        ("train.micro_batch_size", json!(layout.config.micro_batch_size())),
        ("parallel.pp", json!(parallel.pp)),
        ("parallel.tp", json!(parallel.tp)),
        ("parallel.cp", json!(parallel.cp)),
        ("parallel.schedule", json!(parallel.schedule)),
        ("parallel.virtual_stages", json!(parallel.virtual_stages)),
        ("parallel.cpu_offload", json!(parallel.cpu_offload)),
        ("parallel.ep", json!(parallel.ep)),
    ]);
    // The search clears these unless the command line has given them.
    settings.insert("parallel.dp_shard", json!(parallel.dp_shard));
    settings.insert("parallel.dp_replicate", json!(parallel.dp_replicate));
    settings.insert("parallel.stages", json!(parallel.stages));
    settings
}

/// One line: the axes that are more than one, the strategy, the micro-batch, recomputation.
pub fn describe(config: &Config) -> String {
    let parallel = &config.parallel;
    let axes = [("tp", parallel.tp), ("ep", parallel.ep), ("cp", parallel.cp)];
    let mut parts: Vec<String> =
        axes.iter().filter(|(_, size)| *size > 1).map(|(name, size)| format!("{name} {size}")).collect();
    if parallel.pp > 1 {
        let chunks = match (parallel.schedule, parallel.virtual_stages()) {
            (Schedule::Interleaved1F1B, chunks) => format!(", {chunks} chunks each"),
            _ => String::new(),
        };
        parts.insert(0, format!("pp {} ({}{chunks})", parallel.pp, parallel.schedule.name()));
    }
    parts.push(parallel.strategy.name().into());
    parts.push(format!("micro-batches of {}", config.micro_batch_size()));
    match parallel.activation_checkpointing {
        ActivationCheckpointing::None => {}
        ActivationCheckpointing::Full => parts.push("recomputation".into()),
        some => parts.push(format!("recomputation {some}")),
    }
    if parallel.cpu_offload {
        parts.push("cpu_offload".into());
    }
    parts.join(", ")
}
