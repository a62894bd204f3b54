//! Checks of arguments: a violation panics and names the function, the argument, the value found and the value
//! expected.

use burn::tensor::DType;
use std::fmt::Display;

/// A call of the function with this name.
///
/// ```text
/// layer_norm: bias has shape [1], expected [4]
/// ```
#[derive(Clone, Copy)]
pub struct Call(pub &'static str);

impl Call {
    /// # Panics
    /// If the argument does not have the expected shape.
    #[track_caller]
    pub fn shape<const D: usize>(self, argument: &str, found: [usize; D], expected: [usize; D]) {
        assert!(found == expected, "{}: {argument} has shape {found:?}, expected {expected:?}", self.0);
    }

    /// # Panics
    /// If a dimension of the argument is 0.
    #[track_caller]
    pub fn not_empty(self, argument: &str, found: &[usize]) {
        assert!(!found.contains(&0), "{}: {argument} has shape {found:?}, expected no dimension of 0", self.0);
    }

    /// # Panics
    /// If the last dimension of the argument, its width, is not the expected one.
    #[track_caller]
    pub fn width<const D: usize>(self, argument: &str, found: [usize; D], expected: usize) {
        let end = if D == 1 { "" } else { ".., " };
        assert!(found[D - 1] == expected, "{}: {argument} has shape {found:?}, expected [{end}{expected}]", self.0);
    }

    /// # Panics
    /// If the argument is not of a float type that operations take: f32, bf16 or f16.
    #[track_caller]
    pub fn float(self, argument: &str, found: DType) {
        let taken = matches!(found, DType::F32 | DType::BF16 | DType::F16);
        assert!(taken, "{}: {argument} is of {found:?}, expected F32, BF16 or F16", self.0);
    }

    /// # Panics
    /// If the argument is not of an integer type that can be an index: i32 or i64.
    #[track_caller]
    pub fn index(self, argument: &str, found: DType) {
        let taken = matches!(found, DType::I32 | DType::I64);
        assert!(taken, "{}: {argument} is of {found:?}, expected I32 or I64", self.0);
    }

    /// # Panics
    /// If the argument does not have the expected dtype.
    #[track_caller]
    pub fn dtype(self, argument: &str, found: DType, expected: DType) {
        assert!(found == expected, "{}: {argument} is of {found:?}, expected {expected:?}", self.0);
    }

    /// # Panics
    /// If `holds` is false, with the message `wrong`.
    #[track_caller]
    pub fn that(self, holds: bool, wrong: impl Display) {
        assert!(holds, "{}: {wrong}", self.0);
    }
}
