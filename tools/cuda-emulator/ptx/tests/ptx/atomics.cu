// sm_90
// Atomics of all types, warp votes and matches.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void atomics(int *ints, unsigned long long *longs, float *floats, double *doubles, __half2 *halves, __nv_bfloat16 *b) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(ints, i), atomicMin(ints + 1, i - 50), atomicMax(ints + 2, i), atomicAnd(ints + 3, ~(1 << i % 32));
    atomicOr(ints + 4, 1 << i % 32), atomicXor(ints + 5, i), atomicInc((unsigned *)ints + 6, 9), atomicExch(ints + 7, i);
    atomicAdd(longs, (unsigned long long)i << 30), atomicMax(longs + 1, (unsigned long long)i), atomicCAS(longs + 2, 0ull, 77ull);
    atomicAdd(floats, 0.5f), atomicAdd(doubles, 0.25);
    atomicAdd(halves, __floats2half2_rn(1, 2)), atomicAdd(b, __float2bfloat16(1));
    // A lock.
    bool done = false;
    while (!done) {
        if (atomicCAS(ints + 8, 0, 1) == 0) {
            __threadfence();
            *(volatile int *)(ints + 9) += 1;
            __threadfence();
            atomicExch(ints + 8, 0);
            done = true;
        }
    }
}

extern "C" __global__ void warps(const int *x, unsigned *out) {
    int i = threadIdx.x, v = x[i];
    unsigned *o = out + i * 12;
    o[0] = __ballot_sync(~0u, v > 0), o[1] = __any_sync(~0u, v > 100), o[2] = __all_sync(~0u, v > -1000);
    o[3] = __match_any_sync(~0u, v), o[4] = __reduce_add_sync(~0u, v), o[5] = __reduce_max_sync(~0u, v);
    int same;
    o[6] = __match_all_sync(~0u, v, &same), o[7] = same;
    o[8] = __shfl_sync(~0u, v, v & 31, 8);
    o[9] = v & 1 ? __activemask() : 0;
    o[10] = __syncthreads_count(v > 0), o[11] = __reduce_or_sync(~0u, v);
}
