//! Speculative generation: multi-token prediction modules draft tokens, which the model verifies in one pass.
//!
//! ```text
//! text      x_0 .. x_n | x_{n+1}                the tokens the model has read, and the one drawn last
//! module 1  h^0_n and Emb(x_{n+1})  -> h^1_n -> draft d_{n+2}
//! module 2  h^1_n and Emb(d_{n+2})  -> h^2_n -> draft d_{n+3}            ..
//! model     [x_{n+1}, d_{n+2}, d_{n+3}] in one pass: draws x_{n+2}; if that equals d_{n+2},
//!           the next row is valid too and draws x_{n+3}, ...
//! ```
//!
//! Each token is drawn from the model's own logits with the random number it would use without drafts, so the text is
//! the same. A draft is one token rather than a distribution, so its acceptance rate equals that of rejection sampling
//! (arXiv 2211.17192): the model's own probability of the draft. What a pass reads beyond the accepted tokens is
//! truncated from the caches.

use super::DeepSeek;
use crate::generate::{checked_window, sampling};
use crate::{Cache, Generation, LanguageModel, ModelError};
use burn::tensor::{Device, Int, Tensor, TensorData};
use fused::{embedding, linear};
use std::ops::ControlFlow;

/// Counts of drafted and accepted tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drafts {
    /// Drafts that the model has read.
    pub drafted: usize,
    /// Drafts that the model then drew itself.
    pub accepted: usize,
}

/// Like [`generate`](fn@crate::generate), with the same tokens, but one prompt after another.
///
/// Rows computed together may be rounded differently than rows computed alone; if that decides between two tokens, the
/// text continues with the other one.
///
/// # Errors
/// See [`generate`](fn@crate::generate); also if the model has no multi-token prediction modules.
///
/// # Panics
/// See [`generate`](fn@crate::generate).
pub fn generate_speculative(
    model: &DeepSeek,
    prompts: &[Vec<u32>],
    how: &Generation,
    device: &Device,
    on_token: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
) -> Result<(Vec<Vec<u32>>, Drafts), ModelError> {
    let window = checked_window(model, prompts, how)?;
    if model.mtp.is_empty() {
        return Err(ModelError::Setting("the model has no multi-token prediction modules to draft with".into()));
    }
    let (mut all, mut drafts) = (vec![], Drafts::default());
    for (sequence, prompt) in prompts.iter().enumerate() {
        let mut text = Text::new(model, prompt, window, device);
        let mut rng = how.sampling.rng(sequence);
        let mut goes_on = how.max_new_tokens > 0;
        while goes_on {
            let left = how.max_new_tokens - (text.tokens.len() - prompt.len());
            let (logits, drafted) = text.read(left - 1);
            drafts.drafted += drafted.len();
            for (i, logits) in logits.iter().enumerate() {
                let token = how.sampling.draw(logits, &mut rng);
                if how.stop.contains(&token) {
                    goes_on = false;
                    break;
                }
                text.tokens.push(token);
                goes_on =
                    on_token(sequence, token).is_continue() && text.tokens.len() - prompt.len() < how.max_new_tokens;
                let accepted = drafted.get(i) == Some(&token);
                drafts.accepted += usize::from(accepted);
                if !(goes_on && accepted) {
                    break;
                }
            }
            if goes_on {
                text.draft();
            }
        }
        all.push(text.tokens.split_off(prompt.len()));
    }
    Ok((all, drafts))
}

/// A sequence being generated.
struct Text<'a> {
    model: &'a DeepSeek,
    device: &'a Device,
    window: usize,
    /// Prompt and new tokens.
    tokens: Vec<u32>,
    /// Index of the first token in the window. Positions count from it.
    start: usize,
    cache: Cache,
    modules: Vec<Module>,
    /// Output of the model's final norm for the rows it read last: `[1, n, d]`, starting at position `read_from`.
    hidden: Option<Tensor<3>>,
    read_from: usize,
    drafts: Vec<u32>,
}

/// What a multi-token prediction module stores for a sequence.
struct Module {
    cache: Cache,
    /// Outputs of the previous module at the positions this one reads next, which the previous one will not recompute:
    /// `[1, 1, d]`.
    kept: Option<Tensor<3>>,
}

impl<'a> Text<'a> {
    fn new(model: &'a DeepSeek, prompt: &[u32], window: usize, device: &'a Device) -> Self {
        Self {
            model,
            device,
            window,
            tokens: prompt.to_vec(),
            start: prompt.len().saturating_sub(window),
            cache: model.cache(1),
            modules: model.mtp.iter().map(|_| Module { cache: Cache::new(1, 1), kept: None }).collect(),
            hidden: None,
            read_from: 0,
            drafts: vec![],
        }
    }

