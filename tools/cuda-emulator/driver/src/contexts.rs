//! All contexts, the stack of each thread, and errors that stay.

use crate::abi::CUcontext;
use crate::card::{Card, cards};
use crate::errors::{Answer, Code};
use crate::handles::{Table, fresh};
use crate::say::say;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_uint;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

/// A context.
pub struct Context {
    /// Its handle.
    pub handle: CUcontext,
    /// Number of its card.
    pub card: usize,
    /// Flags of its creation, which clients may change.
    pub flags: AtomicU32,
    /// The first fault; 0 is none.
    sticky: AtomicI32,
    /// Limits that clients have set.
    pub limits: Mutex<HashMap<c_uint, usize>>,
    /// Cards whose memory kernels of this context may use.
    pub peers: Mutex<BTreeSet<usize>>,
    /// Handle of the legacy default stream.
    pub legacy: usize,
    /// Handles of the default streams of threads.
    pub of_threads: Mutex<HashMap<ThreadId, usize>>,
    /// Queue of the marks that come after all work of the context: `cuCtxRecordEvent`.
    pub marks: usize,
    /// Queue of what all later work of the context comes after: `cuCtxWaitEvent`.
    pub gates: usize,
}

/// All live contexts.
pub fn contexts() -> &'static Table<Context> {
    static CONTEXTS: Table<Context> = Table::new(Code::INVALID_CONTEXT);
    &CONTEXTS
}

thread_local! {
    /// The stack of this thread; its last is current.
    static STACK: RefCell<Vec<CUcontext>> = const { RefCell::new(Vec::new()) };
}

/// Handle of the current context of this thread; 0 if there is none.
pub fn top() -> CUcontext {
    STACK.with_borrow(|stack| stack.last().copied()).unwrap_or(0)
}

/// The context that is current in this thread, with a fault or not.
///
/// # Errors
/// There is none, or it is destroyed.
pub fn current_any() -> Answer<Arc<Context>> {
    let top = top();
    if top == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    contexts().get(top).map_err(|_| Code::CONTEXT_IS_DESTROYED)
}

/// The context that is current in this thread.
///
/// # Errors
/// There is none, it is destroyed, or it has had a fault, whose code every later call gets.
pub fn current() -> Answer<Arc<Context>> {
    let context = current_any()?;
    context.check()?;
    Ok(context)
}

impl Context {
    /// A context without streams.
    pub fn new(handle: CUcontext, card: usize, flags: c_uint) -> Self {
        Self {
            handle,
            card,
            flags: AtomicU32::new(flags),
            sticky: AtomicI32::new(0),
            limits: Mutex::default(),
            peers: Mutex::default(),
            legacy: fresh(),
            of_threads: Mutex::default(),
            marks: fresh(),
            gates: fresh(),
        }
    }

    /// Its card.
    pub fn card(&self) -> &'static Card {
        &cards()[self.card]
    }

    /// Whether a fault has ended it.
    ///
    /// # Errors
    /// The code of the fault.
    pub fn check(&self) -> Answer {
        match self.sticky.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Ends it by a fault: every later call answers `code`.
    pub fn fail(&self, code: Code) {
        if self.sticky.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            say(&format!(
                "card {}: from here on every call in this context answers {} ({})",
                self.card,
                code.name(),
                code.0
            ));
        }
    }
}

/// Makes a context current above the one that is.
pub fn push(handle: CUcontext) {
    STACK.with_borrow_mut(|stack| stack.push(handle));
}

/// Takes the current context off the stack.
///
/// # Errors
/// There is none.
pub fn pop() -> Answer<CUcontext> {
    STACK.with_borrow_mut(|stack| stack.pop()).ok_or(Code::INVALID_CONTEXT)
}

/// Makes a context current instead of the one that is; 0 leaves none.
pub fn set_current(handle: CUcontext) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}
