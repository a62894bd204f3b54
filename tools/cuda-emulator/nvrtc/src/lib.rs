//! An NVRTC (`libnvrtc.so`) that compiles each CUDA program once and keeps its PTX.
//!
//! With NVRTC, CubeCL compiles every kernel once for each card, and again in every process. This library passes calls on
//! to NVIDIA's `libnvrtc.so.12`, except for programs that it has compiled before: it answers those from memory or from a
//! folder.
//!
//! ```text
//! program (cudarc) ── libnvrtc.so, this library ──┬── known: its PTX
//!                                                 └── new: libnvrtc.so.12, NVIDIA's
//! ```
//!
//! Two programs are the same if source, name, options and NVRTC's version are the same. Only programs like CubeCL's are
//! kept: those without headers or name expressions of their own, whose options choose an architecture, ask for line
//! numbers and name include folders of the toolkit (`CUDA_PATH`). All others are compiled each time.
//!
//! `KILN_NVRTC_CACHE` names the folder. Without it, programs are kept only as long as the process lives.

#![allow(non_snake_case, clippy::missing_safety_doc)]

pub mod api;
mod key;
mod real;
mod say;
mod store;
