//! The location of a parameter's elements: file and byte.
//!
//! A parameter is cut into boxes, which are the cells of a grid. A flattened box is cut into consecutive pieces:
//!
//! ```text
//! columns over two ranks, each box over three     piece 0 0 0 0│3 3 3 3
//!                                                       0 1 1 1│3 4 4 4
//!                                                       1 2 2 2│4 5 5 5
//! ```
//!
//! `pieces.bin` has one section per parameter, so a rank reads only those that it needs. A section takes a few numbers
//! per box and per piece, however large these are. All numbers are u64, little-endian:
//!
//! ```text
//! head       per parameter, in the order of the index: where its section ends, in bytes from the head's end
//! section    dimensions d, shape [d], boxes k, pieces of each box [k], per box: start [d], size [d]
//!            per piece: length, file, first byte of param, of exp_avg, of exp_avg_sq (2^64 - 1: there is none)
//! ```

use crate::region::{elements, strides, together};
use crate::{Parameter, Region};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of the file with all sections.
pub(crate) const TABLE: &str = "pieces.bin";

/// The location of a kind that is absent.
pub(crate) const NONE: u64 = u64::MAX;

/// A part of a parameter in a rank's file: elements `offset..offset + len` of the flattened parameter or of a box of
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PieceEntry {
    /// The parameter.
    pub name: String,
    /// The whole parameter's shape.
    pub shape: Vec<usize>,
    /// The box. None: the whole parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Region>,
    /// The first element of the piece.
    pub offset: usize,
    /// The number of elements.
    pub len: usize,
    /// The first byte of each kind in the file, or [`NONE`].
    pub at: [u64; 3],
}

/// A piece of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its first element in the box.
    pub offset: usize,
    pub len: usize,
    pub file: usize,
    pub at: [u64; 3],
}

/// The sections of a checkpoint, as its pieces are collected.
#[derive(Default)]
pub(crate) struct Builder(BTreeMap<String, Pieces>);

/// The pieces of one parameter, with boxes in the order of the grid's cells.
struct Pieces {
    shape: Vec<usize>,
    view: Vec<usize>,
    boxes: BTreeMap<(Vec<usize>, Vec<usize>), Vec<Row>>,
}

impl Builder {
    /// Adds a piece of a file.
    ///
    /// # Errors
    /// If the piece does not fit its parameter, or if its shape differs from that of earlier pieces.
    pub fn add(&mut self, file: usize, piece: PieceEntry) -> Result<(), String> {
        let PieceEntry { name, shape, region, offset, len, at } = piece;
        let region = region.unwrap_or_else(|| Region::whole(&shape));
        if !region.fits(&shape) || offset.checked_add(len).is_none_or(|end| end > region.len()) {
            return Err(format!("a piece of parameter {name} is not within its shape {shape:?}"));
        }
        let Region { view, start, size } = region;
        let view = view.unwrap_or_else(|| shape.clone());
        let new = || Pieces { shape: shape.clone(), view: view.clone(), boxes: BTreeMap::new() };
        let of = self.0.entry(name.clone()).or_insert_with(new);
        if (&of.shape, &of.view) != (&shape, &view) {
            return Err(format!("the pieces of parameter {name} are of different shapes"));
        }
        of.boxes.entry((start, size)).or_default().push(Row { offset, len, file, at });
        Ok(())
    }

    /// The parameters ordered by name, and the bytes of the table.
    ///
    /// # Errors
    /// If the pieces of a parameter do not cover it exactly.
    pub fn finish(self) -> Result<(Vec<Parameter>, Vec<u8>), String> {
        let (mut parameters, mut head, mut sections) = (vec![], vec![], vec![]);
        for (name, pieces) in self.0 {
            let (shape, section) = pieces.section();
            Section::parse(&section, &shape).map_err(|_| not_whole(&name))?;
            sections.extend(section);
            head.extend((sections.len() as u64).to_le_bytes());
            parameters.push(Parameter { name, shape });
        }
        head.append(&mut sections);
        Ok((parameters, head))
    }
}

pub(crate) fn not_whole(name: &str) -> String {
    format!("the pieces of parameter {name} are not the whole of it")
}

impl Pieces {
    fn section(self) -> (Vec<usize>, Vec<u8>) {
        let Self { shape, view, mut boxes } = self;
        let mut numbers = vec![view.len()];
        numbers.extend(&view);
        numbers.push(boxes.len());
        numbers.extend(boxes.values().map(Vec::len));
        boxes.keys().for_each(|(start, size)| numbers.extend(start.iter().chain(size)));
        let mut numbers: Vec<u64> = numbers.into_iter().map(|number| number as u64).collect();
        for rows in boxes.values_mut() {
            rows.sort_by_key(|row| (row.offset, row.len));
            // A gap or an overlap is marked by a length that makes the sum differ from the box's size.
            let mut end = 0;
            for Row { offset, len, file, at } in rows {
                numbers.extend([if *offset == end { *len as u64 } else { NONE }, *file as u64]);
                numbers.extend(&*at);
                end = *offset + *len;
            }
        }
        (shape, numbers.into_iter().flat_map(u64::to_le_bytes).collect())
    }
}

