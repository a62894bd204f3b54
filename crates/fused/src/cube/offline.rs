//! Compiles the kernels for NVIDIA GPUs on a machine without a GPU, as CubeCL's CUDA runtime does on a machine with
//! one.
//!
//! A module lists its kernels in a function `cases`, because the types that `#[cube(launch)]` makes are private to it:
//!
//! ```ignore
//! KernelCase::new("silu_mul bf16", |gpu| {
//!     let (settings, vector, dtype) = (gpu.settings(CubeDim::new_1d(256)), 8, bf16::elem_type_native());
//!     silu_mul_kernel::SiluMulKernel::new(settings, gpu.device(), gpu.target(), buffer(), buffer(), buffer(), (), vector, dtype)
//! })
//! ```
//!
//! The arguments after the first three are those of the kernel in order, [`buffer`] for a slice and `()` for a number.
//! The compile-time values follow, vector sizes first.

use std::any::{Any, type_name};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cubecl::features::{Features, Plane, Tma};
use cubecl::ir::nvidia::SmArch;
use cubecl::ir::{
    AddressType, ContiguousElements, DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties,
    MemoryDeviceProperties, MmaProperties, OpaqueType, TargetProperties,
};
use cubecl::prelude::*;
use cubecl::profile::TimingMethod;
use cubecl::{CompilationError, Compiler as _, CubeKernel, cmma::MatrixLayout, define_kernel};
use cubecl_cpp::cuda::arch::CudaArchitecture;
use cubecl_cpp::cuda::mma::{CudaCmmaCompiler, manual::contiguous_elements_cuda};
use cubecl_cpp::cuda::supported_mma_combinations;
use cubecl_cpp::register_supported_types;
use cubecl_cpp::shared::{
    CompilationOptions, CppCompiler, CppSupportedFeatures, register_mma_features, register_wmma_features,
};
use cubecl_cpp::target::Cuda;
use cubecl_llvm::nvptx::ptx_version::PtxVersion;
use cubecl_llvm::shared::lowered_features::{GpuTarget, restrict_features};
use cubecl_llvm::{LlvmTarget, PlironArtifact, PlironCompiler, PlironOptions};
use half::{bf16, f16};

/// The CUDA release whose PTX is emitted, as a driver reports it: 12.9.
const CUDA: i32 = 12090;

/// CubeCL's two compilers for NVIDIA GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// CUDA C++, which NVRTC compiles to PTX (feature `cuda-cpp`).
    Cpp,
    /// PTX from LLVM (feature `cuda`).
    Llvm,
}

/// The compiler and the GPU of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The compiler.
    pub compiler: Compiler,
    /// The compute capability: 80 is an A100, 90 an H100.
    pub sm: u32,
}

impl Target {
    const fn new(compiler: Compiler, sm: u32) -> Self {
        Self { compiler, sm }
    }

    /// Both compilers, for A100 and H100.
    pub const ALL: &[Self] = &[
        Self::new(Compiler::Cpp, 80),
        Self::new(Compiler::Cpp, 90),
        Self::new(Compiler::Llvm, 80),
        Self::new(Compiler::Llvm, 90),
    ];
    /// Only CUDA C++, for kernels with asynchronous copies.
    pub const CPP: &[Self] = &[Self::new(Compiler::Cpp, 80), Self::new(Compiler::Cpp, 90)];
    /// Only CUDA C++ for an H100, for kernels with TMA and `wgmma`.
    pub const HOPPER: &[Self] = &[Self::new(Compiler::Cpp, 90)];
}

/// The device for which a [`KernelCase`] builds its kernel.
pub struct Gpu {
    device: Arc<DeviceProperties>,
    target: Arc<TargetProperties>,
}

impl Gpu {
    fn new(target: Target) -> Self {
        Self { device: Arc::new(device_properties(target)), target: Arc::new(target_properties()) }
    }

    /// The properties of the device: the second argument of a kernel's `new`.
    pub fn device(&self) -> Arc<DeviceProperties> {
        self.device.clone()
    }

    /// The register layout of its matrix instructions: the third argument of a kernel's `new`.
    pub fn target(&self) -> Arc<TargetProperties> {
        self.target.clone()
    }

