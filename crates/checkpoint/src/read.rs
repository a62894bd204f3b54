//! Reads checkpoints.

use crate::blocks::{self, BLOCK};
use crate::files::{Files, Recent, expect_small};
use crate::table::{NONE, Row, Section, Segment, not_whole};
use crate::{CheckpointError, Index, Kind, Parameter, Region};
use std::collections::HashMap;
use std::fmt;
use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;

/// A checkpoint open for reading by any number of threads.
///
/// Every byte is verified: a block of 2 MiB is compared with its digest when it is first read, and its bytes come from
/// the same descriptor. Only the piece locations of the parameter being read are in memory.
pub struct Checkpoint {
    path: PathBuf,
    index: Index,
    files: Files,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Checkpoint").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Checkpoint {
    /// Opens a folder `step-N`. This checks the index. The other files are checked when they are read, or by
    /// [`verify`](Self::verify).
    ///
    /// # Errors
    /// If the folder is no checkpoint, or if its index or the size of a file is not what was written.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let index_path = path.join("index.json");
        let index = Index::read(&index_path)?;
        let files = Files::new(path, &index)?;
        Ok(Self { path: path.into(), index, files })
    }

    /// The checkpoint's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The checkpoint's index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Reads every byte of this rank's share of the files and compares digests. All `world_size` ranks together read
    /// each byte once, and their shares differ by at most one block of 2 MiB, however many files there are.
    ///
    /// # Errors
    /// If a file cannot be read or has changed since it was written.
    pub fn verify(&self, rank: usize, world_size: usize) -> Result<(), CheckpointError> {
        self.files.verify(rank, world_size)
    }

    /// [`verify`](Self::verify)s all files on all cores.
    ///
    /// # Errors
    /// See [`verify`](Self::verify).
    pub fn verify_all(&self) -> Result<(), CheckpointError> {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        thread::scope(|scope| {
            let threads: Vec<_> =
                (0..threads).map(|part| scope.spawn(move || self.files.verify(part, threads))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("reading does not panic"))
        })
    }

    /// Closes the files. They are reopened when they are read again. A removed checkpoint occupies disk space until
    /// this is called.
    pub fn close(&self) {
        self.files.close();
    }

    /// The bytes of a file that the run added.
    ///
    /// # Errors
    /// If there is no file of that name.
    pub fn read_file(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let extra = self.index.extra().iter().position(|file| file.name == name);
        let number = self.index.world_size + extra.ok_or_else(|| self.other(format!("it has no file {name}")))?;
        self.bytes(number, 0..self.files.entries()[number].bytes)
    }

    /// Opens a parameter for reading.
    ///
    /// # Errors
    /// If there is no parameter of that name, or if its pieces do not cover it exactly.
    pub fn parameter(&self, name: &str) -> Result<Elements<'_>, CheckpointError> {
        let all = &self.index.parameters;
        let number = all.binary_search_by(|of| of.name.as_str().cmp(name));
        let number = number.map_err(|_| self.other(format!("there is no parameter {name}")))?;
        let table = self.files.entries().len() - 1;
        let broken = || CheckpointError::broken(&self.path.join(&self.index.table.name), not_whole(name));
        // The head says where the previous section and this one end.
        let head = all.len() as u64 * 8;
        let ends = number.saturating_sub(1) as u64 * 8..(number as u64 + 1) * 8;
        let ends = self.bytes_if(table, ends)?.ok_or_else(broken)?;
        let mut ends = ends.as_chunks().0.iter().map(|end| u64::from_le_bytes(*end));
        let start = if number == 0 { 0 } else { ends.next().unwrap_or_default() };
        let end = ends.next().unwrap_or_default();
        let section = match (head.checked_add(start), head.checked_add(end)) {
            (Some(start), Some(end)) if start <= end => self.bytes_if(table, start..end)?.ok_or_else(broken)?,
            _ => return Err(broken()),
        };
        let section = Section::parse(&section, &all[number].shape).map_err(|_| broken())?;
        if section.rows().any(|row| !self.is_in_its_file(row)) {
            return Err(broken());
        }
        let recent = Recent::new(section.across());
        Ok(Elements { checkpoint: self, parameter: &all[number], section, recent })
    }

    fn is_in_its_file(&self, row: &Row) -> bool {
        let Some(file) = self.index.files.get(row.file).filter(|_| row.file < self.index.world_size) else {
            return false;
        };
        row.at.iter().filter(|at| **at != NONE).all(|at| {
            let end = (row.len as u64).checked_mul(4).and_then(|bytes| at.checked_add(bytes));
            at.is_multiple_of(4) && end.is_some_and(|end| end <= file.bytes)
        })
    }

    /// Reads elements `range` of a flattened parameter, or of its moments.
    ///
    /// # Errors
    /// If there is no such parameter, if it is shorter, or if it has no moments.
    pub fn read(&self, name: &str, kind: Kind, range: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        self.parameter(name)?.read(kind, range)
    }

    /// [`read`](Self::read)s a range of a box's elements.
    ///
    /// # Errors
    /// As for [`read`](Self::read), and if the box does not fit the parameter.
    pub fn read_region(
        &self,
        name: &str,
        kind: Kind,
        region: &Region,
        range: Range<usize>,
    ) -> Result<Vec<f32>, CheckpointError> {
        self.parameter(name)?.read_region(kind, region, range)
    }

    /// An error unless the parameters are exactly these, in any order.
    pub fn expect(&self, model: &[Parameter]) -> Result<(), CheckpointError> {
        let mut kept: HashMap<&str, &[usize]> =
            self.index.parameters.iter().map(|parameter| (parameter.name.as_str(), &parameter.shape[..])).collect();
        for Parameter { name, shape } in model {
            match kept.remove(name.as_str()) {
                None => return Err(self.other(format!("it has no parameter {name}"))),
                Some(found) if found != shape => {
                    return Err(self.other(format!("its parameter {name} has shape {found:?}, the model's {shape:?}")));
                }
                Some(_) => {}
            }
        }
        match kept.into_keys().min() {
            Some(name) => Err(self.other(format!("it has a parameter {name}, and the model has none of that name"))),
            None => Ok(()),
        }
    }

    fn other(&self, reason: String) -> CheckpointError {
        CheckpointError::OtherModel { path: self.path.clone(), reason }
    }

    /// Bytes of a file. None if it is shorter.
    fn bytes_if(&self, file: usize, range: Range<u64>) -> Result<Option<Vec<u8>>, CheckpointError> {
        let is_there = range.end <= self.files.entries()[file].bytes;
        is_there.then(|| self.bytes(file, range)).transpose()
    }

    fn bytes(&self, file: usize, range: Range<u64>) -> Result<Vec<u8>, CheckpointError> {
        let file = self.files.get(file)?;
        expect_small(&file.path, range.end - range.start)?;
        let (mut bytes, mut block) = (vec![], vec![]);
        for number in range.start / BLOCK..blocks::count(range.end) {
            file.read_block(number, &mut block)?;
            let of = blocks::range(file.bytes(), number);
            let within = range.start.max(of.start) - of.start..range.end.min(of.end) - of.start;
            bytes.extend_from_slice(&block[within.start as usize..within.end as usize]);
        }
        Ok(bytes)
    }
}

