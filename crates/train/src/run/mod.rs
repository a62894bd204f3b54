//! A run on disk: its folder, its checkpoints, and resuming from them.

pub(crate) mod copies;
pub(crate) mod data_mark;
pub(crate) mod end_of_text;
pub(crate) mod flight;
pub(crate) mod folder;
pub(crate) mod memory;
pub(crate) mod options;
pub(crate) mod remote;
pub(crate) mod resume;
pub(crate) mod saver;
pub(crate) mod survivors;
pub(crate) mod trained;
