use crate::{Collective, Reduce, Signature};
use burn::tensor::{Bytes, DType};

/// What a rank tells each other rank of the group when it enters a call, before any tensor is moved: eight words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// None: the rank has left the group and enters no more calls.
    pub signature: Option<Signature>,
    /// Length and dtype of the part that follows, if one does.
    pub part: Option<(usize, DType)>,
    /// A number that no group has yet, as far as this rank knows.
    pub free_group: u64,
}

/// In the order of their codes, from 1.
const DTYPES: [DType; 13] = [
    DType::F64,
    DType::F32,
    DType::Flex32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
];

/// In the order of their codes.
const REDUCES: [Reduce; 3] = [Reduce::Sum, Reduce::Mean, Reduce::Max];

impl Header {
    /// A rank's last.
    pub const LEFT: Self = Self { signature: None, part: None, free_group: 0 };

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
            0,
        ];
        Bytes::from_elems(words.to_vec())
    }

    /// None: these are not the bytes of a header.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let &[collective, rank, len, dtype, part_len, part_dtype, free_group, 0] = words.as_slice() else {
            return None;
        };
        let count = |code: u64| code.checked_sub(1).map(|len| len as usize);
        let dtype_of = |code: u64| DTYPES.get(code.checked_sub(1)? as usize).copied();
        let (len, dtype) = (count(len), dtype_of(dtype));
        let signature = match collective {
            0 => None,
            code => Some(Signature { collective: collective_of(code, rank as usize)?, len, dtype }),
        };
        Some(Self { signature, part: count(part_len).zip(dtype_of(part_dtype)), free_group })
    }
}

/// # Panics
/// For a dtype that no payload has.
fn dtype_code(dtype: Option<DType>) -> u64 {
    let code = |dtype| DTYPES.iter().position(|known| *known == dtype).expect("payloads are floats or integers");
    dtype.map_or(0, |dtype| code(dtype) as u64 + 1)
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
