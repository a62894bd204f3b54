//! fsdp
