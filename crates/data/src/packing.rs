//! Packs documents of many lengths into full rows of a few lengths.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::tokens::Tokens;
use crate::{DataError, documents};

/// Consecutive tokens of one document in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub start: u64,
    pub len: u32,
    /// Whether this is a whole document.
    pub whole: bool,
}

impl Piece {
    fn new(range: Range<u64>, whole: bool) -> Self {
        Self { start: range.start, len: (range.end - range.start) as u32, whole }
    }

    pub fn range(&self) -> Range<u64> {
        self.start..self.start + u64::from(self.len)
    }
}

/// Rows of one length, each of one or more pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackedRows {
    pieces: Vec<Piece>,
    /// For each row, the number of pieces up to its end.
    ends: Vec<usize>,
}

impl PackedRows {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The pieces of all rows.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The pieces of a row, in order.
    pub fn row(&self, row: usize) -> &[Piece] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pieces[start..self.ends[row]]
    }

    /// Releases unused memory.
    fn shrink(&mut self) {
        self.pieces.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    fn push(&mut self, row: &[Piece]) {
        self.pieces.extend_from_slice(row);
        self.ends.push(self.pieces.len());
    }
}

/// Packs the documents of `tokens` into rows: for each of the ascending `lengths`, rows of `length + 1` tokens.
///
/// # Errors
/// If a token file can no longer be read.
pub fn pack(
    tokens: &Tokens,
    lengths: &[usize],
    end_of_text: i32,
    progress: bool,
) -> Result<Vec<PackedRows>, DataError> {
    let rows = vec![PackedRows::default(); lengths.len()];
    let mut packing = Packing { lengths, buckets: lengths.len(), rows, left: BTreeMap::new() };
    let mut tail = documents::scan(tokens, end_of_text, progress, |document| packing.add(document, true))?;
    packing.fill_rows();
    // The split ends inside its last document. No token ends that document, so no other may follow it in a row.
    for bucket in (0..lengths.len()).rev() {
        tail = packing.cut_rows(bucket, tail, false);
    }
    packing.rows.iter_mut().for_each(PackedRows::shrink);
    Ok(packing.rows)
}

struct Packing<'a> {
    lengths: &'a [usize],
    /// How many of the lengths, counted from the shortest, can still be filled.
    buckets: usize,
    rows: Vec<PackedRows>,
    /// Documents, or remainders of documents, that are in no row yet, by length.
    left: BTreeMap<u32, Vec<Piece>>,
}

