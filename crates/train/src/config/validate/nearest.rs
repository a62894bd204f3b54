//! The nearest layout that a number of ranks can have, where the given one is impossible in several ways.

use super::MAX_RANKS;
use crate::config::{Config, ParallelConfig};
use fsdp::Strategy;

/// A size of a layout: its key, what it is, and how it is set.
type Size = (&'static str, usize, fn(&mut ParallelConfig, usize));

impl Config {
    /// The flags that make the layout one that fits its ranks: of layouts without a larger size that with the fewest
    /// others, and among these the one that is least smaller. None if none is found, or if one flag will do, which the
    /// message on what is wrong names itself.
    pub(super) fn nearest_layout(&self) -> Option<String> {
        let ParallelConfig { gpus, pp, dp_replicate, ep, tp, cp, strategy, .. } = self.parallel;
        if gpus == 0 || gpus > MAX_RANKS {
            return None;
        }
        let replicas = dp_replicate.filter(|_| strategy != Strategy::Ddp);
        let mut sizes: Vec<Size> = vec![
            ("pp", pp, |parallel, size| {
                parallel.stages.take_if(|_| parallel.pp != size);
                parallel.pp = size;
            }),
            ("cp", cp, |parallel, size| parallel.cp = size),
            ("tp", tp, |parallel, size| parallel.tp = size),
            ("ep", ep, |parallel, size| parallel.ep = size),
        ];
        sizes.extend(replicas.map(|replicas| {
            let set: fn(&mut ParallelConfig, usize) = |parallel, size| parallel.dp_replicate = Some(size);
            ("dp_replicate", replicas, set)
        }));
        let mut search = Search { config: self, sizes, best: None, tried: 0 };
        search.descend(&mut vec![]);
        let (Search { sizes, .. }, (_, found)) = (&search, search.best.as_ref()?);
        let changed: Vec<_> = sizes.iter().zip(found).filter(|((_, given, _), found)| given != *found).collect();
        let flag = |((key, ..), size): &(&Size, &usize)| format!("--set parallel.{key}={size}");
        let left = [
            ("stages", self.parallel.stages.is_some() && found[0] != pp),
            ("dp_shard", self.parallel.dp_shard.is_some()),
        ];
        let nulls = left.into_iter().filter(|(_, is)| *is).map(|(key, _)| format!("--set parallel.{key}=null"));
        let flags: Vec<String> = changed.iter().map(flag).chain(nulls).collect();
        (changed.len() > 1).then(|| flags.join(" "))
    }
}

struct Search<'a> {
    config: &'a Config,
    sizes: Vec<Size>,
    best: Option<(Cost, Vec<usize>)>,
    tried: usize,
}

/// Layouts that are tried: more than there are of a thousand ranks, and no more than take a tenth of a second.
const MOST_TRIED: usize = 1000;

/// How many sizes are others, and by how much all are smaller.
type Cost = (usize, f64);

impl Search<'_> {
    /// Tries all divisors of the ranks, up to what is given, for the sizes behind those that are `chosen`, as long as
    /// these cost less than the best.
    fn descend(&mut self, chosen: &mut Vec<usize>) {
        let cost = self.cost(chosen);
        if self.tried == MOST_TRIED || self.best.as_ref().is_some_and(|(best, _)| *best <= cost) {
            return;
        }
        let Some((key, given, _)) = self.sizes.get(chosen.len()).copied() else {
            self.tried += 1;
            if self.fits(chosen) {
                self.best = Some((cost, chosen.clone()));
            }
            return;
        };
        // Experts lie over ranks that other sizes count.
        let left = if key == "ep" { self.config.parallel.gpus } else { self.left(chosen) };
        for size in (1..=given.min(left)).rev().filter(|size| left.is_multiple_of(*size)) {
            chosen.push(size);
            self.descend(chosen);
            chosen.pop();
        }
    }

    /// The ranks that the sizes chosen so far leave.
    fn left(&self, chosen: &[usize]) -> usize {
        let count = self.sizes.iter().zip(chosen).filter(|((key, ..), _)| *key != "ep");
        self.config.parallel.gpus / count.map(|(_, size)| size).product::<usize>()
    }

    fn cost(&self, chosen: &[usize]) -> Cost {
        let pairs = || self.sizes.iter().map(|(_, given, _)| *given).zip(chosen.iter().copied());
        let changed = pairs().filter(|(given, size)| given != size).count();
        (changed, pairs().map(|(given, size)| given as f64 / size as f64).product())
    }

    fn fits(&self, chosen: &[usize]) -> bool {
        let mut config = self.config.clone();
        config.parallel.dp_shard = None; // what the others leave
        self.sizes.iter().zip(chosen).for_each(|((.., set), size)| set(&mut config.parallel, *size));
        config.validate_layout().is_ok() && config.parallel.data_parallel_size() <= config.train.global_batch_size
    }
}
