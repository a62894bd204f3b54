// sm_80
// C = 2 A B + C by wmma: f16 with sums in f32 through shared memory, and tf32 and s8 straight from global memory.

#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

// a is m x k by rows, b is k x n by columns; all multiples of 32. Two warps, each with 16 x 32 of a tile of 32 x 32.
extern "C" __global__ void __launch_bounds__(64) gemm_wmma(const half *a, const half *b, float *c, int m, int n, int k) {
    __shared__ __align__(32) half left[32][32 + 16], right[32][32 + 16];
    int warp = threadIdx.x / 32, row = blockIdx.y * 32, column = blockIdx.x * 32;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[2];
    wmma::fill_fragment(sums[0], 0.0f);
    wmma::fill_fragment(sums[1], 0.0f);
    for (int from = 0; from < k; from += 32) {
        for (int i = threadIdx.x; i < 32 * 32; i += 64) {
            left[i / 32][i % 32] = a[(row + i / 32) * k + from + i % 32];
            right[i / 32][i % 32] = b[(column + i / 32) * k + from + i % 32];
        }
        __syncthreads();
        for (int inner = 0; inner < 32; inner += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
            wmma::load_matrix_sync(x, &left[16 * warp][inner], 32 + 16);
            for (int j = 0; j < 2; j++) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
                wmma::load_matrix_sync(y, &right[16 * j][inner], 32 + 16);
                wmma::mma_sync(sums[j], x, y, sums[j]);
            }
        }
        __syncthreads();
    }
    for (int j = 0; j < 2; j++) {
        float *to = c + (row + 16 * warp) * n + column + 16 * j;
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> before;
        wmma::load_matrix_sync(before, to, n, wmma::mem_row_major);
        for (int i = 0; i < before.num_elements; i++) {
            before.x[i] += 2.0f * sums[j].x[i];
        }
        wmma::store_matrix_sync(to, before, n, wmma::mem_row_major);
    }
}

// a is m x k by columns, b is k x n by rows; c by columns. One warp a tile of 16 x 16.
extern "C" __global__ void __launch_bounds__(32) gemm_wmma_tf32(const float *a, const float *b, float *c, int m, int n, int k) {
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int from = 0; from < k; from += 8) {
        wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::col_major> x;
        wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> y;
        wmma::load_matrix_sync(x, a + from * m + row, m);
        wmma::load_matrix_sync(y, b + from * n + column, n);
        for (int i = 0; i < x.num_elements; i++) {
            x.x[i] = wmma::__float_to_tf32(x.x[i]);
        }
        for (int i = 0; i < y.num_elements; i++) {
            y.x[i] = wmma::__float_to_tf32(y.x[i]);
        }
        wmma::mma_sync(sum, x, y, sum);
    }
    wmma::store_matrix_sync(c + column * m + row, sum, m, wmma::mem_col_major);
}

// a is m x k by rows, b is k x n by columns, c by rows. One warp a tile of 32 x 8.
extern "C" __global__ void __launch_bounds__(32)
    gemm_wmma_s8(const signed char *a, const signed char *b, int *c, int m, int n, int k) {
    int row = blockIdx.y * 32, column = blockIdx.x * 8;
    wmma::fragment<wmma::accumulator, 32, 8, 16, int> sum;
    wmma::fill_fragment(sum, 0);
    for (int from = 0; from < k; from += 16) {
        wmma::fragment<wmma::matrix_a, 32, 8, 16, signed char, wmma::row_major> x;
        wmma::fragment<wmma::matrix_b, 32, 8, 16, signed char, wmma::col_major> y;
        wmma::load_matrix_sync(x, a + row * k + from, k);
        wmma::load_matrix_sync(y, b + column * k + from, k);
        wmma::mma_sync(sum, x, y, sum);
    }
    wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}
