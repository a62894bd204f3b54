//! Parameters of nodes as C lays them out, the work that they stand for, and the way back.

use crate::abi::{CUDA_MEMCPY3D, CUcontext, CUdeviceptr, CUevent, CUfunction, CUhostFn};
use crate::call::{unsupported, values};
use crate::contexts::{contexts, current};
use crate::engine::work::{UserData, Work};
use crate::errors::{Answer, Code};
use crate::event::events;
use crate::launch::prepare;
use crate::launches::{Launch, Sizes};
use crate::library::function_in;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// Parameters from which a node is made.
pub trait Params: Copy {
    /// The work that they stand for in a new node, or in the place of older work.
    ///
    /// # Errors
    /// They are not what the API asks for, or they are not supported.
    ///
    /// # Safety
    /// The pointers in them are null or point to what the API's documentation says.
    unsafe fn work(self, old: Option<&Work>) -> Answer<Work>;
}

/// Reads the work that parameters of the client stand for, in a new node or in the place of older work.
///
/// # Errors
/// There are none, or their own.
///
/// # Safety
/// `given` is null or readable, and as [`Params::work`] asks.
pub unsafe fn read<P: Params>(given: *const P, old: Option<&Work>) -> Answer<Work> {
    // SAFETY: null is refused; the rest is the caller's.
    unsafe { values(given, 1)?[0].work(old) }
}

/// A launch as a node; the later form has two handles more.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct KernelParams {
    pub function: CUfunction,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub params: *const *const c_void,
    pub extra: *const *const c_void,
}

impl KernelParams {
    unsafe fn launch(self, function: CUfunction, old: Option<&Work>) -> Answer<Launch> {
        let (grid, block) = (self.grid, self.block);
        // The parameters do not name them: they are attributes of the node, which stay.
        let (cluster, cooperative) = match old {
            Some(Work::Launch(old)) => (old.asked, old.sizes.cooperative),
            _ => (None, false),
        };
        let sizes = Sizes { grid, block, cluster, shared: self.shared, cooperative };
        // SAFETY: the client gives arguments as to a launch.
        unsafe { prepare(function, sizes, self.params, self.extra) }
    }

    /// Those of a launch, whose arguments stay the launch's.
    pub fn of(work: &Work) -> Option<Self> {
        let Work::Launch(launch) = work else { return None };
        let (function, Sizes { grid, block, shared, .. }) = (launch.function.handle, launch.sizes);
        let (params, extra) = launch.arguments();
        Some(Self { function, grid, block, shared, params, extra })
    }
}

impl Params for KernelParams {
    unsafe fn work(self, old: Option<&Work>) -> Answer<Work> {
        // SAFETY: the caller's.
        unsafe { Ok(Work::Launch(Arc::new(self.launch(self.function, old)?))) }
    }
}

/// A launch as a node, where it may name a kernel of a library, and a context.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct KernelParamsV2 {
    pub first: KernelParams,
    pub kernel: usize,
    pub context: CUcontext,
}

impl KernelParamsV2 {
    /// Those of a launch. They name the kernel as the client did.
    pub fn of(work: &Work) -> Option<Self> {
        let (Work::Launch(launch), mut first) = (work, KernelParams::of(work)?) else { return None };
        if launch.named != 0 {
            first.function = 0;
        }
        Some(Self { first, kernel: launch.named, context: launch.module.context.handle })
    }
}

impl Params for KernelParamsV2 {
    unsafe fn work(self, old: Option<&Work>) -> Answer<Work> {
        match (self.first.function, self.kernel) {
            (0, 0) => Err(Code::INVALID_VALUE),
            (0, kernel) => {
                let context = if self.context == 0 { current()? } else { contexts().get(self.context)? };
                let function = function_in(kernel, &context)?;
                // SAFETY: the caller's.
                let launch = unsafe { self.first.launch(function, old) }?;
                Ok(Work::Launch(Arc::new(Launch { named: kernel, ..launch })))
            }
            // As documented, the context counts only for a kernel of a library: a function has one of its own.
            // SAFETY: the caller's.
            _ => unsafe { self.first.work(old) },
        }
    }
}

/// A fill as a node.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct FillParams {
    pub to: CUdeviceptr,
    pub pitch: usize,
    pub value: c_uint,
    pub element: c_uint,
    pub width: usize,
    pub height: usize,
}

impl FillParams {
    /// Those of a fill.
    pub fn of(work: &Work) -> Option<Self> {
        let Work::Fill { to, len, rows, pitch, pattern } = work else { return None };
        let mut value = [0; 4];
        value[..pattern.len()].copy_from_slice(pattern);
        Some(Self {
            to: *to,
            pitch: *pitch as usize,
            value: c_uint::from_le_bytes(value),
            element: pattern.len() as c_uint,
            width: *len as usize / pattern.len(),
            height: *rows as usize,
        })
    }
}

