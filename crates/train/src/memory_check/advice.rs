//! What would help a run that does not fit, with figures for this very run.

use super::figures;
use super::need::{self, Machine, Need, micro_batches};
use crate::config::{Config, ParallelConfig};
use crate::device;
use crate::words::count;
use fsdp::{ActivationCheckpointing, FloatType, Strategy, Wrap};

/// GB of devices that are to be had, and the most of them that is thought of.
const SIZES: [f64; 3] = [80.0, 141.0, 192.0];
const MOST_DEVICES: usize = 1 << 20;

/// A change of the configuration as a user gives it.
type Remedy = (String, Box<dyn Fn(&mut Config)>);

/// A run that does not fit, and where it is to fit.
pub struct Patient<'a> {
    pub config: &'a Config,
    pub machine: Machine,
    /// How many devices the machine has.
    pub devices: usize,
    /// Whether there is enough memory for these.
    pub fits: &'a dyn Fn(&[Need]) -> bool,
}

impl Patient<'_> {
    /// Lines on what would help: each change alone, all of them together if none is enough, and otherwise which devices would do.
    pub fn advice(&self) -> Vec<String> {
        let before = most(&need::of_run(self.config, self.machine));
        let (mut lines, mut enough) = (vec![], false);
        let line = |flags: &str, needs: &[Need]| {
            let fits = if (self.fits)(needs) { ", fits" } else { "" };
            format!("  {flags:<48}  {}{fits}", figures(needs))
        };
        let (mut all, mut least, mut flags) = (self.config.clone(), before, vec![]);
        for (flag, change) in self.remedies() {
            let with = |config: &Config| {
                let mut config = config.clone();
                change(&mut config);
                self.try_out(&config).map(|needs| (config, needs))
            };
            if let Some((_, needs)) = with(self.config).filter(|(_, needs)| most(needs) < 0.98 * before) {
                enough |= (self.fits)(&needs);
                lines.push(line(&flag, &needs));
            }
            if let Some((config, needs)) = with(&all).filter(|(_, needs)| most(needs) < 0.98 * least) {
                (all, least) = (config, most(&needs));
                flags.push(flag);
            }
        }
        if !enough && flags.len() > 1 {
            let needs = self.try_out(&all).expect("tried above");
            enough = (self.fits)(&needs);
            lines.push(line("all of these", &needs));
        }
        if !enough {
            lines.push(devices_that_do(self.config));
        }
        lines
    }

    /// What a changed configuration would need; None if it is no valid one.
    fn try_out(&self, config: &Config) -> Option<Vec<Need>> {
        config.validate().ok()?;
        let ranks = if self.machine.threads { config.parallel.gpus } else { self.machine.ranks };
        Some(need::of_run(config, Machine { ranks, devices: self.devices.min(ranks), ..self.machine }))
    }

    fn remedies(&self) -> Vec<Remedy> {
        let Config { parallel, train, moe, .. } = self.config;
        let on_cpu = device::meant(&train.device) == "cpu";
        let mut remedies: Vec<Remedy> = vec![];
        let mut set = |applies: bool, flag: &str, change: fn(&mut Config)| {
            if applies {
                let flag = if flag.starts_with("--") { flag.into() } else { format!("--set {flag}") };
                remedies.push((flag, Box::new(change)));
            }
        };
        let replicas = if parallel.dp_replicate.is_some() { " --set parallel.dp_replicate=null" } else { "" };
        let strategy = format!("--strategy full_shard{replicas}");
        let is_shared = parallel.strategy == Strategy::FullShard && self.config.fsdp().replicas() == 1;
        set(!is_shared && parallel.gpus > 1, &strategy, |config| {
            (config.parallel.strategy, config.parallel.dp_replicate) = (Strategy::FullShard, None);
        });
        let recomputes = parallel.activation_checkpointing == ActivationCheckpointing::Full;
        set(!recomputes, "parallel.activation_checkpointing=full", |config| {
            config.parallel.activation_checkpointing = ActivationCheckpointing::Full;
        });
        set(!parallel.reshard_after_forward, "parallel.reshard_after_forward=true", |config| {
            config.parallel.reshard_after_forward = true;
        });
        set(parallel.wrap != Wrap::Block, "parallel.wrap=block", |config| config.parallel.wrap = Wrap::Block);
        let waits = parallel.no_sync.unwrap_or(parallel.pp > 1);
        set(waits, "parallel.no_sync=false", |config| config.parallel.no_sync = Some(false));
        set(parallel.precision.param == FloatType::Fp32, "parallel.precision.param=bf16", |config| {
            config.parallel.precision.param = FloatType::Bf16;
        });
        let load = moe.as_ref().map_or(1.0, |moe| moe.max_rank_load);
        set(parallel.ep > 1 && load > 1.0, "moe.max_rank_load=1", |config| {
            config.moe.iter_mut().for_each(|moe| moe.max_rank_load = 1.0);
        });
        set(!on_cpu && !parallel.cpu_offload, "parallel.cpu_offload=true", |config| config.parallel.cpu_offload = true);
        let best = if train.val_every > 0 { " --set checkpoint.keep_best=false" } else { "" };
        set(self.config.saves_on_the_way(), &format!("checkpoint.every=0{best}"), |config| {
            (config.checkpoint.every, config.checkpoint.keep_best) = (0, false);
        });

        // More ranks where there are devices for them, fewer where they share one.
        let ranks = self.devices;
        if self.machine.threads && parallel.gpus != ranks {
            remedies.push((format!("--gpus {ranks}"), Box::new(move |config| config.parallel.gpus = ranks)));
        }
        let (micro, _) = micro_batches(self.config);
        let with = |size: usize| {
            let mut config = self.config.clone();
            config.train.micro_batch_size = Some(size);
            self.try_out(&config).is_some_and(|needs| (self.fits)(&needs))
        };
        let smaller = (1..micro).rev().filter(|size| micro.is_multiple_of(*size)).find(|size| with(*size)).unwrap_or(1);
        if smaller < micro {
            let change = move |config: &mut Config| config.train.micro_batch_size = Some(smaller);
            remedies.push((format!("--set train.micro_batch_size={smaller}"), Box::new(change)));
        }
        remedies
    }
}

/// Of the memory that has to give most.
fn most(needs: &[Need]) -> f64 {
    needs.iter().map(|need| need.of_all.total()).fold(0.0, f64::max)
}

/// How many devices of which size hold the run, as long as each has its own rank and a share of everything.
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
    for param in [config.parallel.precision.param, FloatType::Bf16] {
        config.parallel.precision.param = param;
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
                    "  it takes at least {devices} of {size} GB (full_shard, recomputation, micro-batches of 1{bf16})"
                );
            }
        }
    }
    format!("  no number of devices of {} GB does: what one rank computes at once is too much", SIZES[SIZES.len() - 1])
}
