//! Races that traces have shown: which of them do no harm, and what is said of the others.

use std::time::{Duration, Instant};

use super::access::{Kind, Role, Suspect};
use super::machine::Machine;
use super::span::{Addresses, each};
use super::trace::{Trace, UNIT};
use crate::code::{Inst, Step};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;

/// How long another host thread may take from the trace of its write to the write.
const PATIENCE: Duration = Duration::from_millis(200);

impl Machine<'_, '_> {
    /// Ends the launch, or, of a plain write, waits for its values.
    #[cold]
    pub fn suspect(
        &mut self,
        found: &[Suspect],
        at: &Addresses,
        mask: u32,
        size: u32,
        kind: Kind,
        strong: bool,
    ) -> Result<(), Fault> {
        if kind == Kind::Write && !strong && self.role != Role::Strong {
            self.suspects.extend_from_slice(found);
            return Ok(());
        }
        Err(self.race(found[0], at, mask, size, kind, None))
    }

    /// Judges the suspects of a write: fine where the bytes are there already. `byte` tells what a lane writes at its
    /// byte of a number.
    #[cold]
    pub fn judge(
        &mut self,
        at: &Addresses,
        mask: u32,
        size: u32,
        byte: impl Fn(&Self, usize, usize) -> u8,
    ) -> Result<(), Fault> {
        for suspect in std::mem::take(&mut self.suspects) {
            let until = Instant::now() + PATIENCE;
            while !self.is_there(suspect, at, mask, size, &byte) {
                if suspect.other.serial() == self.cluster.ctas[self.cta].serial || Instant::now() > until {
                    return Err(self.race(suspect, at, mask, size, Kind::Write, None));
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Whether memory holds what the lanes write to the words of a suspect.
    fn is_there(
        &self,
        suspect: Suspect,
        at: &Addresses,
        mask: u32,
        size: u32,
        byte: &impl Fn(&Self, usize, usize) -> u8,
    ) -> bool {
        let Some(region) = self.find(suspect.address, 1) else { return true };
        let mut same = true;
        for bit in (0..8 * UNIT).filter(|bit| suspect.words >> (bit / UNIT) & 1 != 0) {
            let address = suspect.address + bit;
            let mut old = [0];
            region.read(address, &mut old);
            each(mask, |lane| {
                if (at[lane]..at[lane] + u64::from(size)).contains(&address) {
                    same &= byte(self, lane, (address - at[lane]) as usize) == old[0];
                }
            });
        }
        same
    }

    /// The fault of a race in global memory, or in shared memory of a block of the cluster.
    #[cold]
    pub fn race(
        &mut self,
        suspect: Suspect,
        at: &Addresses,
        mask: u32,
        size: u32,
        kind: Kind,
        cta: Option<usize>,
    ) -> Fault {
        let verb = match kind {
            Kind::Read => "reads",
            Kind::Write => "writes",
            Kind::Update => "changes",
        };
        let Suspect { address, other, wrote, words } = suspect;
        let first = address + u64::from(words.trailing_zeros()) * UNIT;
        let lanes = (0..LANES).filter(|lane| mask >> lane & 1 != 0);
        let reaches = |lane: &usize| (at[*lane]..at[*lane] + u64::from(size)).contains(&first);
        self.lane = lanes.clone().find(reaches).or(lanes.clone().next()).unwrap_or(0);
        let place = match cta {
            Some(cta) => {
                let [x, y, z] = self.cluster.ctas[cta].index;
                format!(" of shared memory of block ({x}, {y}, {z})")
            }
            None => {
                let place = self.memory_of(first).find(first);
                place.map_or(String::new(), |found| format!(", {} bytes into {found},", first - found.address))
            }
        };
        let did = if wrote { "wrote" } else { "read" };
        let line = self.line_of(other, wrote);
        let own = other.serial() == self.cluster.ctas[self.cta].serial;
        let me = self.warp.number;
        let what = if own {
            format!(
                "warp {me} {verb} {size} bytes at {:#x}{place} that warp {} {did}{line} without a barrier between",
                at[self.lane],
                other.warp()
            )
        } else {
            let [x, y, z] = self.env.block(self.env.races.as_ref().and_then(|races| races.block(other)).unwrap_or(0));
            format!(
                "warp {me} {verb} {size} bytes at {:#x}{place} that warp {} of block ({x}, {y}, {z}) {did}{line}, and \
                 nothing orders the two blocks",
                at[self.lane],
                other.warp()
            )
        };
        Fault::new(FaultKind::Race, what).advice(if own {
            "put a barrier for both warps between the two accesses"
        } else if cta.is_some() {
            "put a barrier of the cluster between the two accesses"
        } else {
            "let the first block write a flag behind a fence that the other reads before, both atomic or volatile; or \
             make two launches"
        })
    }

    /// The line of another access, of which the lowest bits of the step are known.
    fn line_of(&self, other: Trace, wrote: bool) -> String {
        let program = self.env.program;
        let fits = |step: &Step| match &step.inst {
            Inst::Load(_) => !wrote,
            Inst::Store(_) => wrote,
            Inst::Atom(_) | Inst::Copy(_) | Inst::Tensor(_) => true,
            _ => false,
        };
        let steps = (other.step() as usize..program.code.len()).step_by(1 << 12);
        let lines = steps.filter(|step| fits(&program.code[*step])).map(|step| {
            let line = program.lines.get(step).copied().unwrap_or(0);
            format!("line {line} ({})", program.line(line))
        });
        let lines: Vec<String> = lines.collect();
        if lines.is_empty() { String::new() } else { format!(" at {}", lines.join(" or ")) }
    }
}