impl Params for FillParams {
    unsafe fn work(self, _old: Option<&Work>) -> Answer<Work> {
        let (element, rows, pitch) = (self.element as usize, self.height, self.pitch);
        if ![1, 2, 4].contains(&element) || !self.to.is_multiple_of(element as u64) {
            return Err(Code::INVALID_VALUE);
        }
        let len = self.width.checked_mul(element).ok_or(Code::INVALID_VALUE)?;
        if rows == 0 || len == 0 || (rows > 1 && pitch < len) {
            return Err(Code::INVALID_VALUE);
        }
        let whole = pitch.checked_mul(rows - 1).and_then(|before| before.checked_add(len));
        crate::copy::check(self.to, whole.ok_or(Code::INVALID_VALUE)?)?;
        let pattern = self.value.to_le_bytes()[..element].to_vec();
        Ok(Work::Fill { to: self.to, len: len as u64, rows: rows as u64, pitch: pitch as u64, pattern })
    }
}

/// A call of the host as a node.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct HostParams {
    pub function: Option<CUhostFn>,
    pub data: *mut c_void,
}

impl HostParams {
    /// Those of a call of the host.
    pub fn of(work: &Work) -> Option<Self> {
        let Work::Host(function, data) = work else { return None };
        Some(Self { function: Some(*function), data: data.0 })
    }
}

impl Params for HostParams {
    unsafe fn work(self, _old: Option<&Work>) -> Answer<Work> {
        Ok(Work::Host(self.function.ok_or(Code::INVALID_VALUE)?, UserData(self.data)))
    }
}

impl Params for CUDA_MEMCPY3D {
    unsafe fn work(self, _old: Option<&Work>) -> Answer<Work> {
        // SAFETY: it is readable.
        let copy = unsafe { crate::transfer::planes(&self) }?;
        copy.check()?;
        Ok(Work::Copy(Arc::new(copy)))
    }
}

/// The work that records an event at each launch.
///
/// # Errors
/// There is no such event.
pub fn record(event: CUevent) -> Answer<Work> {
    check_event(event).map(|()| Work::RecordEvent(event))
}

/// The work that waits for an event.
///
/// # Errors
/// There is no such event.
pub fn wait(event: CUevent) -> Answer<Work> {
    check_event(event).map(|()| Work::WaitEvent(event))
}

fn check_event(event: CUevent) -> Answer {
    // The code that the functions of graphs document.
    events().get(event).map(|_| ()).map_err(|_| Code::INVALID_VALUE)
}

/// A node of any kind: its number, and the parameters of that kind.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct NodeParams {
    pub kind: c_int,
    pub reserved: [c_int; 3],
    /// A union: the parameters, and then zeros.
    pub body: [u64; 29],
    pub end: u64,
}

/// A copy in such a union: zeros, a context and the copy itself.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyBody {
    zeros: u64,
    context: CUcontext,
    copy: CUDA_MEMCPY3D,
}

/// A fill in such a union, with a context.
#[repr(C)]
#[derive(Clone, Copy)]
struct FillBody {
    fill: FillParams,
    context: CUcontext,
}

impl NodeParams {
    /// The parameters in the union.
    ///
    /// # Errors
    /// What follows them is not all zeros, as the API asks, so that they are those of a later version.
    ///
    /// # Safety
    /// `T` is one of the structures of the API, which any bytes are a value of.
    unsafe fn body<T: Copy>(&self) -> Answer<T> {
        let used = size_of::<T>().div_ceil(size_of::<u64>());
        if self.body[used..].iter().any(|&word| word != 0) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the union is as large as the largest of them and as aligned.
        Ok(unsafe { self.body.as_ptr().cast::<T>().read() })
    }
}

impl Params for NodeParams {
    unsafe fn work(self, old: Option<&Work>) -> Answer<Work> {
        if self.reserved != [0; 3] || self.end != 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the kind tells what the union holds; the rest is the caller's.
        unsafe {
            match self.kind {
                0 => self.body::<KernelParamsV2>()?.work(old),
                1 => {
                    let CopyBody { zeros, copy, .. } = self.body()?;
                    if zeros == 0 { copy.work(old) } else { Err(Code::INVALID_VALUE) }
                }
                2 => self.body::<FillBody>()?.fill.work(old),
                3 => self.body::<HostParams>()?.work(old),
                5 => self.body::<[u64; 0]>().map(|_| Work::Nothing),
                6 => wait(self.body()?),
                7 => record(self.body()?),
                4 | 8..=13 => unsupported(&format!("a node of kind {}", self.kind)),
                _ => Err(Code::INVALID_VALUE),
            }
        }
    }
}
