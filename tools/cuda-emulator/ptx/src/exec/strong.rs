//! What fences and strong accesses to global memory order: warps of a block, and blocks.

use super::access::Role;
use super::machine::Machine;
use crate::code::Space;

impl Machine<'_, '_> {
    /// A fence for other blocks: what comes before it is released by strong writes that follow.
    pub fn fence(&mut self) {
        let shared = &mut self.cluster.ctas[self.cta].shared;
        self.warp.clock.fence(self.warp.number, shared.time);
        shared.time += 1;
    }

    /// A strong write, before it happens.
    pub fn release(&mut self) {
        let Some(races) = &self.env.races else { return };
        let block = &mut self.cluster.ctas[self.cta];
        let clock = block.shared.publish(self.warp);
        block.shared.at_global.join(&clock);
        if !races.several() {
            return;
        }
        let releases = block.releases.get_or_insert_with(|| races.list(block.serial));
        races.release(releases, self.warp.number, &clock);
    }

    /// Does something whose accesses have a role.
    pub fn with_role<T>(&mut self, role: Role, act: impl FnOnce(&mut Self) -> T) -> T {
        self.role = role;
        let done = act(self);
        self.role = Role::Own;
        done
    }

    /// A strong read of a space, after it has happened. Shared memory tells nothing of other blocks but in a cluster.
    #[inline(always)]
    pub fn acquire_at(&mut self, space: Space) {
        if space != Space::Shared || self.cluster.ctas.len() > 1 {
            self.acquire();
        }
    }

    /// A strong read, after it has happened.
    pub fn acquire(&mut self) {
        let Some(races) = &self.env.races else { return };
        let shared = &self.cluster.ctas[self.cta].shared;
        shared.learn(self.warp, &shared.at_global);
        self.warp.clock.acquired = races.acquired();
    }
}
