//! Which ranks keep a parameter, which compute a call, and which reduce a gradient together.

pub mod comm_thread;
pub mod outline;
pub mod placement;
pub mod plan;
