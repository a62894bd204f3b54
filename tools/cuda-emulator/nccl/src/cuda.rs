//! The functions of the driver that the library calls, found in the `libcuda.so.1` that the program uses.

use crate::abi::Code;
use crate::say::refuse;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// Address in the memory of a card.
pub type Address = u64;
/// Handle of a context or a stream.
pub type Handle = usize;

macro_rules! driver {
    ($($field:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// The functions, by the names of their symbols.
        pub struct Driver {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Driver {
            fn load() -> Option<Self> {
                // SAFETY: the name ends in zero; the types are those of the driver's documentation.
                unsafe {
                    let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
                    if library.is_null() {
                        return None;
                    }
                    $(let $field = libc::dlsym(library, CStr::as_ptr($symbol));)*
                    if [$($field),*].iter().any(|found| found.is_null()) {
                        return None;
                    }
                    Some(Self {
                        $($field: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> c_int>($field),)*
                    })
                }
            }
        }
    };
}

driver! {
    get_current = c"cuCtxGetCurrent" (*mut Handle);
    get_device = c"cuCtxGetDevice" (*mut c_int);
    push = c"cuCtxPushCurrent_v2" (Handle);
    pop = c"cuCtxPopCurrent_v2" (*mut Handle);
    attribute = c"cuPointerGetAttribute" (*mut c_void, c_uint, Address);
    host_alloc = c"cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    stream_create = c"cuStreamCreate" (*mut Handle, c_uint);
    stream_destroy = c"cuStreamDestroy_v2" (Handle);
    stream_synchronize = c"cuStreamSynchronize" (Handle);
    host_function = c"cuLaunchHostFunc" (Handle, unsafe extern "C" fn(*mut c_void), *mut c_void);
    wait_value = c"cuStreamWaitValue32_v2" (Handle, Address, u32, c_uint);
    fill = c"cuMemsetD8Async" (Address, u8, usize, Handle);
    to_host = c"cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
    to_card = c"cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
    to_peer = c"cuMemcpyPeerAsync" (Address, Handle, Address, Handle, usize, Handle);
}

/// Number of the pointer attribute that is the ordinal of a card.
const DEVICE_ORDINAL: c_uint = 9;

fn driver() -> Result<&'static Driver, Code> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    match DRIVER.get_or_init(Driver::load) {
        Some(driver) => Ok(driver),
        None => refuse(Code::SYSTEM_ERROR, "there is no libcuda.so.1, or not all of its functions"),
    }
}

fn check(code: c_int, what: &str) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { refuse(Code::UNHANDLED_CUDA_ERROR, &format!("{what}: CUDA error {code}")) }
}

/// A card as a communicator's rank uses it: the context that was current when the rank joined, and a stream.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// Its ordinal.
    pub ordinal: c_int,
    /// The context.
    pub context: Handle,
    stream: Handle,
}

impl Card {
    /// The card of the calling thread.
    ///
    /// # Errors
    /// No context is current.
    pub fn current() -> Result<Self, Code> {
        let (driver, mut context, mut ordinal, mut stream) = (driver()?, 0, 0, 0);
        // SAFETY: the places are valid.
        unsafe {
            check((driver.get_current)(&mut context), "cuCtxGetCurrent")?;
            check((driver.get_device)(&mut ordinal), "cuCtxGetDevice")?;
            check((driver.stream_create)(&mut stream, 1), "cuStreamCreate")?;
        }
        Ok(Self { ordinal, context, stream })
    }

    /// Runs `work` with the card's context current.
    pub fn inside<T>(self, work: impl FnOnce(&Driver) -> Result<T, Code>) -> Result<T, Code> {
        let driver = driver()?;
        // SAFETY: the context is live as long as the communicator, as NCCL asks for.
        check(unsafe { (driver.push)(self.context) }, "cuCtxPushCurrent")?;
        let done = work(driver);
        // SAFETY: it was pushed just now.
        check(unsafe { (driver.pop)(&mut 0) }, "cuCtxPopCurrent")?;
        done
    }

