//! Advice for a run that does not fit, with figures for that run.

use super::figures;
use super::need::{self, Machine, Need, micro_batches};
use crate::config::{CheckpointConfig, Config, MAX_RANKS, ParallelConfig, ParamType};
use crate::format::count;
use crate::host::device;
use fsdp::{ActivationCheckpointing, FloatType, Strategy, Wrap};

/// A change counts as helpful if it reduces the need to at most this fraction.
const HELPS: f64 = 0.98;
/// Maximum number of pairs of changes shown.
const MOST_PAIRS: usize = 3;

/// A change of the configuration: returns the user's flags and the changed configuration.
type Remedy<'a> = Box<dyn Fn(&Config) -> (String, Config) + 'a>;

/// A changed configuration, the flags that change it, and its memory need.
struct Trial {
    flags: Vec<String>,
    config: Config,
    needs: Vec<Need>,
}

/// A run that does not fit, and the machine it should fit on.
pub struct Patient<'a> {
    pub config: &'a Config,
    pub machine: Machine,
    /// Number of devices of the machine.
    pub devices: usize,
    /// Bytes of the devices that may be had instead, in ascending order.
    pub sizes: &'a [f64],
    /// The largest fraction of the available memory that these needs take.
    pub share: &'a dyn Fn(&[Need]) -> f64,
}

