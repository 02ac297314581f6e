/* Fills and copies: they pass the same gate as kernels where the job's class says so. */
#include "gpushare.h"

#define GS_LEGACY(stream) (stream)
#define GS_PTSZ(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))

#define GS_GATED(name, parameters, arguments, on)                                 \
    GS_EXPORT CUresult name parameters;                                           \
    GS_EXPORT CUresult name parameters {                                          \
        CUresult result;                                                          \
        if (!gs_settings()->gate_copies) return GS_REAL(name) arguments;          \
        struct gs_slot *slot = gs_begin(on, &result);                             \
        if (GS_UNLIKELY(slot == NULL)) return result;                             \
        atomic_store_explicit(&slot->in, GS_WAITS, memory_order_relaxed);         \
        result = GS_REAL(name) arguments;                                         \
        gs_end(slot, on);                                                         \
        return result;                                                            \
    }

/* A name with its two forms: the default stream of the process, and that of the thread. */
#define GS_BLOCKING(name, parameters, arguments)   \
    GS_GATED(name, parameters, arguments, NULL)    \
    GS_GATED(name##_ptds, parameters, arguments, CU_STREAM_PER_THREAD)
#define GS_ASYNC(name, parameters, arguments)                  \
    GS_GATED(name, parameters, arguments, GS_LEGACY(stream))   \
    GS_GATED(name##_ptsz, parameters, arguments, GS_PTSZ(stream))

#define GS_FILL(type) (CUdeviceptr to, type value, size_t count)
#define GS_FILL_ASYNC(type) (CUdeviceptr to, type value, size_t count, CUstream stream)
#define GS_FILL_2D(type) (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)
#define GS_FILL_2D_ASYNC(type) \
    (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream)

GS_BLOCKING(cuMemsetD8_v2, GS_FILL(unsigned char), (to, value, count))
GS_BLOCKING(cuMemsetD16_v2, GS_FILL(unsigned short), (to, value, count))
GS_BLOCKING(cuMemsetD32_v2, GS_FILL(unsigned int), (to, value, count))
GS_BLOCKING(cuMemsetD2D8_v2, GS_FILL_2D(unsigned char), (to, pitch, value, width, height))
GS_BLOCKING(cuMemsetD2D16_v2, GS_FILL_2D(unsigned short), (to, pitch, value, width, height))
GS_BLOCKING(cuMemsetD2D32_v2, GS_FILL_2D(unsigned int), (to, pitch, value, width, height))
GS_ASYNC(cuMemsetD8Async, GS_FILL_ASYNC(unsigned char), (to, value, count, stream))
GS_ASYNC(cuMemsetD16Async, GS_FILL_ASYNC(unsigned short), (to, value, count, stream))
GS_ASYNC(cuMemsetD32Async, GS_FILL_ASYNC(unsigned int), (to, value, count, stream))
GS_ASYNC(cuMemsetD2D8Async, GS_FILL_2D_ASYNC(unsigned char),
         (to, pitch, value, width, height, stream))
GS_ASYNC(cuMemsetD2D16Async, GS_FILL_2D_ASYNC(unsigned short),
         (to, pitch, value, width, height, stream))
GS_ASYNC(cuMemsetD2D32Async, GS_FILL_2D_ASYNC(unsigned int),
         (to, pitch, value, width, height, stream))

GS_BLOCKING(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
GS_ASYNC(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
         (to, from, bytes, stream))
GS_BLOCKING(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes))
GS_ASYNC(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
         (to, from, bytes, stream))
GS_BLOCKING(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))
GS_ASYNC(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
         (to, from, bytes, stream))
GS_BLOCKING(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
GS_ASYNC(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
         (to, from, bytes, stream))
GS_BLOCKING(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), (copy))
GS_BLOCKING(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy), (copy))
GS_ASYNC(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream))
GS_BLOCKING(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy), (copy))
GS_ASYNC(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream), (copy, stream))
GS_ASYNC(cuMemPrefetchAsync,
         (CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream),
         (pointer, bytes, device, stream))
GS_ASYNC(cuMemPrefetchAsync_v2,
         (CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned int flags,
          CUstream stream),
         (pointer, bytes, location, flags, stream))

/* ---- between devices and arrays ---- */

#define GS_PEER                                                                               \
    CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes

GS_BLOCKING(cuMemcpyPeer, (GS_PEER), (to, to_context, from, from_context, bytes))
GS_ASYNC(cuMemcpyPeerAsync, (GS_PEER, CUstream stream),
         (to, to_context, from, from_context, bytes, stream))
GS_BLOCKING(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *copy), (copy))
GS_ASYNC(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), (copy, stream))
GS_BLOCKING(cuMemcpyDtoA_v2, (CUarray to, size_t at, CUdeviceptr from, size_t bytes),
            (to, at, from, bytes))
GS_BLOCKING(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t at, size_t bytes),
            (to, from, at, bytes))
GS_BLOCKING(cuMemcpyHtoA_v2, (CUarray to, size_t at, const void *from, size_t bytes),
            (to, at, from, bytes))
GS_ASYNC(cuMemcpyHtoAAsync_v2,
         (CUarray to, size_t at, const void *from, size_t bytes, CUstream stream),
         (to, at, from, bytes, stream))
GS_BLOCKING(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t at, size_t bytes),
            (to, from, at, bytes))
GS_ASYNC(cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t at, size_t bytes, CUstream stream),
         (to, from, at, bytes, stream))
GS_BLOCKING(cuMemcpyAtoA_v2,
            (CUarray to, size_t to_at, CUarray from, size_t from_at, size_t bytes),
            (to, to_at, from, from_at, bytes))

/* ---- many at once ---- */

#define GS_BATCH                                                                                 \
    CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,                             \
        CUmemcpyAttributes *attributes, size_t *which, size_t kinds
#define GS_PREFETCH                                                                              \
    (CUdeviceptr * pointers, size_t *bytes, size_t count, CUmemLocation *places, size_t *which,  \
     size_t kinds, unsigned long long flags, CUstream stream)

GS_ASYNC(cuMemcpyBatchAsync, (GS_BATCH, size_t *failed, CUstream stream),
         (to, from, bytes, count, attributes, which, kinds, failed, stream))
GS_ASYNC(cuMemcpyBatchAsync_v2, (GS_BATCH, CUstream stream),
         (to, from, bytes, count, attributes, which, kinds, stream))
GS_ASYNC(cuMemcpy3DBatchAsync,
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed, unsigned long long flags,
          CUstream stream),
         (count, copies, failed, flags, stream))
GS_ASYNC(cuMemcpy3DBatchAsync_v2,
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream),
         (count, copies, flags, stream))
GS_ASYNC(cuMemPrefetchBatchAsync, GS_PREFETCH,
         (pointers, bytes, count, places, which, kinds, flags, stream))
GS_ASYNC(cuMemDiscardAndPrefetchBatchAsync, GS_PREFETCH,
         (pointers, bytes, count, places, which, kinds, flags, stream))
GS_ASYNC(cuMemBatchDecompressAsync,
         (CUmemDecompressParams * parameters, size_t count, unsigned int flags, size_t *failed,
          CUstream stream),
         (parameters, count, flags, failed, stream))
