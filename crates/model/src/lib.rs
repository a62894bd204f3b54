//! GPT-2, Llama and DeepSeek (MLA + MoE) as Burn modules, and their weights in Hugging Face's format.
//!
//! A model is a module with public parts and a forward on one device: `model.logits(tokens)` needs no communicator. The
//! module implements [`Decoder`]. Both this forward and sharded training run the decoder's list of calls. A part that
//! holds a rank's shard of the parameters computes its rows of the sequences together with the ranks in its
//! [`Parallel`].
//!
//! A [`Family`] knows everything else about its models: parameters ([`ParameterSpec`]: shape, initial values, how ranks
//! split it), what each call costs, limits, and Hugging Face's names. Its configuration implements [`Architecture`].
//! [`ModelConfig`] has the only list of families; a program can add its own family to it.
//!
//! This crate has no training loop and no data, and the only files that it reads and writes are Hugging Face's: `fsdp`
//! shards its models, and `train` trains them.
//!
//! ```
//! use burn::tensor::{Device, Int, Tensor};
//! use model::{Gpt2, Gpt2Config, LanguageModel};
//!
//! let device = Device::flex();
//! let config = Gpt2Config { vocab_size: 65, n_layer: 2, n_head: 2, n_embd: 16, ..Gpt2Config::default() };
//! let gpt2 = Gpt2::init(&config, 1337, &device);
//! let tokens_bt = Tensor::<2, Int>::from_data([[7, 3, 64, 0]], &device);
//! assert_eq!(gpt2.logits(tokens_bt.clone()).dims(), [1, 4, 65]);
//! let loss: f32 = gpt2.loss(tokens_bt.clone(), tokens_bt).into_scalar();
//! assert!((loss - 65f32.ln()).abs() < 0.2, "an untrained model knows nothing");
//! ```
//!
//! Parameters may be f32, bf16 or f16, all of one dtype, which the residual stream and the gradients then share. Norms,
//! softmax, rotations, routing and the loss are computed in f32, and the loss is f32.
//!
//! Shape suffixes: `b` sequences, `t` positions, `s` positions on this rank, `d` width of the residual stream, `h`
//! heads, `v` vocabulary (in attention: width of a value), `c` columns of a cache, `r` rank of a latent, `p` width of a
//! rotated key.
//!
//! DeepSeek in your own training loop, `cargo run --example own_loop`:
//!
//! ```ignore
#![doc = include_str!("../examples/own_loop.rs")]
//! ```

mod architecture;
mod batch;
mod cache;
mod cost;
pub mod deepseek;
mod error;
mod expert_loads;
mod family;
mod generate;
pub mod gpt2;
pub mod hf;
mod init;
mod language_model;
mod layers;
mod limits;
pub mod llama;
mod mtp_batch;
mod parallel;
mod parameters;
mod registry;
mod simple;
mod targets;
mod training;

pub use architecture::{AnyModel, Architecture};
pub use batch::{Batch, Documents, MicroBatch, StepContext};
pub use cache::{Cache, Chunk, LayerCache};
pub use cost::{Flops, Workload};
pub use deepseek::{DeepSeek, DeepSeekConfig, Drafts, generate_speculative};
pub use error::ModelError;
pub use expert_loads::{ExpertLoads, LayerLoad, layer_loads};
pub use family::{Family, HuggingFace, Size};
pub use generate::{Generation, Sampling, generate};
pub use gpt2::{Gpt2, Gpt2Config};
pub use init::Initial;
pub use language_model::{Decoder, LanguageModel};
pub use layers::{
    BlockOutput, LayerNorm, Mlp, RmsNorm, Rope, RopeScaling, RopeType, VocabularyHead, YarnConfig, moe_parameters,
};
pub use llama::{Llama, LlamaConfig};
pub use mtp_batch::MtpBatch;
pub use parallel::Parallel;
pub use parameters::{Initializer, ParameterSpec, Sharding, fill, parameters_of, visited};
pub use registry::ModelConfig;
pub use simple::{Attention, Dimensions, Parts, SimpleArchitecture, SimpleDecoder};
pub use targets::{Targets, TokenRows};
pub use training::Training;
