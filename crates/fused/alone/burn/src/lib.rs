//! A stand-in for Burn: the part that the unsafe code of `fused` uses.

/// The part of `burn::tensor` in use.
pub mod tensor {
    /// A floating-point type.
    pub trait Element: Copy {}

    impl Element for f32 {}
    impl Element for half::bf16 {}
    impl Element for half::f16 {}
}
