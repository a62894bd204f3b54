//! Stands in for Burn.

/// What tensors hold.
pub mod tensor {
    /// A float.
    pub trait Element: Copy {}

    impl Element for f32 {}
    impl Element for half::bf16 {}
    impl Element for half::f16 {}
}
