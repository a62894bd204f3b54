//! Numbers that are equal up to rounding.

/// Asserts that each number differs from the expected one by at most `tolerance`. NaN differs from everything.
///
/// # Panics
/// If a number differs by more, or if there are more or fewer numbers than expected.
#[track_caller]
pub fn assert_close<F, E>(what: &str, found: &[F], expected: &[E], tolerance: f64)
where
    F: Copy + Into<f64>,
    E: Copy + Into<f64>,
{
    assert_eq!(found.len(), expected.len(), "{what}: number of values");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let (found, expected): (f64, f64) = ((*found).into(), (*expected).into());
        let close = (found - expected).abs() <= tolerance;
        assert!(close, "{what}, element {i}: {found}, not {expected}, with a tolerance of {tolerance:e}");
    }
}

/// Returns the largest magnitude of the numbers, at least `least`, by which to multiply a relative tolerance.
pub fn largest<T: Copy + Into<f64>>(values: &[T], least: f64) -> f64 {
    values.iter().fold(least, |largest, value| largest.max((*value).into().abs()))
}

/// Returns the largest difference of two numbers at the same place; NaN if there is one.
///
/// # Panics
/// If one slice is longer than the other.
#[track_caller]
pub fn worst(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len(), "number of values");
    found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs())
        .fold(0.0, |most, difference| if most.is_nan() || difference <= most { most } else { difference })
}
