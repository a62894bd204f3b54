//! Helpers of kernel tests, here and in other crates: the device and its capabilities.

use burn::tensor::{DType, Device, Tensor};
use burn_cubecl::{Cube, CubeBackend};
use cubecl::MemoryScope;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

/// Returns the device for kernel tests: the one that the environment variable `KILN_KERNEL_DEVICE` names, which is
/// `cpu` (CubeCL's CPU runtime, the default), `vulkan` or `cuda`.
///
/// # Panics
/// If this build does not support the device.
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

/// Returns the same device for ranks that are threads: all their work runs in one stream, as in `train`. Call it before
/// the first use of a device.
pub fn device_of_ranks() -> Device {
    let mut config = CubeClRuntimeConfig::default().override_from_env();
    config.streaming.max_streams = 1;
    CubeClRuntimeConfig::try_set(config);
    device()
}

/// Returns the bytes of device memory in use, after all work on the device of `tensor` that was queued before it.
pub fn bytes_in_use(tensor: Tensor<1>) -> u64 {
    let tensor = tensor.try_into_primitive::<Cube>().expect("a tensor on the device, of no graph");
    let fusion = tensor.client.clone();
    let client = fusion.resolve_tensor_float::<CubeBackend>(tensor).client;
    // On Vulkan, launches hold their tensors until they are submitted to the driver.
    cubecl::future::block_on(client.sync()).expect("the device has done what it was given");
    client.memory_report(MemoryScope::Device).usage().bytes_in_use
}

/// Whether the test device is CubeCL's CPU runtime.
pub fn is_cpu_runtime() -> bool {
    !matches!(std::env::var("KILN_KERNEL_DEVICE").as_deref(), Ok(name) if name != "cpu")
}

/// Whether the device computes in this dtype. If not, prints which case of a test is skipped.
pub fn computes_in(dtype: DType, case: &str) -> bool {
    let does = device().supports_dtype(dtype);
    if !does {
        eprintln!("skipped, since the device does not compute in {dtype:?}: {case}");
    }
    does
}

/// The units per cube to test with: 1 and 2 on CubeCL's CPU runtime. On other devices kernels choose them.
pub fn units() -> &'static [usize] {
    if is_cpu_runtime() { &[1, 2] } else { &[1] }
}

/// Whether the device has tensor cores that Kiln's kernels use, as CUDA devices do.
pub fn has_tensor_cores() -> bool {
    std::env::var("KILN_KERNEL_DEVICE").as_deref() == Ok("cuda")
}
