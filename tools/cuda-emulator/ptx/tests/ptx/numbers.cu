// Arithmetic of all types, one value a thread: what the compiler makes of C operators and of the math library.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void ints(const int *a, const int *b, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i];
    unsigned ux = x, uy = y;
    long long *o = out + (size_t)i * 24;
    o[0] = x / (y ? y : 1), o[1] = x % (y ? y : 1), o[2] = ux / (uy ? uy : 1), o[3] = ux % (uy ? uy : 1);
    o[4] = (long long)x * y, o[5] = (unsigned long long)ux * uy, o[6] = __mulhi(x, y), o[7] = __umulhi(ux, uy);
    o[8] = __popc(x), o[9] = __clz(x), o[10] = __ffs(x), o[11] = __brev(x);
    o[12] = __byte_perm(x, y, 0x3715), o[13] = __funnelshift_l(x, y, 13), o[14] = __sad(x, y, 7), o[15] = min(x, y);
    o[16] = (x << 3) ^ (y >> 5), o[17] = abs(x), o[18] = (short)x + (signed char)y, o[19] = __clzll(((long long)x << 32) | uy);
    o[20] = ((long long)x << 20) / (y | 1), o[21] = ((unsigned long long)ux << 20) % (uy | 1), o[22] = max(ux, uy);
    o[23] = __mul64hi((long long)x << 21, (long long)y << 17);
}

extern "C" __global__ void floats(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i];
    float *o = out + (size_t)i * 24;
    o[0] = x / y, o[1] = sqrtf(fabsf(x)), o[2] = rsqrtf(fabsf(x)), o[3] = expf(x), o[4] = logf(fabsf(x)), o[5] = sinf(x);
    o[6] = cosf(x), o[7] = tanhf(x), o[8] = powf(fabsf(x), y), o[9] = fmodf(x, y), o[10] = floorf(x), o[11] = rintf(x);
    o[12] = erff(x), o[13] = __fdividef(x, y), o[14] = (int)x, o[15] = (unsigned)x, o[16] = fminf(x, y), o[17] = fmaxf(x, y);
    o[18] = __fadd_rz(x, y), o[19] = __fmul_ru(x, y), o[20] = __fmaf_rd(x, y, x), o[21] = __fdiv_rz(x, y), o[22] = __saturatef(x);
    o[23] = (float)(long long)(x * 1000) + (float)(unsigned long long)fabsf(y);
}

extern "C" __global__ void doubles(const double *a, const double *b, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], y = b[i];
    double *o = out + (size_t)i * 12;
    o[0] = x / y, o[1] = sqrt(fabs(x)), o[2] = exp(x), o[3] = log(fabs(x)), o[4] = sin(x), o[5] = pow(fabs(x), y);
    o[6] = fma(x, y, 1.0), o[7] = (double)(float)x, o[8] = (double)(long long)x, o[9] = floor(x), o[10] = __dadd_rz(x, y);
    o[11] = fmin(x, y);
}

extern "C" __global__ void halves(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float *o = out + (size_t)i * 12;
    __half x = __float2half(a[i]), y = __float2half(b[i]);
    __nv_bfloat16 bx = __float2bfloat16(a[i]), by = __float2bfloat16(b[i]);
    o[0] = __half2float(x + y), o[1] = __half2float(x * y), o[2] = __half2float(__hfma(x, y, x)), o[3] = x < y;
    o[4] = __bfloat162float(bx), o[5] = __bfloat162float(__hfma(bx, by, bx)), o[6] = __half2float(hexp2(x));
    __half2 v = __halves2half2(x, y), w = __hmul2(v, __half2half2(y));
    o[7] = __low2float(w) + __high2float(w), o[8] = __bfloat162float(__hmax(bx, by)), o[9] = __half2int_rn(x);
    __nv_bfloat162 p = __floats2bfloat162_rn(a[i], b[i]);
    o[10] = __bfloat162float(p.x), o[11] = __half2float(x / y);
}

// A call that is not inlined, local memory, 64-bit and byte accesses, a switch.
__device__ __noinline__ float series(const float *terms, int n, float x) {
    float sum = 0;
    for (int i = n - 1; i >= 0; i--) sum = sum * x + terms[i];
    return sum;
}

__constant__ float table[4] = {1, 0.5f, 0.25f, 0.125f};
__device__ int counter = 3;

extern "C" __global__ void calls(const float *a, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float terms[8];
    for (int k = 0; k < 8; k++) terms[k] = a[(i + k) % n];
    terms[(int)fabsf(a[i]) & 7] = 1;
    float x = series(terms, 8, a[i] * 0.1f) + series(table, 4, a[i]);
    switch (i % 7) {
        case 0: x += 1; break;
        case 1: x *= 2; break;
        case 2: x = -x; break;
        case 3: x = sqrtf(fabsf(x)); break;
        case 4: x += counter; break;
        case 5: x = 5; break;
        default: x -= 3;
    }
    out[i] = x;
}
