//! A CPU buffer whose memory can be freed and refilled.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Tensor, TensorData};
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// A tensor whose memory can be freed and refilled while graphs hold the tensor and its views.
pub(crate) struct Storage {
    memory: Arc<Mutex<Option<FloatTensor<Flex>>>>,
    tensor: Tensor<1>,
    /// The thread that created it; only this thread reads, frees and refills it.
    owner: ThreadId,
}

impl Storage {
    /// Wraps a tensor without a copy. Returns `None` if the tensor is not in CPU memory.
    pub fn new(flat: Tensor<1>) -> Option<Self> {
        let (shape, dtype, device) = (flat.shape(), flat.dtype(), flat.device());
        let memory = Arc::new(Mutex::new(Some(contents(flat)?)));
        let len = shape.num_elements() * dtype.size();
        let owner = std::thread::current().id();
        let controller = Box::new(Controller { memory: memory.clone(), owner, len, align: dtype.size() });
        // SAFETY: the controller exposes `len` bytes of a tensor, all of which are initialized.
        let bytes = unsafe { Bytes::from_controller(controller, len) };
        let tensor = Tensor::from_data(TensorData::from_bytes(bytes, shape, dtype), (&device, dtype));
        Some(Self { memory, tensor, owner })
    }

    /// Returns the tensor; tensors derived from it share its memory.
    pub fn tensor(&self) -> &Tensor<1> {
        &self.tensor
    }

    /// Frees the memory. Reading the tensor afterwards panics; reading it on another thread always panics.
    ///
    /// # Safety
    /// No slice of the memory of the tensor, or of tensors that share it, may still exist. The type system cannot check
    /// this: a slice from Burn (`FlexTensor::storage`) may live as long as a tensor does, and the graph's tensors live
    /// on. Burn's operations hold such slices only while they run.
    pub unsafe fn free(&mut self) {
        assert_eq!(std::thread::current().id(), self.owner, "freed on its own thread");
        *self.memory() = None;
    }

    /// Replaces the memory that was [`free`](Self::free)d by this tensor's memory, of the same length and type.
    pub fn refill(&mut self, flat: Tensor<1>) {
        assert_eq!((flat.shape(), flat.dtype()), (self.tensor.shape(), self.tensor.dtype()), "refilled with the same");
        assert_eq!(std::thread::current().id(), self.owner, "refilled on its own thread");
        let mut memory = self.memory();
        assert!(memory.is_none(), "what is there may be read, and is not replaced");
        *memory = contents(flat);
    }

    fn memory(&self) -> MutexGuard<'_, Option<FloatTensor<Flex>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the tensor's memory, from its first element on.
fn contents(flat: Tensor<1>) -> Option<FloatTensor<Flex>> {
    let len = flat.shape().num_elements() * flat.dtype().size();
    let tensor = flat.try_into_primitive::<Flex>().ok()?.to_contiguous();
    (tensor.bytes().len() == len).then_some(tensor)
}

struct Controller {
    memory: Arc<Mutex<Option<FloatTensor<Flex>>>>,
    owner: ThreadId,
    len: usize,
    align: usize,
}

impl AllocationController for Controller {
    fn alloc_align(&self) -> usize {
        self.align
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    fn capacity(&self) -> usize {
        self.len
    }

    fn memory(&self, _policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        if std::thread::current().id() != self.owner {
            let elsewhere = "a unit's parameters are read on another thread than the one that gathered them, where they may be gone";
            return Err(AccessError::Read(elsewhere.into()));
        }
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tensor) = &*memory else {
            return Err(AccessError::Read("a unit's parameters are read while they are not gathered".into()));
        };
        let bytes = tensor.bytes();
        // SAFETY: the bytes outlive this lock. They are freed only by `Storage::free`, whose caller guarantees that no
        // such slice exists any longer, or with this controller, from which the slice is borrowed. Until then they are
        // neither moved nor written, because the tensor that holds them is never handed out. `free` is called on this
        // thread, the only one that gets the slice.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }

    /// Never called while the unit is in use: the tensor above then has a second owner, and shared memory is copied
    /// before it is written.
    unsafe fn memory_mut(&mut self, _policy: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        Err(AccessError::WouldCopy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Distribution};

    #[test]
    fn a_graph_reads_refilled_memory_and_gives_the_same_gradients() {
        let device = Device::flex();
        let flat = Tensor::<1>::random([12], Distribution::Default, &device);
        let x = Tensor::<2>::random([2, 3], Distribution::Default, &device).autodiff().require_grad();
        let gradients = |storage: &mut Storage, refill: bool| {
            let w = storage.tensor().clone().reshape([3, 4]).autodiff().require_grad();
            let loss = x.clone().matmul(w.clone()).powi_scalar(2).sum();
            if refill {
                // SAFETY: the operations of the forward have finished.
                unsafe { storage.free() };
                storage.refill(flat.clone());
            }
            let gradients = loss.backward();
            [x.grad(&gradients).unwrap(), w.grad(&gradients).unwrap()].map(|gradient| gradient.into_data())
        };
        let mut storage = Storage::new(flat.clone()).unwrap();
        let kept = gradients(&mut storage, false);
        assert_eq!(gradients(&mut storage, true), kept);
    }

    #[test]
    fn reading_on_another_thread_panics() {
        let storage = Storage::new(Tensor::<1>::ones([4], &Device::flex())).unwrap();
        let tensor = storage.tensor().clone();
        let panic = std::thread::spawn(move || (tensor + 1.0).into_data()).join().unwrap_err();
        let message = comm::panic_message(&*panic);
        assert!(message.contains("another thread"), "{message}");
    }

    #[test]
    #[should_panic(expected = "is not replaced")]
    fn memory_that_is_there_is_not_replaced() {
        let mut storage = Storage::new(Tensor::<1>::ones([4], &Device::flex())).unwrap();
        storage.refill(Tensor::<1>::zeros([4], &Device::flex()));
    }

    #[test]
    #[should_panic(expected = "not gathered")]
    fn reading_what_is_not_there_panics() {
        let mut storage = Storage::new(Tensor::<1>::ones([4], &Device::flex())).unwrap();
        // SAFETY: nothing has read it.
        unsafe { storage.free() };
        let _ = storage.tensor().clone() + 1.0;
    }
}
