//! Memory that graphs refer to even while it does not exist.
//!
//! The autodiff graph of a forward keeps the parameters that its backward will read, and through these views the buffer
//! into which they were gathered. Here the graph stays, while the buffer is freed and refilled before the backward.
//! PyTorch's FSDP does the same to a gathered parameter with `storage.resize_(0)`.
//!
//! | tensors | what is freed |
//! |---|---|
//! | on the CPU ([`cpu`]) | the bytes that all views of a buffer share |
//! | on a device ([`device`]) | the memory handle of each leaf of the graph |

pub(crate) mod cpu;
pub(crate) mod device;
