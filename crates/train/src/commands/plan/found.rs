//! What `train plan --find` prints.

use crate::config::Config;
use crate::format::{bytes, human};
use crate::plan::search::{Found, Layout};
use crate::plan::step_plan::Rates;
use fsdp::ActivationCheckpointing;
use plan::Cluster;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A table of the layouts, what the fastest one waits for, and its configuration.
pub fn text(found: &Found, config: &Config, cluster: &Cluster) -> String {
    let Found { best, valid, examined, .. } = found;
    let mut text = format!(
        "{} on {} of {}: {valid} valid layouts; memory forecast for the {examined} that are estimated to be the fastest\n\n{:>12}{:>14}{:>8}{:>12}   layout\n",
        config.describe_model(),
        config.parallel.gpus,
        cluster.name,
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
            describe(layout)
        );
    }
    let fastest = &best[0];
    let part = |seconds: f64| format!("{:.0}%", 100.0 * seconds / fastest.time.step);
    let mut parts = vec![format!("{} computation", part(fastest.time.compute))];
    parts.extend(fastest.time.exposed.iter().map(|(axes, seconds)| format!("{} waiting for {axes}", part(*seconds))));
    parts.push(format!("{} waiting for stages", part(fastest.time.bubble)));
    text + &format!("\nthe fastest: {}", parts.join(", "))
}

/// The layouts as JSON.
pub fn json(found: &Found, cluster: &Cluster) -> String {
    let layout = |layout: &Layout| {
        let Rates { tokens_per_second, mfu } = Rates::new(&layout.config, cluster, layout.time.step);
        json!({
            "time": layout.time, "memory": layout.memory, "tokens_per_second": tokens_per_second, "mfu": mfu,
            "set": settings(layout),
        })
    };
    let best: Vec<Value> = found.best.iter().map(layout).collect();
    let found = json!({ "valid": found.valid, "examined": found.examined, "best": best });
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
        ("parallel.ep", json!(parallel.ep)),
    ]);
    if parallel.pp > 1 {
        settings.insert("parallel.schedule", json!(parallel.schedule));
        settings.insert("parallel.virtual_stages", json!(parallel.virtual_stages));
    }
    // What the search has cleared.
    for key in ["parallel.dp_shard", "parallel.dp_replicate", "parallel.stages"] {
        settings.insert(key, Value::Null);
    }
    settings
}

/// One line: the axes that are more than one, the strategy, the micro-batch, recomputation.
fn describe(layout: &Layout) -> String {
    let parallel = &layout.config.parallel;
    let axes = [("tp", parallel.tp), ("ep", parallel.ep), ("cp", parallel.cp)];
    let mut parts: Vec<String> =
        axes.iter().filter(|(_, size)| *size > 1).map(|(name, size)| format!("{name} {size}")).collect();
    if parallel.pp > 1 {
        parts.insert(0, format!("pp {} ({})", parallel.pp, parallel.schedule.name()));
    }
    parts.push(parallel.strategy.name().into());
    parts.push(format!("micro-batches of {}", layout.config.micro_batch_size()));
    if parallel.activation_checkpointing != ActivationCheckpointing::None {
        parts.push("recomputation".into());
    }
    parts.join(", ")
}