/// A parameter of a checkpoint, with its moments.
pub struct Elements<'a> {
    checkpoint: &'a Checkpoint,
    parameter: &'a Parameter,
    section: Section,
    recent: Recent,
}

impl Elements<'_> {
    /// Whether this kind of the parameter was saved, at least in part.
    pub fn has(&self, kind: Kind) -> bool {
        self.section.rows().any(|row| row.at[kind as usize] != NONE)
    }

    /// Reads elements `range` of one kind of the flattened parameter.
    ///
    /// # Errors
    /// If the parameter is shorter or lacks this kind, or if a file was changed.
    pub fn read(&mut self, kind: Kind, range: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        let (name, len) = (&self.parameter.name, self.section.len());
        if range.end > len {
            return Err(self
                .checkpoint
                .other(format!("parameter {name} has {len} elements, fewer than {}", range.end)));
        }
        let mut values = Vec::with_capacity(range.len());
        self.push(kind, range, &mut values)?;
        Ok(values)
    }

    /// [`read`](Self::read)s a range of a box's elements.
    ///
    /// # Errors
    /// As for [`read`](Self::read), and if the box does not fit the parameter.
    pub fn read_region(
        &mut self,
        kind: Kind,
        region: &Region,
        range: Range<usize>,
    ) -> Result<Vec<f32>, CheckpointError> {
        let Parameter { name, shape } = self.parameter;
        if !region.fits(shape) || range.end > region.len() {
            let reason = format!("parameter {name} of shape {shape:?} has no elements {range:?} of {region:?}");
            return Err(self.checkpoint.other(reason));
        }
        let mut values = Vec::with_capacity(range.len());
        region.runs(shape, range).try_for_each(|run| self.push(kind, run, &mut values))?;
        Ok(values)
    }

    /// The locations of elements `range` of one kind of the flattened parameter: file numbers and the bytes in each
    /// file, in order.
    pub fn places(&self, kind: Kind, range: Range<usize>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let mut at = range.start;
        let segments = std::iter::from_fn(move || {
            let segment = (at < range.end).then(|| self.section.segment(at, range.end))?;
            at += segment.len;
            Some(segment)
        });
        segments.filter(move |segment| segment.row.at[kind as usize] != NONE).map(
            move |Segment { row, within, len }| {
                let start = row.at[kind as usize] + 4 * within as u64;
                (row.file, start..start + 4 * len as u64)
            },
        )
    }

    fn push(&mut self, kind: Kind, range: Range<usize>, values: &mut Vec<f32>) -> Result<(), CheckpointError> {
        let mut from = range.start;
        while from < range.end {
            let Segment { row, within, len } = self.section.segment(from, range.end);
            from += len;
            if row.at[kind as usize] == NONE {
                let name = &self.parameter.name;
                return Err(self.checkpoint.other(format!("parameter {name} has no {}", kind.tensor(name))));
            }
            let mut at = row.at[kind as usize] + 4 * within as u64;
            let end = at + 4 * len as u64;
            while at < end {
                let number = at / BLOCK;
                let block = self.recent.block(&self.checkpoint.files, row.file, number)?;
                let until = end.min((number + 1) * BLOCK);
                let bytes = &block[(at - number * BLOCK) as usize..(until - number * BLOCK) as usize];
                // The format is little-endian, like all machines that Kiln supports.
                match bytemuck::try_cast_slice(bytes) {
                    Ok(floats) => values.extend_from_slice(floats),
                    Err(_) => values.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
                }
                at = until;
            }
        }
        Ok(())
    }
}
