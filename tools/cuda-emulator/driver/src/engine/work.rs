//! The kinds of work that a stream holds, and the nodes of graphs, which are such work.

use crate::abi::{CUdeviceptr, CUgraphNode, CUhostFn, CUstream, CUstreamCallback};
use crate::copy::Copy;
use crate::errors::{Answer, Code};
use crate::handles::fresh;
use crate::launches::Launch;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// When a mark was passed.
#[derive(Default)]
pub struct Stamp(pub OnceLock<Instant>);

impl Stamp {
    /// Takes the time.
    pub fn take(&self) {
        let _ = self.0.set(Instant::now());
    }
}

/// A pointer of the client that goes to its function.
#[derive(Clone, Copy)]
pub struct UserData(pub *mut c_void);

// SAFETY: the client asked for a call on another thread with this pointer.
unsafe impl Send for UserData {}
// SAFETY: it is never followed here.
unsafe impl Sync for UserData {}

/// One piece of work; a graph keeps copies.
#[derive(Clone)]
pub enum Work {
    /// Only a place in the order.
    Nothing,
    /// Takes the time for an event.
    Record(Arc<Stamp>),
    /// Runs a kernel.
    Launch(Arc<Launch>),
    /// Copies bytes.
    Copy(Arc<Copy>),
    /// Fills `rows` rows of `len` bytes, `pitch` bytes apart, with a pattern.
    Fill {
        /// First byte.
        to: CUdeviceptr,
        /// Bytes of a row.
        len: u64,
        /// Number of rows.
        rows: u64,
        /// Bytes from row to row.
        pitch: u64,
        /// What is repeated.
        pattern: Vec<u8>,
    },
    /// Frees memory.
    Free(CUdeviceptr),
    /// Calls a function of the client.
    Host(CUhostFn, UserData),
    /// Calls a function of the client, in the older form.
    Callback(CUstream, CUstreamCallback, UserData),
    /// Waits until a value in memory fits.
    WaitValue {
        /// Its address.
        at: CUdeviceptr,
        /// What it is compared with.
        value: u64,
        /// Bytes: 4 or 8.
        width: usize,
        /// How it is compared.
        compare: u32,
    },
    /// Writes a value to memory.
    WriteValue {
        /// Its address.
        at: CUdeviceptr,
        /// What is written.
        value: u64,
        /// Bytes: 4 or 8.
        width: usize,
    },
    /// Runs the nodes of a graph, each after those it depends on.
    Graph(Arc<Nodes>),
}

/// One node.
#[derive(Clone)]
pub struct Node {
    /// Its handle.
    pub handle: CUgraphNode,
    /// Nodes before it.
    pub after: Vec<usize>,
    /// What it does.
    pub work: Work,
}

/// The nodes of a graph, whose edges have no cycle.
#[derive(Clone, Default)]
pub struct Nodes(pub Vec<Node>);

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
        self.iter().position(|node| node.handle == handle).ok_or(Code::INVALID_VALUE)
    }

    /// Adds a node after others, and returns its handle.
    ///
    /// # Errors
    /// One of the others is of another graph.
    pub fn add(&mut self, after: &[CUgraphNode], work: Work) -> Answer<CUgraphNode> {
        let after = after.iter().map(|&node| self.index(node)).collect::<Answer<_>>()?;
        let handle = fresh();
        self.0.push(Node { handle, after, work });
        Ok(handle)
    }

    /// Puts other work of the same kind in the place of a node's.
    ///
    /// # Errors
    /// There is no such node, or it is of another kind.
    pub fn replace(&mut self, handle: CUgraphNode, work: Work) -> Answer {
        let index = self.index(handle)?;
        let node = Node { work, ..self.0[index].clone() };
        if kind(&node) != kind(&self.0[index]) {
            return Err(Code::INVALID_VALUE);
        }
        self.0[index] = node;
        Ok(())
    }

    /// Makes the node `to` come after `from`.
    ///
    /// # Errors
    /// There is no such node, or the edge would close a cycle.
    pub fn tie(&mut self, from: CUgraphNode, to: CUgraphNode) -> Answer {
        let (from, to) = (self.index(from)?, self.index(to)?);
        let mut open = vec![from];
        while let Some(node) = open.pop() {
            if node == to {
                return Err(Code::INVALID_VALUE);
            }
            open.extend(&self[node].after);
        }
        self.0[to].after.push(from);
        Ok(())
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
        Work::Record(_) => 7,
        Work::Free(_) => 11,
        Work::WaitValue { .. } | Work::WriteValue { .. } => 12,
    }
}
