//! What tests of kernels share, here and in other crates: the device, and what it can do.

use burn::tensor::{DType, Device};

/// The device that kernels are tested on: the one that the environment variable `KILN_KERNEL_DEVICE` names, `cpu` for
/// CubeCL's CPU runtime, `vulkan` or `cuda`, and the CPU runtime where it is not set.
///
/// # Panics
/// If this build has no such device.
pub fn device() -> Device {
    match std::env::var("KILN_KERNEL_DEVICE").as_deref() {
        #[cfg(feature = "cpu-jit")]
        Err(_) | Ok("cpu") => Device::cpu(),
        #[cfg(feature = "vulkan")]
        Ok("vulkan") => Device::vulkan(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "cuda")]
        Ok("cuda") => Device::cuda(0),
        name => panic!("KILN_KERNEL_DEVICE is {name:?}, and this build has no such device to test kernels on"),
    }
}

/// Whether it is CubeCL's CPU runtime.
pub fn is_cpu_runtime() -> bool {
    !matches!(std::env::var("KILN_KERNEL_DEVICE").as_deref(), Ok(name) if name != "cpu")
}

/// Whether the device computes in this dtype. Where it does not, this says which case of a test is skipped.
pub fn computes_in(dtype: DType, case: &str) -> bool {
    let does = device().supports_dtype(dtype);
    if !does {
        eprintln!("skipped, since the device does not compute in {dtype:?}: {case}");
    }
    does
}

/// The numbers of units of a cube to test with: 1 and 2 on CubeCL's CPU runtime. Elsewhere kernels choose them.
pub fn units() -> &'static [usize] {
    if is_cpu_runtime() { &[1, 2] } else { &[1] }
}

/// Whether the device has tensor cores that our kernels use: a CUDA device has.
pub fn has_tensor_cores() -> bool {
    std::env::var("KILN_KERNEL_DEVICE").as_deref() == Ok("cuda")
}
