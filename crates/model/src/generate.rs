use crate::LanguageModel;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::SeedableRng;
use rand::distr::{Distribution, weighted::WeightedIndex};
use rand_chacha::ChaCha8Rng;

/// How the next token is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Seed of the draws.
    pub seed: u64,
}

/// Continues `prompt` by `count` tokens and returns these.
///
/// Each token costs a forward over the last tokens, at most the model's context and at most `window`.
///
/// # Panics
/// If `prompt` is empty.
pub fn generate<M: LanguageModel>(
    model: &M,
    prompt: &[u32],
    count: usize,
    window: usize,
    sampling: Sampling,
    device: &Device,
) -> Vec<u32> {
    assert!(!prompt.is_empty(), "a prompt has at least one token");
    let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let context = &tokens[tokens.len().saturating_sub(window.min(model.context()))..];
        let t = context.len();
        let ids: Vec<i32> = context.iter().map(|token| *token as i32).collect();
        let logits_btv = model.logits(Tensor::<2, Int>::from_data(TensorData::new(ids, [1, t]), device));
        let vocab = logits_btv.dims()[2];
        let last = logits_btv.slice([0..1, t - 1..t, 0..vocab]).into_data().convert::<f32>();
        tokens.push(draw(last.as_slice().expect("converted to f32"), sampling.temperature, &mut rng));
    }
    tokens.split_off(prompt.len())
}

fn draw(logits: &[f32], temperature: f64, rng: &mut ChaCha8Rng) -> u32 {
    let (best, highest) = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("a vocabulary has tokens");
    if temperature == 0.0 {
        return best as u32;
    }
    let weight = |logit: &f32| (f64::from(logit - highest) / temperature).exp();
    match WeightedIndex::new(logits.iter().map(weight)) {
        Ok(weights) => weights.sample(rng) as u32,
        Err(_) => best as u32, // the logits are not finite: no draw is better than another
    }
}
