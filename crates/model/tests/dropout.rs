//! GPT-2's dropout: off in evaluation, the same for a sequence however and whenever it is computed, different at each
//! step.

use burn::tensor::{Device, Int, Tensor};
use model::{Gpt2, Gpt2Config, LanguageModel, MicroBatch, Parallel, StepContext};
use test_kit::{floats, worst};

const T: usize = 6;

fn model(dropout: f64) -> Gpt2 {
    let config =
        Gpt2Config { vocab_size: 11, n_positions: T, n_layer: 2, n_head: 2, n_embd: 8, dropout, ..Default::default() };
    Gpt2::init(&config, 1, &Device::flex())
}

fn tokens(sequences: usize) -> Tensor<2, Int> {
    Tensor::<1, Int>::arange(0..(sequences * T) as i64, &Device::flex()).remainder_scalar(11).reshape([sequences, T])
}

/// Logits of a training forward.
fn train(model: &Gpt2, tokens_bt: Tensor<2, Int>, place: StepContext) -> Vec<f32> {
    floats(model.head(model.hidden_of(tokens_bt, &place.into())))
}

fn close(a: &[f32], b: &[f32]) -> bool {
    worst(a, b) < 1e-6
}

#[test]
fn a_sequence_is_trained_alike_in_any_micro_batch_and_otherwise_at_another_step_or_place() {
    let (model, dropout) = (model(0.2), StepContext { seed: 5, step: 3, first_row: 8 });
    let whole = train(&model, tokens(4), dropout);
    assert_eq!(whole, train(&model, tokens(4), dropout), "run again");
    let part = |rows: std::ops::Range<usize>, dropout| train(&model, tokens(4).slice([rows, 0..T]), dropout);
    let second_half = &whole[whole.len() / 2..];
    assert!(close(&part(2..4, StepContext { first_row: 10, ..dropout }), second_half), "in another micro-batch");
    for other in
        [dropout, StepContext { first_row: 10, step: 4, ..dropout }, StepContext { first_row: 10, seed: 6, ..dropout }]
    {
        assert!(!close(&part(2..4, other), second_half), "{other:?}");
    }
}

#[test]
fn evaluation_and_a_probability_of_0_drop_nothing() {
    let dropout = StepContext { seed: 5, step: 3, first_row: 0 };
    let evaluated = floats(model(0.2).logits(tokens(2)));
    assert_eq!(evaluated, floats(model(0.0).logits(tokens(2))));
    assert_eq!(evaluated, train(&model(0.0), tokens(2), dropout));
    assert!(!close(&evaluated, &train(&model(0.2), tokens(2), dropout)));
}

/// Dropout preserves the mean: over many masks, a branch's output averages to the output without dropout.
#[test]
fn embeddings_keep_their_mean_over_steps() {
    let model = model(0.5);
    let steps = 4000;
    let expected = floats(model.ends.embed(tokens(1), &MicroBatch::default(), &Parallel::default()));
    let mut mean = vec![0.0; expected.len()];
    for step in 0..steps {
        let batch = StepContext { seed: 1, step, first_row: 0 }.into();
        let dropped = floats(model.ends.embed(tokens(1), &batch, &Parallel::default()));
        mean.iter_mut().zip(dropped).for_each(|(mean, x)| *mean += x / steps as f32);
    }
    for (mean, expected) in mean.iter().zip(&expected) {
        // At p = 1/2 an element is 0 or 2x: its standard deviation is |x|, that of the mean |x| / sqrt(steps).
        assert!((mean - expected).abs() <= 6.0 * expected.abs() / (steps as f32).sqrt(), "{mean}, not {expected}");
    }
}
