//! What would help a run that does not fit, with figures for this very run.

use super::figures;
use super::need::{self, Machine, Need, micro_batches};
use crate::config::{CheckpointConfig, Config, ParallelConfig, ParamType};
use crate::device;
use crate::words::count;
use fsdp::{ActivationCheckpointing, FloatType, Strategy, Wrap};

/// GB of devices that are to be had, and the most of them that is thought of.
const SIZES: [f64; 3] = [80.0, 141.0, 192.0];
const MOST_DEVICES: usize = 1 << 20;

/// A change helps if it leaves at most this share of the need.
const HELPS: f64 = 0.98;
/// How many pairs of changes are shown.
const MOST_PAIRS: usize = 3;

/// A change of the configuration: what becomes of one, and the flags that a user gives for it.
type Remedy<'a> = Box<dyn Fn(&Config) -> (String, Config) + 'a>;

/// A changed configuration, the flags that change it, and what it needs.
struct Trial {
    flags: Vec<String>,
    config: Config,
    needs: Vec<Need>,
}

/// A run that does not fit, and where it is to fit.
pub struct Patient<'a> {
    pub config: &'a Config,
    pub machine: Machine,
    /// How many devices the machine has.
    pub devices: usize,
    /// The largest share that these take of what is available.
    pub share: &'a dyn Fn(&[Need]) -> f64,
}

impl Patient<'_> {
    /// Lines on what would help. First what fits: single changes, else pairs, else the fewest changes that do. Then
    /// single changes that help, but not enough alone. Where nothing fits: what all changes together come to, and which
    /// devices would do.
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
                    return lines(&all).into_iter().chain([devices_that_do(self.config)]).collect();
                }
            }
        }
        others.sort_by(|a, b| (self.share)(&a.needs).total_cmp(&(self.share)(&b.needs)));
        let fitting = fitting.iter().map(|trial| (trial, "fits"));
        lines(&fitting.chain(others.iter().map(|trial| (trial, "not enough alone"))).collect::<Vec<_>>())
    }

    /// Pairs of changes that fit, those that cost the user least first.
    fn pairs(&self, remedies: &[&Remedy], unchanged: &Trial) -> Vec<Trial> {
        let mut pairs: Vec<_> = (0..remedies.len()).flat_map(|j| (0..j).map(move |i| (i, j))).collect();
        pairs.sort_by_key(|(i, j)| i + j);
        let trials = pairs.into_iter().filter_map(|(i, j)| self.together(&[remedies[i], remedies[j]], unchanged));
        trials.filter(|trial| self.fit(trial)).take(MOST_PAIRS).collect()
    }

    /// As few changes as fit, or else all that help beside each other; None if none does.
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

    /// Several changes, in order of preference. The first one comes last: a micro-batch is as large as the others allow.
    fn together(&self, remedies: &[&Remedy], unchanged: &Trial) -> Option<Trial> {
        let (last, first) = remedies.split_last()?;
        first.iter().rev().try_fold(self.apply(last, unchanged)?, |trial, remedy| self.apply(remedy, &trial))
    }

    /// One more change than those tried; None if it does not help, or makes no valid configuration.
    fn apply(&self, remedy: &Remedy, tried: &Trial) -> Option<Trial> {
        let (flags, config) = remedy(&tried.config);
        let least = HELPS * (self.share)(&tried.needs);
        let needs = self.try_out(&config).filter(|needs| (self.share)(needs) < least)?;
        Some(Trial { flags: [&[flags], &tried.flags[..]].concat(), config, needs })
    }

    /// What a changed configuration would need; None if it is no valid one.
    fn try_out(&self, config: &Config) -> Option<Vec<Need>> {
        config.validate().ok()?;
        let ranks = if self.machine.threads { config.parallel.gpus } else { self.machine.ranks };
        Some(need::of_run(config, Machine { ranks, devices: self.devices.min(ranks), ..self.machine }))
    }

    /// The changes that apply, those that cost the user least first: the same losses in about the same time, the same
    /// losses more slowly, other losses, a run that begins anew if it dies.
    fn remedies(&self) -> Vec<Remedy<'_>> {
        let Config { parallel, train, moe, checkpoint, .. } = self.config;
        let on_cpu = device::meant(&train.device) == "cpu";
        let is_shared = parallel.strategy == Strategy::FullShard && self.config.fsdp().replicas() == 1;
        let replicas = if parallel.dp_replicate.is_some() { " --set parallel.dp_replicate=null" } else { "" };
        let waits = self.config.fsdp().reduces_once();
        let load = moe.as_ref().map_or(1.0, |moe| moe.max_rank_load);
        let saves = [
            ("keep_best=false", train.val_every > 0),
            ("every_minutes=null", checkpoint.every_minutes.is_some()),
            ("keep_every=0", checkpoint.keep_every > 0),
        ];
        let saves = saves.into_iter().filter(|(_, is)| *is).map(|(key, _)| format!(" --set checkpoint.{key}"));
        let saves: String = saves.collect();
        // More ranks where there are devices for them, fewer where they share one.
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
                    let at_the_end =
                        CheckpointConfig { every: 0, every_minutes: None, keep_every: 0, ..config.checkpoint };
                    config.checkpoint = CheckpointConfig { keep_best: false, ..at_the_end };
                }),
            ),
        ];
        remedies.into_iter().filter_map(|(applies, remedy)| applies.then_some(remedy)).collect()
    }

    /// Micro-batches of the largest size that fits, or of one sequence.
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

/// What the run would need with each change, and whether that is enough.
fn lines(trials: &[(&Trial, &str)]) -> Vec<String> {
    let width = trials.iter().map(|(trial, _)| trial.flags.join(" ").len()).max().unwrap_or_default();
    let line = |(trial, enough): &(&Trial, &str)| {
        format!("  {:<width$}  {}, {enough}", trial.flags.join(" "), figures(&trial.needs))
    };
    trials.iter().map(line).collect()
}

/// Of the memory that has to give most.
fn most(needs: &[Need]) -> f64 {
    needs.iter().map(|need| need.of_all.total()).fold(0.0, f64::max)
}

/// How many devices of which size hold the run, as long as each has its own rank and a share of everything; with
/// experts or stages spread over ranks fewer may do.
fn devices_that_do(config: &Config) -> String {
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
    for param in [config.parallel.precision.param(), FloatType::Bf16] {
        config.parallel.precision.param = param.into();
        for size in SIZES {
            let fits = |devices: usize| {
                let mut config = config.clone();
                config.parallel.gpus = devices;
                let alone = Machine { ranks: 1, devices: 1, threads: false };
                most(&need::of_run(&config, alone)) <= size * 1e9
            };
            if fits(MOST_DEVICES) {
                let (mut too_few, mut enough) = (0, MOST_DEVICES);
                while enough - too_few > 1 {
                    let middle = (too_few + enough) / 2;
                    if fits(middle) { enough = middle } else { too_few = middle }
                }
                let bf16 = if param == FloatType::Bf16 { ", bf16" } else { "" };
                let devices = count(enough, "device");
                return format!(
                    "  with full_shard alone it takes at least {devices} of {size} GB (recomputation, micro-batches of 1{bf16})"
                );
            }
        }
    }
    let size = SIZES[SIZES.len() - 1];
    format!(
        "  with full_shard alone no number of devices of {size} GB does: what one rank computes at once is too much"
    )
}
