//! Which backends have kernels for the operations.

use burn::backend::DispatchDevice;
use burn::tensor::Device;

/// Whether the operations have kernels on this device: on the CPU with `flex`, and with a feature such as `cuda` on
/// every device of CubeCL. On other backends, some operations are composed of Burn's.
pub fn has_kernels(device: &Device) -> bool {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Flex(_) => true,
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(_) => true,
        #[allow(unreachable_patterns)]
        _ => false,
    }
}
