//! The nodes of graphs, which are work with an order of their own.

use super::work::Work;
use crate::abi::CUgraphNode;
use crate::errors::{Answer, Code};
use crate::handles::fresh;
use std::ffi::c_int;

/// One node.
#[derive(Clone)]
pub struct Node {
    /// Its handle.
    pub handle: CUgraphNode,
    /// The node that it was cloned from.
    pub origin: Option<CUgraphNode>,
    /// Nodes before it.
    pub after: Vec<usize>,
    /// What it does.
    pub work: Work,
}

/// The nodes of a graph, whose edges have no cycle.
#[derive(Clone, Default)]
pub struct Nodes(Vec<Node>);

impl std::ops::Deref for Nodes {
    type Target = Vec<Node>;

    fn deref(&self) -> &Vec<Node> {
        &self.0
    }
}

impl Nodes {
    /// Place of a node.
    ///
    /// # Errors
    /// It is of another graph.
    pub fn index(&self, handle: CUgraphNode) -> Answer<usize> {
        // From the end: a capture asks for its last nodes again and again.
        self.iter().rposition(|node| node.handle == handle).ok_or(Code::INVALID_VALUE)
    }

    /// Adds a node after others, and returns its handle.
    ///
    /// # Errors
    /// One of the others is of another graph, or named twice.
    pub fn add(&mut self, after: &[CUgraphNode], work: Work) -> Answer<CUgraphNode> {
        let after: Vec<_> = after.iter().map(|&node| self.index(node)).collect::<Answer<_>>()?;
        if (1..after.len()).any(|index| after[..index].contains(&after[index])) {
            return Err(Code::INVALID_VALUE);
        }
        let handle = fresh();
        self.0.push(Node { handle, origin: None, after, work });
        Ok(handle)
    }

    /// Takes a node out, with all edges from it and to it.
    ///
    /// # Errors
    /// There is no such node, or the graph frees memory, which the API rules out.
    pub fn remove(&mut self, handle: CUgraphNode) -> Answer {
        self.forbid_frees()?;
        let index = self.index(handle)?;
        self.0.remove(index);
        for node in &mut self.0 {
            node.after.retain(|&before| before != index);
            node.after.iter_mut().filter(|before| **before > index).for_each(|before| *before -= 1);
        }
        Ok(())
    }

    /// Puts other work of the same kind in the place of a node's, made with a look at the old.
    ///
    /// # Errors
    /// There is no such node, the work is of another kind, or it cannot be made.
    pub fn replace(&mut self, handle: CUgraphNode, make: impl FnOnce(&Work) -> Answer<Work>) -> Answer {
        let index = self.index(handle)?;
        let old = &self.0[index];
        let node = Node { work: make(&old.work)?, ..old.clone() };
        if kind(&node) != kind(old) {
            return Err(Code::INVALID_VALUE);
        }
        self.0[index] = node;
        Ok(())
    }

    /// Takes over the work of other nodes, one by one. Handles and edges stay.
    pub fn take_work(&mut self, from: &Self) {
        for (node, from) in self.0.iter_mut().zip(&from.0) {
            node.work = from.work.clone();
        }
    }

    /// Makes the node `to` come after `from`.
    ///
    /// # Errors
    /// There is no such node, the edge exists, or it would close a cycle.
    pub fn add_dependency(&mut self, from: CUgraphNode, to: CUgraphNode) -> Answer {
        let (from, to) = (self.index(from)?, self.index(to)?);
        if self[to].after.contains(&from) {
            return Err(Code::INVALID_VALUE);
        }
        let mut open = vec![from];
        let mut seen = vec![false; self.len()];
        while let Some(node) = open.pop() {
            if node == to {
                return Err(Code::INVALID_VALUE);
            }
            if !std::mem::replace(&mut seen[node], true) {
                open.extend(&self[node].after);
            }
        }
        self.0[to].after.push(from);
        Ok(())
    }

    /// Removes the edge that makes the node `to` come after `from`.
    ///
    /// # Errors
    /// There is no such edge, or the graph frees memory, which the API rules out.
    pub fn remove_dependency(&mut self, from: CUgraphNode, to: CUgraphNode) -> Answer {
        self.forbid_frees()?;
        let (from, to) = (self.index(from)?, self.index(to)?);
        let place = self[to].after.iter().position(|&before| before == from).ok_or(Code::INVALID_VALUE)?;
        self.0[to].after.remove(place);
        Ok(())
    }

    /// The places of all nodes, each after those that it depends on.
    pub fn in_order(&self) -> Vec<usize> {
        let mut missing: Vec<_> = self.iter().map(|node| node.after.len()).collect();
        let mut later = vec![Vec::new(); self.len()];
        for (index, node) in self.iter().enumerate() {
            node.after.iter().for_each(|&before| later[before].push(index));
        }
        let mut order: Vec<_> = (0..self.len()).filter(|&node| missing[node] == 0).collect();
        let mut next = 0;
        while let Some(&node) = order.get(next) {
            next += 1;
            for &after in &later[node] {
                missing[after] -= 1;
                if missing[after] == 0 {
                    order.push(after);
                }
            }
        }
        order
    }

    /// A copy whose nodes have handles of their own, and know which nodes they come from.
    pub fn cloned(&self) -> Self {
        let copy = |node: &Node| Node { handle: fresh(), origin: Some(node.handle), ..node.clone() };
        Self(self.iter().map(copy).collect())
    }

    fn forbid_frees(&self) -> Answer {
        match self.iter().any(|node| matches!(node.work, Work::Free(_))) {
            true => Err(Code::INVALID_VALUE),
            false => Ok(()),
        }
    }
}

/// Kind of a node as the API numbers it.
pub fn kind(node: &Node) -> c_int {
    match node.work {
        Work::Launch(_) => 0,
        Work::Copy(_) => 1,
        Work::Fill { .. } => 2,
        Work::Host(..) | Work::Callback(..) => 3,
        Work::Graph(_) => 4,
        Work::Nothing => 5,
        Work::WaitEvent(_) => 6,
        Work::Record(_) | Work::RecordEvent(_) => 7,
        Work::Free(_) => 11,
        Work::WaitValue { .. } | Work::WriteValue { .. } => 12,
    }
}
