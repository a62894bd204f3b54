//! Properties of the operations of all ranks, over varying pipelines, calls, units and owners.

use proptest::prelude::*;
use schedule::{
    Action, CallOutline, Cell, Direction, Kind, Op, Outline, Peer, Pipeline, Place, Prefetch, Schedule, Value, lower,
    lower_forward,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A step, and the number of ranks per stage.
#[derive(Debug, Clone)]
struct Step {
    outline: Outline,
    pipeline: Pipeline,
    ranks: usize,
}

impl Step {
    fn places(&self) -> impl Iterator<Item = Place> {
        let ranks = self.ranks;
        (0..self.pipeline.stages() * ranks).map(move |rank| Place { stage: rank / ranks, rank })
    }

    fn lists(&self) -> Vec<(Place, Vec<Op>)> {
        self.places().map(|place| (place, lower(&self.outline, &self.pipeline, place))).collect()
    }

    fn stage_of(&self, call: usize) -> usize {
        let chunk = self.outline.chunks.iter().position(|calls| calls.contains(&call)).unwrap();
        self.pipeline.stage_of(chunk)
    }

    /// The calls that a rank computes.
    fn calls_of(&self, place: Place) -> impl Iterator<Item = usize> {
        let is_mine = move |call: &usize| {
            let owner = self.outline.calls[*call].owner;
            self.stage_of(*call) == place.stage && owner.is_none_or(|owner| owner == place.rank)
        };
        (0..self.outline.calls.len()).filter(is_mine)
    }
}

fn prefetch() -> impl Strategy<Value = Prefetch> {
    prop::sample::select(vec![Prefetch::None, Prefetch::Pre, Prefetch::Post])
}

/// Generates calls per chunk, the unit of each call, and for each unit whether it is gathered.
fn calls(chunks: usize) -> impl Strategy<Value = (Vec<usize>, Vec<usize>, Vec<bool>)> {
    prop::collection::vec(1usize..4, chunks).prop_flat_map(|counts| {
        let calls = counts.iter().sum::<usize>();
        let units = prop::collection::vec(0..calls, calls);
        (
            Just(counts),
            prop_oneof![Just((0..calls).collect()), units],
            prop::collection::vec(prop::bool::weighted(0.9), calls),
        )
    })
}

prop_compose! {
    /// Generates the steps of pipelines, and with one stage also those of calls with owners.
    fn steps()(
        schedule in prop::sample::select(&Schedule::ALL),
        (stages, micro_batches, ranks) in (1usize..5, 1usize..7, 1usize..4),
        has_owners in any::<bool>()
    )(
        pipeline in Just(match has_owners {
            true => Pipeline::new(Schedule::OneFOneB, 1, 1, micro_batches).unwrap(),
            false => Pipeline::new(schedule, stages, schedule.default_virtual_stages(), micro_batches).unwrap(),
        }),
        (counts, units, gathers) in calls(if has_owners { 1 } else { stages * schedule.default_virtual_stages() }),
        owners in prop::collection::vec(0..ranks, 64),
        again in any::<bool>(),
        recomputes in prop::collection::vec(any::<bool>(), 64),
        (forward_prefetch, backward_prefetch, reduces_once) in (prefetch(), prefetch(), any::<bool>()),
        (has_owners, ranks) in Just((has_owners, ranks))
    ) -> Step {
        let keeps_gathered = pipeline.stages() > 1 || pipeline.schedule().splits_backward();
        let last = units.len() - 1;
        let call = |(i, unit): (usize, &usize)| CallOutline {
            unit: *unit,
            gathers: gathers[*unit],
            gathers_again: gathers[*unit] && again && !keeps_gathered && i < last,
            recomputes: recomputes[i],
            owner: has_owners.then(|| owners[i]),
        };
        let mut end = 0;
        let chunk = |count: &usize| {
            end += count;
            end - count..end
        };
        let calls = units.iter().enumerate().map(call).collect();
        let chunks = counts.iter().map(chunk).collect();
        let outline = Outline { calls, chunks, keeps_gathered, reduces_once, forward_prefetch, backward_prefetch };
        Step { outline, pipeline, ranks }
    }
}

/// Checks that each run has its unit's parameters, and that every slot is filled and freed once.
fn check_slots(step: &Step, ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut filled, mut used) = (HashMap::new(), HashSet::new());
    for op in ops {
        match *op {
            Op::Gather { unit, slot, .. } => {
                prop_assert!(used.insert(slot) && filled.insert(slot, unit).is_none());
            }
            Op::Run { call, slot, .. } => {
                let CallOutline { unit, gathers, .. } = step.outline.calls[call];
                prop_assert_eq!(slot.is_some(), gathers);
                prop_assert!(slot.is_none_or(|slot| filled.get(&slot) == Some(&unit)), "{} has {:?}", op, slot);
            }
            Op::Free { unit, slot } => prop_assert_eq!(filled.remove(&slot), Some(unit)),
            _ => {}
        }
    }
    prop_assert!(filled.is_empty(), "{filled:?} stay");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_run_has_its_parameters_and_none_stay(step in steps(), micro_batches in 1usize..7) {
        for (place, ops) in step.lists() {
            check_slots(&step, &ops)?;
            check_slots(&step, &lower_forward(&step.outline, &step.pipeline, place, micro_batches))?;
        }
    }

    #[test]
    fn each_call_runs_once_per_micro_batch_there_and_back(step in steps()) {
        for (place, ops) in step.lists() {
            let mut runs = BTreeMap::<(usize, usize), String>::new();
            for op in &ops {
                if let Op::Run { kind, call, micro_batch, .. } = op {
                    runs.entry((*call, *micro_batch)).or_default().push_str(&kind.to_string());
                }
            }
            let all = step.calls_of(place).flat_map(|call| (0..step.pipeline.micro_batches()).map(move |i| (call, i)));
            let expected = |(call, i): (usize, usize)| {
                let recomputes = if step.outline.calls[call].recomputes { "R" } else { "" };
                let back = if step.pipeline.schedule().splits_backward() { "IW" } else { "B" };
                ((call, i), format!("F{recomputes}{back}"))
            };
            prop_assert_eq!(runs, all.map(expected).collect::<BTreeMap<_, _>>());
        }
    }

    /// A call that is not gathered again keeps its parameters from its forward to its backward; those do not count.
    #[test]
    fn no_more_is_gathered_at_once_than_the_prefetch_says(step in steps()) {
        let most = |prefetch| if prefetch == Prefetch::Pre { 2 } else { 1 };
        let most = most(step.outline.forward_prefetch).max(most(step.outline.backward_prefetch));
        for (_, ops) in step.lists().into_iter().filter(|_| !step.outline.keeps_gathered) {
            let mut kinds = HashMap::<usize, BTreeSet<String>>::new();
            for op in &ops {
                if let Op::Run { kind, slot: Some(slot), .. } = op {
                    kinds.entry(*slot).or_default().insert(kind.to_string());
                }
            }
            let stays = |slot: &usize| kinds.get(slot).is_some_and(|kinds| kinds.contains("F") && kinds.len() > 1);
            let mut gathered = HashSet::new();
            for op in &ops {
                match op {
                    Op::Gather { slot, .. } if !stays(slot) => _ = gathered.insert(*slot),
                    Op::Free { slot, .. } => _ = gathered.remove(slot),
                    _ => {}
                }
                prop_assert!(gathered.len() <= most);
            }
        }
    }

    #[test]
    fn every_gradient_is_reduced_once(step in steps()) {
        for (place, ops) in step.lists() {
            let m = step.pipeline.micro_batches();
            // Once a rank holds sums of all units, their last reductions may pile up.
            let piles_up = step.outline.reduces_once && m > 1;
            let (mut fresh, mut sums) = (None, HashMap::<(usize, usize), usize>::new());
            let mut in_flight = BTreeMap::new();
            let (mut reduced, mut sent, mut ran) = (HashMap::new(), HashMap::<usize, usize>::new(), None);
            let unit_of = |call: usize| step.outline.calls[call].unit;
            let calls = |unit| step.calls_of(place).filter(|call| unit_of(*call) == unit).count();
            for op in &ops {
                match *op {
                    Op::Run { kind: Kind::Backward | Kind::Weights, call, micro_batch, .. } => {
                        prop_assert!(ran.replace((step.outline.calls[call].unit, micro_batch)).is_none());
                    }
                    Op::Flatten { unit } => {
                        fresh = ran.take();
                        prop_assert_eq!(fresh.map(|(of, _)| of), Some(unit));
                    }
                    Op::Add { unit, micro_batch } => {
                        prop_assert_eq!(fresh.take(), Some((unit, micro_batch)));
                        prop_assert!(in_flight.values().all(|last| piles_up && *last));
                        *sums.entry((unit, micro_batch)).or_default() += 1;
                    }
                    Op::Reduce { unit, micro_batch, sends, last } => {
                        prop_assert_eq!(fresh.take(), Some((unit, micro_batch)));
                        prop_assert!(in_flight.values().all(|last| piles_up && *last));
                        prop_assert!(in_flight.insert(unit, last).is_none());
                        prop_assert_eq!(sums.remove(&(unit, micro_batch)).unwrap_or(0) + 1, calls(unit));
                        prop_assert!(reduced.insert((unit, micro_batch), last).is_none());
                        *sent.entry(unit).or_default() += usize::from(sends);
                        let so_far = reduced.keys().filter(|(of, _)| *of == unit).count();
                        prop_assert_eq!(last, so_far == m);
                        prop_assert_eq!(sends, last || !step.outline.reduces_once);
                    }
                    Op::Scatter { unit, micro_batch, from, last_call } => {
                        let of = fresh.take();
                        prop_assert!(in_flight.is_empty() && in_flight.insert(unit, false).is_none());
                        prop_assert_eq!(of, (from == place.rank).then_some((unit, micro_batch)));
                        prop_assert!(!last_call || reduced.insert((unit, micro_batch), true).is_none());
                    }
                    Op::Wait { unit } => prop_assert!(in_flight.remove(&unit).is_some()),
                    _ => {}
                }
            }
            prop_assert!(fresh.is_none() && ran.is_none() && sums.is_empty() && in_flight.is_empty());
            let here = (0..step.outline.calls.len()).filter(|call| step.stage_of(*call) == place.stage);
            let units: BTreeSet<usize> = here.map(|call| step.outline.calls[call].unit).collect();
            prop_assert_eq!(reduced.len(), units.len() * m);
            let steps = ops.iter().filter_map(|op| if let Op::Step { unit } = op { Some(*unit) } else { None });
            prop_assert_eq!(steps.collect::<Vec<_>>(), units.into_iter().collect::<Vec<_>>());
        }
    }

    /// Otherwise collectives would not match.
    #[test]
    fn the_ranks_of_a_stage_have_the_same_collectives_in_the_same_order(step in steps()) {
        let gathers = |op: &Op| match *op {
            Op::Gather { unit, to, .. } => Some((unit, to)),
            _ => None,
        };
        let reductions =
            |op: &Op| matches!(op, Op::Reduce { .. } | Op::Scatter { .. } | Op::Tie { .. }).then_some(*op);
        let lists = step.lists();
        for pair in lists.windows(2).filter(|pair| pair[0].0.stage == pair[1].0.stage) {
            let [a, b] = [&pair[0].1, &pair[1].1];
            let collectives = |ops: &[Op]| {
                (ops.iter().filter_map(gathers).collect::<Vec<_>>(), ops.iter().filter_map(reductions).collect::<Vec<_>>())
            };
            prop_assert_eq!(collectives(a), collectives(b));
            let has_owners = step.outline.calls.iter().any(|call| call.owner.is_some());
            prop_assert!(has_owners || a == b);
        }
        let ties = |stage: usize| {
            let is_tie = |op: &&Op| matches!(op, Op::Tie { .. });
            lists[stage * step.ranks].1.iter().filter(is_tie).copied().collect::<Vec<_>>()
        };
        for stage in 0..step.pipeline.stages() {
            for tie in ties(stage) {
                let Op::Tie { stages, .. } = tie else { unreachable!() };
                let with = (0..step.pipeline.stages()).filter(|other| ties(*other).contains(&tie)).count();
                prop_assert_eq!((with, stages > 1), (stages, true));
            }
        }
    }

    /// The program of the stage is what [`schedule::simulate`] runs to its end; each action has become its calls.
    #[test]
    fn a_list_follows_the_program_of_its_stage(step in steps()) {
        for (place, ops) in step.lists().into_iter().filter(|_| step.outline.calls[0].owner.is_none()) {
            let chunk = |call| step.outline.chunks.iter().position(|calls| calls.contains(&call)).unwrap();
            let action = |op: &Op| match *op {
                Op::Run { kind, call, micro_batch, .. } => {
                    let (cell, calls) = (Cell { chunk: chunk(call), micro_batch }, &step.outline.chunks[chunk(call)]);
                    match kind {
                        Kind::Forward(_) if call + 1 == calls.end => Some(Action::Forward(cell)),
                        Kind::Backward if call == calls.start => Some(Action::Backward(cell)),
                        Kind::Input if call == calls.start => Some(Action::BackwardInput(cell)),
                        Kind::Weights if call == calls.start => Some(Action::BackwardWeights(cell)),
                        _ => None,
                    }
                }
                Op::Recv { value: Value { way, call, micro_batch }, from: Peer::Stage(from) } => {
                    assert_eq!(from, step.pipeline.stage_of(way.previous(chunk(call), step.outline.chunks.len()).unwrap()));
                    Some(Action::Recv(way, Cell { chunk: chunk(call), micro_batch }))
                }
                Op::Send { value: Value { way, call, micro_batch }, to: Peer::Stage(to) } => {
                    assert_eq!(to, step.stage_of(call));
                    let from = if way == Direction::Forward { call - 1 } else { call + 1 };
                    Some(Action::Send(way, Cell { chunk: chunk(from), micro_batch }))
                }
                _ => None,
            };
            prop_assert_eq!(ops.iter().filter_map(action).collect::<Vec<_>>(), step.pipeline.program_of(place.stage));
            // Another stage waits for what is sent, not for reductions.
            let waits = |pair: &[Op]| matches!(pair, [Op::Wait { .. }, Op::Send { to: Peer::Stage(_), .. }]);
            prop_assert!(!ops.windows(2).any(waits));
        }
    }

    /// Messages are rendezvous here, and a collective ends when all ranks have started it.
    #[test]
    fn ranks_that_own_calls_come_to_their_end(step in steps()) {
        prop_assume!(step.outline.calls[0].owner.is_some());
        let lists = step.lists();
        let (mut next, mut has) = (vec![0; lists.len()], vec![HashSet::new(); lists.len()]);
        let started = |of: &[usize], what: fn(&Op) -> bool| {
            lists.iter().zip(of).map(|((_, ops), next)| ops[..*next].iter().filter(|op| what(op)).count()).min().unwrap()
        };
        let is_gather: fn(&Op) -> bool = |op| matches!(op, Op::Gather { .. });
        let is_scatter: fn(&Op) -> bool = |op| matches!(op, Op::Scatter { .. });
        loop {
            let before = next.clone();
            for (place, ops) in &lists {
                let Some(op) = ops.get(next[place.rank]) else { continue };
                let number = |is: fn(&Op) -> bool, at| ops[..=at].iter().filter(|op| is(op)).count();
                let is_ready = match *op {
                    Op::Run { slot: Some(slot), .. } | Op::Free { slot, .. } => {
                        let fills = |op: &Op| matches!(op, Op::Gather { slot: of, .. } if *of == slot);
                        started(&next, is_gather) >= number(is_gather, ops.iter().position(fills).unwrap())
                    }
                    Op::Wait { .. } => started(&next, is_scatter) >= number(is_scatter, next[place.rank]),
                    Op::Recv { value, from: Peer::Rank(from) } => {
                        let sent = Op::Send { value, to: Peer::Rank(place.rank) };
                        let meets = lists[from].1.get(next[from]) == Some(&sent);
                        next[from] += usize::from(meets);
                        has[place.rank].extend(meets.then_some(value));
                        meets
                    }
                    Op::Send { .. } => false, // its receiver moves both
                    _ => true,
                };
                if let Op::Run { kind: Kind::Forward(_), call, micro_batch, .. } = *op {
                    let value = Value { way: Direction::Forward, call, micro_batch };
                    prop_assert!(call == 0 || has[place.rank].remove(&value));
                    has[place.rank].insert(Value { call: call + 1, ..value });
                }
                next[place.rank] += usize::from(is_ready);
            }
            if next == before {
                break;
            }
        }
        for ((place, ops), next) in lists.iter().zip(next) {
            prop_assert_eq!(next, ops.len(), "rank {} waits at {}", place.rank, ops[next.min(ops.len() - 1)]);
        }
    }
}
