//! What the checks of shared memory know of each word, field by field, so that ranges are checked in vectors.

/// What the checks know of one word. Bytes are masks of 4 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub write_time: u32,
    pub read_time: u32,
    pub readers: u32,
    pub writer: u8,
    /// Bytes that are written, and above them those that a copy still fills.
    pub state: u8,
    /// Bytes of the last write, and above them of reads.
    pub bytes: u8,
}

/// The cells of all words.
#[derive(Debug, Default)]
pub(super) struct Cells {
    write_time: Vec<u32>,
    read_time: Vec<u32>,
    readers: Vec<u32>,
    writer: Vec<u8>,
    state: Vec<u8>,
    bytes: Vec<u8>,
    vectors: bool,
}

/// The warp that accesses a range, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visitor {
    pub warp: usize,
    pub time: u32,
    /// Up to when this warp knows all others.
    pub floor: u32,
    pub races: bool,
    pub uninitialised: bool,
    /// Whether a read is noted.
    pub leaves: bool,
}

impl Cells {
    pub fn new(words: usize) -> Self {
        let (times, small) = (vec![0; words], vec![0; words]);
        Self {
            write_time: times.clone(),
            read_time: times.clone(),
            readers: times,
            writer: small.clone(),
            state: small.clone(),
            bytes: small,
            #[cfg(target_arch = "x86_64")]
            vectors: crate::lanes::has_avx2(),
            #[cfg(not(target_arch = "x86_64"))]
            vectors: false,
        }
    }

    pub fn clear(&mut self) {
        for times in [&mut self.write_time, &mut self.read_time, &mut self.readers] {
            times.fill(0);
        }
        for small in [&mut self.writer, &mut self.state, &mut self.bytes] {
            small.fill(0);
        }
    }

    #[inline(always)]
    pub fn get(&self, at: usize) -> Cell {
        Cell {
            write_time: self.write_time[at],
            read_time: self.read_time[at],
            readers: self.readers[at],
            writer: self.writer[at],
            state: self.state[at],
            bytes: self.bytes[at],
        }
    }

    #[inline(always)]
    pub fn put(&mut self, at: usize, cell: Cell) {
        self.write_time[at] = cell.write_time;
        self.read_time[at] = cell.read_time;
        self.readers[at] = cell.readers;
        self.writer[at] = cell.writer;
        self.state[at] = cell.state;
        self.bytes[at] = cell.bytes;
    }

    /// Marks whole words that a copy fills later.
    pub fn set_pending(&mut self, first: usize, count: usize) {
        for state in &mut self.state[first..][..count] {
            *state |= 0xf0;
        }
    }

    /// Marks whole words that a copy has filled, by this warp at this time; time 0 is before all that can race.
    pub fn set_filled(&mut self, first: usize, count: usize, writer: usize, time: u32) {
        self.state[first..][..count].fill(15);
        self.write_time[first..][..count].fill(time);
        self.writer[first..][..count].fill(writer as u8);
        for bytes in &mut self.bytes[first..][..count] {
            *bytes |= 15;
        }
    }

    /// Notes a read of whole words; false, and nothing noted, if it has to be looked at word by word.
    #[inline]
    pub fn read(&mut self, first: usize, count: usize, by: Visitor) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self.vectors {
            // SAFETY: the processor has been asked.
            return unsafe { self.read_avx2(first, count, by) };
        }
        self.read_words(first, count, by)
    }

    /// Notes a write of whole words; false, and nothing noted, if it has to be looked at word by word.
    #[inline]
    pub fn write(&mut self, first: usize, count: usize, by: Visitor) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self.vectors {
            // SAFETY: the processor has been asked.
            return unsafe { self.write_avx2(first, count, by) };
        }
        self.write_words(first, count, by)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn read_avx2(&mut self, first: usize, count: usize, by: Visitor) -> bool {
        self.read_words(first, count, by)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn write_avx2(&mut self, first: usize, count: usize, by: Visitor) -> bool {
        self.write_words(first, count, by)
    }

    /// Whether any word was written by another warp after `floor`.
    #[inline(always)]
    fn foreign(&self, first: usize, count: usize, by: Visitor) -> bool {
        let (times, writers) = (&self.write_time[first..][..count], &self.writer[first..][..count]);
        let late = times.iter().fold(0, |late, time| late | u32::from(*time > by.floor));
        late != 0 && times.iter().zip(writers).any(|(time, writer)| *time > by.floor && usize::from(*writer) != by.warp)
    }

    #[inline(always)]
    fn read_words(&mut self, first: usize, count: usize, by: Visitor) -> bool {
        let state = &self.state[first..][..count];
        let (all, any) = state.iter().fold((15, 0), |(all, any), state| (all & state, any | state));
        if any > 15 || by.uninitialised && all != 15 {
            return false;
        }
        if !by.races {
            return true;
        }
        if self.foreign(first, count, by) {
            return false;
        }
        if !by.leaves {
            return true;
        }
        let (times, readers) = (&mut self.read_time[first..][..count], &mut self.readers[first..][..count]);
        let me = 1u32 << by.warp;
        for (time, readers) in times.iter_mut().zip(readers) {
            // Of reads at different times the earliest time stays: a race may be missed, but none is invented.
            let others = *time > by.floor && *readers & !me != 0;
            *readers = if others || *time == by.time { *readers } else { 0 } | me;
            *time = if others { *time } else { by.time };
        }
        for bytes in &mut self.bytes[first..][..count] {
            *bytes |= 0xf0;
        }
        true
    }

    #[inline(always)]
    fn write_words(&mut self, first: usize, count: usize, by: Visitor) -> bool {
        let any = self.state[first..][..count].iter().fold(0, |any, state| any | state);
        if any > 15 {
            return false;
        }
        self.state[first..][..count].fill(15);
        if !by.races {
            return true;
        }
        let me = 1u32 << by.warp;
        let mut read = 0;
        for (time, readers) in self.read_time[first..][..count].iter().zip(&self.readers[first..][..count]) {
            read |= u32::from(*time > by.floor) & u32::from(readers & !me != 0);
        }
        if read != 0 || self.foreign(first, count, by) {
            return false;
        }
        self.write_time[first..][..count].fill(by.time);
        self.writer[first..][..count].fill(by.warp as u8);
        for bytes in &mut self.bytes[first..][..count] {
            *bytes = *bytes & 0xf0 | 15;
        }
        true
    }
}
