//! Ranks that are processes.

use std::process::Command;

/// The environment that lets Open MPI run in a container: as root, and without the right to read the memory of other
/// processes.
pub const OPEN_MPI: [(&str, &str); 3] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
];

/// Open MPI's `mpirun` for `ranks` processes on this machine, which may be more than it has cores.
pub fn mpirun(ranks: usize) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--bind-to", "none", "-n", &ranks.to_string()]).envs(OPEN_MPI);
    command
}
