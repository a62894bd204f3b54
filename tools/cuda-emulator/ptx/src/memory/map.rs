//! Anonymous memory of the host that takes pages only when they are written.

use std::io;
use std::ptr;

const PAGE: usize = 4096;

#[derive(Debug)]
pub(super) struct Map {
    start: *mut u8,
    len: usize,
}

// SAFETY: a `Map` is an address range; who reads and writes it does so by atomics.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    pub fn new(len: usize) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        #[cfg(not(target_os = "linux"))]
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        // SAFETY: a new mapping at an address of the system's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), len })
    }

    /// The address of byte `offset`.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len);
        // SAFETY: inside the mapping.
        unsafe { self.start.add(offset) }
    }

    /// Sets all to zero.
    pub fn discard_all(&self) {
        self.discard(0, self.len);
    }

    /// Sets a range to zero and gives its whole pages back.
    pub fn discard(&self, offset: usize, len: usize) {
        assert!(offset + len <= self.len);
        let (first, last) = (offset.next_multiple_of(PAGE), (offset + len) / PAGE * PAGE);
        let zero = |from: usize, to: usize| {
            // SAFETY: inside the mapping; a kernel that still reads these bytes uses freed memory.
            unsafe { ptr::write_bytes(self.start.add(from), 0, to - from) }
        };
        if first >= last || !cfg!(target_os = "linux") {
            return zero(offset, offset + len);
        }
        zero(offset, first);
        zero(last, offset + len);
        // SAFETY: whole pages of the mapping; private anonymous pages read as zero after this.
        unsafe { libc::madvise(self.start.add(first).cast(), last - first, libc::MADV_DONTNEED) };
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range that `new` mapped.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
