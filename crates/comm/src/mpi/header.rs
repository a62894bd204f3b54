//! The header that ranks exchange at the start of a call, and its byte encoding.

use crate::payload::{DTYPES, Part, dtype_number};
use crate::{Collective, Reduce, Signature};
use burn::tensor::{Bytes, DType};
use std::fmt;

/// The eight words that a rank sends to each other rank of the group when it enters a call, before any tensor moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// `None` means that the rank has left the group and enters no more calls.
    pub signature: Option<Signature>,
    /// Length and dtype of the part that follows, if one does.
    pub part: Option<Part>,
    /// A group number that is free as far as this rank knows.
    pub free_group: u64,
    /// Whether the part is a message from a CPU, and stays on the CPU.
    pub on_cpu: bool,
}

/// Reductions in the order of their codes.
const REDUCES: [Reduce; 3] = [Reduce::Sum, Reduce::Mean, Reduce::Max];

impl Header {
    /// The last header of a rank.
    pub const LEFT: Self = Self { signature: None, part: None, free_group: 0, on_cpu: false };

    pub fn to_bytes(&self) -> Bytes {
        let (collective, rank) = self.signature.as_ref().map_or((0, 0), |signature| code(signature.collective));
        let (len, dtype) = self.signature.as_ref().map_or((None, None), |signature| (signature.len, signature.dtype));
        let (part_len, part_dtype) = self.part.unzip();
        let count = |len: Option<usize>| len.map_or(0, |len| len as u64 + 1);
        let words = [
            collective,
            rank as u64,
            count(len),
            dtype_code(dtype),
            count(part_len),
            dtype_code(part_dtype),
            self.free_group,
            u64::from(self.on_cpu),
        ];
        Bytes::from_elems(words.to_vec())
    }

    /// Decodes a header; returns `None` if the bytes are not a header.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let &[collective, rank, len, dtype, part_len, part_dtype, free_group, on_cpu @ (0 | 1)] = words.as_slice()
        else {
            return None;
        };
        let count = |code: u64| code.checked_sub(1).map(|len| len as usize);
        let dtype_of = |code: u64| DTYPES.get(code.checked_sub(1)? as usize).copied();
        let (len, dtype) = (count(len), dtype_of(dtype));
        let signature = match collective {
            0 => None,
            code => Some(Signature { collective: collective_of(code, rank as usize)?, len, dtype }),
        };
        Some(Self { signature, part: count(part_len).zip(dtype_of(part_dtype)), free_group, on_cpu: on_cpu == 1 })
    }
}

/// What a call expects from another rank.
enum Due {
    Nothing,
    /// A part of this length and dtype; `None` accepts any.
    Part(Option<usize>, Option<DType>),
}

impl fmt::Display for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Part(len, dtype) => {
                let len = len.map_or("any number of".into(), |len| len.to_string());
                let dtype = dtype.map_or("any type".into(), |dtype| format!("{dtype:?}"));
                write!(f, "{len} elements of {dtype}")
            }
        }
    }
}

/// Returns the part that `header` announces from rank `from` to rank `to` in a group of `n` that agrees on `signature`.
///
/// # Errors
/// Returns a description of the announced part if the call has no such part, or if it does not fit into this machine's
/// memory.
pub fn due_part(
    signature: &Signature,
    header: &Header,
    [from, to]: [usize; 2],
    n: usize,
) -> Result<Option<Part>, String> {
    let Signature { collective, len, dtype } = *signature;
    let due = match collective {
        Collective::ReduceScatter | Collective::AllReduce(_) => Due::Part(len.map(|len| len / n), dtype),
        Collective::Broadcast(root) if from == root => Due::Part(len, dtype),
        Collective::Gather(root) if to == root => Due::Part(None, dtype),
        Collective::Scatter(root) if from == root => Due::Part(None, None),
        Collective::AllToAll => Due::Part(len.map(|len| len / n), dtype),
        Collective::Send(_) | Collective::Recv(_) => Due::Part(None, None),
        _ => Due::Nothing,
    };
    let fits = match (&due, header.part) {
        (Due::Nothing, None) => true,
        (Due::Part(len, dtype), Some(part)) => {
            len.is_none_or(|len| len == part.0) && dtype.is_none_or(|dtype| dtype == part.1)
        }
        _ => false,
    };
    let found = header.part.map_or("nothing".into(), |(len, dtype)| format!("{len} elements of {dtype:?}"));
    if !fits {
        return Err(format!("announces {found} in {collective}, where {due} must come"));
    }
    let bytes = header.part.map_or(Some(0), |(len, dtype)| len.checked_mul(dtype.size()));
    match bytes.is_some_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok()) {
        true => Ok(header.part),
        false => Err(format!("announces {found} in {collective}, for which there is no memory")),
    }
}

