//! Digests of files: BLAKE3's tree, cut at blocks of 2 MiB, so each block can be verified separately.
//!
//! ```text
//! digest of a file                    root              `b3sum FILE` prints it
//!                              ┌────────┴────────┐
//!                          ┌───┴───┐         ┌───┴───┐
//! its blocks, 2 MiB each   0       1         2       3  one digest each, in blocks.bin
//! ```
//!
//! A file's list of block digests does not need a separate digest, because it must hash to the root.

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use std::ops::Range;

/// Bytes per block.
pub(crate) const BLOCK: u64 = 2 << 20;

/// The digest of a block or of a file.
pub(crate) type Digest = [u8; 32];

/// The number of blocks in a file.
pub(crate) fn count(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK)
}

/// The byte range of block `number` of a file.
pub(crate) fn range(bytes: u64, number: u64) -> Range<u64> {
    number * BLOCK..bytes.min((number + 1) * BLOCK)
}

/// The digest of block `number` of a file of `bytes` bytes.
pub(crate) fn digest(bytes: u64, number: u64, block: &[u8]) -> Digest {
    let mut hasher = Hasher::new();
    if count(bytes) <= 1 {
        return hasher.update(block).finalize().into(); // the block is the root
    }
    hasher.set_input_offset(number * BLOCK).update(block).finalize_non_root()
}

/// The digest of the file that has these blocks.
pub(crate) fn root(blocks: &[Digest]) -> Digest {
    match blocks {
        [] => blake3::hash(&[]).into(),
        [one] => *one,
        _ => {
            let (left, right) = halves(blocks);
            merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash).into()
        }
    }
}

fn subtree(blocks: &[Digest]) -> Digest {
    match blocks {
        [one] => *one,
        _ => {
            let (left, right) = halves(blocks);
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// Splits the blocks as BLAKE3 does: the left half is the largest full tree that leaves something for the right.
fn halves(blocks: &[Digest]) -> (&[Digest], &[Digest]) {
    blocks.split_at(blocks.len().next_power_of_two() / 2)
}

/// Digests the blocks of a file of known length while it is written.
pub(crate) struct Blocks {
    bytes: u64,
    list: Vec<Digest>,
    hasher: Hasher,
}

impl Blocks {
    pub fn new(bytes: u64) -> Self {
        Self { bytes, list: Vec::with_capacity(count(bytes) as usize), hasher: Hasher::new() }
    }

    /// Adds the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = (BLOCK - self.hasher.count()) as usize;
            let (now, later) = bytes.split_at(left.min(bytes.len()));
            self.hasher.update(now);
            if self.hasher.count() == BLOCK {
                self.close();
            }
            bytes = later;
        }
    }

    /// The digests of the blocks of all bytes added.
    ///
    /// # Panics
    /// If the number of blocks is not that of the announced length.
    pub fn finish(mut self) -> Vec<Digest> {
        if self.hasher.count() > 0 {
            self.close();
        }
        assert_eq!(self.list.len() as u64, count(self.bytes), "a file has as many blocks as its length says");
        self.list
    }

    fn close(&mut self) {
        let alone = count(self.bytes) <= 1;
        self.list.push(if alone { self.hasher.finalize().into() } else { self.hasher.finalize_non_root() });
        self.hasher = Hasher::new();
        self.hasher.set_input_offset(self.list.len() as u64 * BLOCK);
    }
}

/// The digests of the blocks of `bytes`.
pub(crate) fn of(bytes: &[u8]) -> Vec<Digest> {
    let mut blocks = Blocks::new(bytes.len() as u64);
    blocks.update(bytes);
    blocks.finish()
}

/// The blocks, out of `total`, that belong to one of `parts` parts: each block belongs to one part, and the sizes of
/// parts differ by at most one block.
pub(crate) fn share(total: u64, part: usize, parts: usize) -> Range<u64> {
    let cut = |part: usize| (u128::from(total) * part as u128 / parts as u128) as u64;
    cut(part)..cut(part + 1)
}

/// The hexadecimal digits of a digest.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn the_root_is_what_b3sum_prints_and_every_block_is_checked_by_itself(
            len in 0usize..(5 * BLOCK as usize + 9), cut in 1usize..700_000,
        ) {
            let bytes: Vec<u8> = (0..len).map(|i| (i * i % 251) as u8).collect();
            let mut blocks = Blocks::new(len as u64);
            bytes.chunks(cut).for_each(|part| blocks.update(part));
            let list = blocks.finish();
            prop_assert_eq!(root(&list), *blake3::hash(&bytes).as_bytes());
            for (number, expected) in list.iter().enumerate() {
                let range = range(len as u64, number as u64);
                let block = &bytes[range.start as usize..range.end as usize];
                prop_assert_eq!(digest(len as u64, number as u64, block), *expected);
            }
        }

        #[test]
        fn ranks_share_the_blocks_evenly_and_each_is_in_one_share(total in 0u64..1 << 40, parts in 1usize..2000) {
            let shares: Vec<Range<u64>> = (0..parts).map(|part| share(total, part, parts)).collect();
            let end = shares.iter().try_fold(0, |end, share| (share.start == end).then_some(share.end));
            prop_assert_eq!(end, Some(total));
            let loads = || shares.iter().map(|share| share.end - share.start);
            prop_assert!(loads().max().unwrap() - loads().min().unwrap() <= 1);
        }
    }

    #[test]
    fn no_rank_of_64_waits_while_others_read_16_files_of_500_gb() {
        let blocks = 16 * count(500_000_000_000);
        assert!((0..64).all(|rank| (blocks / 64..=blocks / 64 + 1).contains(&{
            let share = share(blocks, rank, 64);
            share.end - share.start
        })));
    }
}
