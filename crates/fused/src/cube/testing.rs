//! What tests of kernels share, here and in other crates: the device, and what it can do.

use burn::tensor::{DType, Device, Tensor};
use burn_cubecl::{Cube, CubeBackend};
use cubecl::MemoryScope;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

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

/// The same for ranks that are threads: all their work is in one stream, as `train` has it. To be called before the first
/// use of a device.
pub fn device_of_ranks() -> Device {
    let mut config = CubeClRuntimeConfig::default().override_from_env();
    config.streaming.max_streams = 1;
    CubeClRuntimeConfig::try_set(config);
    device()
}

/// Bytes of a device's memory that somebody holds, once all is done that was asked for before `tensor`, which is on it.
pub fn bytes_in_use(tensor: Tensor<1>) -> u64 {
    let tensor = tensor.try_into_primitive::<Cube>().expect("a tensor on the device, of no graph");
    let fusion = tensor.client.clone();
    let client = fusion.resolve_tensor_float::<CubeBackend>(tensor).client;
    // Vulkan's launches hold their tensors until they are handed to the driver.
    cubecl::future::block_on(client.sync()).expect("the device has done what it was given");
    client.memory_report(MemoryScope::Device).usage().bytes_in_use
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
