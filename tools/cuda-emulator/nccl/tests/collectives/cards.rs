//! Emulated cards for the tests: a thread with a card and a stream for each rank, and the driver's functions for it.

use emulated_nccl::abi::{Config, MAGIC, UniqueId};
use emulated_nccl::api::*;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

macro_rules! driver {
    ($($name:ident($($arg:ty),*);)*) => {
        #[allow(non_snake_case)]
        pub struct Driver {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Driver {
            fn load() -> Self {
                let test = std::env::current_exe().expect("the path of this test");
                let file = test.parent().expect("the folder of the build").join("libemulated_cuda.so");
                let file = CString::new(file.to_str().expect("a path in UTF-8")).expect("a path without zeros");
                // SAFETY: every test begins here, so no thread reads the environment yet; the types are the driver's.
                unsafe {
                    std::env::set_var("KILN_EMULATED_CARDS", "4");
                    std::env::set_var("KILN_EMULATED_MEMORY", "64M");
                    // Later, `dlopen` finds it by the name libcuda.so.1.
                    let library = libc::dlopen(file.as_ptr(), libc::RTLD_NOW);
                    assert!(!library.is_null(), "{file:?}");
                    let driver = Self {
                        $($name: {
                            let symbol = CString::new(stringify!($name)).expect("a name");
                            let found = libc::dlsym(library, symbol.as_ptr());
                            assert!(!found.is_null(), "{symbol:?}");
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> c_int>(found)
                        },)*
                    };
                    assert_eq!((driver.cuInit)(0), 0);
                    driver
                }
            }
        }
    };
}

driver! {
    cuInit(c_uint);
    cuDevicePrimaryCtxRetain(*mut usize, c_int);
    cuCtxSetCurrent(usize);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemcpyHtoD_v2(u64, *const c_void, usize);
    cuMemcpyDtoH_v2(*mut c_void, u64, usize);
    cuMemcpyDtoDAsync_v2(u64, u64, usize, usize);
    cuStreamCreate(*mut usize, c_uint);
    cuStreamSynchronize(usize);
    cuStreamQuery(usize);
    cuCtxSynchronize();
}

/// Lets one test at a time use the cards: two communicators' work in different orders on two cards waits without end.
pub fn alone() -> MutexGuard<'static, ()> {
    static CARDS: Mutex<()> = Mutex::new(());
    CARDS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(Driver::load)
}

/// Asserts that a call answers success.
macro_rules! ok {
    ($call:expr) => {{
        // SAFETY: the arguments are what the API asks for.
        let code = unsafe { $call };
        assert_eq!(code, 0, "{}", stringify!($call));
    }};
}
/// The code that a call answers.
macro_rules! code {
    ($call:expr) => {{
        // SAFETY: as above.
        unsafe { $call }
    }};
}
pub(crate) use {code, ok};

/// A rank's card, whose context is current, and a stream.
#[derive(Clone, Copy)]
pub struct Card {
    pub stream: usize,
}

impl Card {
    pub fn of(number: usize) -> Self {
        let (mut context, mut stream) = (0, 0);
        ok!((driver().cuDevicePrimaryCtxRetain)(&mut context, number as c_int));
        ok!((driver().cuCtxSetCurrent)(context));
        ok!((driver().cuStreamCreate)(&mut stream, 1));
        Self { stream }
    }

    pub fn alloc(self, bytes: usize) -> u64 {
        let mut address = 0;
        ok!((driver().cuMemAlloc_v2)(&mut address, bytes.max(1)));
        address
    }

    /// Memory of the card with these bytes.
    pub fn put(self, bytes: &[u8]) -> u64 {
        let address = self.alloc(bytes.len());
        ok!((driver().cuMemcpyHtoD_v2)(address, bytes.as_ptr().cast(), bytes.len()));
        ok!((driver().cuCtxSynchronize)());
        address
    }

    pub fn get(self, address: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        ok!((driver().cuMemcpyDtoH_v2)(found.as_mut_ptr().cast(), address, bytes));
        found
    }

    pub fn put_floats(self, values: &[f32]) -> u64 {
        self.put(&values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>())
    }

    pub fn floats(self, address: u64, count: usize) -> Vec<f32> {
        let bytes = self.get(address, 4 * count);
        bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }

    pub fn finish(self) {
        ok!((driver().cuStreamSynchronize)(self.stream));
    }

    /// Whether the stream has come to its end after a while.
    pub fn ends(self) -> bool {
        let start = Instant::now();
        while code!((driver().cuStreamQuery)(self.stream)) != 0 {
            if start.elapsed() > Duration::from_millis(300) {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// A configuration as `NCCL_CONFIG_INITIALIZER` makes it, longer than what the library reads.
pub fn config(blocking: c_int) -> [Config; 4] {
    let first = Config { size: 4 * size_of::<Config>(), magic: MAGIC, version: 22800, blocking };
    [first, Config { size: 0, ..first }, Config { size: 0, ..first }, Config { size: 0, ..first }]
}

pub fn unique_id() -> UniqueId {
    let mut id = UniqueId([0; 128]);
    ok!(ncclGetUniqueId(&mut id));
    id
}

/// Polls a communicator until nothing is in progress.
pub fn settle(comm: usize) -> c_int {
    let mut state = 7;
    while state == 7 {
        ok!(ncclCommGetAsyncError(comm, &mut state));
        thread::yield_now();
    }
    state
}

/// Runs one thread a rank, each with its card and a communicator of all, which is blocking or not.
pub fn ranks<T: Send>(n: usize, blocking: c_int, work: impl Fn(usize, Card, usize) -> T + Sync) -> Vec<T> {
    driver();
    ranks_of(unique_id(), n, &(0..n).collect::<Vec<_>>(), blocking, work)
}

/// Runs some of a communicator's ranks so; the others are in other processes.
pub fn ranks_of<T: Send>(
    id: UniqueId,
    n: usize,
    mine: &[usize],
    blocking: c_int,
    work: impl Fn(usize, Card, usize) -> T + Sync,
) -> Vec<T> {
    driver();
    thread::scope(|scope| {
        let rank = |rank: &usize| {
            let (work, rank) = (&work, *rank);
            scope.spawn(move || {
                let (card, mut comm) = (Card::of(rank), 0);
                let config = config(blocking);
                let code = code!(ncclCommInitRankConfig(&mut comm, n as c_int, id, rank as c_int, config.as_ptr()));
                assert_eq!(code, if blocking == 1 { 0 } else { 7 });
                assert_eq!(settle(comm), 0);
                work(rank, card, comm)
            })
        };
        let threads: Vec<_> = mine.iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank failed")).collect()
    })
}
