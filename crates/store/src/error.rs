//! Errors of a store.

use std::io;
use std::path::{Path, PathBuf};

/// Why something cannot be copied to or from a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The URL names no place in a store.
    #[error("{url}: {problem}: give s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The crate was built without the feature `cloud`.
    #[error("{url}: this program was built without object stores: build it with `--features cloud`")]
    NotBuilt {
        /// The URL.
        url: String,
    },
    /// The store refused a request, or did not answer.
    #[error("cannot {what} {url}: {why}{}", if remedy.is_empty() { String::new() } else { format!(": {remedy}") })]
    Failed {
        /// What was to be done: `read`, `write`, `list` or `remove`.
        what: &'static str,
        /// The object, or the place.
        url: String,
        /// The cause.
        why: String,
        /// What to do about it; empty if nothing is known to help.
        remedy: String,
        /// Whether it would fail again, because the store knows the request and does not allow it.
        lasting: bool,
    },
    /// There is nothing at a URL.
    #[error("there is no object {url}, and none below {url}/: check the bucket and the name")]
    Empty {
        /// The URL.
        url: String,
    },
    /// An object is no longer the one that was listed.
    #[error("{url} changed while it was downloaded: start again once it is complete")]
    Changed {
        /// The object.
        url: String,
    },
    /// An object is missing.
    #[error("{url} is not there: it was removed, or its upload is not complete")]
    Missing {
        /// The object.
        url: String,
    },
    /// A file of this machine cannot be read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was to be done: `read` or `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl StoreError {
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { what: "read", path, source }
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { what: "write", path, source }
    }
}
