//! Errors of NCCL and of the CUDA driver.

/// The reason why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NcclError {
    /// The library cannot be loaded.
    #[error(
        "NCCL cannot be loaded: {0}; install it (Debian and Ubuntu: libnccl2; PyPI: nvidia-nccl-cu12 or -cu13) and add \
         the folder of libnccl.so.2 to LD_LIBRARY_PATH"
    )]
    Missing(String),
    /// The library lacks a function.
    #[error("libnccl.so.2 has no function {0}: install NCCL 2.18 or later")]
    TooOld(String),
    /// A function of the library has failed.
    #[error("{call} on cuda:{card}: {text} (NCCL result {code}){last}")]
    Call {
        /// The function.
        call: &'static str,
        /// The GPU's number.
        card: usize,
        /// The result.
        code: i32,
        /// The result in words.
        text: String,
        /// The library's last message, after a colon, if there is one.
        last: String,
    },
    /// The communicator was aborted because an earlier call failed.
    #[error("a communicator of NCCL on cuda:{0} has been aborted after a failed call")]
    Aborted(usize),
    /// The CUDA driver has refused a call.
    #[error("{call} on cuda:{card}: {reason}")]
    Cuda {
        /// The call.
        call: &'static str,
        /// The GPU's number.
        card: usize,
        /// The driver's error.
        reason: String,
    },
}
