//! What others wrote and real cards have run, as tests of the emulated card; see `README.md`.
