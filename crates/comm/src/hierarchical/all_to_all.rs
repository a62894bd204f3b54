//! Many small parts in few messages.
//!
//! A part from one machine's rank to another machine's rank travels by way of the rank of the sender's machine that has
//! the receiver's place:
//!
//! ```text
//! rank (h, i) -> rank (h', j)      inside: (h, i) -> (h, j)   a message holds the parts for all H ranks of column j
//!                                  across: (h, j) -> (h', j)  a message holds the parts from all g ranks of machine h
//! ```
//!
//! A rank then sends H - 1 messages to other machines instead of N - g = (H - 1) g. The bytes across are the same; each
//! rank receives up to B (1 - 1/g) bytes more inside, if it sends B bytes in all.
//!
//! The ranks must agree on the way, and the receiver of a message must know where to cut it. So the sizes of the parts
//! travel first, by the same two steps, with the size of the largest part: one round becomes four. Let o be the fixed time
//! of a message (a part takes two messages, one of them its header), L the wait for a round, and w the bandwidth inside a
//! machine. Two steps pay if
//!
//! ```text
//! 2 o (H - 1)(g - 1) - 3 L > B (1 - 1/g) / w
//! ```
//!
//! With estimates of o = 10 us (TCP) and L = 100 us, (H - 1)(g - 1) must be more than 15. At 8 x 8, with w = 1 GB/s, B/N
//! must be less than 12 KB. On emulated machines, two steps are slower at 16 ranks or fewer (9 messages saved). At 8 x 8
//! (49 saved), parts of 1 KiB take 0.76 of the time in one step, of 8 KiB 0.94, and of 32 KiB 1.07.

use super::{HierarchicalEngine, Levels};
use crate::engine::Metered;
use crate::{Collective, Cost, Engine, Payload, Signature};
use burn::tensor::{DType, Device, TensorData};

/// The largest part, in bytes, that takes two steps, if no other part is larger.
pub(super) const SMALL_PART: usize = 8 * 1024;

/// The number of messages that a rank must save by two steps.
pub(super) const FEWEST_SAVED: usize = 32;

/// The sizes of parts in elements.
struct Sizes {
    /// `by_place[i][h]`: of the part from this machine's rank i to machine h's rank with this rank's place.
    by_place: Vec<Vec<usize>>,
    /// `by_machine[h][i]`: of the part from machine h's rank i to this rank.
    by_machine: Vec<Vec<usize>>,
    /// The size of the largest part of all ranks.
    largest: usize,
}

impl HierarchicalEngine {
    /// Returns the number of messages to other machines that a rank saves by two steps.
    pub(super) fn saved_messages(&self) -> usize {
        (self.machines.count() - 1) * (self.machines.per_machine() - 1)
    }

    /// Exchanges parts of any sizes, in two steps if they are small.
    pub(super) fn all_to_all(
        &self,
        signature: &Signature,
        parts: Vec<Option<Payload>>,
    ) -> Metered<Vec<Option<Payload>>> {
        self.agreed(signature, |levels| {
            let parts: Vec<Payload> = parts.into_iter().map(|part| part.expect("one for each rank")).collect();
            let (sizes, cost) = self.sizes(levels, &parts)?;
            let (found, moved) = match sizes.largest * parts[0].dtype().size() {
                ..=SMALL_PART => self.in_two_steps(levels, signature, parts, &sizes)?,
                _ => self.flat.exchange(signature, parts.into_iter().map(Some).collect())?,
            };
            Ok((found, cost + moved))
        })
    }

    /// Tells each rank the sizes of the parts that it will receive or pass on.
    fn sizes(&self, levels: &Levels, parts: &[Payload]) -> Metered<Sizes> {
        let (machines, places) = (self.machines.count(), self.machines.per_machine());
        let own_largest = parts.iter().map(Payload::len).max().unwrap_or(0);
        let for_place = |place| {
            let sizes = self.machines.column(place).into_iter().map(|rank| parts[rank].len());
            sizes.chain([own_largest]).collect()
        };
        let (mut by_place, inside) = exchange_numbers(&*levels.inside, (0..places).map(for_place).collect())?;
        let machine_largest = take_largest(&mut by_place);
        let for_machine =
            |machine| by_place.iter().map(|sizes| sizes[machine]).chain([machine_largest]).collect::<Vec<usize>>();
        let (mut by_machine, across) = exchange_numbers(&*levels.across, (0..machines).map(for_machine).collect())?;
        let largest = take_largest(&mut by_machine);
        Ok((Sizes { by_place, by_machine, largest }, inside + across))
    }

    fn in_two_steps(
        &self,
        levels: &Levels,
        signature: &Signature,
        parts: Vec<Payload>,
        sizes: &Sizes,
    ) -> Metered<Vec<Option<Payload>>> {
        let (machines, places) = (self.machines.count(), self.machines.per_machine());
        let for_place = |place| {
            let column = self.machines.column(place);
            Some(Payload::cat(column.into_iter().map(|rank| parts[rank].clone()).collect()))
        };
        let (by_place, inside) = levels.inside.exchange(signature, (0..places).map(for_place).collect())?;
        let by_place = cut(by_place, &sizes.by_place);
        let for_machine = |machine: usize| {
            let parts = by_place.iter().map(|of_rank| of_rank[machine].clone());
            Some(Payload::cat(parts.collect()))
        };
        let (by_machine, across) = levels.across.exchange(signature, (0..machines).map(for_machine).collect())?;
        let mut found = vec![None; self.world_size()];
        for (machine, parts) in cut(by_machine, &sizes.by_machine).into_iter().enumerate() {
            for (place, part) in parts.into_iter().enumerate() {
                found[self.machines.ranks(machine)[place]] = Some(part);
            }
        }
        Ok((found, inside + across))
    }
}

/// Sends list i to rank i and returns the list of each rank; all lists have the same length.
fn exchange_numbers(level: &dyn Engine, lists: Vec<Vec<usize>>) -> Metered<Vec<Vec<usize>>> {
    let len = lists.iter().map(Vec::len).sum();
    let signature = Signature { collective: Collective::AllToAll, len: Some(len), dtype: Some(DType::I64) };
    let payload = |list: Vec<usize>| {
        let (len, numbers) = (list.len(), list.into_iter().map(|number| number as i64).collect::<Vec<_>>());
        Some(Payload::from_data(TensorData::new(numbers, [len]), &Device::flex()))
    };
    let (found, cost): (_, Cost) = level.exchange(&signature, lists.into_iter().map(payload).collect())?;
    let numbers = |payload: Payload| payload.into_data().iter::<i64>().map(|number| number as usize).collect();
    Ok((found.into_iter().flatten().map(numbers).collect(), cost))
}

/// Removes the last number of each list and returns the largest of them.
fn take_largest(lists: &mut [Vec<usize>]) -> usize {
    lists.iter_mut().filter_map(Vec::pop).max().unwrap_or(0)
}

/// Cuts each message into parts of these sizes.
fn cut(messages: Vec<Option<Payload>>, sizes: &[Vec<usize>]) -> Vec<Vec<Payload>> {
    let parts = |(message, sizes): (Payload, &Vec<usize>)| {
        let mut start = 0;
        let part = sizes.iter().map(|size| {
            start += size;
            message.clone().slice(start - size..start)
        });
        part.collect()
    };
    messages.into_iter().flatten().zip(sizes).map(parts).collect()
}
