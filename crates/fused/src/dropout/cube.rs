//! The kernels of [`dropout`](super).
