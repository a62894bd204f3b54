//! The kernels of [`cross_entropy`](super).
