//! On any tensor-parallel and context-parallel layout, every parameter's gathered gradient matches one rank's.

use super::*;
use crate::config::Source;
use crate::trainer::batch::{BatchMaker, RowCounts};
use crate::training::set_vocabulary;
use burn::tensor::{Int, Tensor, TensorData};
use fsdp::{FsdpConfig, FusedAdamW, Optimizers};
use model::StepContext;
use std::ops::Range;
use test_kit::tiny::{DEEPSEEK, DEEPSEEK_V3, GPT2, LLAMA, LLAMA_EXPERTS};
use test_kit::{assert_moves, floats, moved, on_ranks};

const T: usize = 8;
/// Not divisible by any number of ranks.
const VOCAB: usize = 11;
/// Resolution of a move, which is the difference of numbers slightly above 1.
const RESOLUTION: f32 = 1.2e-7;

/// Sequences of each micro-batch, in order; they are weighted by their number.
const MICRO_BATCHES: [Range<usize>; 4] = [0..3, 3..4, 4..7, 7..8];

/// The first step starts from the initial parameters, the second from those that the first has updated.
const STEPS: usize = 2;

/// The move of each parameter in each step, and the gradient norms and losses.
type Moves = (Vec<Vec<Vec<f32>>>, Vec<[f64; 3]>);

fn config(preset: &str, settings: &[&[&str]]) -> Config {
    let settings: Vec<String> = settings.concat().iter().map(|setting| setting.to_string()).collect();
    let common = [format!("train.seq_len={T}"), "train.global_batch_size=8".into(), "optim.clip_grad_norm=0".into()];
    let mut config = Config::load(Source::Preset(preset), &[&common[..], &settings].concat()).unwrap();
    set_vocabulary(&mut config, Some(VOCAB)).unwrap();
    config.validate().unwrap();
    config
}

/// A training batch of some rows, with the loss scale of all rows together.
fn batch(rows: &Range<usize>, step: u64, seq_len: usize, maker: &BatchMaker) -> Batch {
    let place = StepContext { seed: 1, step, first_row: rows.start as u64 };
    let mut counts = RowCounts::default();
    MICRO_BATCHES.iter().for_each(|rows| counts += maker.count(&tokens(rows, step, seq_len)));
    maker.for_training(tokens(rows, step, seq_len), Some(place), counts.scale()).unwrap()
}

fn tokens(rows: &Range<usize>, step: u64, seq_len: usize) -> data::Batch {
    let token = |i: usize| ((i * i + 3 * i + step as usize) % VOCAB) as i32;
    let tokens = |ahead| (rows.start * seq_len..rows.end * seq_len).map(|i| token(i + ahead)).collect();
    data::Batch { inputs: tokens(0), targets: tokens(1), sequences: rows.len(), seq_len }
}

/// The optimizer's epsilon is so large that a step is the running mean of gradients times a constant, so an error in a
/// gradient shows up whatever the loss does.
fn moves(config: &Config) -> Moves {
    let config = config.clone();
    let of_ranks = on_ranks(config.parallel.gpus, move |comm| {
        let adamw = FusedAdamW { epsilon: 1e3, weight_decay: 0.0, ..FusedAdamW::default() };
        let of_fsdp = FsdpConfig { optimizers: Optimizers::new(adamw), ..config.fsdp() };
        let (loads, parallel) = (ExpertLoads::new(config.moe.as_ref()), Parallel::new(&of_fsdp, &comm)?);
        // One of the tokens ends a document.
        let maker = BatchMaker::new(&config, Some(4), parallel.sequences.clone(), &Device::flex());
        let units = units(&config, &loads, &parallel, &Device::flex());
        let mut fsdp = Fsdp::new(units, comm, of_fsdp)?;
        let (rank, ranks) = fsdp.data_parallel();
        let each = MICRO_BATCHES.len() / ranks;
        let mine = &MICRO_BATCHES[rank * each..(rank + 1) * each];
        let weights: Vec<f64> = mine.iter().map(|rows| rows.len() as f64).collect();
        let parameters = |fsdp: &Fsdp<Batch>| {
            let (model, mut values) = (new_model(&config, &Device::flex()).gather(fsdp, true)?, vec![]);
            model.expect("it is kept").for_each_parameter(|_, _, value| values.push(floats(value)));
            Ok::<_, FsdpError>(values)
        };
        let (mut before, mut moves, mut numbers) = (parameters(&fsdp)?, vec![], vec![]);
        for step in 0..STEPS as u64 {
            let batches: Vec<Batch> = mine.iter().map(|rows| batch(rows, step, config.train.seq_len, &maker)).collect();
            let report = fsdp.train_step_with(&batches, &weights, 1e3, Vec::new, None)?;
            numbers.push([report.grad_norm, report.loss, report.aux_loss]);
            let after = parameters(&fsdp)?;
            moves.push(moved(&before, &after));
            before = after;
        }
        let batches: Vec<Batch> =
            mine.iter().map(|rows| maker.for_evaluation(tokens(rows, 0, config.train.seq_len)).unwrap()).collect();
        let (loss, of) = fsdp.evaluate(&batches, &weights)?[0];
        numbers.push([of, loss, 0.0]);
        Ok::<_, FsdpError>(((moves, numbers), fsdp.state().copies.digests()))
    });
    let (of_ranks, digests): (Vec<_>, Vec<_>) = of_ranks.into_iter().unzip();
    fsdp::compare_copies(digests.iter().map(Vec::as_slice)).unwrap();
    assert!(of_ranks.iter().all(|of_rank| *of_rank == of_ranks[0]), "every rank gathers the same");
    of_ranks.into_iter().next().unwrap()
}

