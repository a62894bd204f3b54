//! How far each parameter moves in a step. If the optimizer's epsilon is so large that a step is the running mean of
//! gradients times a constant, an error in a gradient shows up here whatever the loss does.

use crate::largest;

/// Returns by how much each number of each parameter has moved.
///
/// # Panics
/// If there are other parameters, or parameters of other lengths, than before.
#[track_caller]
pub fn moved(before: &[Vec<f32>], after: &[Vec<f32>]) -> Vec<Vec<f32>> {
    assert_eq!(before.len(), after.len(), "number of parameters");
    let of_parameter = |(before, after): (&Vec<f32>, &Vec<f32>)| {
        assert_eq!(before.len(), after.len(), "number of values of a parameter");
        before.iter().zip(after).map(|(before, after)| after - before).collect()
    };
    before.iter().zip(after).map(of_parameter).collect()
}

/// Asserts that in each step each parameter moves as expected, up to 1e-5 of its largest move and `resolution`, the
/// distance of adjacent f32 numbers of the parameters' size.
///
/// # Panics
/// If a number moves differently, or if there are more or fewer steps, parameters or numbers than expected.
#[track_caller]
pub fn assert_moves(what: &str, found: &[Vec<Vec<f32>>], expected: &[Vec<Vec<f32>>], resolution: f32) {
    assert_eq!(found.len(), expected.len(), "{what}: number of steps");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}, step {step}: number of parameters");
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let tolerance = 1e-5 * largest(expected, 0.0) + f64::from(resolution);
            crate::assert_close(&format!("{what}, step {step}: move of parameter {i}"), found, expected, tolerance);
        }
    }
}
