//! The kernels of [`rope`](super).
