use crate::write::digest;
use crate::{CheckpointError, Index, Kind, Parameter, Region};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A checkpoint that is open for reading.
pub struct Checkpoint {
    path: PathBuf,
    index: Index,
    /// Memory-mapped files with pieces, by their place in the index.
    maps: HashMap<usize, Mmap>,
    /// Where each parameter's elements are, in their order.
    runs: HashMap<String, Vec<Run>>,
}

/// Elements of a parameter that lie together in a file.
struct Run {
    elements: Range<usize>,
    file: usize,
    /// The first byte of each kind; none where there are no moments.
    starts: [Option<usize>; 3],
}

impl Checkpoint {
    /// Opens a folder `step-N`. Index, lengths and headers of its files are checked; [`verify`](Self::verify) checks all bytes.
    ///
    /// # Errors
    /// If a file is missing, cut off, or not what the index says.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let index_path = path.join("index.json");
        let text = fs::read_to_string(&index_path).map_err(CheckpointError::read(&index_path))?;
        let index = Index::from_json(&text, &index_path)?;
        let mut checkpoint = Self { path: path.into(), index, maps: HashMap::new(), runs: HashMap::new() };
        for file in 0..checkpoint.index.files.len() {
            checkpoint.open_file(file)?;
        }
        checkpoint.runs.values_mut().for_each(|runs| runs.sort_by_key(|run| run.elements.start));
        Ok(checkpoint)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its index says.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Reads every byte of this rank's share of the files and compares digests; all of `world_size` ranks together read each file once.
    pub fn verify(&self, rank: usize, world_size: usize) -> Result<(), CheckpointError> {
        for entry in self.index.files.iter().skip(rank).step_by(world_size) {
            let path = self.path.join(&entry.name);
            let (_, sha256) = File::open(&path).and_then(digest).map_err(CheckpointError::read(&path))?;
            if sha256 != entry.sha256 {
                let reason = format!("has digest {sha256}, not {}: it was changed after it was written", entry.sha256);
                return Err(CheckpointError::broken(&path, reason));
            }
        }
        Ok(())
    }

    /// Elements `range` of a parameter, flat, or of its moments.
    ///
    /// # Errors
    /// If there is no such parameter, it is shorter, or it has no moments.
    pub fn read(&self, name: &str, kind: Kind, range: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        let other = |reason: String| CheckpointError::OtherModel { path: self.path.clone(), reason };
        let runs = self.runs.get(name).ok_or_else(|| other(format!("there is no parameter {name}")))?;
        let len = runs.last().map_or(0, |run| run.elements.end);
        if range.end > len {
            return Err(other(format!("parameter {name} has {len} elements, fewer than {}", range.end)));
        }
        let mut values = Vec::with_capacity(range.len());
        let first = runs.partition_point(|run| run.elements.end <= range.start);
        for Run { elements, file, starts } in runs[first..].iter().take_while(|run| run.elements.start < range.end) {
            let start =
                starts[kind as usize].ok_or_else(|| other(format!("parameter {name} has no {}", kind.tensor(name))))?;
            let [from, to] = [range.start.max(elements.start), range.end.min(elements.end)]
                .map(|at| start + (at - elements.start) * size_of::<f32>());
            let (numbers, _) = self.maps[file][from..to].as_chunks();
            values.extend(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        }
        Ok(values)
    }

    /// [`read`](Self::read) of a range of a box's elements.
    ///
    /// # Errors
    /// As there, and if the box is not one of the parameter.
    pub fn read_region(
        &self,
        name: &str,
        kind: Kind,
        region: &Region,
        range: Range<usize>,
    ) -> Result<Vec<f32>, CheckpointError> {
        let other = |reason: String| CheckpointError::OtherModel { path: self.path.clone(), reason };
        let parameter = self.index.parameters.iter().find(|parameter| parameter.name == name);
        let parameter = parameter.ok_or_else(|| other(format!("there is no parameter {name}")))?;
        if !region.fits(&parameter.shape) || range.end > region.len() {
            let shape = &parameter.shape;
            return Err(other(format!("parameter {name} of shape {shape:?} has no elements {range:?} of {region:?}")));
        }
        let mut values = Vec::with_capacity(range.len());
        for run in region.runs(&parameter.shape, range) {
            values.extend(self.read(name, kind, run)?);
        }
        Ok(values)
    }

    /// An error unless the parameters are these, in any order.
    pub fn expect(&self, model: &[Parameter]) -> Result<(), CheckpointError> {
        let other = |reason: String| CheckpointError::OtherModel { path: self.path.clone(), reason };
        let mut kept: HashMap<&str, &[usize]> =
            self.index.parameters.iter().map(|parameter| (parameter.name.as_str(), &parameter.shape[..])).collect();
        for Parameter { name, shape } in model {
            match kept.remove(name.as_str()) {
                None => return Err(other(format!("it has no parameter {name}"))),
                Some(found) if found != shape => {
                    return Err(other(format!("its parameter {name} has shape {found:?}, the model's {shape:?}")));
                }
                Some(_) => {}
            }
        }
        match kept.into_keys().min() {
            Some(name) => Err(other(format!("it has a parameter {name}, and the model has none of that name"))),
            None => Ok(()),
        }
    }

    fn open_file(&mut self, number: usize) -> Result<(), CheckpointError> {
        let entry = &self.index.files[number];
        let path = self.path.join(&entry.name);
        let broken = |reason: String| CheckpointError::broken(&path, reason);
        let file = File::open(&path).map_err(CheckpointError::read(&path))?;
        let bytes = file.metadata().map_err(CheckpointError::read(&path))?.len();
        if bytes != entry.bytes {
            return Err(broken(format!("has {bytes} bytes, not {}", entry.bytes)));
        }
        if entry.pieces.is_empty() {
            return Ok(());
        }
        // SAFETY: the map is only read; nobody writes into a checkpoint once it is complete.
        let map = unsafe { Mmap::map(&file) }.map_err(CheckpointError::read(&path))?;
        let (header, metadata) =
            SafeTensors::read_metadata(&map).map_err(|error| broken(format!("not a safetensors file: {error}")))?;
        let first = header + size_of::<u64>();
        for piece in &entry.pieces {
            let mut starts = [None; 3];
            for (start, kind) in starts.iter_mut().zip(Kind::ALL) {
                let Some(info) = metadata.info(&kind.tensor(&piece.name)) else { continue };
                if info.dtype != Dtype::F32 || info.shape != [piece.len] {
                    return Err(broken(format!("{} is not as the index says", kind.tensor(&piece.name))));
                }
                *start = Some(first + info.data_offsets.0);
            }
            if starts[0].is_none() {
                return Err(broken(format!("there is no {}", Kind::Param.tensor(&piece.name))));
            }
            let mut before = 0;
            for elements in piece.runs().ok_or_else(|| broken(format!("{} is not as its shape says", piece.name)))? {
                let starts = starts.map(|start| start.map(|start| start + before * size_of::<f32>()));
                before += elements.len();
                self.runs.entry(piece.name.clone()).or_default().push(Run { elements, file: number, starts });
            }
        }
        self.maps.insert(number, map);
        Ok(())
    }
}
