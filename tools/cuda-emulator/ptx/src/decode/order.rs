//! The order of a function's blocks.
//!
//! Lanes at the lowest step run first, and so meet again where the sides of a branch join, if a join comes behind both sides. Compilers
//! put blocks that they think rare to the end of the text, behind the join. So blocks are sorted: each behind all that lead to it, but for
//! the jumps back of loops, and otherwise as the text has them.

use std::collections::BTreeSet;

use super::builder::Builder;
use crate::code::{Inst, NONE, Step};
use crate::options::Class;

struct Block {
    first: usize,
    end: usize,
    next: Vec<usize>,
}

/// Sorts the blocks of the function whose steps begin at `first`.
pub(super) fn sort(builder: &mut Builder<'_>, first: usize) {
    let blocks = blocks(&builder.code, first);
    let order = order(&blocks);
    if order.iter().enumerate().all(|(at, block)| at == *block) {
        return;
    }
    let steps = builder.code.split_off(first);
    let lines = builder.lines.split_off(first);
    let mut steps: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    let mut places = vec![0; blocks.len()];
    for (at, &number) in order.iter().enumerate() {
        let block = &blocks[number];
        places[number] = builder.code.len();
        for step in block.first..block.end {
            builder.code.extend(steps[step - first].take());
            builder.lines.push(lines[step - first]);
        }
        let falls = builder.code.last().is_none_or(|step| !ends(step));
        let follows = number + 1;
        if falls && follows < blocks.len() && order.get(at + 1) != Some(&follows) {
            let target = blocks[follows].first as u32;
            builder.code.push(Step { inst: Inst::Jump { target }, guard: NONE, class: Class::Control, counts: false });
            builder.lines.push(lines[block.end - 1 - first]);
        }
    }
    let moved = |target: &mut u32| *target = places[find(&blocks, *target as usize)] as u32;
    for step in &mut builder.code[first..] {
        match &mut step.inst {
            Inst::Jump { target } => moved(target),
            Inst::Switch { targets, .. } => targets.iter_mut().for_each(moved),
            _ => {}
        }
    }
}

/// Whether nothing goes on behind a step.
fn ends(step: &Step) -> bool {
    step.guard == NONE
        && matches!(step.inst, Inst::Jump { .. } | Inst::Switch { .. } | Inst::Return | Inst::Exit | Inst::Trap)
}

fn targets(step: &Step) -> &[u32] {
    match &step.inst {
        Inst::Jump { target } => std::slice::from_ref(target),
        Inst::Switch { targets, .. } => targets,
        _ => &[],
    }
}

/// The number of the block that begins at a step.
fn find(blocks: &[Block], first: usize) -> usize {
    blocks.partition_point(|block| block.first < first)
}

fn blocks(code: &[Step], first: usize) -> Vec<Block> {
    let mut leaders = BTreeSet::from([first]);
    for (at, step) in code.iter().enumerate().skip(first) {
        leaders.extend(targets(step).iter().map(|target| *target as usize));
        if ends(step) || !targets(step).is_empty() {
            leaders.insert(at + 1);
        }
    }
    leaders.remove(&code.len());
    let starts: Vec<usize> = leaders.into_iter().collect();
    let ends_at = starts.iter().skip(1).copied().chain([code.len()]);
    let mut blocks: Vec<Block> =
        starts.iter().zip(ends_at).map(|(&first, end)| Block { first, end, next: Vec::new() }).collect();
    for number in 0..blocks.len() {
        let last = &code[blocks[number].end - 1];
        let mut next: Vec<usize> = targets(last).iter().map(|target| find(&blocks, *target as usize)).collect();
        if !ends(last) && number + 1 < blocks.len() {
            next.push(number + 1);
        }
        blocks[number].next = next;
    }
    blocks
}

/// Each block behind those that lead to it, the first of the text among those that can come next.
fn order(blocks: &[Block]) -> Vec<usize> {
    // Jumps back are those to a block on the way from the start.
    let (mut on_way, mut seen) = (vec![false; blocks.len()], vec![false; blocks.len()]);
    let mut forward = vec![Vec::new(); blocks.len()];
    let mut waiting = vec![0; blocks.len()];
    let mut way = vec![(0, 0)];
    (on_way[0], seen[0]) = (true, true);
    while let Some((number, at)) = way.last_mut() {
        let number = *number;
        let Some(&next) = blocks[number].next.get(*at) else {
            on_way[number] = false;
            way.pop();
            continue;
        };
        *at += 1;
        if on_way[next] {
            continue;
        }
        forward[number].push(next);
        waiting[next] += 1;
        if !seen[next] {
            (on_way[next], seen[next]) = (true, true);
            way.push((next, 0));
        }
    }
    let mut ready = BTreeSet::from([0]);
    let mut order = Vec::with_capacity(blocks.len());
    while let Some(number) = ready.pop_first() {
        order.push(number);
        for &next in &forward[number] {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.insert(next);
            }
        }
    }
    // What nothing reaches.
    order.extend((0..blocks.len()).filter(|number| !seen[*number]));
    order
}
