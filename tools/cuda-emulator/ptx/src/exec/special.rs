//! Special registers.

use super::machine::Machine;
use crate::code::Special;
use crate::lanes::LANES;

impl Machine<'_, '_> {
    /// The values of a special register.
    pub fn special(&self, what: Special) -> [u32; LANES] {
        let launch = &self.env.launch;
        let block = self.cluster.ctas[self.cta].index;
        let first = self.warp.number as u32 * 32;
        let lanes = |value: fn(u32) -> u32| std::array::from_fn(|lane| value(lane as u32));
        let value = match what {
            Special::Tid(axis) => return std::array::from_fn(|lane| self.env.thread(first + lane as u32)[axis]),
            Special::LaneId => return lanes(|lane| lane),
            Special::MaskEq => return lanes(|lane| 1 << lane),
            Special::MaskLt => return lanes(|lane| (1 << lane) - 1),
            Special::MaskLe => return lanes(|lane| (2 << lane) - 1),
            Special::MaskGt => return lanes(|lane| !((2u64 << lane) as u32).wrapping_sub(1)),
            Special::MaskGe => return lanes(|lane| !((1 << lane) - 1)),
            Special::Ntid(axis) => launch.block[axis],
            Special::Ctaid(axis) => block[axis],
            Special::Nctaid(axis) => launch.grid[axis],
            Special::WarpId => self.warp.number as u32,
            Special::NWarpId => self.env.warps as u32,
            Special::SmId => self.linear(block) % self.env.options.multiprocessors.max(1),
            Special::NSmId => self.env.options.multiprocessors,
            Special::GridId => 1,
            Special::DynamicShared => self.env.dynamic,
            Special::TotalShared => self.env.shared_bytes,
            Special::ClusterId(axis) => block[axis] / launch.cluster[axis],
            Special::NClusterId(axis) => launch.grid[axis] / launch.cluster[axis],
            Special::ClusterCtaid(axis) => block[axis] % launch.cluster[axis],
            Special::ClusterNctaid(axis) => launch.cluster[axis],
            Special::ClusterCtarank => self.cta as u32,
            Special::ClusterNctarank => self.cluster.ctas.len() as u32,
            Special::IsExplicitCluster => u32::from(launch.cluster != [1; 3]),
            Special::DynamicSize => launch.dynamic_shared,
            Special::Workspace { high } => (self.env.workspace >> if high { 32 } else { 0 }) as u32,
            Special::Zero => 0,
        };
        [value; LANES]
    }

    fn linear(&self, block: [u32; 3]) -> u32 {
        let [x, y, _] = self.env.launch.grid;
        block[0].wrapping_add(x.wrapping_mul(block[1].wrapping_add(y.wrapping_mul(block[2]))))
    }
}
