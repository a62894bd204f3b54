//! The sub-commands, a file each: its arguments, what can go wrong, and what it does.

pub mod config;
pub mod eval;
pub mod export;
pub mod generate;
pub mod import;
pub mod inspect;
pub mod logits;
pub mod prepare;
pub mod presets;
pub mod report;
