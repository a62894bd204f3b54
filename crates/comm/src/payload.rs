//! Tensors in the form in which engines move them: flat and of any kind.

use burn::tensor::{DType, Device, Float, Int, Tensor, TensorData, kind::Basic};
use std::ops::Range;

/// A flat tensor whose kind is erased, as an [`Engine`](crate::Engine) moves it.
#[derive(Debug, Clone)]
pub enum Payload {
    /// Any float dtype.
    Float(Tensor<1>),
    /// Any integer dtype.
    Int(Tensor<1, Int>),
}

/// Length and dtype of a part that a rank sends to another one.
#[cfg(any(feature = "mpi", feature = "nccl"))]
pub(crate) type Part = (usize, DType);

/// The dtypes of payloads, by the numbers with which ranks tell each other of them.
#[cfg(any(feature = "mpi", feature = "nccl"))]
pub(crate) const DTYPES: [DType; 13] = [
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

/// Returns the number of a dtype.
///
/// # Panics
/// Panics for a dtype that no payload has.
#[cfg(any(feature = "mpi", feature = "nccl"))]
pub(crate) fn dtype_number(dtype: DType) -> usize {
    DTYPES.iter().position(|known| *known == dtype).expect("payloads are floats or integers")
}

/// How [`Communicator::all_reduce`](crate::Communicator::all_reduce) combines the ranks' tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// The sum in rank order, on several machines [machine by machine](crate::HierarchicalEngine); 16-bit floats are
    /// added in f32, and the sum is rounded once.
    Sum,
    /// The sum divided by the number of ranks; integers are rounded toward zero.
    Mean,
    /// The maximum of each element.
    Max,
}

/// A kind of tensor that can be communicated: `Float` or `Int`.
pub trait Kind: Basic + Sized {
    /// Erases the kind.
    fn forget(tensor: Tensor<1, Self>) -> Payload;

    /// Restores the kind.
    ///
    /// # Panics
    /// Panics if the payload is of the other kind. Ranks agree on dtypes before a payload changes hands.
    fn remember(payload: Payload) -> Tensor<1, Self>;

    /// Returns whether the payload is of this kind.
    fn is(payload: &Payload) -> bool;
}

impl Kind for Float {
    fn forget(tensor: Tensor<1>) -> Payload {
        Payload::Float(tensor)
    }

    fn remember(payload: Payload) -> Tensor<1> {
        match payload {
            Payload::Float(tensor) => tensor,
            Payload::Int(_) => panic!("a payload of integers is not one of floats"),
        }
    }

    fn is(payload: &Payload) -> bool {
        matches!(payload, Payload::Float(_))
    }
}

impl Kind for Int {
    fn forget(tensor: Tensor<1, Int>) -> Payload {
        Payload::Int(tensor)
    }

    fn remember(payload: Payload) -> Tensor<1, Int> {
        match payload {
            Payload::Int(tensor) => tensor,
            Payload::Float(_) => panic!("a payload of floats is not one of integers"),
        }
    }

    fn is(payload: &Payload) -> bool {
        matches!(payload, Payload::Int(_))
    }
}

/// Applies the same expression to both kinds.
macro_rules! each_kind {
    ($payload:expr, $tensor:ident => $result:expr) => {
        match $payload {
            Payload::Float($tensor) => Payload::Float($result),
            Payload::Int($tensor) => Payload::Int($result),
        }
    };
}

impl Payload {
    /// Creates a payload with the values and dtype of `data`.
    pub fn from_data(data: TensorData, device: &Device) -> Self {
        let dtype = data.dtype();
        if dtype.is_float() {
            Self::Float(Tensor::from_data(data, (device, dtype)))
        } else {
            Self::Int(Tensor::from_data(data, (device, dtype)))
        }
    }

    /// Returns the values.
    pub fn into_data(self) -> TensorData {
        match self {
            Self::Float(tensor) => tensor.into_data(),
            Self::Int(tensor) => tensor.into_data(),
        }
    }

    /// Returns the number of elements.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        match self {
            Self::Float(tensor) => tensor.dims()[0],
            Self::Int(tensor) => tensor.dims()[0],
        }
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Float(tensor) => tensor.dtype(),
            Self::Int(tensor) => tensor.dtype(),
        }
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype().size()
    }

    /// Returns a range of elements; on the CPU it is a view of the same memory.
    pub fn slice(self, range: Range<usize>) -> Self {
        each_kind!(self, tensor => tensor.slice(range))
    }

    /// Concatenates payloads: at least one, all of one dtype.
    pub fn cat(payloads: Vec<Self>) -> Self {
        match &payloads[0] {
            Self::Float(_) => Self::Float(Tensor::cat(payloads.into_iter().map(Float::remember).collect(), 0)),
            Self::Int(_) => Self::Int(Tensor::cat(payloads.into_iter().map(Int::remember).collect(), 0)),
        }
    }

    /// Returns the equal blocks of which the payload consists in another order: block i of the result is block
    /// `order[i]`.
    pub(crate) fn in_order(self, order: &[usize]) -> Self {
        if order.is_sorted() {
            return self;
        }
        let block = self.len() / order.len();
        Self::cat(order.iter().map(|from| self.clone().slice(from * block..(from + 1) * block)).collect())
    }

    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Float(tensor) => tensor.device(),
            Self::Int(tensor) => tensor.device(),
        }
    }

    pub(crate) fn is_on_cpu(&self) -> bool {
        self.device() == Device::flex()
    }

    pub(crate) fn to_device(&self, device: &Device) -> Self {
        each_kind!(self.clone(), tensor => tensor.to_device(device))
    }

    /// Allocates uninitialized elements.
    pub(crate) fn empty(dtype: DType, len: usize, device: &Device) -> Self {
        if dtype.is_float() {
            Self::Float(Tensor::empty([len], (device, dtype)))
        } else {
            Self::Int(Tensor::empty([len], (device, dtype)))
        }
    }

    /// Allocates uninitialized elements of the same dtype.
    pub(crate) fn empty_on(&self, device: &Device, len: usize) -> Self {
        Self::empty(self.dtype(), len, device)
    }

    pub(crate) fn zeros_like(&self, len: usize) -> Self {
        let dtype = self.dtype();
        match self {
            Self::Float(tensor) => Self::Float(Tensor::zeros([len], (&tensor.device(), dtype))),
            Self::Int(tensor) => Self::Int(Tensor::zeros([len], (&tensor.device(), dtype))),
        }
    }

    pub(crate) fn is_tracked(&self) -> bool {
        matches!(self, Self::Float(tensor) if tensor.is_tracked())
    }
}
