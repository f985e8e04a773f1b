// The names of cuBLAS that llama.cpp's sources contain. A dry run calls none of its functions.
#pragma once
#include <cuda_runtime.h>
#include <library_types.h>

typedef void *cublasHandle_t;
typedef int cublasStatus_t, cublasComputeType_t;
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum { CUBLAS_VER_MAJOR = 13, CUBLAS_VER_MINOR = 0 };
enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_MAPPING_ERROR = 11,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
};
enum { CUBLAS_DEFAULT_MATH = 0, CUBLAS_TENSOR_OP_MATH = 1, CUBLAS_TF32_TENSOR_OP_MATH = 3 };
enum { CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_32F = 68 };
enum { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 };
enum { CUBLAS_SIDE_RIGHT = 1, CUBLAS_FILL_MODE_UPPER = 1, CUBLAS_DIAG_NON_UNIT = 0 };

template <class... Arguments> cublasStatus_t never_called(Arguments...) { return CUBLAS_STATUS_NOT_SUPPORTED; }
inline const char *cublasGetStatusString(cublasStatus_t) { return "not supported"; }
#define cublasCreate never_called
#define cublasDestroy never_called
#define cublasGemmBatchedEx never_called
#define cublasGemmEx never_called
#define cublasGemmStridedBatchedEx never_called
#define cublasLoggerConfigure never_called
#define cublasSetMathMode never_called
#define cublasSetStream never_called
#define cublasSetWorkspace never_called
#define cublasSgemm never_called
#define cublasSgemmBatched never_called
#define cublasSgemmStridedBatched never_called
#define cublasStrsmBatched never_called