    /// Ends the stream.
    pub fn close(self) {
        // SAFETY: nobody else has the stream.
        let _ = self.inside(|driver| check(unsafe { (driver.stream_destroy)(self.stream) }, "cuStreamDestroy"));
    }

    /// Refuses an address that is not on this card, or not a multiple of `size`.
    pub fn owns(self, address: Address, size: usize) -> Result<(), Code> {
        let mut ordinal: c_int = -1;
        let place = (&raw mut ordinal).cast();
        // SAFETY: an ordinal is written, which fits.
        let code = self.inside(|driver| Ok(unsafe { (driver.attribute)(place, DEVICE_ORDINAL, address) }))?;
        if code != 0 || ordinal != self.ordinal || !address.is_multiple_of(size as u64) {
            let why = format!("{address:#x} is no address of elements of {size} bytes on card {}", self.ordinal);
            return refuse(Code::INVALID_ARGUMENT, &why);
        }
        Ok(())
    }

    /// Queues in a stream of the program: the call of `arrived`, and the wait until `word` is at least `value`.
    pub fn queue(
        self,
        stream: Handle,
        arrived: unsafe extern "C" fn(*mut c_void),
        data: usize,
        word: Address,
        value: u32,
    ) -> Result<(), Code> {
        self.inside(|driver| {
            let data = std::ptr::without_provenance_mut(data);
            // SAFETY: `arrived` follows no pointer; the word is pinned memory that stays.
            unsafe {
                check((driver.host_function)(stream, arrived, data), "cuLaunchHostFunc")?;
                check((driver.wait_value)(stream, word, value, 0), "cuStreamWaitValue32")
            }
        })
    }

    /// Queues a fill of memory with ones.
    pub fn fill(self, to: Address, len: usize) -> Result<(), Code> {
        // SAFETY: the driver checks the range.
        self.inside(|driver| check(unsafe { (driver.fill)(to, 0xff, len, self.stream) }, "cuMemsetD8Async"))
    }

    /// Queues a copy from another card, or within this one.
    pub fn copy(self, to: Address, of: Self, from: Address, len: usize) -> Result<(), Code> {
        self.inside(|driver| {
            // SAFETY: the driver checks both ranges.
            let code = unsafe { (driver.to_peer)(to, self.context, from, of.context, len, self.stream) };
            check(code, "cuMemcpyPeerAsync")
        })
    }

    /// Reads memory.
    pub fn read(self, from: Address, len: usize) -> Result<Vec<u8>, Code> {
        let mut bytes = vec![0; len];
        self.inside(|driver| {
            // SAFETY: the bytes live until the stream is done.
            unsafe { check((driver.to_host)(bytes.as_mut_ptr().cast(), from, len, self.stream), "cuMemcpyDtoHAsync") }
        })?;
        self.finish()?;
        Ok(bytes)
    }

    /// Writes memory.
    pub fn write(self, to: Address, bytes: &[u8]) -> Result<(), Code> {
        self.inside(|driver| {
            // SAFETY: the bytes live until the stream is done.
            unsafe { check((driver.to_card)(to, bytes.as_ptr().cast(), bytes.len(), self.stream), "cuMemcpyHtoDAsync") }
        })?;
        self.finish()
    }

    /// Waits until what was queued here is done.
    pub fn finish(self) -> Result<(), Code> {
        // SAFETY: the stream is live.
        self.inside(|driver| check(unsafe { (driver.stream_synchronize)(self.stream) }, "cuStreamSynchronize"))
    }

    /// Makes pinned memory of `len` zeros that is never freed.
    pub fn pinned(self, len: usize) -> Result<Address, Code> {
        let mut start = std::ptr::null_mut();
        self.inside(|driver| {
            // SAFETY: the place is valid. 3: for all contexts, and mapped.
            unsafe { check((driver.host_alloc)(&mut start, len, 3), "cuMemHostAlloc") }
        })?;
        // SAFETY: it was made with this length.
        unsafe { start.cast::<u8>().write_bytes(0, len) };
        Ok(start as Address)
    }
}
