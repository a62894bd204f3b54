//! The functions of NCCL's C interface.

use crate::abi::{self, Code, Config, DType, MAGIC, UNDEFINED, UniqueId};
use crate::cuda::{Address, Handle};
use crate::launches::{Kind, Op, Progress, reduction};
use crate::say::{self, refuse};
use crate::state::{Comm, lock};
use crate::{group, links, members};
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a function and turns its answer into a result.
fn enter(body: impl FnOnce() -> Result<(), Code>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::INTERNAL_ERROR.0,
    }
}

/// Writes a value where the program wants it.
unsafe fn out<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return refuse(Code::INVALID_ARGUMENT, "a pointer is null");
    }
    // SAFETY: not null; the program vouches for the rest.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Whether calls block, as a configuration says it.
unsafe fn blocking(config: *const Config) -> Result<Option<bool>, Code> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: not null; all versions begin with these fields.
    let Config { size, magic, version, blocking } = unsafe { config.read_unaligned() };
    if magic != MAGIC || size < size_of::<Config>() || version == 0 {
        return refuse(Code::INVALID_ARGUMENT, "an ncclConfig_t was not initialized");
    }
    match blocking {
        UNDEFINED => Ok(None),
        0 | 1 => Ok(Some(blocking == 1)),
        _ => refuse(Code::INVALID_ARGUMENT, &format!("blocking is {blocking}; 0 and 1 are allowed")),
    }
}

/// What every identifier has, so that other bytes are not taken for one.
const IS_ID: &[u8] = b"emulated NCCL";

/// An identifier: the process that has made it and the number that it gave.
fn identifier() -> Result<UniqueId, Code> {
    let process = links::own()?;
    let mut state = lock();
    state.own = process;
    let (number, mut id) = (state.fresh(), [0; 128]);
    id[..8].copy_from_slice(&process.to_ne_bytes());
    id[8..16].copy_from_slice(&number.to_ne_bytes());
    id[16..][..IS_ID.len()].copy_from_slice(IS_ID);
    Ok(UniqueId(id))
}

unsafe fn init(to: *mut Comm, size: c_int, id: UniqueId, rank: c_int, config: *const Config) -> Result<(), Code> {
    // SAFETY: the caller's.
    let blocking = unsafe { blocking(config) }?.unwrap_or(true);
    if size < 1 || !(0..size).contains(&rank) {
        return refuse(Code::INVALID_ARGUMENT, &format!("there is no rank {rank} among {size} ranks"));
    }
    if !id.0[16..].starts_with(IS_ID) {
        return refuse(Code::INVALID_ARGUMENT, "the identifier is not of ncclGetUniqueId of this library");
    }
    let number = |at: usize| u64::from_ne_bytes(id.0.as_chunks().0[at]);
    let comm = members::begin((number(0), number(1)), rank as usize, size as usize, blocking)?;
    // SAFETY: the caller's.
    unsafe { out(to, comm) }?;
    group::join(comm)
}

/// Writes the handle of a split that has ended.
unsafe fn hand_over(split: Option<(Comm, usize)>) {
    if let Some((comm, to)) = split {
        // SAFETY: the program gave the place to `ncclCommSplit`, where it was checked for null.
        unsafe { (to as *mut Comm).write_unaligned(comm) };
    }
}

fn dtype(number: c_int) -> Result<DType, Code> {
    match DType::of(number) {
        Some(dtype) => Ok(dtype),
        None => refuse(Code::INVALID_ARGUMENT, &format!("there is no element type {number}")),
    }
}

fn rank(number: c_int) -> Result<usize, Code> {
    match usize::try_from(number) {
        Ok(rank) => Ok(rank),
        Err(_) => refuse(Code::INVALID_ARGUMENT, &format!("there is no rank {number}")),
    }
}

/// What an operation reads and writes.
type Buffers = (Address, Address);

fn add(kind: Kind, (from, to): Buffers, count: usize, number: c_int, comm: Comm, stream: Handle) -> Result<(), Code> {
    let dtype = dtype(number)?;
    let reduces = matches!(kind, Kind::AllReduce(_) | Kind::ReduceScatter(_) | Kind::Reduce(..));
    if reduces && dtype == DType::F8 {
        return refuse(Code::INVALID_ARGUMENT, "reductions of elements of 8 bits are not emulated");
    }
    group::add(Op { comm, number: 0, kind, dtype, count, from, to, stream, progress: Progress::Waiting })
}