/// A parameter's section, for looking up elements.
#[derive(Debug)]
pub(crate) struct Section {
    view: Vec<usize>,
    strides: Vec<usize>,
    /// Start and size of the grid's cells along each dimension.
    cuts: Vec<Vec<(usize, usize)>>,
    boxes: Vec<Cell>,
    len: usize,
}

/// A box.
#[derive(Debug)]
struct Cell {
    size: Vec<usize>,
    rows: Vec<Row>,
}

/// Elements that are contiguous in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub row: Row,
    /// The first element's position in the piece.
    pub within: usize,
    pub len: usize,
}

/// The section does not describe the parameter.
#[derive(Debug)]
pub(crate) struct NotASection;

impl Section {
    /// How many boxes one row of the first dimension spans.
    pub fn across(&self) -> usize {
        self.cuts.iter().skip(1).map(Vec::len).product()
    }

    /// Parses the section of a parameter of this shape. The memory it takes is bounded by the number of bytes.
    pub fn parse(bytes: &[u8], shape: &[usize]) -> Result<Self, NotASection> {
        let (numbers, rest) = bytes.as_chunks();
        let mut numbers = Numbers(numbers);
        let dims = numbers.next()?;
        let view = numbers.take(dims)?;
        let all = elements(shape).ok_or(NotASection)?;
        let boxes = numbers.next()?;
        let rows = numbers.take(boxes)?;
        if !rest.is_empty() || elements(&view) != Some(all) {
            return Err(NotASection);
        }
        let mut cells = vec![];
        for _ in 0..boxes {
            let (start, size) = (numbers.take(dims)?, numbers.take(dims)?);
            if !(Region { view: None, start: start.clone(), size: size.clone() }).fits(&view) {
                return Err(NotASection);
            }
            cells.push((start, size));
        }
        let cuts = grid(&view, &cells).ok_or(NotASection)?;
        let mut of_boxes = vec![];
        for ((_, size), rows) in cells.into_iter().zip(rows) {
            let rows = numbers.rows(rows)?;
            let end = rows.last().map_or(0, |row| row.offset + row.len);
            if end != size.iter().product::<usize>() {
                return Err(NotASection);
            }
            of_boxes.push(Cell { size, rows });
        }
        let strides = strides(&view);
        numbers.0.is_empty().then_some(Self { view, strides, cuts, boxes: of_boxes, len: all }).ok_or(NotASection)
    }

    /// Number of elements of the parameter.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The flattened elements from `from` up to at most `end` that are contiguous in a file.
    ///
    /// # Panics
    /// If there is no element `from`.
    pub fn segment(&self, from: usize, end: usize) -> Segment {
        let (mut cell, mut flat) = (0, 0);
        for d in 0..self.view.len() {
            let index = from / self.strides[d] % self.view[d];
            let cuts = &self.cuts[d];
            let at = cuts.partition_point(|(start, size)| start + size <= index);
            let (start, size) = cuts[at];
            cell = cell * cuts.len() + at;
            flat = flat * size + (index - start);
        }
        let Cell { size, rows } = &self.boxes[cell];
        let (_, together) = together(size, &self.view);
        let row = rows[rows.partition_point(|row| row.offset + row.len <= flat)];
        let within = flat - row.offset;
        let len = (together - flat % together).min(row.len - within).min(end - from);
        Segment { row, within, len }
    }

    /// All pieces.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.boxes.iter().flat_map(|cell| &cell.rows)
    }
}

/// The cuts of each dimension, if these boxes are all the cells of a grid over the shape, in the grid's order.
fn grid(shape: &[usize], boxes: &[(Vec<usize>, Vec<usize>)]) -> Option<Vec<Vec<(usize, usize)>>> {
    let mut cuts = vec![];
    for (d, width) in shape.iter().enumerate() {
        let mut of: Vec<_> = boxes.iter().map(|(start, size)| (start[d], size[d])).collect();
        of.sort_unstable();
        of.dedup();
        let end = of.iter().try_fold(0, |end, (start, size)| (*start == end).then_some(start + size));
        if end != Some(*width) {
            return None;
        }
        cuts.push(of);
    }
    let cells = cuts.iter().try_fold(1usize, |cells, of| cells.checked_mul(of.len()));
    let is_cell = |(mut number, (start, size)): (usize, &(Vec<usize>, Vec<usize>))| {
        (0..shape.len()).rev().all(|d| {
            let at = number % cuts[d].len();
            number /= cuts[d].len();
            cuts[d][at] == (start[d], size[d])
        })
    };
    (cells == Some(boxes.len()) && boxes.iter().enumerate().all(is_cell)).then_some(cuts)
}