#[track_caller]
fn moves_as_on_one_rank(preset: &str, model: &[&[&str]], layouts: &[&[&str]]) {
    let (expected, numbers) = moves(&config(preset, model));
    for layout in layouts {
        println!("{layout:?}");
        let (found, found_numbers) = moves(&config(preset, &[model, &[layout]].concat()));
        // The last numbers come from an evaluation. If ranks share its micro-batches, their first ones differ, which
        // the weights reveal.
        let same = |(found, expected): &(&[f64; 3], &[f64; 3])| found[0] == expected[0];
        let evaluated = found_numbers.iter().zip(&numbers).skip(STEPS).filter(same);
        for (found, expected) in found_numbers.iter().zip(&numbers).take(STEPS).chain(evaluated) {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() <= 1e-5 * expected, "{layout:?}: {found_numbers:?}, not {numbers:?}");
            }
        }
        assert_moves(&format!("{layout:?}"), &found, &expected, RESOLUTION);
    }
}

const LAYOUTS: &[&[&str]] = &[
    &["parallel.gpus=2", "parallel.tp=2"],
    &["parallel.gpus=4", "parallel.tp=4"],
    &["parallel.gpus=4", "parallel.tp=2"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.strategy=ddp"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.strategy=zero1"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.strategy=shard_grad_op", "parallel.no_sync=true"],
    &["parallel.gpus=8", "parallel.tp=2", "parallel.strategy=hybrid_shard"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.activation_checkpointing=full"],
    &["parallel.gpus=2", "parallel.tp=2", "parallel.reshard_after_forward=false"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.wrap=size:2000"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.pp=2"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.pp=2", "parallel.schedule=zero_bubble"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.pp=2", "parallel.schedule=zb_v"],
];

const CONTEXT: &[&[&str]] = &[
    &["parallel.gpus=2", "parallel.cp=2"],
    &["parallel.gpus=4", "parallel.cp=4"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.tp=2"],
    &["parallel.gpus=4", "parallel.cp=2"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.strategy=ddp"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.strategy=zero1"],
    &["parallel.gpus=8", "parallel.cp=2", "parallel.strategy=hybrid_shard"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.activation_checkpointing=full"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.pp=2"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.pp=2", "parallel.schedule=zero_bubble"],
    &["parallel.gpus=8", "parallel.cp=2", "parallel.tp=2", "parallel.pp=2"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.pp=2", "parallel.schedule=zb_v", "parallel.no_sync=true"],
    &["parallel.gpus=2", "parallel.cp=2", "parallel.wrap=size:2000"],
];

const CONTEXT_WITH_EXPERTS: &[&[&str]] = &[
    &["parallel.gpus=2", "parallel.cp=2", "parallel.ep=2"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.ep=4"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.tp=2", "parallel.ep=4"],
    &["parallel.gpus=8", "parallel.cp=2", "parallel.ep=2", "parallel.pp=2"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.ep=4", "parallel.strategy=ddp"],
    &["parallel.gpus=8", "parallel.cp=2", "parallel.ep=2", "parallel.strategy=hybrid_shard"],
];

const WITH_EXPERTS: &[&[&str]] = &[
    &["parallel.gpus=2", "parallel.tp=2", "parallel.ep=2"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.ep=4"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.ep=2"],
    &["parallel.gpus=4", "parallel.tp=4", "parallel.ep=2"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.ep=4", "parallel.strategy=ddp"],
    &["parallel.gpus=8", "parallel.tp=2", "parallel.ep=2", "parallel.pp=2"],
    &["parallel.gpus=8", "parallel.tp=2", "parallel.ep=4", "parallel.strategy=hybrid_shard"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.ep=4", "parallel.strategy=zero1"],
];

#[test]
fn every_gradient_of_gpt2_is_one_ranks() {
    moves_as_on_one_rank("gpt2", &[GPT2], &[LAYOUTS, CONTEXT].concat());
}

#[test]
fn every_gradient_of_llama_is_one_ranks() {
    moves_as_on_one_rank("llama", &[LLAMA], &[LAYOUTS, CONTEXT].concat());
    let tied = &["model.tie_word_embeddings=true", "data.document_mask=true"];
    moves_as_on_one_rank(
        "llama",
        &[LLAMA, tied],
        &[&LAYOUTS[..3], &LAYOUTS[10..], &CONTEXT[..3], &CONTEXT[8..]].concat(),
    );
    let layouts = [WITH_EXPERTS, &CONTEXT[..3], CONTEXT_WITH_EXPERTS].concat();
    moves_as_on_one_rank("llama", &[LLAMA, LLAMA_EXPERTS], &layouts);
    let padded = [&LAYOUTS[..2], &CONTEXT[..3]].concat();
    moves_as_on_one_rank("llama", &[LLAMA, &["train.seq_len=7", "model.tie_word_embeddings=true"]], &padded);
}

#[test]
fn every_gradient_of_deepseek_is_one_ranks() {
    moves_as_on_one_rank("deepseek", &[DEEPSEEK], &[LAYOUTS, WITH_EXPERTS, CONTEXT, CONTEXT_WITH_EXPERTS].concat());
}

#[test]
fn every_gradient_of_multi_token_prediction_is_one_ranks() {
    let model = &[DEEPSEEK, &["model.mtp_depth=2"]];
    moves_as_on_one_rank("deepseek", model, &[LAYOUTS, WITH_EXPERTS, CONTEXT, CONTEXT_WITH_EXPERTS].concat());
    let without_tensors = ["parallel.gpus=2", "parallel.ep=2", "parallel.pp=1"];
    let blocks = ["parallel.gpus=3", "parallel.strategy=block"];
    moves_as_on_one_rank("deepseek", model, &[&without_tensors, &blocks, &["parallel.gpus=2", "parallel.pp=2"]]);
}

/// Ranks have unequal numbers of labels, and some context-parallel messages hold keys that no query of a rank sees.
#[test]
fn every_gradient_of_documents_apart_is_one_ranks() {
    const APART: &[&str] = &["data.document_mask=true"];
    moves_as_on_one_rank("gpt2", &[GPT2, APART], &[LAYOUTS, CONTEXT].concat());
    let model = &[DEEPSEEK, &["model.mtp_depth=2", "model.q_lora_rank=6"], APART];
    let layouts = [&LAYOUTS[..3], &LAYOUTS[10..], WITH_EXPERTS, &CONTEXT[..6], CONTEXT_WITH_EXPERTS];
    moves_as_on_one_rank("deepseek", model, &layouts.concat());
    let without_tensors = ["parallel.gpus=2", "parallel.ep=2"];
    let blocks = ["parallel.gpus=3", "parallel.strategy=block"];
    moves_as_on_one_rank("deepseek", model, &[&without_tensors, &blocks, &["parallel.gpus=2", "parallel.pp=2"]]);
}

/// Rows that do not divide among the ranks, so short that some context-parallel ranks hold only padding, in a model
/// that has no positions beyond the unpadded length.
#[test]
fn every_gradient_of_padded_rows_is_one_ranks() {
    let layouts = [&LAYOUTS[..2], &LAYOUTS[11..12], &CONTEXT[..3], &CONTEXT[7..8], &CONTEXT[10..11]].concat();
    for length in [["train.seq_len=7", "model.n_positions=7"], ["train.seq_len=3", "model.n_positions=3"]] {
        moves_as_on_one_rank("gpt2", &[GPT2, &length], &layouts);
    }
    moves_as_on_one_rank("gpt2", &[GPT2, &["train.seq_len=5", "data.document_mask=true"]], &layouts[1..5]);
    let layouts = [&WITH_EXPERTS[..1], &WITH_EXPERTS[3..4], &CONTEXT[1..2], &CONTEXT_WITH_EXPERTS[2..4]].concat();
    for changes in [
        &["train.seq_len=7"][..],
        &["train.seq_len=3", "model.mtp_depth=2"],
        &["train.seq_len=5", "model.mtp_depth=1", "data.document_mask=true"],
        &["train.seq_len=6", "moe.overflow=reroute"],
    ] {
        moves_as_on_one_rank("deepseek", &[DEEPSEEK, changes], &layouts);
    }
}

/// The model's own losses on each document alone, summed and divided by the number of predicted tokens.
#[test]
fn the_loss_of_documents_apart_is_the_mean_over_what_each_predicts() {
    let config = config("gpt2", &[GPT2, &["model.dropout=0", "data.document_mask=true"]]);
    let of_ranks = on_ranks(1, move |comm| {
        let (loads, parallel) = (ExpertLoads::new(config.moe.as_ref()), Parallel::default());
        let maker = BatchMaker::new(&config, Some(4), parallel.sequences.clone(), &Device::flex());
        let units = units(&config, &loads, &parallel, &Device::flex());
        let mut fsdp = Fsdp::new(units, comm, config.fsdp())?;
        let model = new_model(&config, &Device::flex()).gather(&fsdp, true)?.expect("it is kept");
        let (mut nats, mut labels) = (0.0, 0.0);
        for data::Batch { inputs, targets, .. } in MICRO_BATCHES.iter().map(|rows| tokens(rows, 0, T)) {
            for (inputs, targets) in inputs.chunks(T).zip(targets.chunks(T)) {
                let mut start = 0;
                while start < T {
                    let len = inputs[start..].iter().take_while(|token| **token != 4).count();
                    if len > 0 {
                        let [inputs, targets] = [inputs, targets].map(|tokens| {
                            let tokens = TensorData::new(tokens[start..start + len].to_vec(), [1, len]);
                            Tensor::<2, Int>::from_data(tokens, &Device::flex())
                        });
                        nats += f64::from(model.loss(inputs, targets).into_scalar::<f32>()) * len as f64;
                        labels += len as f64;
                    }
                    start += len + 1;
                }
            }
        }
        let batches: Vec<Batch> = MICRO_BATCHES.iter().map(|rows| batch(rows, 0, T, &maker)).collect();
        let weights: Vec<f64> = MICRO_BATCHES.iter().map(|rows| rows.len() as f64).collect();
        Ok::<_, FsdpError>((
            fsdp.train_step_with(&batches, &weights, 1e-3, Vec::new, None)?.loss,
            nats / labels,
            labels,
        ))
    });
    let (found, expected, labels) = of_ranks[0];
    assert!(labels < 0.9 * (8 * T) as f64, "{labels} of {} positions predict", 8 * T);
    assert!((found - expected).abs() < 1e-6 * expected, "{found}, not {expected}");
}

#[test]
fn every_gradient_of_deepseek_v3_is_one_ranks() {
    moves_as_on_one_rank(
        "deepseek",
        &[DEEPSEEK, DEEPSEEK_V3],
        &[LAYOUTS, WITH_EXPERTS, CONTEXT, CONTEXT_WITH_EXPERTS].concat(),
    );
    let rerouted = ["moe.overflow=reroute", "moe.capacity_factor=0.75"];
    moves_as_on_one_rank(
        "deepseek",
        &[DEEPSEEK, &rerouted],
        &[&WITH_EXPERTS[..2], &CONTEXT_WITH_EXPERTS[..3]].concat(),
    );
}

/// Bytes that a rank receives in a step by `all_gather`, `reduce_scatter` and `recv`. Nothing is sharded, so all
/// traffic is between ranks that share sequences.
fn received(config: &Config) -> [u64; 3] {
    let config = config.clone();
    let of_ranks = on_ranks(config.parallel.gpus, move |comm| {
        let of_fsdp = config.fsdp();
        let (loads, parallel) = (ExpertLoads::new(config.moe.as_ref()), Parallel::new(&of_fsdp, &comm)?);
        let maker = BatchMaker::new(&config, Some(4), parallel.sequences.clone(), &Device::flex());
        let units = units(&config, &loads, &parallel, &Device::flex());
        let mut fsdp = Fsdp::new(units, comm, of_fsdp)?;
        let count = |fsdp: &Fsdp<Batch>| {
            let table = fsdp.traffic().0;
            ["all_gather", "reduce_scatter", "recv"].map(|name| table.get(name).map_or(0, |traffic| traffic.bytes))
        };
        let before = count(&fsdp);
        fsdp.train_step(&[batch(&(0..3), 0, T, &maker)], 1e-3)?;
        let after = count(&fsdp);
        Ok::<_, FsdpError>([0, 1, 2].map(|i| after[i] - before[i]))
    });
    of_ranks[0]
}

/// The closed forms of docs/parallelism/tensor.md.
#[test]
fn what_tensor_parallel_ranks_communicate_is_as_documented() {
    let (b, d) = (3, 16);
    for tp in [2, 4] {
        let layout = [format!("parallel.gpus={tp}"), format!("parallel.tp={tp}")];
        let layout = [&layout[0], &layout[1], "parallel.strategy=ddp"];
        // Bytes that a rank receives for `width` fp32 numbers per token.
        let of = |width: usize| (b * T * width * 4 * (tp - 1) / tp) as u64;
        let blocks = 2;

        let found = received(&config("gpt2", &[GPT2, &layout]));
        let (gathers, scatters) = (2 * blocks + 1, 2 * blocks + 1);
        assert_eq!(found, [(2 * gathers + scatters) * of(d), (gathers + scatters) * of(d), 0], "gpt2, tp {tp}");

        let found = received(&config("llama", &[LLAMA, &layout]));
        assert_eq!(found, [(2 * gathers + scatters) * of(d), (gathers + scatters) * of(d), 0], "llama, tp {tp}");

        let dropless = ["moe.capacity_factor=null", "moe.router_noise=0"];
        let found = received(&config("deepseek", &[DEEPSEEK, &dropless, &layout]));
        let (rank, rope) = (8, 4);
        // Per block, the inputs of attention and MLP; the head's input; and the rotated key, which is kept. Each rank
        // routes its own tokens to experts.
        let (read, kept) = (blocks * of(2 * d + rank) + of(d), blocks * of(rope));
        let scattered = (2 * blocks + 1) * of(d);
        assert_eq!(found, [2 * read + kept + scattered, read + kept + scattered, 0], "deepseek, tp {tp}");
    }
}

#[test]
fn what_ranks_of_a_context_communicate_is_as_documented() {
    let (b, d, blocks) = (3, 16, 2);
    for cp in [2, 4] {
        let layout = [format!("parallel.gpus={cp}"), format!("parallel.cp={cp}")];
        let layout = [&layout[0], &layout[1], "parallel.strategy=ddp"];
        // A message of `width` numbers per token of a rank is passed on N - 1 times in the forward and N - 1 times in
        // the backward, and its gradient N times.
        let ring = |width: usize| (blocks * (3 * cp - 2) * b * T / cp * width * 4) as u64;
        assert_eq!(received(&config("gpt2", &[GPT2, &layout])), [0, 0, ring(2 * d)], "gpt2, cp {cp}");

        // Keys and values of four heads of width 4.
        assert_eq!(received(&config("llama", &[LLAMA, &layout])), [0, 0, ring(2 * 4 * 4)], "llama, cp {cp}");

        let (rank, rope, top_k) = (8, 4, 2);
        let dropless = ["moe.capacity_factor=null", "moe.router_noise=0"];
        let found = received(&config("deepseek", &[DEEPSEEK, &dropless, &layout]));
        assert_eq!(found, [0, 0, ring(rank + rope)], "deepseek, cp {cp}");
        // Capacity applies to a whole sequence, so all ranks need the choices of all its tokens.
        let capped = ["moe.capacity_factor=1", "moe.router_noise=0", &format!("moe.top_k={top_k}")];
        let found = received(&config("deepseek", &[DEEPSEEK, &capped, &layout]));
        let choices = (b * T * top_k * 4 * (cp - 1) / cp) as u64;
        assert_eq!(found, [choices, 0, ring(rank + rope)], "deepseek with a capacity, cp {cp}");
    }
}
