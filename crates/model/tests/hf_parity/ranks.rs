//! Parity with transformers for models sharded over ranks: heads, columns and rows.

use super::common::{Loaded, load};
use super::{GRADIENTS, LOGITS, found_gradients, gradients, ints};
use burn::module::{ModuleMapper, Param};
use burn::tensor::{Device, Tensor, TensorData};
use comm::{CommError, Communicator, ContextParallel, Reduce, SequenceRanks, TensorParallel, TensorShard, run_ranks};
use model::{Batch, Decoder, DeepSeek, Gpt2, Llama, MicroBatch, Parallel, Sharding, Targets, Training};
use moe::MoeConfig;
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use test_kit::{Values, assert_close, floats, largest, reference, stored_floats, tracked};

/// Sizes of `cp` and `tp`.
const LAYOUTS: [[usize; 2]; 3] = [[1, 2], [2, 1], [2, 2]];

#[test]
fn documents_in_one_row_over_ranks_equal_transformers() {
    for name in ["gpt2-a", "deepseek-v3-q-lora", "qwen3", "mistral-window"] {
        for [cp, tp] in LAYOUTS.into_iter().chain([[4, 1]]) {
            run_ranks(vec![Device::flex(); cp * tp], comm::TIMEOUT, move |comm| {
                equals_transformers(name, &comm, tp, true)
            })
            .unwrap_or_else(|failure| panic!("{name}, cp {cp}, tp {tp}: {failure}"));
        }
    }
}

#[test]
fn parts_of_models_on_ranks_equal_transformers() {
    let deepseek = ["deepseek-v3-q-lora", "deepseek-v3-no-q-lora", "deepseek-v3-yarn", "deepseek-v2-greedy"];
    let llama = ["llama-scaled-rope", "qwen3", "mistral-window", "mixtral", "qwen3-moe"];
    for name in ["gpt2-a", "gpt2-b"].into_iter().chain(deepseek).chain(llama) {
        for [cp, tp] in LAYOUTS {
            run_ranks(vec![Device::flex(); cp * tp], comm::TIMEOUT, move |comm| {
                equals_transformers(name, &comm, tp, false)
            })
            .unwrap_or_else(|failure| panic!("{name}, cp {cp}, tp {tp}: {failure}"));
        }
    }
}

fn equals_transformers(name: &str, comm: &Communicator, tp: usize, in_one_row: bool) -> Result<(), CommError> {
    let (device, path) = (Device::flex(), reference(name));
    let file = fs::read(path.join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&file).unwrap();

    let mut parallel = Parallel::default();
    let [context, rows] = [comm.rank() % tp, tp + comm.rank() / tp].map(|color| comm.split(color));
    let (context, rows) = (context?, rows?);
    parallel.sequences = SequenceRanks {
        tp: TensorParallel::new(rows, parallel.first_error.clone()),
        cp: ContextParallel::new(context.clone(), parallel.first_error.clone()),
        padding: 0,
    };
    let own = |of: &str| {
        let (tokens, cp) = (ints(&expected, of, &device), &parallel.sequences.cp);
        if in_one_row { super::in_one_row(tokens, cp) } else { (cp.own(tokens, 1), MicroBatch::default()) }
    };
    let ((tokens, batch), (targets, _)) = (own("tokens"), own("targets"));
    let pretrained = load(&path);
    let parameters = pretrained.config.family(pretrained.moe.as_ref()).parameters().into_iter();
    let cuts = parameters.filter_map(|parameter| match parameter.sharding {
        Sharding::Tensor(cut) => Some((parameter.name, cut)),
        Sharding::Replicated | Sharding::Experts => None,
    });
    let sums = Sums { world: comm.clone(), context, cuts: cuts.collect() };
    let batch = Batch { micro: batch, ..Batch::new(tokens, Targets::all(targets)) };
    let expected_loss = stored_floats(&expected, "loss");
    match Loaded::from(pretrained) {
        Loaded::Gpt2(config, model) => {
            let expected_gradients = gradients(Gpt2::new(&config, &device), &path);
            compare(parallel, &sums, model, expected_gradients, &expected_loss, &batch)
        }
        Loaded::Llama(config, moe, model) => {
            let expected_gradients = gradients(Llama::new(&config, moe.as_ref(), &device), &path);
            compare(parallel, &sums, model, expected_gradients, &expected_loss, &batch)
        }
        Loaded::DeepSeek(config, moe, model) => {
            let without_bias = MoeConfig { selection_bias: false, ..moe };
            let expected_gradients = gradients(DeepSeek::new(&config, &without_bias, &device), &path);
            compare(parallel, &sums, model, expected_gradients, &expected_loss, &batch)
        }
    }
}

/// Gradients of replicated parameters are summed over all ranks, those of shards over the ranks with the same shard.
struct Sums {
    world: Communicator,
    context: Communicator,
    /// How tensor-parallel ranks split parameters.
    cuts: BTreeMap<String, TensorShard>,
}

fn compare<M: Decoder>(
    parallel: Parallel,
    sums: &Sums,
    model: M,
    expected_gradients: M,
    expected_loss: &[f32],
    batch: &Batch,
) -> Result<(), CommError> {
    let tp = parallel.sequences.tp.clone();
    let part = |module: M| module.map(&mut Part { path: vec![], tp: tp.clone(), cuts: &sums.cuts });
    let (model, expected_gradients) = (tracked(part(model)), part(expected_gradients));
    // Each context-parallel rank's loss is a mean over the same number of rows.
    let training = Training { parallel, ..Training::default() };
    let loss = model.calls(&training).run(&model, batch).loss / sums.context.world_size() as f64;
    let of_backward = loss.clone().backward();
    training.parallel.first_error.check()?;
    let sum = |of: &Communicator, values: Vec<f32>| {
        let len = values.len();
        let values = Tensor::<1>::from_data(TensorData::new(values, [len]), &Device::flex());
        of.all_reduce(values, Reduce::Sum).map(floats)
    };
    assert_close("loss", &sum(&sums.world, floats(loss.inner()))?, expected_loss, LOGITS);

    let expected = Values::of(&expected_gradients).by_path();
    for (path, values) in found_gradients(&model, &of_backward) {
        let of = if sums.cuts.contains_key(&path) { &sums.context } else { &sums.world };
        let values = sum(of, values)?;
        let Some(expected) = expected.get(&path) else {
            assert!(path.ends_with("router.bias"), "without reference: {path}");
            continue;
        };
        assert_close(&path, &values, expected, GRADIENTS * largest(expected, 0.0));
    }
    Ok(())
}

/// Reduces each parameter to a rank's shard.
struct Part<'a> {
    path: Vec<String>,
    tp: TensorParallel,
    cuts: &'a BTreeMap<String, TensorShard>,
}

impl ModuleMapper for Part<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(cut) = self.cuts.get(&self.path.join(".")) else { return param };
        let (whole, width) = (param.val(), param.dims()[cut.dim] / cut.blocks);
        let mine = self.tp.part(width);
        let of_block =
            |block: usize| whole.clone().slice_dim(cut.dim, block * width + mine.start..block * width + mine.end);
        Param::initialized(param.id, Tensor::cat((0..cut.blocks).map(of_block).collect(), cut.dim))
    }
}
