//! The instructions that move boxes of tensors.

use super::super::Refused;
use super::reduction::Operation;

/// Where an instruction moves a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From global to shared memory; completes bytes of a barrier.
    Load,
    /// From shared to global memory, in a bulk group.
    Store,
    /// The same, combined with what is there.
    Reduce(Operation),
    /// To the L2 cache.
    Prefetch,
}

/// The mode that an instruction names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Offsets {
    /// `.tile`, or nothing.
    Tile,
    /// `.im2col`, with an operand of offsets.
    Im2col,
    /// `.im2col_no_offs`
    Im2colNoOffsets,
}

/// `cp.async.bulk.tensor`, `cp.reduce.async.bulk.tensor` and `cp.async.bulk.prefetch.tensor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BulkTensor {
    /// Coordinates of the box.
    pub dimensions: usize,
    /// What is moved where.
    pub direction: Direction,
    /// How the coordinates are meant.
    pub mode: Offsets,
    /// Whether there is an operand that masks the cluster's cubes.
    pub multicast: bool,
    /// Whether there is an operand of the cache's policy.
    pub cache_hint: bool,
}

impl BulkTensor {
    /// Parses the words behind `cp`, from `async` or `reduce` on.
    pub fn parse(words: &[&str]) -> Result<Self, Refused> {
        let refuse = |why: &str| Refused(format!("cp.{}: {why}", words.join(".")));
        let missing = || refuse("this is no bulk copy of a tensor");
        let (reduces, words_left) = match words {
            ["reduce", "async", "bulk", "tensor", rest @ ..] => (true, rest),
            ["async", "bulk", "tensor" | "prefetch", rest @ ..] => (false, rest),
            _ => return Err(missing()),
        };
        let prefetches = words.get(2) == Some(&"prefetch");
        let words_left = match words_left {
            ["tensor", rest @ ..] if prefetches => rest,
            rest if !prefetches => rest,
            _ => return Err(missing()),
        };
        let [dimensions, rest @ ..] = words_left else { return Err(missing()) };
        let dimensions = match *dimensions {
            "1d" => 1,
            "2d" => 2,
            "3d" => 3,
            "4d" => 4,
            "5d" => 5,
            other => return Err(refuse(&format!("\".{other}\" is no number of dimensions"))),
        };
        let (mut spaces, mut operation, mut mode) = (vec![], None, Offsets::Tile);
        let (mut multicast, mut cache_hint, mut completion) = (false, false, None);
        for &word in rest {
            match word {
                "global" | "shared::cta" | "shared::cluster" => spaces.push(word),
                "L2" if prefetches => {}
                "tile" => {}
                "im2col" => mode = Offsets::Im2col,
                "im2col_no_offs" => mode = Offsets::Im2colNoOffsets,
                "mbarrier::complete_tx::bytes" | "bulk_group" => completion = Some(word),
                "multicast::cluster" => multicast = true,
                "L2::cache_hint" => cache_hint = true,
                _ => match Operation::parse(word) {
                    Some(found) if reduces => operation = Some(found),
                    _ => return Err(refuse(&format!("\".{word}\" is not known here"))),
                },
            }
        }
        let direction = match (spaces.as_slice(), completion, operation) {
            (["shared::cta" | "shared::cluster", "global"], Some("mbarrier::complete_tx::bytes"), None) => {
                Direction::Load
            }
            (["global", "shared::cta"], Some("bulk_group"), None) if !reduces => Direction::Store,
            (["global", "shared::cta"], Some("bulk_group"), Some(operation)) => Direction::Reduce(operation),
            (["global"], None, None) if prefetches => Direction::Prefetch,
            _ => return Err(refuse("these state spaces and this completion do not go together")),
        };
        let loads = matches!(direction, Direction::Load | Direction::Prefetch);
        if mode != Offsets::Tile && (dimensions < 3 || loads != (mode == Offsets::Im2col)) {
            return Err(refuse("loads have \".im2col\", stores \".im2col_no_offs\", and both at least 3 dimensions"));
        }
        if multicast && (direction != Direction::Load || spaces[0] != "shared::cluster") {
            return Err(refuse("only a load to \".shared::cluster\" has \".multicast::cluster\""));
        }
        Ok(Self { dimensions, direction, mode, multicast, cache_hint })
    }
}