    /// The settings of `kernel::launch`, which checks bounds: the first argument of a kernel's `new`.
    pub fn settings(&self, cube_dim: CubeDim) -> KernelSettings {
        KernelSettings::new(*cube_dim, ExecutionMode::Checked, AddressType::U32)
    }

    /// The settings of `kernel::launch_unchecked`.
    pub fn unchecked(&self, cube_dim: CubeDim) -> KernelSettings {
        KernelSettings::new(*cube_dim, ExecutionMode::Unchecked, AddressType::U32)
    }
}

/// A buffer argument of a kernel's `new`.
pub fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

type Build = dyn Fn(&Gpu) -> Box<dyn CubeKernel>;

/// A kernel with its compile-time arguments, and what it must compile for.
pub struct KernelCase {
    name: String,
    /// The type that `#[cube(launch)]` made, with its path.
    kernel: &'static str,
    targets: &'static [Target],
    instructions: &'static [&'static str],
    build: Box<Build>,
}

impl KernelCase {
    /// A kernel for all of [`Target::ALL`].
    pub fn new<K: CubeKernel>(name: impl Into<String>, build: impl Fn(&Gpu) -> K + 'static) -> Self {
        Self {
            name: name.into(),
            kernel: type_name::<K>(),
            targets: Target::ALL,
            instructions: &[],
            build: Box::new(move |gpu| Box::new(build(gpu))),
        }
    }

    /// Restricts the case to these targets.
    pub fn targets(mut self, targets: &'static [Target]) -> Self {
        self.targets = targets;
        self
    }

    /// Requires these instructions in the machine code, such as `HGMMA`, which is `wgmma`, or `UTMALDG`, a load by TMA.
    pub fn instructions(mut self, instructions: &'static [&'static str]) -> Self {
        self.instructions = instructions;
        self
    }

    /// Whether the case is of the kernel with this path, such as `fused::gelu::cube::gelu_kernel`.
    pub fn is_of(&self, path: &str) -> bool {
        self.kernel.strip_prefix(path).is_some_and(|rest| rest.starts_with("::"))
    }

    /// Compiles for each target, in order. A failure is returned as an error that says why.
    pub fn compile(&self) -> impl Iterator<Item = Compiled> {
        self.targets.iter().map(|target| Compiled {
            kernel: self.name.clone(),
            target: *target,
            instructions: self.instructions,
            code: self.code(*target),
        })
    }

    fn code(&self, target: Target) -> Result<Code, String> {
        let gpu = Gpu::new(target);
        let compile = || match target.compiler {
            Compiler::Cpp => cuda_cpp(&*(self.build)(&gpu), target.sm),
            Compiler::Llvm => llvm_ptx(&*(self.build)(&gpu), target.sm),
        };
        let code = catch_unwind(AssertUnwindSafe(compile)).unwrap_or_else(|panic| Err(message(&*panic)))?;
        let limit = gpu.device.hardware.max_shared_memory_size;
        let fits = code.shared_memory <= limit;
        fits.then_some(code).ok_or_else(|| format!("it takes more than the {limit} bytes of shared memory of a cube"))
    }
}

/// Names, dtypes and vector sizes for kernels that loop over rows of numbers.
pub fn float_cases() -> [(&'static str, ElemType, usize); 4] {
    let (single, brain, half) = (f32::elem_type_native(), bf16::elem_type_native(), f16::elem_type_native());
    [("f32", single, 4), ("bf16", brain, 8), ("f16", half, 8), ("bf16 odd widths", brain, 1)]
}

/// A [`KernelCase`] compiled for one of its targets.
pub struct Compiled {
    /// The name of the case.
    pub kernel: String,
    /// The target.
    pub target: Target,
    /// Instructions that the machine code must have.
    pub instructions: &'static [&'static str],
    /// The code, or why there is none.
    pub code: Result<Code, String>,
}

/// What CubeCL passes to the driver or to NVRTC.
pub struct Code {
    /// CUDA C++ or PTX.
    pub source: String,
    /// Bytes of shared memory that a launch asks for.
    pub shared_memory: usize,
}

