// The part of CUDA's runtime library that single-file programs use, on the driver API; kernels are compiled by NVRTC at their first launch.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <math.h>

#include <algorithm>
#include <cxxabi.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <typeinfo>
#include <vector>

// Which nvcc has without `std`.
using std::max;
using std::min;

// NVRTC's own header comes in another package than CUDA's.
extern "C" {
typedef struct nvrtcState *nvrtcProgram;
int nvrtcCreateProgram(nvrtcProgram *, const char *source, const char *name, int headers, const char *const *texts, const char *const *names);
int nvrtcAddNameExpression(nvrtcProgram, const char *);
int nvrtcCompileProgram(nvrtcProgram, int count, const char *const *options);
int nvrtcGetProgramLogSize(nvrtcProgram, size_t *);
int nvrtcGetProgramLog(nvrtcProgram, char *);
int nvrtcGetLoweredName(nvrtcProgram, const char *name, const char **lowered);
int nvrtcGetPTXSize(nvrtcProgram, size_t *);
int nvrtcGetPTX(nvrtcProgram, char *);
int nvrtcDestroyProgram(nvrtcProgram *);
}

static cudaError_t cuda_last = cudaSuccess;

static cudaError_t cuda_done(CUresult result) {
    // The codes of both libraries are the same numbers.
    if (result != CUDA_SUCCESS) cuda_last = (cudaError_t)result;
    return (cudaError_t)result;
}

static void cuda_start() {
    static bool started = [] {
        CUdevice device;
        CUcontext context;
        if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context)) {
            fputs("no CUDA device\n", stderr);
            exit(2);
        }
        return true;
    }();
    (void)started;
}

static CUdeviceptr cuda_pointer(const void *pointer) { return (CUdeviceptr)pointer; }

extern "C" {
cudaError_t cudaSetDevice(int device) { return cuda_start(), device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaMalloc(void **to, size_t size) {
    cuda_start();
    return cuda_done(cuMemAlloc((CUdeviceptr *)to, size));
}
cudaError_t cudaFree(void *pointer) { return pointer ? cuda_done(cuMemFree(cuda_pointer(pointer))) : cudaSuccess; }
cudaError_t cudaMallocHost(void **to, size_t size) {
    cuda_start();
    return cuda_done(cuMemAllocHost(to, size));
}
cudaError_t cudaFreeHost(void *pointer) { return cuda_done(cuMemFreeHost(pointer)); }
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind) {
    cuda_start();
    return cuda_done(cuMemcpy(cuda_pointer(to), cuda_pointer(from), size));
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind) {
    for (size_t row = 0; row < height; row++) {
        CUresult result = cuMemcpy(cuda_pointer(to) + row * to_pitch, cuda_pointer(from) + row * from_pitch, width);
        if (result) return cuda_done(result);
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
    return cuda_done(cuMemcpyAsync(cuda_pointer(to), cuda_pointer(from), size, (CUstream)stream));
}
cudaError_t cudaMemset(void *to, int value, size_t size) { return cuda_done(cuMemsetD8(cuda_pointer(to), (unsigned char)value, size)); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
    return cuda_done(cuMemsetD8Async(cuda_pointer(to), (unsigned char)value, size, (CUstream)stream));
}
cudaError_t cudaDeviceSynchronize() { return cuda_done(cuCtxSynchronize()); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cuda_done(cuStreamSynchronize((CUstream)stream)); }
cudaError_t cudaGetLastError() {
    cudaError_t last = cuda_last;
    return cuda_last = cudaSuccess, last;
}
const char *cudaGetErrorString(cudaError_t error) {
    const char *text = "unknown";
    cuGetErrorString((CUresult)error, &text);
    return text;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
    cuda_start();
    return cuda_done(cuEventCreate((CUevent *)event, CU_EVENT_DEFAULT));
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cuda_done(cuEventRecord((CUevent)event, (CUstream)stream)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cuda_done(cuEventSynchronize((CUevent)event)); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return cuda_done(cuEventDestroy((CUevent)event)); }
cudaError_t cudaEventElapsedTime(float *time, cudaEvent_t start, cudaEvent_t end) {
    return cuda_done(cuEventElapsedTime(time, (CUevent)start, (CUevent)end));
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *to, int device) {
    cuda_start();
    *to = cudaDeviceProp();
    cuDeviceGetName(to->name, sizeof to->name, device);
    cuDeviceTotalMem(&to->totalGlobalMem, device);
    std::tuple<CUdevice_attribute, int *> attributes[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &to->major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &to->minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &to->multiProcessorCount},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &to->maxThreadsPerMultiProcessor},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &to->maxThreadsPerBlock},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, &to->warpSize},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &to->l2CacheSize},
    };
    for (auto [attribute, value] : attributes) cuDeviceGetAttribute(value, attribute, device);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cuda_start();
    return cuda_done(cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}
}

