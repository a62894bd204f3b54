//! Reads PTX and executes it on the CPU, with checks that no card has.
//!
//! A [`Memory`] stands for the memory of a card. A [`Module`] is PTX text, decoded; its [`Kernel`]s are run by [`launch`], which ends in
//! [`Counts`] of what the kernel did, or in the first [`Fault`] that a thread met.
//!
//! ```
//! use ptx::{Launch, Memory, Module, Options};
//!
//! let text = "
//! .version 8.3
//! .target sm_80
//! .address_size 64
//! .visible .entry count(.param .u64 out)
//! {
//!     .reg .b32 %r<2>;
//!     .reg .b64 %rd<4>;
//!     ld.param.u64 %rd1, [out];
//!     mov.u32 %r1, %tid.x;
//!     mul.wide.u32 %rd2, %r1, 4;
//!     add.s64 %rd3, %rd1, %rd2;
//!     st.global.u32 [%rd3], %r1;
//!     ret;
//! }";
//! let memory = Memory::new(1 << 20)?;
//! let module = Module::load(text, &memory)?;
//! let kernel = module.kernel("count").expect("the kernel");
//! let out = memory.alloc(64 * 4, 256, "example")?;
//! let params = out.to_le_bytes();
//!
//! let launch = Launch { block: [64, 1, 1], params: &params, ..Launch::default() };
//! let counts = ptx::launch(kernel, launch, &memory, &Options::default())?;
//! assert_eq!(counts.global_written, 256);
//! let mut last = [0; 4];
//! memory.read(out + 63 * 4, &mut last)?;
//! assert_eq!(u32::from_le_bytes(last), 63);
//!
//! // A thread more than there is room for.
//! let launch = Launch { block: [65, 1, 1], params: &params, ..Launch::default() };
//! let fault = ptx::launch(kernel, launch, &memory, &Options::default()).expect_err("a fault");
//! assert!(fault.to_string().contains("thread (64, 0, 0)"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it runs
//!
//! | step | where |
//! |---|---|
//! | text to syntax tree | `parse` |
//! | registers to rows of 32 lanes, labels to step numbers, once a module | `decode`, `code` |
//! | arithmetic on all lanes of a warp | `lanes` |
//! | warps, barriers, memory accesses and their checks | `exec` |
//! | products and copies of tensors | [`tensor`] |
//!
//! Each lane has its own step. The lanes at the lowest step run together, so lanes that a branch has parted meet again where its sides join;
//! [`Options::seed`] asks for other orders. The warps of a block run in turn on one host thread, blocks on several. A block that waits
//! for another one gives way to it.
//!
//! # Known limits
//!
//! * Textures, surfaces, `multimem`, `tcgen05`, video instructions but for `vabsdiff2` and `vabsdiff4`, and `tensormap.replace` are not
//!   emulated. An instruction that is not emulated ends the launch that reaches it; [`Module::unsupported`] lists them.
//! * Memory accesses are those of the host's memory model, which is stronger than a card's: a missing fence shows only as a race
//!   between blocks ([`Options::global_races`]).
//! * Approximate functions (`ex2.approx` and the like) are the nearest `f32`, not the card's approximation.

mod code;
mod decode;
mod exec;
mod fault;
mod lanes;
mod load;
mod memory;
mod module;
mod options;
mod parse;
pub mod tensor;

pub use exec::launch;
pub use fault::{Fault, FaultKind, Location};
pub use memory::{Allocation, CARD_SPAN, DEVICE_BASE, MAX_CARDS, Memory, OutOfMemory};
pub use module::{Kernel, Module, Param, PtxError, Variable};
pub use options::{Class, Counts, Launch, Options, Rate};
