//! A CUDA driver (`libcuda.so.1`) of cards that are emulated on the CPU.
//!
//! A program that uses the driver API finds this library in the place of NVIDIA's, and runs unchanged: memory of a card
//! lies in the host's memory, and kernels are PTX text that the crate [`ptx`] executes. Work that a program queues runs late, and in
//! an order that the program has no right to rule out, so that a wait that is missing shows as a wrong result.
//!
//! [`settings`] lists what the environment sets. Every function is entered through `call`, which knows the state of the driver.
//! A module in the plural, such as [`streams`], has the objects that handles stand for; the one in the singular, such as [`stream`],
//! stands above it and has the functions of the API.
//!
//! | part | modules |
//! |---|---|
//! | cards and contexts | [`spec`], [`card`], [`device`], [`contexts`], [`context`] |
//! | memory | [`memory`], [`virtual_memory`], [`host`], [`pool`], [`copy`], [`transfer`], [`fill`] |
//! | order of work | [`engine`], [`streams`], [`stream`], [`event`], [`captures`], [`capture`], [`graph`], [`nodes`], [`node_params`], [`edges`], `unfold` |
//! | kernels | [`modules`], [`module`], [`library`], [`link`], [`function`], [`launches`], [`launch`], [`occupancy`], [`tensor_map`] |
//! | names | [`entry`], [`older`], [`refused`] |
//! | reports | [`profile`], [`exit`] |

#![allow(non_snake_case, clippy::missing_safety_doc)]

pub mod abi;
mod call;
pub mod capture;
pub mod captures;
pub mod card;
pub mod context;
pub mod contexts;
pub mod copy;
pub mod device;
pub mod edges;
pub mod engine;
pub mod entry;
pub mod errors;
pub mod event;
pub mod exit;
pub mod fill;
pub mod function;
pub mod graph;
mod handles;
pub mod host;
mod image;
pub mod launch;
pub mod launches;
pub mod library;
pub mod link;
pub mod memory;
pub mod module;
pub mod modules;
pub mod node_params;
pub mod nodes;
pub mod occupancy;
pub mod older;
pub mod pool;
pub mod profile;
mod ptxas;
pub mod refused;
mod say;
pub mod settings;
pub mod spec;
pub mod stream;
pub mod streams;
pub mod tensor_map;
pub mod transfer;
mod unfold;
pub mod virtual_memory;
