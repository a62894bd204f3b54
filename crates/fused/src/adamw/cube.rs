//! The kernels of [`adamw`](super).
