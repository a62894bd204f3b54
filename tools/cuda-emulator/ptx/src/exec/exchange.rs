//! Exchanges within a warp, and the wait of `.sync` instructions for the lanes of their mask.

use super::machine::{Flow, Machine};
use super::span::each;
use crate::code::{Exchange, ExchangeOp, NONE, Src};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;

/// Which lanes execute a `.sync` instruction now.
pub(super) enum Sync {
    /// These, and the group goes on.
    All(u32),
    /// These, and then the next group is chosen: the lanes are placed already.
    Some(u32),
    /// None yet.
    Wait,
}

impl Machine<'_, '_> {
    /// Gathers the lanes that a mask names. `members` is [`NONE`] for all live lanes.
    pub fn gather(&mut self, members: Src, mask: u32) -> Result<Sync, Fault> {
        let live = self.warp.live;
        let first = mask.trailing_zeros() as usize;
        let masks = if members == NONE { [live; LANES] } else { *self.row(members) };
        let named = masks[first];
        if mask == self.mask && named & live == mask && (members == NONE || uniform(&masks, mask)) {
            return Ok(Sync::All(mask));
        }
        let mut same = 0;
        each(mask, |lane| same |= u32::from(masks[lane] == named) << lane);
        let stranger = same & !named;
        if stranger != 0 {
            self.lane = stranger.trailing_zeros() as usize;
            let what = format!("lane {} executes this with the mask {named:#010x}, which does not name it", self.lane);
            return Err(Fault::new(FaultKind::Mask, what));
        }
        // Lanes with other masks come here again; those that the guard leaves out go on.
        self.warp.place(self.mask, self.pc);
        self.warp.place(self.mask & !mask, self.pc + 1);
        each(same, |lane| self.warp.members[lane] = named);
        self.warp.waiting |= same;
        let here = self.warp.together(first);
        if named & live & !here != 0 {
            self.warp.ready &= !same;
            return Ok(Sync::Wait);
        }
        self.warp.waiting &= !here;
        self.warp.ready |= here;
        self.warp.place(here, self.pc + 1);
        Ok(if here == self.mask { Sync::All(here) } else { Sync::Some(here) })
    }

    pub fn exchange(&mut self, exchange: &Exchange, mask: u32) -> Result<Flow, Fault> {
        if exchange.op == ExchangeOp::ActiveMask {
            self.set(exchange.d, mask, &[mask; LANES]);
            return Ok(Flow::Next);
        }
        let (lanes, flow) = match self.gather(exchange.members, mask)? {
            Sync::All(lanes) => (lanes, Flow::Next),
            Sync::Some(lanes) => (lanes, Flow::Select),
            Sync::Wait => return Ok(Flow::Select),
        };
        self.exchange_now(exchange, lanes);
        Ok(flow)
    }

    fn exchange_now(&mut self, exchange: &Exchange, mask: u32) {
        use ExchangeOp as E;
        let truth = |condition: bool| if condition { u32::MAX } else { 0 };
        match exchange.op {
            E::ShflUp | E::ShflDown | E::ShflBfly | E::ShflIdx => self.shuffle(exchange, mask),
            E::VoteAll => {
                let votes = self.predicate(exchange.pred);
                self.set_predicate(exchange.p, mask, truth(votes & mask == mask));
            }
            E::VoteAny => {
                let votes = self.predicate(exchange.pred);
                self.set_predicate(exchange.p, mask, truth(votes & mask != 0));
            }
            E::VoteUni => {
                let votes = self.predicate(exchange.pred) & mask;
                self.set_predicate(exchange.p, mask, truth(votes == mask || votes == 0));
            }
            E::VoteBallot => {
                let votes = self.predicate(exchange.pred);
                self.set(exchange.d, mask, &[votes & mask; LANES]);
            }
            E::MatchAny | E::MatchAll => {
                let values = if exchange.wide { *self.wide(exchange.a) } else { self.row(exchange.a).map(u64::from) };
                let mut found = [0; LANES];
                each(mask, |lane| {
                    each(mask, |other| found[lane] |= u32::from(values[other] == values[lane]) << other);
                });
                if exchange.op == E::MatchAll {
                    let all = found[mask.trailing_zeros() as usize] == mask;
                    found = [if all { mask } else { 0 }; LANES];
                    self.set_predicate(exchange.p, mask, truth(all));
                }
                self.set(exchange.d, mask, &found);
            }
            E::WarpSync | E::ActiveMask => {}
            E::Elect => {
                let leader = mask.trailing_zeros();
                self.set(exchange.d, mask, &[leader; LANES]);
                self.set_predicate(exchange.p, mask, 1 << leader);
            }
            _ => self.reduce(exchange, mask),
        }
    }

    fn reduce(&mut self, exchange: &Exchange, mask: u32) {
        use ExchangeOp as E;
        let values = *self.row(exchange.a);
        let mut sum = None;
        each(mask, |lane| {
            let value = values[lane];
            sum = Some(sum.map_or(value, |sum: u32| match exchange.op {
                E::ReduxAdd => sum.wrapping_add(value),
                E::ReduxMin { signed: true } => (sum as i32).min(value as i32) as u32,
                E::ReduxMin { .. } => sum.min(value),
                E::ReduxMax { signed: true } => (sum as i32).max(value as i32) as u32,
                E::ReduxMax { .. } => sum.max(value),
                E::ReduxAnd => sum & value,
                E::ReduxOr => sum | value,
                _ => sum ^ value,
            }));
        });
        self.set(exchange.d, mask, &[sum.unwrap_or(0); LANES]);
    }

    /// `shfl`: bits 0 to 4 of `c` clamp, bits 8 to 12 are a mask of the lanes' numbers that segments the warp.
    fn shuffle(&mut self, exchange: &Exchange, mask: u32) {
        use ExchangeOp as E;
        let (values, by, how) = (*self.row(exchange.a), *self.row(exchange.b), *self.row(exchange.c));
        let (mut out, mut valid) = ([0; LANES], 0);
        for lane in 0..LANES as u32 {
            let i = lane as usize;
            let (by, clamp, segment) = (by[i] & 31, how[i] & 31, how[i] >> 8 & 31);
            let (most, least) = (lane & segment | clamp & !segment, lane & segment);
            let (from, fine) = match exchange.op {
                E::ShflUp => (lane.wrapping_sub(by), lane as i32 - by as i32 >= most as i32),
                E::ShflDown => (lane + by, lane + by <= most),
                E::ShflBfly => (lane ^ by, lane ^ by <= most),
                _ => (least | by & !segment, least | by & !segment <= most),
            };
            out[i] = values[if fine { from as usize & 31 } else { i }];
            valid |= u32::from(fine) << lane;
        }
        self.set(exchange.d, mask, &out);
        self.set_predicate(exchange.p, mask, valid);
    }
}

/// Whether all lanes of a mask have the value of the first.
fn uniform(values: &[u32; LANES], mask: u32) -> bool {
    let first = values[mask.trailing_zeros() as usize];
    let mut same = true;
    if mask == u32::MAX {
        for value in values {
            same &= *value == first;
        }
    } else {
        each(mask, |lane| same &= values[lane] == first);
    }
    same
}
