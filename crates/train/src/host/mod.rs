//! The environment of a run: the machine, its devices, and how its ranks were started.

pub(crate) mod attempt;
pub(crate) mod device;
pub(crate) mod faults;
pub(crate) mod launch;
pub(crate) mod machine;
pub(crate) mod signals;
