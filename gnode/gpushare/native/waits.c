/* Waits for the GPU: who has waited for all its launches is idle soon. */
#include "gpushare.h"

#define GS_WAIT(name, parameters, arguments)                                           \
    GS_EXPORT CUresult name parameters;                                                \
    GS_EXPORT CUresult name parameters {                                               \
        struct gs_slot *slot = gs_my_slot;                                             \
        if (slot == NULL) return GS_REAL(name) arguments;                              \
        uint64_t launches = atomic_load_explicit(&slot->launches, memory_order_relaxed); \
        CUresult result = GS_REAL(name) arguments;                                     \
        atomic_store_explicit(&slot->synced_at, launches, memory_order_relaxed);       \
        return result;                                                                 \
    }

GS_WAIT(cuCtxSynchronize, (void), ())
GS_WAIT(cuCtxSynchronize_v2, (CUcontext context), (context))
GS_WAIT(cuStreamSynchronize, (CUstream stream), (stream))
GS_WAIT(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
GS_WAIT(cuEventSynchronize, (CUevent event), (event))
