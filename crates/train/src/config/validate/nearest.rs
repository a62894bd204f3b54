//! Advice for a rejected layout: the nearest layout with the same number of ranks, and the smallest larger number of
//! ranks.

use super::MAX_RANKS;
use crate::config::{Config, ParallelConfig};
use crate::format::count;
use fsdp::Strategy;

/// A size of a layout: its key, its value, and its setter.
type Size = (&'static str, usize, fn(&mut ParallelConfig, usize));

/// A nullable key, and the function that sets it to null.
type Optional = (&'static str, fn(&mut ParallelConfig));

impl Config {
    /// A sentence to append to the reason for a rejection; empty if nothing fits.
    pub(super) fn what_fits(&self) -> String {
        let parallel = &self.parallel;
        if parallel.gpus == 0 || parallel.gpus > MAX_RANKS {
            return String::new();
        }
        match (self.nearest_layout(), self.more_ranks()) {
            (Some(flags), more) => {
                let fit = if flags.len() > 1 { "these sizes fit together" } else { "this size fits" };
                let more = more.map_or(String::new(), |ranks| format!("; or give --gpus {ranks}"));
                format!(". With {} {fit}: {}{more}", count(parallel.gpus, "rank"), flags.join(" "))
            }
            (None, Some(ranks)) => format!(". It fits with --gpus {ranks}"),
            (None, None) => String::new(),
        }
    }

    /// The smallest larger number of ranks that fits the layout unchanged.
    fn more_ranks(&self) -> Option<usize> {
        let ParallelConfig { gpus, pp, tp, cp, .. } = self.parallel;
        let replicas = self.fsdp_without_chunks().replicas();
        // Any number of ranks that fits is a multiple of this.
        let least =
            [pp, tp, cp, replicas].into_iter().try_fold(1usize, usize::checked_mul).filter(|least| *least > 0)?;
        let multiples = (gpus / least + 1..).map_while(|times| least.checked_mul(times));
        let fits = |ranks: &usize| {
            let mut config = self.clone();
            config.parallel.gpus = *ranks;
            config.is_laid_out()
        };
        multiples.take_while(|ranks| *ranks <= MAX_RANKS).take(MOST_TRIED).find(fits)
    }

    /// Flags that make the layout fit its ranks; `None` if none are found. No size grows. The fewest changed sizes win,
    /// then the smallest total reduction.
    fn nearest_layout(&self) -> Option<Vec<String>> {
        let ParallelConfig { pp, dp_replicate, ep, tp, cp, strategy, .. } = self.parallel;
        let is_ddp = strategy == Strategy::Ddp; // the ranks that remain are its replicas
        let replicas = dp_replicate.or((strategy == Strategy::HybridShard).then_some(2)).filter(|_| !is_ddp);
        let mut sizes: Vec<Size> = vec![
            ("pp", pp, |parallel, size| parallel.pp = size),
            ("cp", cp, |parallel, size| parallel.cp = size),
            ("tp", tp, |parallel, size| parallel.tp = size),
            ("ep", ep, |parallel, size| parallel.ep = size),
        ];
        sizes.extend(replicas.map(|replicas| {
            let set: fn(&mut ParallelConfig, usize) = |parallel, size| parallel.dp_replicate = Some(size);
            ("dp_replicate", replicas, set)
        }));
        let optional: [(bool, Optional); 4] = [
            (self.parallel.virtual_stages.is_some(), ("virtual_stages", |parallel| parallel.virtual_stages = None)),
            (self.parallel.stages.is_some(), ("stages", |parallel| parallel.stages = None)),
            (self.parallel.dp_shard.is_some(), ("dp_shard", |parallel| parallel.dp_shard = None)),
            (is_ddp && dp_replicate.is_some(), ("dp_replicate", |parallel| parallel.dp_replicate = None)),
        ];
        let given: Vec<Optional> = optional.into_iter().filter_map(|(is, key)| is.then_some(key)).collect();
        // Those that set the fewest keys to null come first.
        let mut nulls: Vec<Vec<Optional>> = vec![vec![]];
        for key in given {
            nulls.extend(nulls.clone().into_iter().map(|keys| [keys, vec![key]].concat()));
        }
        nulls.sort_by_key(Vec::len);
        let mut search = Search { config: self, sizes, nulls, best: None, tried: 0 };
        search.descend(&mut vec![]);
        let (Search { sizes, .. }, (_, found, nulls)) = (&search, search.best.as_ref()?);
        let others = sizes.iter().zip(found).filter(|((_, given, _), found)| given != *found);
        let sizes = others.map(|((key, ..), size)| format!("--set parallel.{key}={size}"));
        Some(sizes.chain(nulls.iter().map(|(key, _)| format!("--set parallel.{key}=null"))).collect())
    }

    /// Whether the layout passes all layout checks, and the batches fit it.
    pub(crate) fn is_laid_out(&self) -> bool {
        self.validate_layout().is_ok() && self.by_length().iter().all(|config| config.validate_shares().is_ok())
    }
}

struct Search<'a> {
    config: &'a Config,
    sizes: Vec<Size>,
    /// Sets of keys that may be set to null together.
    nulls: Vec<Vec<Optional>>,
    best: Option<(Cost, Vec<usize>, Vec<Optional>)>,
    tried: usize,
}

/// Maximum number of layouts to try: more than a thousand ranks have, and at most a tenth of a second.
const MOST_TRIED: usize = 5000;

/// Number of changed keys, and the factor by which all sizes shrink.
type Cost = (usize, f64);

impl Search<'_> {
    /// Tries, for the sizes after those already `chosen`, all divisors of the ranks up to the given size, as long as
    /// the cost stays below the best.
    fn descend(&mut self, chosen: &mut Vec<usize>) {
        let (changed, smaller) = self.cost(chosen);
        if self.tried == MOST_TRIED || self.best.as_ref().is_some_and(|(best, ..)| *best <= (changed, smaller)) {
            return;
        }
        let Some((key, given, _)) = self.sizes.get(chosen.len()).copied() else {
            self.tried += 1;
            let Some(nulls) = self.nulls.iter().find(|nulls| self.fits(chosen, nulls)).cloned() else { return };
            let cost = (changed + nulls.len(), smaller);
            if self.best.as_ref().is_none_or(|(best, ..)| cost < *best) {
                self.best = Some((cost, chosen.clone(), nulls));
            }
            return;
        };
        // Expert-parallel ranks overlap those that other sizes count.
        let left = if key == "ep" { self.config.parallel.gpus } else { self.left(chosen) };
        for size in (1..=given.min(left)).rev().filter(|size| left.is_multiple_of(*size)) {
            chosen.push(size);
            self.descend(chosen);
            chosen.pop();
        }
    }

    /// The ranks that remain after the sizes chosen so far.
    fn left(&self, chosen: &[usize]) -> usize {
        let count = self.sizes.iter().zip(chosen).filter(|((key, ..), _)| *key != "ep");
        self.config.parallel.gpus / count.map(|(_, size)| size).product::<usize>()
    }

    fn cost(&self, chosen: &[usize]) -> Cost {
        let pairs = || self.sizes.iter().map(|(_, given, _)| *given).zip(chosen.iter().copied());
        let changed = pairs().filter(|(given, size)| given != size).count();
        (changed, pairs().map(|(given, size)| given as f64 / size as f64).product())
    }

    fn fits(&self, chosen: &[usize], nulls: &[Optional]) -> bool {
        let mut config = self.config.clone();
        self.sizes.iter().zip(chosen).for_each(|((_, _, set), size)| set(&mut config.parallel, *size));
        nulls.iter().for_each(|(_, set)| set(&mut config.parallel));
        config.is_laid_out()
    }
}
