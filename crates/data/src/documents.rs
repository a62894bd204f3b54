//! Document boundaries. A document's last token is the end-of-text token; the next document begins right after it.

use std::ops::Range;

use crate::progress::Progress;
use crate::tokens::Tokens;
use crate::{Batch, DataError};

/// Tokens read at once. Few in tests, so that documents span several reads.
const CHUNK: u64 = if cfg!(test) { 7 } else { 1 << 20 };

impl Batch {
    /// For each position, the index in its row where its document begins, counted from 0. Row-major
    /// `[sequences, seq_len]`.
    ///
    /// ```text
    /// inputs    b b . c c c . d      . ends a document; each row starts one, possibly the rest of one that was cut
    /// starts    0 0 0 3 3 3 3 7
    /// ```
    pub fn first_keys(&self, end_of_text: i32) -> Vec<i32> {
        let mut starts = Vec::with_capacity(self.inputs.len());
        for row in self.inputs.chunks(self.seq_len.max(1)) {
            let mut start = 0;
            for (place, &token) in (0..).zip(row) {
                starts.push(start);
                if token == end_of_text {
                    start = place + 1;
                }
            }
        }
        starts
    }

    /// The number of positions whose target is in the same document: all except those of end-of-text tokens.
    pub fn labels(&self, end_of_text: i32) -> usize {
        self.inputs.iter().filter(|&&token| token != end_of_text).count()
    }
}

/// Calls `found` with the range of each document of `tokens`, in order, including its end-of-text token. Returns the
/// range after the last end-of-text token, which is often empty.
///
/// # Errors
/// If a token file can no longer be read.
pub fn scan(
    tokens: &Tokens,
    end_of_text: i32,
    progress: bool,
    mut found: impl FnMut(Range<u64>),
) -> Result<Range<u64>, DataError> {
    let (len, mut start) = (tokens.len(), 0);
    let mut progress = Progress::new("finding documents in", tokens.bytes(), !progress);
    let width = tokens.bytes() / len.max(1);
    let mut chunk = Vec::new();
    for first in (0..len).step_by(CHUNK as usize) {
        chunk.clear();
        tokens.read(first..len.min(first + CHUNK), &mut chunk)?;
        for (place, _) in (first..).zip(&chunk).filter(|&(_, &token)| token == end_of_text) {
            found(start..place + 1);
            start = place + 1;
        }
        progress.set(first * width);
    }
    Ok(start..len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const END: i32 = 0;

    proptest! {
        #[test]
        fn a_position_has_the_last_start_at_or_before_it_and_a_label_where_the_next_does_not_start(
            sequences in 0usize..5, seq_len in 1usize..30, tokens in prop::collection::vec(0i32..4, 5 * 31),
        ) {
            let mut batch = Batch { seq_len, ..Batch::default() };
            tokens.chunks(31).take(sequences).for_each(|row| batch.push(&row[..seq_len + 1]));
            let mut labels = 0;
            for (i, start) in batch.first_keys(END).into_iter().enumerate() {
                let (row, place) = (tokens.chunks(31).nth(i / seq_len).unwrap(), i % seq_len);
                let starts = |&place: &usize| place == 0 || row[place - 1] == END;
                prop_assert_eq!(start as usize, (0..=place).rfind(starts).unwrap());
                labels += usize::from(!starts(&(place + 1)));
            }
            prop_assert_eq!(batch.labels(END), labels);
            prop_assert_eq!(batch.first_keys(END).len(), batch.inputs.len());
        }

        #[test]
        fn documents_are_what_end_tokens_split(tokens in prop::collection::vec(0u32..4, 0..100)) {
            let mut documents = Vec::new();
            let stream = Tokens::from_vec(tokens.clone());
            let rest = scan(&stream, END, false, |document| documents.push(document)).unwrap();
            documents.extend(Some(rest).filter(|rest| !rest.is_empty()));
            let documents: Vec<_> = documents.into_iter().map(|d| &tokens[d.start as usize..d.end as usize]).collect();
            let expected: Vec<_> = tokens.split_inclusive(|&token| token == END as u32).collect();
            prop_assert_eq!(documents, expected);
        }
    }
}