impl Patient<'_> {
    /// Lines of advice.
    ///
    /// First come changes that make the run fit: single ones, otherwise pairs, otherwise the smallest combination. Then
    /// come single changes that help but are not enough alone. If nothing is enough, the lines show all changes
    /// together and the devices that would be enough.
    pub fn advice(&self) -> Vec<String> {
        let needs = need::of_run(self.config, self.machine);
        let unchanged = Trial { flags: vec![], config: self.config.clone(), needs };
        let remedies = self.remedies();
        let tried = remedies.iter().filter_map(|remedy| Some((remedy, self.apply(remedy, &unchanged)?)));
        let (helpful, singles): (Vec<_>, Vec<_>) = tried.unzip();
        let (mut fitting, mut others): (Vec<_>, Vec<_>) = singles.into_iter().partition(|trial| self.fit(trial));
        if fitting.is_empty() {
            fitting = self.pairs(&helpful, &unchanged);
        }
        if fitting.is_empty() {
            match self.combination(&remedies, &unchanged) {
                Some(fewest) if self.fit(&fewest) => fitting.push(fewest),
                all => {
                    let all: Vec<_> = all.iter().map(|all| (all, "not enough")).collect();
                    return lines(&all).into_iter().chain([devices_that_do(self.config, self.sizes)]).collect();
                }
            }
        }
        others.sort_by(|a, b| (self.share)(&a.needs).total_cmp(&(self.share)(&b.needs)));
        let fitting = fitting.iter().map(|trial| (trial, "fits"));
        lines(&fitting.chain(others.iter().map(|trial| (trial, "not enough alone"))).collect::<Vec<_>>())
    }

    /// Pairs of changes that fit, least costly for the user first.
    fn pairs(&self, remedies: &[&Remedy], unchanged: &Trial) -> Vec<Trial> {
        let mut pairs: Vec<_> = (0..remedies.len()).flat_map(|j| (0..j).map(move |i| (i, j))).collect();
        pairs.sort_by_key(|(i, j)| i + j);
        let trials = pairs.into_iter().filter_map(|(i, j)| self.together(&[remedies[i], remedies[j]], unchanged));
        trials.filter(|trial| self.fit(trial)).take(MOST_PAIRS).collect()
    }

    /// The smallest combination that fits, or else all changes that help when combined; `None` if none helps.
    fn combination(&self, remedies: &[Remedy], unchanged: &Trial) -> Option<Trial> {
        let (mut chosen, mut all) = (vec![], None);
        for remedy in remedies {
            let Some(trial) = self.apply(remedy, all.as_ref().unwrap_or(unchanged)) else { continue };
            chosen.push(remedy);
            let enough = self.fit(&trial);
            all = Some(trial);
            if enough {
                break;
            }
        }
        let mut fewest = self.together(&chosen, unchanged).filter(|trial| self.fit(trial)).or(all);
        for i in (0..chosen.len()).rev() {
            let others: Vec<_> = chosen.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, other)| *other).collect();
            if let Some(trial) = self.together(&others, unchanged).filter(|trial| self.fit(trial)) {
                (fewest, chosen) = (Some(trial), others);
            }
        }
        fewest
    }

    fn fit(&self, trial: &Trial) -> bool {
        (self.share)(&trial.needs) <= 1.0
    }

    /// Combines several changes given in order of preference. The first is applied last, so that the micro-batch is as
    /// large as the others allow.
    fn together(&self, remedies: &[&Remedy], unchanged: &Trial) -> Option<Trial> {
        let (last, first) = remedies.split_last()?;
        first.iter().rev().try_fold(self.apply(last, unchanged)?, |trial, remedy| self.apply(remedy, &trial))
    }

    /// Applies one more change; `None` if it does not help or the configuration becomes invalid.
    fn apply(&self, remedy: &Remedy, tried: &Trial) -> Option<Trial> {
        let (flags, config) = remedy(&tried.config);
        let least = HELPS * (self.share)(&tried.needs);
        let needs = self.try_out(&config).filter(|needs| (self.share)(needs) < least)?;
        Some(Trial { flags: [&[flags], &tried.flags[..]].concat(), config, needs })
    }

    /// The needs of a changed configuration; `None` if it is invalid.
    fn try_out(&self, config: &Config) -> Option<Vec<Need>> {
        config.validate().ok()?;
        let ranks = if self.machine.threads { config.parallel.gpus } else { self.machine.ranks };
        Some(need::of_run(config, Machine { ranks, devices: self.devices.min(ranks), ..self.machine }))
    }

    /// The applicable changes, least costly first: same losses in about the same time, same losses but slower,
    /// different losses, and last a run that restarts from the beginning if it dies.
    fn remedies(&self) -> Vec<Remedy<'_>> {
        let Config { parallel, train, moe, checkpoint, .. } = self.config;
        let on_cpu = device::meant(&train.device) == "cpu";
        let is_shared = parallel.strategy == Strategy::FullShard && self.config.fsdp_without_chunks().replicas() == 1;
        let replicas = if parallel.dp_replicate.is_some() { " --set parallel.dp_replicate=null" } else { "" };
        let waits = self.config.fsdp_without_chunks().reduces_once();
        let load = moe.as_ref().map_or(1.0, |moe| moe.max_rank_load);
        let saves = [
            ("keep_best=false", train.val_every > 0),
            ("every_minutes=null", checkpoint.every_minutes.is_some()),
            ("keep_every=0", checkpoint.keep_every > 0),
        ];
        let saves = saves.into_iter().filter(|(_, is)| *is).map(|(key, _)| format!(" --set checkpoint.{key}"));
        let saves: String = saves.collect();
        // More ranks if there are devices for them, fewer if they share one.
        let ranks = self.devices;
        let remedies: Vec<(bool, Remedy)> = vec![
            (true, Box::new(|config| self.with_smaller_micro_batches(config))),
            (
                !is_shared && parallel.gpus > 1,
                remedy(format!("--strategy full_shard{replicas}"), |config| {
                    (config.parallel.strategy, config.parallel.dp_replicate) = (Strategy::FullShard, None);
                }),
            ),
            (
                !parallel.reshard_after_forward,
                set("parallel.reshard_after_forward=true", |config| config.parallel.reshard_after_forward = true),
            ),
            (parallel.wrap != Wrap::Block, set("parallel.wrap=block", |config| config.parallel.wrap = Wrap::Block)),
            (waits, set("parallel.no_sync=false", |config| config.parallel.no_sync = Some(false))),
            (
                parallel.ep > 1 && load > 1.0,
                set("moe.max_rank_load=1", |config| config.moe.iter_mut().for_each(|moe| moe.max_rank_load = 1.0)),
            ),
            (
                parallel.activation_checkpointing != ActivationCheckpointing::Full,
                set("parallel.activation_checkpointing=full", |config| {
                    config.parallel.activation_checkpointing = ActivationCheckpointing::Full;
                }),
            ),
            (
                self.machine.threads && parallel.gpus != ranks,
                remedy(format!("--gpus {ranks}"), move |config| config.parallel.gpus = ranks),
            ),
            (
                !on_cpu && !parallel.cpu_offload,
                set("parallel.cpu_offload=true", |config| config.parallel.cpu_offload = true),
            ),
            (
                parallel.precision.param() == FloatType::Fp32,
                set("parallel.precision.param=bf16", |config| config.parallel.precision.param = ParamType::Bf16),
            ),
            (
                self.config.saves_on_the_way(),
                set(&format!("checkpoint.every=0{saves}"), |config| {
                    let CheckpointConfig { every, every_minutes, keep_every, keep_best, .. } = &mut config.checkpoint;
                    (*every, *every_minutes, *keep_every, *keep_best) = (0, None, 0, false);
                }),
            ),
        ];
        remedies.into_iter().filter_map(|(applies, remedy)| applies.then_some(remedy)).collect()
    }

    /// Uses the largest micro-batch size that fits, or 1.
    fn with_smaller_micro_batches(&self, config: &Config) -> (String, Config) {
        let (now, _) = micro_batches(config);
        let of = |size: usize| {
            let mut config = config.clone();
            config.train.micro_batch_size = Some(size);
            (format!("--set train.micro_batch_size={size}"), config)
        };
        let mut smaller = (2..now).rev().filter(|size| now.is_multiple_of(*size)).map(of);
        let fits =
            |(_, config): &(String, Config)| self.try_out(config).is_some_and(|needs| (self.share)(&needs) <= 1.0);
        smaller.find(fits).unwrap_or_else(|| of(1))
    }
}

