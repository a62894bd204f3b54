//! Folders copied to and from an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure, or a
//! folder of this machine.
//!
//! ```text
//! s3://bucket/runs/mine            a place
//!   checkpoints/step-200/          a folder in it
//!     rank-0.safetensors
//!     rank-1.safetensors
//!     index.json                   its mark: written last, removed first
//! ```
//!
//! A store has no folders, and no way to rename many objects at once. So a folder counts only if its mark is there, and
//! an upload that ends half-way leaves nothing that counts. [`Bucket`] reads and writes; [`Uploader`] writes in the
//! background, tries again, and reports. [`Bucket::objects`] and [`Bucket::fetch`] download what others have written:
//! one object, or all of a folder.
//!
//! Without the feature `cloud`, this crate has no engine, and [`Bucket::open`] returns an error that says so.

mod bucket;
mod error;
mod fetch;
#[cfg(feature = "cloud")]
mod objects;
#[cfg(not(feature = "cloud"))]
#[path = "without.rs"]
mod objects;
mod retry;
#[cfg(feature = "cloud")]
mod transfer;
mod uploader;
mod url;

pub use bucket::Bucket;
pub use error::StoreError;
pub use fetch::Object;
pub use uploader::{Event, Transfer, Uploader};
pub use url::{check, is_of_store, is_url, variables};
