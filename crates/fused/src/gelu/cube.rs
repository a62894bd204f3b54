//! The kernels of [`gelu`](super).