fn remedy<'a>(flags: String, change: impl Fn(&mut Config) + 'a) -> Remedy<'a> {
    Box::new(move |config| {
        let mut config = config.clone();
        change(&mut config);
        (flags.clone(), config)
    })
}

fn set(key: &str, change: fn(&mut Config)) -> Remedy<'static> {
    remedy(format!("--set {key}"), change)
}

/// The needs of the run with each change, and whether the change is enough.
fn lines(trials: &[(&Trial, &str)]) -> Vec<String> {
    let width = trials.iter().map(|(trial, _)| trial.flags.join(" ").len()).max().unwrap_or_default();
    let line = |(trial, enough): &(&Trial, &str)| {
        format!("  {:<width$}  {}, {enough}", trial.flags.join(" "), figures(&trial.needs))
    };
    trials.iter().map(line).collect()
}

/// The need of the fullest memory.
fn most(needs: &[Need]) -> f64 {
    needs.iter().map(|need| need.of_all.total()).fold(0.0, f64::max)
}

/// The number and size of devices that hold the run if each has its own rank and everything is fully sharded. With
/// experts or stages spread over ranks, fewer may be enough.
fn devices_that_do(config: &Config, sizes: &[f64]) -> String {
    let mut config = config.clone();
    config.train.device = "cuda".into();
    config.train.micro_batch_size = Some(1);
    let plain = config.parallel.without_pipeline();
    config.parallel = ParallelConfig { strategy: Strategy::FullShard, ep: 1, tp: 1, cp: 1, ..plain };
    (config.parallel.dp_replicate, config.parallel.dp_shard) = (None, None);
    config.parallel.wrap = Wrap::Block;
    config.parallel.cpu_offload = false;
    config.parallel.reshard_after_forward = true;
    config.parallel.activation_checkpointing = ActivationCheckpointing::Full;
    // Each rank needs a sequence.
    let most_devices = MAX_RANKS.min(config.train.global_batch_size);
    for param in [config.parallel.precision.param(), FloatType::Bf16] {
        config.parallel.precision.param = param.into();
        for size in sizes.iter().copied() {
            let fits = |devices: usize| {
                let mut config = config.clone();
                config.parallel.gpus = devices;
                let alone = Machine { ranks: 1, devices: 1, threads: false };
                most(&need::of_run(&config, alone)) <= size
            };
            if fits(most_devices) {
                let (mut too_few, mut enough) = (0, most_devices);
                while enough - too_few > 1 {
                    let middle = (too_few + enough) / 2;
                    if fits(middle) { enough = middle } else { too_few = middle }
                }
                let bf16 = if param == FloatType::Bf16 { ", bf16" } else { "" };
                let devices = count(enough, "device");
                return format!(
                    "  with full_shard alone it takes at least {devices} of {} (recomputation, micro-batches of 1{bf16})",
                    whole_gb(size)
                );
            }
        }
    }
    let largest = whole_gb(sizes.last().copied().unwrap_or_default());
    format!(
        "  with full_shard alone no number of devices of {largest} is enough, up to the {most_devices} that share a step's sequences"
    )
}

/// The size of a device, without decimals.
fn whole_gb(bytes: f64) -> String {
    format!("{:.0} GB", bytes / 1e9)
}