    /// Reads the tokens the model has not seen, followed by as many drafts as fit in the window, at most `most`.
    ///
    /// Returns the logits after the last token and after each of these drafts, and the drafts.
    fn read(&mut self, most: usize) -> (Vec<Vec<f32>>, Vec<u32>) {
        if self.tokens.len() - self.start > self.window {
            self.start = self.tokens.len() - (self.window / 2).max(1);
            self.cache.clear(0);
            self.modules.iter_mut().for_each(|module| *module = Module { cache: Cache::new(1, 1), kept: None });
            self.drafts.clear();
        }
        let room = self.window - (self.tokens.len() - self.start);
        let mut drafts = std::mem::take(&mut self.drafts);
        drafts.truncate(room.min(most));
        self.read_from = self.cache.lengths()[0];
        let new = [&self.tokens[self.start + self.read_from..], &drafts].concat();
        let n = new.len();
        let x_btd = self.model.hidden_cached(self.ids(&new), &[n], &mut self.cache);
        let h_btd = self.model.head.norm.forward(x_btd);
        let logits = self.logits(h_btd.clone().slice_dim(1, n - 1 - drafts.len()..n));
        self.hidden = Some(h_btd);
        (logits, drafts)
    }

    /// Truncates what was read beyond the text, and drafts tokens to follow its last one.
    fn draft(&mut self) {
        let seen = self.tokens.len() - self.start - 1; // all but the last token
        self.cache.truncate(0, seen);
        let h_btd = self.hidden.take().expect("the model has read");
        let mut h_btd = h_btd.slice_dim(1, 0..seen - self.read_from);
        let mut text = self.tokens[self.start..].to_vec();
        for k in 1..=self.modules.len() {
            if let Some(kept) = self.modules[k - 1].kept.take() {
                h_btd = Tensor::cat(vec![kept, h_btd], 1);
            }
            let from = self.modules[k - 1].cache.lengths()[0];
            let ids = self.ids(&text[from + k..]);
            let embeddings_btd = embedding(self.model.embed.weight.val(), ids);
            let cache = &mut self.modules[k - 1].cache;
            let chunk = cache.extend(&[seen - from], seen - from, self.model.context());
            let made =
                self.model.mtp[k - 1].forward_cached(h_btd.clone(), embeddings_btd, &mut cache.layers[0], &chunk);
            // From position `sure` on, this module has read drafts. It reads those positions again later, with the
            // previous module's outputs, one of which is kept.
            let sure = (seen + 1).saturating_sub(k);
            cache.truncate(0, sure);
            let of_before = (seen + 2).saturating_sub(k).min(seen);
            self.modules[k - 1].kept = (of_before > sure).then(|| h_btd.slice_dim(1, sure - from..of_before - from));

            let last = made.dims()[1] - 1;
            let logits = self.logits(made.clone().slice_dim(1, last..last + 1)).swap_remove(0);
            text.push(sampling::most_likely(&logits));
            self.drafts.push(text[text.len() - 1]);
            h_btd = made;
        }
    }

    fn ids(&self, tokens: &[u32]) -> Tensor<2, Int> {
        let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
        Tensor::from_data(TensorData::new(ids, [1, tokens.len()]), self.device)
    }

    /// Logits of the output of a norm before the head, `[1, n, d]`: one list per row.
    fn logits(&self, normed_btd: Tensor<3>) -> Vec<Vec<f32>> {
        let logits = linear(normed_btd, self.model.head.lm_head.weight.val(), None);
        let vocab = logits.dims()[2];
        let all: Vec<f32> = logits.into_data().iter::<f32>().collect();
        all.chunks_exact(vocab).map(<[f32]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hf::{Folder, Pretrained};
    use std::path::Path;

    /// The drafts computed from a whole text at once, without a cache.
    fn naive(model: &DeepSeek, tokens: &[u32], device: &Device) -> Vec<u32> {
        let seen = tokens.len() - 1;
        let of = |tokens: &[u32]| {
            let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
            Tensor::<2, Int>::from_data(TensorData::new(ids, [1, seen]), device)
        };
        let mut text = tokens.to_vec();
        let mut h_btd = model.head.norm.forward(model.hidden(of(&tokens[..seen])));
        for (k, mtp) in (1..).zip(&model.mtp) {
            h_btd = mtp.forward(h_btd, embedding(model.embed.weight.val(), of(&text[k..k + seen])));
            let logits = linear(h_btd.clone(), model.head.lm_head.weight.val(), None).slice_dim(1, seen - 1..seen);
            let logits: Vec<f32> = logits.into_data().iter::<f32>().collect();
            text.push(sampling::most_likely(&logits));
        }
        text.split_off(tokens.len())
    }

    #[test]
    fn drafts_are_those_of_the_whole_text_however_many_were_accepted() {
        let device = Device::flex();
        for name in ["deepseek-v3-mtp-1", "deepseek-v3-mtp-2"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference").join(name);
            let pretrained = Pretrained::load(&Folder::open(&folder).unwrap(), &device).unwrap();
            let model = pretrained.model.predicts_ahead().expect("a model with multi-token prediction");
            for prompt in [&[5][..], &[7, 3, 60, 21, 9]] {
                let mut text = Text::new(model, prompt, 30, &device);
                for round in 0..20 {
                    let (logits, drafted) = text.read(9);
                    assert_eq!(logits.len(), drafted.len() + 1);
                    text.tokens.extend(&drafted[..(round % 3).min(drafted.len())]);
                    text.tokens.push(round as u32 * 17 % 72);
                    text.draft();
                    assert_eq!(text.drafts, naive(model, &text.tokens[text.start..], &device), "{name}, round {round}");
                }
                assert!(text.start > 0, "the window was left once");
            }
        }
    }
}
