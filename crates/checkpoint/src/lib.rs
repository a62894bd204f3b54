//! A training run's state on disk, sharded over ranks.
