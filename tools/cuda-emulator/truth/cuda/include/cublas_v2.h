// Matrix products of cuBLAS, computed on the host: what is on trial are the kernels around them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <library_types.h>

#include <vector>

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_16F };
enum cublasMath_t { CUBLAS_DEFAULT_MATH, CUBLAS_TF32_TENSOR_OP_MATH };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT };
typedef void *cublasHandle_t;

inline cublasStatus_t cublasCreate(cublasHandle_t *) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasDestroy(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }

struct CublasMatrix {
    cudaDataType type;
    std::vector<char> bytes;
    CublasMatrix(cudaDataType type, const void *from, size_t count) : type(type), bytes(count * (type == CUDA_R_32F ? 4 : 2)) {
        cudaMemcpy(bytes.data(), from, bytes.size(), cudaMemcpyDeviceToHost);
    }
    float get(size_t i) const {
        if (type == CUDA_R_32F) return ((const float *)bytes.data())[i];
        return type == CUDA_R_16F ? (float)((const __half *)bytes.data())[i] : (float)((const __nv_bfloat16 *)bytes.data())[i];
    }
    void set(size_t i, float value) {
        if (type == CUDA_R_32F) ((float *)bytes.data())[i] = value;
        else if (type == CUDA_R_16F) ((__half *)bytes.data())[i] = __float2half(value);
        else ((__nv_bfloat16 *)bytes.data())[i] = __float2bfloat16(value);
    }
};

inline cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void *alpha, const void *a, cudaDataType of_a, int lda, long long sa,
    const void *b, cudaDataType of_b, int ldb, long long sb, const void *beta, void *c, cudaDataType of_c, int ldc, long long sc, int batches, int compute,
    cublasGemmAlgo_t) {
    auto scalar = [=](const void *value) { return compute == CUBLAS_COMPUTE_16F ? (float)*(const __half *)value : *(const float *)value; };
    float x = scalar(alpha), y = scalar(beta);
    auto count = [](int rows, int columns, int ld) { return (size_t)ld * (columns - 1) + rows; };
    for (long long batch = 0; batch < batches; batch++) {
        auto at = [=](auto *base, cudaDataType of, long long stride) { return base + batch * stride * (of == CUDA_R_32F ? 4 : 2); };
        CublasMatrix left(of_a, at((const char *)a, of_a, sa), ta == CUBLAS_OP_N ? count(m, k, lda) : count(k, m, lda));
        CublasMatrix right(of_b, at((const char *)b, of_b, sb), tb == CUBLAS_OP_N ? count(k, n, ldb) : count(n, k, ldb));
        char *to = at((char *)c, of_c, sc);
        CublasMatrix sums(of_c, to, count(m, n, ldc));
        for (int column = 0; column < n; column++)
            for (int row = 0; row < m; row++) {
                double sum = 0;
                for (int i = 0; i < k; i++)
                    sum += (double)left.get(ta == CUBLAS_OP_N ? row + (size_t)i * lda : i + (size_t)row * lda) *
                           right.get(tb == CUBLAS_OP_N ? i + (size_t)column * ldb : column + (size_t)i * ldb);
                size_t i = row + (size_t)column * ldc;
                sums.set(i, x * sum + (y == 0 ? 0 : y * sums.get(i)));
            }
        cudaMemcpy(to, sums.bytes.data(), sums.bytes.size(), cudaMemcpyHostToDevice);
    }
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasSgemmStridedBatched(
    cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float *alpha, const float *a, int lda, long long sa, const float *b,
    int ldb, long long sb, const float *beta, float *c, int ldc, long long sc, int batches) {
    return cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, CUDA_R_32F, lda, sa, b, CUDA_R_32F, ldb, sb, beta, c, CUDA_R_32F, ldc, sc, batches,
                                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

inline cublasStatus_t cublasSgemm(
    cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float *alpha, const float *a, int lda, const float *b, int ldb,
    const float *beta, float *c, int ldc) {
    return cublasSgemmStridedBatched(handle, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}
