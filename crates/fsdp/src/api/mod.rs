//! What a user of the crate passes in: a model as units and calls, the configuration, and the errors that come back.

pub mod activations;
pub mod bound;
pub mod call;
pub mod calls;
pub mod config;
pub mod error;
pub mod inspect;
pub mod optimizers;
pub mod precision;
pub mod units;
