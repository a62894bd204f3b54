// sm_80
// C = A B in bf16 with sums in f32, by tiles of 64 x 64: cp.async into two stages, ldmatrix, mma.sync.

#include <cuda_bf16.h>

constexpr int M_TILE = 64, N_TILE = 64, K_TILE = 32, PAD = 8;

__device__ unsigned shared_address(const void *pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// 16 bytes, or zeros outside of the matrix.
__device__ void copy(void *to, const void *from, bool inside) {
    int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}

__device__ void load(unsigned (&d)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(row)));
}

__device__ void load_transposed(unsigned (&d)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(row)));
}

__device__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// a is m x k, b is k x n, both by rows; k and n are multiples of 8. Four warps, each with 32 x 32 of the tile.
extern "C" __global__ void __launch_bounds__(128)
    gemm_mma(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, int m, int n, int k) {
    __shared__ __align__(16) __nv_bfloat16 left[2][M_TILE][K_TILE + PAD];
    __shared__ __align__(16) __nv_bfloat16 right[2][K_TILE][N_TILE + PAD];
    int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    int first_row = blockIdx.y * M_TILE, first_column = blockIdx.x * N_TILE;
    int warp_row = warp / 2 * 32, warp_column = warp % 2 * 32;

    auto fetch = [&](int step) {
        int stage = step % 2, from = step * K_TILE;
        for (int i = thread; i < M_TILE * K_TILE / 8; i += 128) {
            int row = i / (K_TILE / 8), column = i % (K_TILE / 8) * 8;
            bool inside = first_row + row < m && from + column < k;
            copy(&left[stage][row][column], inside ? a + (first_row + row) * k + from + column : a, inside);
        }
        for (int i = thread; i < K_TILE * N_TILE / 8; i += 128) {
            int row = i / (N_TILE / 8), column = i % (N_TILE / 8) * 8;
            bool inside = from + row < k && first_column + column < n;
            copy(&right[stage][row][column], inside ? b + (from + row) * n + first_column + column : b, inside);
        }
        asm volatile("cp.async.commit_group;");
    };

    float sums[2][4][4] = {};
    int steps = (k + K_TILE - 1) / K_TILE;
    fetch(0);
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) {
            fetch(step + 1);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncthreads();
        auto &l = left[step % 2];
        auto &r = right[step % 2];
#pragma unroll
        for (int inner = 0; inner < K_TILE; inner += 16) {
            unsigned x[2][4], y[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                load(x[i], &l[warp_row + 16 * i + lane % 16][inner + lane / 16 * 8]);
                load_transposed(y[i], &r[inner + lane % 16][warp_column + 16 * i + lane / 16 * 8]);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    multiply(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = first_row + warp_row + 16 * i + lane / 4 + 8 * half;
                int column = first_column + warp_column + 8 * j + lane % 4 * 2;
                if (row < m && column < n) {
                    float2 pair = {sums[i][j][2 * half], sums[i][j][2 * half + 1]};
                    *reinterpret_cast<float2 *>(c + row * n + column) = pair;
                }
            }
        }
    }
}
