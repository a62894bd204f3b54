//! The GPUs of this machine that the build can use.

use burn::tensor::Device;

/// The kinds of GPU, in the order in which `auto` looks for them.
pub(super) const KINDS: [&str; 3] = ["cuda", "metal", "vulkan"];

/// Whether the build supports any of them.
pub(super) fn is_built() -> bool {
    cfg!(any(feature = "cuda", feature = "vulkan", feature = "metal"))
}

/// Whether both the build and the machine have GPUs of this kind. Called often, computed once.
pub(super) fn has(kind: &str) -> bool {
    match kind {
        #[cfg(feature = "cuda")]
        "cuda" => {
            static HAS: LazyLock<bool> = LazyLock::new(|| !enumerate(DeviceType::Cuda).is_empty());
            *HAS
        }
        #[cfg(feature = "metal")]
        "metal" => {
            static HAS: LazyLock<bool> = LazyLock::new(|| !enumerate(DeviceType::Metal).is_empty());
            *HAS
        }
        #[cfg(feature = "vulkan")]
        "vulkan" => {
            static HAS: LazyLock<bool> = LazyLock::new(|| enumerate(DeviceType::Vulkan).iter().any(is_card));
            *HAS
        }
        _ => false,
    }
}

/// The GPUs of this kind, ready to compile kernels. For Vulkan, falls back to drivers that compute on the CPU if there
/// is no GPU.
///
/// # Errors
/// If the build or the machine has no GPU of this kind, or something it needs is missing.
pub(super) fn all(kind: &str) -> Result<Vec<Device>, String> {
    match kind {
        #[cfg(feature = "cuda")]
        "cuda" => {
            let devices = found(kind, enumerate(DeviceType::Cuda), "nvidia-smi")?;
            #[cfg(not(feature = "cuda-cpp"))]
            super::libdevice::find()
                .map_err(|missing| format!("--device cuda: {missing} (`--device cpu` trains on the CPU)"))?;
            Ok(devices)
        }
        #[cfg(feature = "metal")]
        "metal" => found(kind, enumerate(DeviceType::Metal), "system_profiler SPDisplaysDataType"),
        #[cfg(feature = "vulkan")]
        "vulkan" => {
            let devices = found(kind, enumerate(DeviceType::Vulkan), "vulkaninfo --summary")?;
            let (cards, software): (Vec<_>, Vec<_>) = devices.into_iter().partition(is_card);
            Ok(if cards.is_empty() { software } else { cards })
        }
        _ => Err(format!("--device {kind}: this build has no {}; build it with `--features {kind}`", title(kind))),
    }
}

fn title(kind: &str) -> &str {
    match kind {
        "cuda" => "CUDA",
        "metal" => "Metal",
        _ => "Vulkan",
    }
}

/// A line for the user: which GPU it is, and a note on the first run.
#[cfg(any(feature = "cuda", feature = "vulkan", feature = "metal"))]
pub(super) fn note(device: &Device) -> Option<String> {
    let name = device.identity().map_or(String::new(), |identity| identity.name);
    #[cfg(feature = "vulkan")]
    let name = if is_card(device) { name } else { name + ", which is no GPU: the driver computes on the CPU" };
    Some(format!("{name}; {}", super::cache::line()))
}

#[cfg(not(any(feature = "cuda", feature = "vulkan", feature = "metal")))]
pub(super) fn note(_: &Device) -> Option<String> {
    None
}

#[cfg(any(feature = "cuda", feature = "vulkan", feature = "metal"))]
use {burn::tensor::DeviceType, std::sync::LazyLock};

#[cfg(any(feature = "cuda", feature = "vulkan", feature = "metal"))]
fn enumerate(kind: DeviceType) -> Vec<Device> {
    super::cache::choose();
    Device::enumerate(kind).into_iter().collect()
}

#[cfg(any(feature = "cuda", feature = "vulkan", feature = "metal"))]
fn found(kind: &str, devices: Vec<Device>, command: &str) -> Result<Vec<Device>, String> {
    if devices.is_empty() {
        return Err(format!(
            "--device {kind}: this machine has no {} device, or no driver that says so (try {command})",
            title(kind)
        ));
    }
    Ok(devices)
}

/// Whether the device is a GPU rather than a Vulkan driver that computes on the CPU.
#[cfg(feature = "vulkan")]
fn is_card(device: &Device) -> bool {
    device.identity().is_some_and(|identity| identity.physical.is_some())
}