impl Packing<'_> {
    /// Adds a document (or a part of one, if not `whole`). The longest rows that it fills alone are cut off first.
    fn add(&mut self, document: Range<u64>, whole: bool) {
        let rest = self.cut_rows(self.buckets - 1, document.clone(), whole);
        let whole = whole && rest == document;
        self.put(Piece::new(rest, whole));
    }

    /// Cuts off as many rows as the document fills, overlapping by one token. Returns its remainder.
    fn cut_rows(&mut self, bucket: usize, document: Range<u64>, whole: bool) -> Range<u64> {
        let (length, mut rest) = (self.lengths[bucket] as u64, document.clone());
        while rest.end - rest.start > length {
            let row = rest.start..rest.start + length + 1;
            let whole = whole && row == document;
            self.rows[bucket].push(&[Piece::new(row, whole)]);
            rest.start += length;
        }
        rest
    }

    /// Fills rows until no documents are left, or too few to fill the shortest row.
    fn fill_rows(&mut self) {
        let mut row = Vec::new();
        while let Some(longest) = self.take_longest(u32::MAX) {
            let bucket = self.lengths.partition_point(|&length| length + 1 < longest.len as usize);
            let mut gap = (self.lengths[bucket] + 1) as u32 - longest.len;
            row.clear();
            row.push(longest);
            while gap > 0
                && let Some(piece) = self.take_longest(gap).or_else(|| self.cut_shortest(gap))
            {
                gap -= piece.len;
                row.push(piece);
            }
            if gap == 0 {
                self.rows[bucket].push(&row);
                continue;
            }
            // This row holds all that is left; it may fill shorter rows.
            self.buckets = bucket;
            if bucket == 0 {
                break;
            }
            row.iter().for_each(|piece| self.add(piece.range(), piece.whole));
        }
    }

    /// Takes the longest remaining document of at most `len` tokens.
    fn take_longest(&mut self, len: u32) -> Option<Piece> {
        let (&len, _) = self.left.range(..=len).next_back()?;
        self.take(len)
    }

    /// Takes the first `len` tokens of the shortest remaining document that is longer than `len`. Its remainder begins
    /// with the last of them, which is only a target in the row that they end.
    fn cut_shortest(&mut self, len: u32) -> Option<Piece> {
        let (&longer, _) = self.left.range(len + 1..).next()?;
        let document = self.take(longer)?;
        let (Range { start, end }, overlap) = (document.range(), u64::from(len - 1));
        self.put(Piece::new(start + overlap..end, document.whole && overlap == 0));
        Some(Piece { start, len, whole: false })
    }

    /// Takes the document of `len` tokens that was added last.
    fn take(&mut self, len: u32) -> Option<Piece> {
        let same = self.left.get_mut(&len)?;
        let document = same.pop();
        if same.is_empty() {
            self.left.remove(&len);
        }
        document
    }

    /// Adds a document to the remaining ones, unless it has nothing to predict.
    fn put(&mut self, document: Piece) {
        if document.len >= 2 {
            self.left.entry(document.len).or_default().push(document);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};

    const END: i32 = i32::MAX;

    /// Documents of these lengths, one after another, and their ranges. Token `i` is `i` or ends a document.
    fn documents(lens: &[u64]) -> (Vec<u32>, Vec<Range<u64>>) {
        let (mut tokens, mut places) = (Vec::new(), Vec::new());
        for len in lens {
            let start = tokens.len() as u64;
            tokens.extend(start as u32..(start + len) as u32);
            *tokens.last_mut().unwrap() = END as u32;
            places.push(start..start + len);
        }
        (tokens, places)
    }

    /// How often each token is an input.
    fn inputs(rows: &[PackedRows], tokens: usize) -> Vec<usize> {
        let mut seen = vec![0; tokens];
        for rows in rows {
            for row in 0..rows.len() {
                let target = rows.row(row).last().unwrap().range().end - 1;
                let row = rows.row(row).iter().flat_map(Piece::range);
                row.for_each(|token| seen[token as usize] += usize::from(token != target));
            }
        }
        seen
    }

    proptest! {
        #[test]
        fn rows_are_full_of_documents_that_fit_them_best_and_only_the_last_of_a_row_is_cut(
            lens in prop::collection::vec(1u64..60, 0..80), tail in 0u64..60,
            lengths in subsequence(vec![4, 9, 16], 1..=3),
        ) {
            let (mut tokens, mut places) = documents(&lens);
            let total = tokens.len() as u64 + tail;
            places.push(tokens.len() as u64..total);
            tokens.resize(total as usize, 0);
            let tokens = Tokens::from_vec(tokens);
            let mut shorter = 0; // tokens of a row of the bucket before
            for (rows, length) in pack(&tokens, &lengths, END, false).unwrap().iter().zip(lengths) {
                for row in (0..rows.len()).map(|row| rows.row(row)) {
                    prop_assert_eq!(row.iter().map(|piece| piece.len as usize).sum::<usize>(), length + 1);
                    prop_assert!(row[0].len > shorter);
                    for (i, piece) in row.iter().enumerate() {
                        let number = places.partition_point(|place| place.end <= piece.start);
                        let (document, has_end) = (&places[number], number < lens.len());
                        let range = piece.range();
                        prop_assert!(range.start >= document.start && range.end <= document.end);
                        prop_assert!(i + 1 == row.len() || has_end && range.end == document.end);
                        prop_assert_eq!(piece.whole, has_end && range == *document);
                    }
                }
                shorter = length as u32 + 1;
            }
        }

        #[test]
        fn every_token_with_a_next_one_is_an_input_once_but_for_less_than_a_shortest_row_at_each_end(
            lens in prop::collection::vec(1u64..60, 0..80), tail in 0usize..60,
            lengths in subsequence(vec![4, 9, 16], 1..=3),
        ) {
            let (mut tokens, places) = documents(&lens);
            let ended = tokens.len();
            tokens.resize(ended + tail, 0);
            let seen = inputs(&pack(&Tokens::from_vec(tokens), &lengths, END, false).unwrap(), ended + tail);
            prop_assert!(seen.iter().all(|&times| times <= 1));
            let unseen = |range: Range<usize>| seen[range].iter().filter(|&&times| times == 0).count();
            let missing: usize = places.iter().map(|place| unseen(place.start as usize..place.end as usize - 1)).sum();
            prop_assert!(missing < lengths[0] && unseen(ended..ended + tail) <= lengths[0]);
            prop_assert!(places.iter().all(|place| place.end - place.start > 1 || seen[place.start as usize] == 0));
        }

        #[test]
        fn documents_that_fill_rows_are_not_cut(
            lens in prop::collection::vec(select(vec![5, 10, 17]), 1..50), pairs in 0usize..20,
        ) {
            let pairs = [13, 4].repeat(pairs);
            let (tokens, places) = documents(&[lens.clone(), pairs.clone()].concat());
            let rows = pack(&Tokens::from_vec(tokens), &[4, 9, 16], END, false).unwrap();
            let pieces: Vec<_> = rows.iter().flat_map(PackedRows::pieces).collect();
            prop_assert_eq!(pieces.len(), places.len());
            prop_assert!(pieces.iter().all(|piece| piece.whole));
            prop_assert_eq!(rows.iter().map(PackedRows::len).sum::<usize>(), lens.len() + pairs.len() / 2);
        }
    }
}