fn cuda_cpp(kernel: &dyn CubeKernel, sm: u32) -> Result<Code, String> {
    let supports_features = CppSupportedFeatures {
        grid_constants: true,
        clusters: sm >= 90,
        fast_math: true,
        fast_tanh: true,
        elect_sync: sm >= 90,
        dp4a: true,
    };
    let options = CompilationOptions { warp_size: 32, supports_features, amd_wmma: None };
    let code =
        CppCompiler::<Cuda>::default().compile(define_kernel(kernel).map_err(reason)?, &options).map_err(reason)?;
    Ok(Code { source: code.source, shared_memory: code.shared_memory_size })
}

fn llvm_ptx(kernel: &dyn CubeKernel, sm: u32) -> Result<Code, String> {
    let options = PlironOptions {
        sm_arch: Some(SmArch::new(sm, true)),
        ptx_version: PtxVersion::for_driver(CUDA),
        grid_constants: true,
        ..Default::default()
    };
    let mut compiler = PlironCompiler { target: LlvmTarget::Nvptx };
    match compiler.compile(define_kernel(kernel).map_err(reason)?, &options).map_err(reason)? {
        PlironArtifact::NvptxCode(module) => {
            let source = module.ptx.iter().take_while(|&&c| c != 0).map(|&c| c as u8 as char).collect();
            Ok(Code { source, shared_memory: module.shared_memory_size })
        }
        _ => Err("LLVM made no PTX".into()),
    }
}

/// The properties that CubeCL's CUDA runtime queries from the device and the driver.
fn device_properties(target: Target) -> DeviceProperties {
    let Target { compiler, sm } = target;
    let mut device = DeviceProperties::new(
        Features::default(),
        MemoryDeviceProperties::new(80 << 30, 512),
        hardware_properties(sm),
        TimingMethod::Device,
        DeviceIdentity { name: "offline".into(), fingerprint: format!("ptx_sm{sm}"), physical: None },
    );
    register_supported_types(&mut device);
    device.register_opaque_type(OpaqueType::Barrier);
    let arch = CudaArchitecture { version: sm, tensor_cores: true };
    register_wmma_features(CudaCmmaCompiler::Cpp.supported_cmma_combinations(&arch), &mut device);
    register_mma_features(supported_mma_combinations(&arch), &mut device);

    let features = &mut device.features;
    features.plane.extend([Plane::Ops, Plane::Sync, Plane::NonUniformControlFlow]);
    features.matmul.ldmatrix.extend([FloatKind::F16, FloatKind::BF16].map(ElemType::Float));
    features.copy_async = true;
    features.memory_reinterpret = true;
    features.alignment = true;
    features.device_memory_scope = true;
    if sm >= 90 {
        features.matmul.stmatrix.extend([FloatKind::F16, FloatKind::BF16].map(ElemType::Float));
        features.tma.insert(Tma::Base);
        features.cube_cluster = true;
        device.register_opaque_type(OpaqueType::TensorMap);
    }
    if compiler == Compiler::Llvm {
        restrict_features(&mut device, GpuTarget::Nvptx);
    }
    device
}

fn hardware_properties(sm: u32) -> HardwareProperties {
    let (shared_kb, multiprocessors) = if sm >= 90 { (227, 132) } else { (163, 108) };
    HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 1024,
        max_shared_memory_size: shared_kb * 1024,
        max_cube_count: (i32::MAX as u32, u16::MAX as u32, u16::MAX as u32),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: Some(multiprocessors),
        num_tensor_cores: Some(4),
        min_tensor_cores_dim: Some(8),
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    }
}

fn target_properties() -> TargetProperties {
    TargetProperties {
        mma: MmaProperties {
            register_size_bits: 32,
            const_plane_size: 32,
            register_layout_a: MatrixLayout::RowMajor,
            register_layout_b: MatrixLayout::ColMajor,
            register_layout_acc: MatrixLayout::RowMajor,
            register_duplication_a: 1,
            register_duplication_b: 1,
            register_duplication_acc: 1,
            contiguous_elements: ContiguousElements::new(contiguous_elements_cuda),
        },
    }
}

/// An error without the backtraces that CubeCL appends.
fn reason(error: CompilationError) -> String {
    let text = error.to_string();
    let lines = text.lines().take_while(|line| !line.to_lowercase().ends_with("backtrace:"));
    lines.collect::<Vec<_>>().join("\n")
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}
