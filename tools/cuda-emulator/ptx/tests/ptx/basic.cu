// Scan, reduction, transpose, softmax and histogram: shuffles, shared memory, barriers, atomics.

extern "C" __global__ void saxpy(float a, const float *__restrict__ x, float *y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void reduce_sum(const float *x, float *sum, int n) {
    __shared__ float parts[32];
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
        for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
        if (threadIdx.x == 0) atomicAdd(sum, v);
    }
}

// Inclusive scan of one block by warps.
extern "C" __global__ void scan(const int *x, int *y, int n) {
    __shared__ int totals[32];
    int i = threadIdx.x, lane = i & 31, warp = i >> 5;
    int v = i < n ? x[i] : 0;
    for (int d = 1; d < 32; d *= 2) {
        int o = __shfl_up_sync(~0u, v, d);
        if (lane >= d) v += o;
    }
    if (lane == 31) totals[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int t = lane < blockDim.x / 32 ? totals[lane] : 0;
        for (int d = 1; d < 32; d *= 2) {
            int o = __shfl_up_sync(~0u, t, d);
            if (lane >= d) t += o;
        }
        totals[lane] = t;
    }
    __syncthreads();
    if (warp) v += totals[warp - 1];
    if (i < n) y[i] = v;
}

extern "C" __global__ void transpose(const float *x, float *y, int rows, int cols) {
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (c < cols && r + k < rows) tile[threadIdx.y + k][threadIdx.x] = x[(size_t)(r + k) * cols + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x, r = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (c < rows && r + k < cols) y[(size_t)(r + k) * rows + c] = tile[threadIdx.x][threadIdx.y + k];
}

// One block a row.
extern "C" __global__ void softmax(const float *x, float *y, int n) {
    extern __shared__ float shared[];
    const float *row = x + (size_t)blockIdx.x * n;
    float top = -3.4e38f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, row[i]);
    shared[threadIdx.x] = top;
    __syncthreads();
    for (int d = blockDim.x / 2; d; d /= 2) {
        if (threadIdx.x < d) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + d]);
        __syncthreads();
    }
    top = shared[0];
    __syncthreads();
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(row[i] - top);
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int d = blockDim.x / 2; d; d /= 2) {
        if (threadIdx.x < d) shared[threadIdx.x] += shared[threadIdx.x + d];
        __syncthreads();
    }
    sum = shared[0];
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[(size_t)blockIdx.x * n + i] = __expf(row[i] - top) / sum;
}

extern "C" __global__ void histogram(const unsigned char *x, unsigned *counts, int n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) if (local[i]) atomicAdd(&counts[i], local[i]);
}

extern "C" __global__ void matmul(const float *a, const float *b, float *c, int m, int n, int k) {
    __shared__ float as[16][16], bs[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < k; t += 16) {
        as[threadIdx.y][threadIdx.x] = row < m && t + threadIdx.x < k ? a[row * k + t + threadIdx.x] : 0;
        bs[threadIdx.y][threadIdx.x] = col < n && t + threadIdx.y < k ? b[(t + threadIdx.y) * n + col] : 0;
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = sum;
}
