//! Memory that graphs hold, and that is not always there.
//!
//! The autodiff graph of a forward keeps the parameters that its backward will read, and with them, as views, the
//! buffer they were gathered into. Here the graph stays, the buffer goes, and comes back before the backward: PyTorch's
//! FSDP does the same to a gathered parameter with `storage.resize_(0)`.
//!
//! | tensors | what goes |
//! |---|---|
//! | of the CPU ([`host`]) | the bytes that all views of a buffer share |
//! | of a device ([`device`]) | the handle of memory of each leaf of the graph |

pub(crate) mod device;
pub(crate) mod host;