/// Returns the code of a dtype: one more than its number, or 0 for none.
///
/// # Panics
/// Panics for a dtype that no payload has.
fn dtype_code(dtype: Option<DType>) -> u64 {
    dtype.map_or(0, |dtype| dtype_number(dtype) as u64 + 1)
}

fn code(collective: Collective) -> (u64, usize) {
    match collective {
        Collective::AllGather => (1, 0),
        Collective::ReduceScatter => (2, 0),
        Collective::AllReduce(how) => (3, REDUCES.iter().position(|known| *known == how).unwrap_or(0)),
        Collective::Broadcast(rank) => (4, rank),
        Collective::Gather(rank) => (5, rank),
        Collective::Scatter(rank) => (6, rank),
        Collective::AllToAll => (7, 0),
        Collective::Send(rank) => (8, rank),
        Collective::Recv(rank) => (9, rank),
        Collective::Barrier => (10, 0),
    }
}

fn collective_of(code: u64, rank: usize) -> Option<Collective> {
    Some(match code {
        1 => Collective::AllGather,
        2 => Collective::ReduceScatter,
        3 => Collective::AllReduce(*REDUCES.get(rank)?),
        4 => Collective::Broadcast(rank),
        5 => Collective::Gather(rank),
        6 => Collective::Scatter(rank),
        7 => Collective::AllToAll,
        8 => Collective::Send(rank),
        9 => Collective::Recv(rank),
        10 => Collective::Barrier,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(collective: Collective, part: Option<Part>, between: [usize; 2]) -> Result<Option<Part>, String> {
        let len = (collective != Collective::AllToAll).then_some(12);
        let signature = Signature { collective, len, dtype: Some(DType::F32) };
        let header = Header { signature: Some(signature.clone()), part, free_group: 0, on_cpu: part.is_some() };
        assert_eq!(Header::from_bytes(&header.to_bytes()), Some(header.clone()));
        due_part(&signature, &header, between, 4)
    }

    #[test]
    fn parts_that_a_call_has_are_taken() {
        let (chunk, whole) = (Some((3, DType::F32)), Some((12, DType::F32)));
        for (collective, part, between) in [
            (Collective::ReduceScatter, chunk, [2, 0]),
            (Collective::AllReduce(Reduce::Max), chunk, [2, 0]),
            (Collective::Broadcast(2), whole, [2, 0]),
            (Collective::Broadcast(2), None, [1, 0]),
            (Collective::Gather(0), Some((7, DType::F32)), [1, 0]),
            (Collective::Gather(3), None, [1, 0]),
            (Collective::Scatter(1), Some((7, DType::I8)), [1, 0]),
            (Collective::AllToAll, Some((0, DType::F32)), [1, 0]),
            (Collective::Recv(1), Some((5, DType::BF16)), [1, 0]),
            (Collective::Barrier, None, [1, 0]),
        ] {
            assert_eq!(due(collective, part, between), Ok(part), "{collective}");
        }
    }

    #[test]
    fn parts_that_a_call_cannot_have_are_errors() {
        let (huge, overflow) = (usize::MAX / 8, usize::MAX / 2);
        for (collective, part, reason) in [
            (
                Collective::ReduceScatter,
                Some((4, DType::F32)),
                "announces 4 elements of F32 in reduce_scatter, where 3",
            ),
            (Collective::ReduceScatter, None, "announces nothing in reduce_scatter, where 3 elements of F32 must come"),
            (Collective::Broadcast(1), Some((12, DType::F64)), "where 12 elements of F32 must come"),
            (Collective::Broadcast(2), Some((12, DType::F32)), "where nothing must come"),
            (Collective::Barrier, Some((1, DType::F32)), "in barrier, where nothing must come"),
            (Collective::AllToAll, Some((huge, DType::F32)), "for which there is no memory"),
            (Collective::Recv(1), Some((overflow, DType::F64)), "for which there is no memory"),
        ] {
            let found = due(collective, part, [1, 0]).unwrap_err();
            assert!(found.contains(reason), "{found}");
        }
    }
}