macro_rules! api {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of NCCL.")]
        ///
        /// # Safety
        /// Pointers are null or point to what NCCL's documentation says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
            // SAFETY: null is answered with an error; for the rest the program vouches.
            #[allow(unused_unsafe)]
            enter(|| -> Result<(), Code> { unsafe { $body } })
        }
    )*};
}

api! {
    fn ncclGetVersion(to: *mut c_int) {
        out(to, abi::VERSION)
    }
    fn ncclGetUniqueId(to: *mut UniqueId) {
        out(to, identifier()?)
    }
    fn ncclCommInitRank(to: *mut Comm, size: c_int, id: UniqueId, rank: c_int) {
        init(to, size, id, rank, std::ptr::null())
    }
    fn ncclCommInitRankConfig(to: *mut Comm, size: c_int, id: UniqueId, rank: c_int, config: *const Config) {
        init(to, size, id, rank, config)
    }
    fn ncclCommSplit(comm: Comm, color: c_int, key: c_int, to: *mut Comm, config: *const Config) {
        out(to, 0)?;
        members::begin_split(comm, color, key, blocking(config)?, to as usize)?;
        hand_over(members::wait_until_split(comm)?);
        Ok(())
    }
    fn ncclCommCount(comm: Comm, to: *mut c_int) {
        out(to, lock().member(comm)?.size as c_int)
    }
    fn ncclCommUserRank(comm: Comm, to: *mut c_int) {
        out(to, lock().member(comm)?.rank as c_int)
    }
    fn ncclCommCuDevice(comm: Comm, to: *mut c_int) {
        out(to, lock().member(comm)?.card.ordinal)
    }
    fn ncclCommGetAsyncError(comm: Comm, to: *mut c_int) {
        lock().member(comm)?;
        let state = members::poll(comm);
        out(to, state.map_or_else(|code| code.0, |_| 0))?;
        hand_over(state.ok().flatten());
        Ok(())
    }
    fn ncclCommAbort(comm: Comm) {
        members::abort(comm)
    }
    fn ncclCommFinalize(comm: Comm) {
        members::finalize(comm)
    }
    fn ncclCommDestroy(comm: Comm) {
        members::destroy(comm)
    }
    fn ncclGroupStart() {
        group::start();
        Ok(())
    }
    fn ncclGroupEnd() {
        group::end()
    }
    fn ncclAllReduce(
        from: Address, to: Address, count: usize, dtype: c_int, how: c_int, comm: Comm, stream: Handle,
    ) {
        add(Kind::AllReduce(reduction(how)?), (from, to), count, dtype, comm, stream)
    }
    fn ncclReduceScatter(
        from: Address, to: Address, count: usize, dtype: c_int, how: c_int, comm: Comm, stream: Handle,
    ) {
        add(Kind::ReduceScatter(reduction(how)?), (from, to), count, dtype, comm, stream)
    }
    fn ncclAllGather(from: Address, to: Address, count: usize, dtype: c_int, comm: Comm, stream: Handle) {
        add(Kind::AllGather, (from, to), count, dtype, comm, stream)
    }
    fn ncclBroadcast(
        from: Address, to: Address, count: usize, dtype: c_int, root: c_int, comm: Comm, stream: Handle,
    ) {
        add(Kind::Broadcast(rank(root)?), (from, to), count, dtype, comm, stream)
    }
    fn ncclReduce(
        from: Address, to: Address, count: usize, dtype: c_int, how: c_int, root: c_int, comm: Comm, stream: Handle,
    ) {
        add(Kind::Reduce(reduction(how)?, rank(root)?), (from, to), count, dtype, comm, stream)
    }
    fn ncclSend(from: Address, count: usize, dtype: c_int, peer: c_int, comm: Comm, stream: Handle) {
        add(Kind::Send(rank(peer)?), (from, 0), count, dtype, comm, stream)
    }
    fn ncclRecv(to: Address, count: usize, dtype: c_int, peer: c_int, comm: Comm, stream: Handle) {
        add(Kind::Recv(rank(peer)?), (0, to), count, dtype, comm, stream)
    }
}

/// `ncclGetErrorString` of NCCL.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    abi::text(code).as_ptr()
}

/// `ncclGetLastError` of NCCL: the last message of the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: Comm) -> *const c_char {
    say::last()
}
