// sm_90a
// C = A B in bf16 with sums in f32, by tiles of 64 x 128: a warp copies boxes through tensor maps into three stages,
// a warpgroup multiplies them.

#include <cuda_bf16.h>

constexpr int M_TILE = 64, N_TILE = 128, K_TILE = 64, STAGES = 3;

struct alignas(64) Map {
    unsigned long long words[16];
};

struct alignas(1024) Shared {
    __nv_bfloat16 left[STAGES][M_TILE * K_TILE];
    __nv_bfloat16 right[STAGES][N_TILE * K_TILE];
    float out[M_TILE * N_TILE];
    unsigned long long full[STAGES], empty[STAGES];
};

__device__ unsigned shared_address(const void *pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ void wait(const unsigned long long *barrier, unsigned parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra AGAIN;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

__device__ void fetch(const void *to, const Map &map, const unsigned long long *barrier, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
                     "r"(shared_address(to)), "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y) : "memory");
}

// A descriptor with a swizzle of 128 bytes.
__device__ unsigned long long describe(const void *start, unsigned leading, unsigned stride) {
    auto encode = [](unsigned bytes) { return static_cast<unsigned long long>((bytes & 0x3ffff) >> 4); };
    return encode(shared_address(start)) | encode(leading) << 16 | encode(stride) << 32 | 1ull << 62;
}

#define EIGHT(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

template <int TRANSPOSE>
__device__ void multiply(float (&d)[64], unsigned long long left, unsigned long long right, int add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, add, 1, 1, 0, %67;\n}"
                 : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24), EIGHT(d, 32), EIGHT(d, 40), EIGHT(d, 48), EIGHT(d, 56)
                 : "l"(left), "l"(right), "r"(add), "n"(TRANSPOSE));
}

// The copying warp is the fifth one. TRANSPOSE: b lies k x n by rows, in boxes of 64 columns; otherwise n x k.
// Every block of the grid's z has its part of k.
template <int TRANSPOSE>
__device__ void body(const Map &a, const Map &b, const Map &c, int k) {
    extern __shared__ unsigned char bytes[];
    Shared &shared = *reinterpret_cast<Shared *>((reinterpret_cast<size_t>(bytes) + 1023) / 1024 * 1024);
    int thread = threadIdx.x, row = blockIdx.y * M_TILE, column = blockIdx.x * N_TILE;
    int all = (k + K_TILE - 1) / K_TILE, each = (all + gridDim.z - 1) / gridDim.z;
    int first = blockIdx.z * each, end = first + each < all ? first + each : all;
    if (thread == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&shared.full[stage])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(shared_address(&shared.empty[stage])));
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (thread >= 128) {
        if (thread == 128) {
            for (int step = first; step < end; step++) {
                int index = step - first, stage = index % STAGES;
                unsigned long long *full = &shared.full[stage];
                wait(&shared.empty[stage], index / STAGES % 2 ^ 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)),
                             "r"((M_TILE + N_TILE) * K_TILE * 2) : "memory");
                fetch(shared.left[stage], a, full, step * K_TILE, row);
                if (TRANSPOSE) {
                    fetch(shared.right[stage], b, full, column, step * K_TILE);
                    fetch(shared.right[stage] + K_TILE * 64, b, full, column + 64, step * K_TILE);
                } else {
                    fetch(shared.right[stage], b, full, step * K_TILE, column);
                }
            }
        }
    } else {
        float sums[64];
        for (int step = first; step < end; step++) {
            int index = step - first, stage = index % STAGES;
            wait(&shared.full[stage], index / STAGES % 2);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int inner = 0; inner < K_TILE; inner += 16) {
                unsigned long long left = describe(shared.left[stage] + inner, 16, 1024);
                unsigned long long right = TRANSPOSE ? describe(shared.right[stage] + inner * 64, K_TILE * 128, 1024)
                                                     : describe(shared.right[stage] + inner, 16, 1024);
                multiply<TRANSPOSE>(sums, left, right, index > 0 || inner > 0);
            }
            asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&shared.empty[stage])) : "memory");
        }
        int lane = thread % 32, warp = thread / 32;
#pragma unroll
        for (int i = 0; i < 64; i++) {
            int at = (16 * warp + lane / 4 + i / 2 % 2 * 8) * N_TILE + i / 4 * 8 + lane % 4 * 2 + i % 2;
            shared.out[at] = sums[i];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync 1, 128;" ::: "memory");
        if (thread == 0) {
            asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];\n"
                         "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::"l"(&c), "r"(column), "r"(row),
                         "r"(shared_address(shared.out)) : "memory");
        }
    }
}

extern "C" __global__ void __launch_bounds__(160)
    gemm_wgmma(const __grid_constant__ Map a, const __grid_constant__ Map b, const __grid_constant__ Map c, int k) {
    body<0>(a, b, c, k);
}

extern "C" __global__ void __launch_bounds__(160)
    gemm_wgmma_transposed(const __grid_constant__ Map a, const __grid_constant__ Map b, const __grid_constant__ Map c, int k) {
    body<1>(a, b, c, k);
}
