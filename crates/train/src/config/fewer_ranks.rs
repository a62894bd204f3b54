//! The layout of a run that has lost some of its ranks.

use super::{Config, ParallelConfig};

impl Config {
    /// The same run on at most `ranks` ranks: the same global batch and steps, and the layout nearest to the configured
    /// one. `None` if there is none.
    ///
    /// ```text
    /// configured      left   continues on
    /// dp 4            3      dp 3
    /// dp 2 x tp 2     3      dp 1 x tp 2
    /// pp 2 x tp 2     3      tp 2          (pp 1)
    /// pp 2 x tp 2     1      1 rank        (pp 1, tp 1)
    /// dp 4, ep 4      3      dp 2, ep 2
    /// ```
    ///
    /// Data ranks go first. If the other axes alone need more ranks than are left, they are halved, or divided by their
    /// smallest divisor, one at a time: `ep` until it is 1, then `cp`, `pp` and `tp`.
    pub(crate) fn on_fewer_ranks(&self, ranks: usize) -> Option<Self> {
        let with = |parallel| Self { parallel, ..self.clone() };
        let fits = |config: &Self| config.validate().is_ok();
        let mut axes = self.parallel.clone();
        loop {
            let each = axes.pp.max(1) * axes.cp.max(1) * axes.tp.max(1);
            let worlds = (1..=ranks / each).rev().map(|dp| dp * each);
            let mut found = worlds.flat_map(|gpus| {
                let axes = &axes;
                replicas(axes).map(move |dp_replicate| {
                    with(ParallelConfig { gpus, dp_replicate, dp_shard: None, ..axes.clone() })
                })
            });
            if let Some(config) = found.find(fits) {
                return Some(config);
            }
            drop(found);
            let ParallelConfig { ep, cp, pp, tp, .. } = &mut axes;
            let axis = [ep, cp, pp, tp].into_iter().find(|size| **size > 1)?;
            *axis /= smallest_divisor(*axis);
            if axes.pp != self.parallel.pp {
                axes.stages = None;
                if axes.pp == 1 {
                    axes = axes.without_pipeline();
                }
            }
        }
    }
}

/// The numbers of replicas to try, from the configured one down.
fn replicas(parallel: &ParallelConfig) -> impl Iterator<Item = Option<usize>> + use<> {
    let given = parallel.dp_replicate;
    let fewer = given.into_iter().flat_map(|given| (1..given).rev().filter(move |n| given % n == 0));
    [given].into_iter().chain(fewer.map(Some))
}

fn smallest_divisor(n: usize) -> usize {
    (2..=n).find(|divisor| n.is_multiple_of(*divisor)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Source};

    /// `gpus, pp, dp_replicate, tp, cp, ep` of a layout.
    type Layout = [usize; 6];

    fn on(preset: &str, overrides: &[&str], ranks: usize) -> Option<Layout> {
        let overrides: Vec<String> = overrides.iter().map(|given| format!("parallel.{given}")).collect();
        let config = Config::load(Source::Preset(preset), &overrides).unwrap();
        config.validate().unwrap();
        let fewer = config.on_fewer_ranks(ranks)?;
        assert_eq!((&fewer.train, &fewer.optim), (&config.train, &config.optim));
        let parallel = &fewer.parallel;
        Some([parallel.gpus, parallel.pp, parallel.dp_replicate.unwrap_or(1), parallel.tp, parallel.cp, parallel.ep])
    }

    #[test]
    fn data_ranks_go_first_and_then_ep_cp_pp_and_tp() {
        let all = |preset, overrides: &[&str]| [4, 3, 2, 1].map(|ranks| on(preset, overrides, ranks).unwrap());
        assert_eq!(all("gpt2", &["gpus=4"]), [4, 3, 2, 1].map(|gpus| [gpus, 1, 1, 1, 1, 1]));
        let pp_tp = all("gpt2", &["gpus=4", "pp=2", "tp=2"]);
        assert_eq!(pp_tp, [[4, 2, 1, 2, 1, 1], [2, 1, 1, 2, 1, 1], [2, 1, 1, 2, 1, 1], [1, 1, 1, 1, 1, 1]]);
        let dp_tp = all("gpt2", &["gpus=4", "tp=2"]);
        assert_eq!(dp_tp, [[4, 1, 1, 2, 1, 1], [2, 1, 1, 2, 1, 1], [2, 1, 1, 2, 1, 1], [1, 1, 1, 1, 1, 1]]);
        let experts = all("deepseek", &["gpus=4", "ep=4"]);
        assert_eq!(experts, [[4, 1, 1, 1, 1, 4], [2, 1, 1, 1, 1, 2], [2, 1, 1, 1, 1, 2], [1, 1, 1, 1, 1, 1]]);
        let hybrid = all("gpt2", &["gpus=4", "strategy=hybrid_shard", "dp_replicate=2"]);
        assert_eq!(hybrid[..2], [[4, 1, 2, 1, 1, 1], [3, 1, 1, 1, 1, 1]]);
        assert_eq!(on("gpt2", &["gpus=4"], 0), None);
    }
}
