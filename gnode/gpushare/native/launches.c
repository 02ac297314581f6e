/* Launches of kernels: the gate stands before each of them. */
#include "gpushare.h"

#define GS_STREAM_OF(stream) (stream)
#define GS_STREAM_OF_PTSZ(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))

#define GS_GATED(name, parameters, arguments, on)            \
    GS_EXPORT CUresult name parameters;                      \
    GS_EXPORT CUresult name parameters {                     \
        CUresult result;                                     \
        struct gs_slot *slot = gs_begin(on, &result);        \
        if (GS_UNLIKELY(slot == NULL)) return result;        \
        result = GS_REAL(name) arguments;                    \
        gs_end(slot, on);                                    \
        return result;                                       \
    }

#define GS_KERNEL                                                                               \
    (CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,   \
     unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **arguments,  \
     void **extra)
#define GS_COOPERATIVE                                                                          \
    (CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,   \
     unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **arguments)

GS_GATED(cuLaunchKernel, GS_KERNEL,
         (function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra), GS_STREAM_OF(stream))
GS_GATED(cuLaunchKernel_ptsz, GS_KERNEL,
         (function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra),
         GS_STREAM_OF_PTSZ(stream))
GS_GATED(cuLaunchCooperativeKernel, GS_COOPERATIVE,
         (function, gx, gy, gz, bx, by, bz, shared, stream, arguments), GS_STREAM_OF(stream))
GS_GATED(cuLaunchCooperativeKernel_ptsz, GS_COOPERATIVE,
         (function, gx, gy, gz, bx, by, bz, shared, stream, arguments), GS_STREAM_OF_PTSZ(stream))

/* CUlaunchConfig: seven numbers of 32 bits, padding, then the stream. */
static CUstream stream_of(const CUlaunchConfig *config) {
    if (config == NULL) return NULL;
    return *(const CUstream *)(const void *)((const char *)config + 32);
}

#define GS_EX (const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)

GS_GATED(cuLaunchKernelEx, GS_EX, (config, function, arguments, extra), stream_of(config))
GS_GATED(cuLaunchKernelEx_ptsz, GS_EX, (config, function, arguments, extra),
         GS_STREAM_OF_PTSZ(stream_of(config)))

GS_GATED(cuLaunchCooperativeKernelMultiDevice,
         (CUDA_LAUNCH_PARAMS * launches, unsigned int count, unsigned int flags),
         (launches, count, flags), NULL)
GS_GATED(cuLaunch, (CUfunction function), (function), NULL)
GS_GATED(cuLaunchGrid, (CUfunction function, int width, int height), (function, width, height), NULL)
GS_GATED(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream),
         (function, width, height, stream), stream)