// A type as C++ writes it.
template <class T>
std::string cuda_text() {
    int status;
    char *shown = abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status);
    std::string text = shown ? shown : "?";
    free(shown);
    return text;
}

static CUfunction cuda_compile(const std::string &name) {
    cuda_start();
    std::ifstream file(CUDA_DEVICE_SOURCE);
    std::stringstream text;
    text << file.rdbuf();
    int major, minor;
    cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
    cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
    std::string toolkit = getenv("CUDA_PATH");
    std::vector<std::string> options = {
        "--gpu-architecture=compute_" + std::to_string(major * 10 + minor) + (major == 9 ? "a" : ""),
        "--std=c++17", "-default-device", "-w", "--use_fast_math", "-I" + toolkit + "/include", "-I" + toolkit + "/include/cccl",
    };
    std::stringstream defines(CUDA_DEFINES);
    for (std::string define; defines >> define;) options.push_back("-D" + define);
    std::vector<const char *> pointers;
    for (auto &option : options) pointers.push_back(option.c_str());
    nvrtcProgram program;
    nvrtcCreateProgram(&program, text.str().c_str(), "device.cu", 0, nullptr, nullptr);
    nvrtcAddNameExpression(program, name.c_str());
    if (nvrtcCompileProgram(program, pointers.size(), pointers.data()) != 0) {
        size_t size = 0;
        nvrtcGetProgramLogSize(program, &size);
        std::string log(size, 0);
        nvrtcGetProgramLog(program, log.data());
        fprintf(stderr, "NVRTC, kernel %s:\n%s\n", name.c_str(), log.c_str());
        exit(2);
    }
    const char *lowered;
    nvrtcGetLoweredName(program, name.c_str(), &lowered);
    size_t size;
    nvrtcGetPTXSize(program, &size);
    std::string ptx(size, 0);
    nvrtcGetPTX(program, ptx.data());
    CUmodule module;
    CUfunction function;
    if (cuModuleLoadData(&module, ptx.c_str()) || cuModuleGetFunction(&function, module, lowered)) {
        fprintf(stderr, "kernel %s cannot be loaded\n", name.c_str());
        exit(2);
    }
    nvrtcDestroyProgram(&program);
    return function;
}

struct CudaShape {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};

static CudaShape cuda_shape;
// Where a kernel's function goes instead of being launched.
static CUfunction *cuda_wanted = nullptr;

static void cuda_configure(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr) { cuda_shape = {grid, block, shared, stream}; }

static void cuda_launch(CUfunction function, void **values) {
    if (cuda_wanted) {
        *cuda_wanted = function;
        return;
    }
    auto [grid, block, shared, stream] = cuda_shape;
    cuda_done(cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, (CUstream)stream, values, nullptr));
}

template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
    CUfunction function;
    cuda_wanted = &function;
    kernel(P()...);
    cuda_wanted = nullptr;
    return cuda_done(cuFuncSetAttribute(function, (CUfunction_attribute)attribute, value));
}