/// The unread rest of a section.
struct Numbers<'a>(&'a [[u8; 8]]);

impl Numbers<'_> {
    fn word(&mut self) -> Result<u64, NotASection> {
        let (first, rest) = self.0.split_first().ok_or(NotASection)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*first))
    }

    fn next(&mut self) -> Result<usize, NotASection> {
        self.word()?.try_into().map_err(|_| NotASection)
    }

    fn take(&mut self, count: usize) -> Result<Vec<usize>, NotASection> {
        if count > self.0.len() {
            return Err(NotASection);
        }
        (0..count).map(|_| self.next()).collect()
    }

    fn rows(&mut self, count: usize) -> Result<Vec<Row>, NotASection> {
        if count > self.0.len() {
            return Err(NotASection);
        }
        let mut offset = 0usize;
        let row = |_| {
            let (len, file) = (self.next()?, self.next()?);
            let row = Row { offset, len, file, at: [self.word()?, self.word()?, self.word()?] };
            offset = offset.checked_add(len).ok_or(NotASection)?;
            Ok(row)
        };
        (0..count).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Start and size of each cell of a grid whose dimensions are cut into parts of these sizes.
    fn cells(dims: &[Vec<usize>]) -> Vec<(Vec<usize>, Vec<usize>)> {
        dims.iter().fold(vec![(vec![], vec![])], |cells, sizes| {
            let longer = |(start, size): &(Vec<usize>, Vec<usize>)| {
                let mut at = 0;
                let mut longer = vec![];
                for width in sizes {
                    longer.push(([&start[..], &[at]].concat(), [&size[..], &[*width]].concat()));
                    at += width;
                }
                longer
            };
            cells.iter().flat_map(longer).collect()
        })
    }

    proptest! {
        /// Each box is cut in two pieces, all consecutive in one file. Compares every element of every box, one by one.
        #[test]
        fn every_element_is_found_where_its_piece_has_it(
            dims in prop::collection::vec(prop::collection::vec(1usize..4, 1..4), 1..4),
            cut in 0usize..100, range in any::<[prop::sample::Index; 2]>(), gap in any::<prop::sample::Index>(),
        ) {
            let view: Vec<usize> = dims.iter().map(|sizes| sizes.iter().sum()).collect();
            let len: usize = view.iter().product();
            let shape = vec![len]; // viewed in as many dimensions as it is cut in
            let (mut pieces, mut file, mut bytes) = (vec![], vec![0; len], 0);
            for (start, size) in cells(&dims) {
                let region = Region { view: Some(view.clone()), start, size };
                for range in [0..region.len() * cut / 100, region.len() * cut / 100..region.len()] {
                    for (i, element) in region.runs(&shape, range.clone()).flatten().enumerate() {
                        file[element] = bytes + 4 * i as u64;
                    }
                    let (offset, len, region) = (range.start, range.len(), Some(region.clone()));
                    pieces.push(PieceEntry { name: "w".into(), shape: shape.clone(), region, offset, len, at: [bytes; 3] });
                    bytes += 4 * len as u64;
                }
            }
            let build = |pieces: &[PieceEntry]| {
                let mut builder = Builder::default();
                pieces.iter().try_for_each(|piece| builder.add(0, piece.clone()))?;
                builder.finish()
            };
            let (_, table) = build(&pieces).unwrap();
            let section = Section::parse(&table[8..], &shape).unwrap();
            let [a, b] = range.map(|index| index.index(len + 1));
            let (mut at, end) = (a.min(b), a.max(b));
            while at < end {
                let segment = section.segment(at, end);
                for i in 0..segment.len {
                    prop_assert_eq!(segment.row.at[0] + 4 * (segment.within + i) as u64, file[at + i]);
                }
                at += segment.len;
            }
            prop_assert_eq!(at, end);
            // With a piece missing or repeated, they do not cover the parameter.
            let gap = gap.index(pieces.len());
            if pieces[gap].len > 0 {
                let twice = [&pieces[..], &pieces[gap..gap + 1]].concat();
                prop_assert!(build(&twice).is_err());
                pieces.remove(gap);
                prop_assert!(build(&pieces).is_err());
            }
        }

        #[test]
        fn a_section_of_any_numbers_is_refused_without_a_panic(numbers in prop::collection::vec(0u64..6, 0..40), shape in prop::collection::vec(0usize..4, 0..3)) {
            let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
            if let Ok(section) = Section::parse(&bytes, &shape) {
                (0..section.len()).for_each(|at| assert!(section.segment(at, section.len()).len > 0));
            }
        }
    }
}
