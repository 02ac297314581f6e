/* Contexts, and the size of the device as the job is to see it. */
#include "gpushare.h"

#define DEVICES_MAX 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    CUcontext context;
    uint32_t refs;
} primaries[DEVICES_MAX];

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

GS_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
GS_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    size_t real_free = 0, real_total = 0;
    uint64_t used = 0, limit = 0;
    CUresult result = GS_REAL(cuMemGetInfo_v2)(&real_free, &real_total);
    if (result != CUDA_SUCCESS) return result;
    if (gs_memory_numbers(&used, &limit)) {
        real_total = smaller(real_total, limit);
        real_free = smaller(real_free, used < limit ? limit - used : 0);
    }
    if (free_bytes != NULL) *free_bytes = real_free;
    if (total_bytes != NULL) *total_bytes = real_total;
    return result;
}

GS_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
GS_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult result = GS_REAL(cuDeviceTotalMem_v2)(bytes, device);
    uint64_t limit = gs_settings()->socket_path != NULL ? gs_settings()->memory_bytes : 0;
    if (result == CUDA_SUCCESS && bytes != NULL && limit > 0) *bytes = smaller(*bytes, limit);
    return result;
}

extern CUresult cuCtxGetCurrent(CUcontext *context);

CUcontext gs_current_context(void) {
    CUcontext context = NULL;
    return GS_REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

static void context_gone(CUcontext context) {
    gs_streams_context_gone(context);
    gs_window_context_gone(context);
    uint64_t bytes = gs_table_drop_context(context);
    if (bytes > 0) gs_give_back(bytes);
}

/* The default streams are those of another context now. */
static void context_changed(void) {
    if (gs_my_slot != NULL) gs_my_slot->generation = 0;
}

#define GS_SWITCH(name, parameters, arguments)     \
    GS_EXPORT CUresult name parameters;            \
    GS_EXPORT CUresult name parameters {           \
        CUresult result = GS_REAL(name) arguments; \
        context_changed();                         \
        return result;                             \
    }

GS_SWITCH(cuCtxSetCurrent, (CUcontext context), (context))
GS_SWITCH(cuCtxPushCurrent, (CUcontext context), (context))
GS_SWITCH(cuCtxPushCurrent_v2, (CUcontext context), (context))
GS_SWITCH(cuCtxPopCurrent, (CUcontext * context), (context))
GS_SWITCH(cuCtxPopCurrent_v2, (CUcontext * context), (context))
GS_SWITCH(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),
          (context, flags, device))
GS_SWITCH(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
          (context, flags, device))
GS_SWITCH(cuCtxCreate_v3,
          (CUcontext * context, CUexecAffinityParam *affinity, int count, unsigned int flags,
           CUdevice device),
          (context, affinity, count, flags, device))
GS_SWITCH(cuCtxCreate_v4,
          (CUcontext * context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device),
          (context, parameters, flags, device))

/* Its memory goes with it, and its streams are forgotten before, so that no drain pushes it. */
#define GS_DESTROY(name)                            \
    GS_EXPORT CUresult name(CUcontext context);     \
    GS_EXPORT CUresult name(CUcontext context) {    \
        context_gone(context);                      \
        return GS_REAL(name)(context);              \
    }

GS_DESTROY(cuCtxDestroy)
GS_DESTROY(cuCtxDestroy_v2)

GS_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
GS_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = GS_REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result != CUDA_SUCCESS || device < 0 || device >= DEVICES_MAX) return result;
    pthread_mutex_lock(&lock);
    primaries[device].context = *context;
    primaries[device].refs++;
    pthread_mutex_unlock(&lock);
    return result;
}

static void released(CUdevice device, bool whole) {
    CUcontext gone = NULL;
    if (device < 0 || device >= DEVICES_MAX) return;
    pthread_mutex_lock(&lock);
    if (whole || primaries[device].refs == 1) {
        gone = primaries[device].context;
        primaries[device].refs = 0;
    } else if (primaries[device].refs > 1) {
        primaries[device].refs--;
    }
    pthread_mutex_unlock(&lock);
    if (gone != NULL) context_gone(gone);
}

#define GS_RELEASE(name, whole)                 \
    GS_EXPORT CUresult name(CUdevice device);   \
    GS_EXPORT CUresult name(CUdevice device) {  \
        released(device, whole);                \
        return GS_REAL(name)(device);           \
    }

GS_RELEASE(cuDevicePrimaryCtxRelease, false)
GS_RELEASE(cuDevicePrimaryCtxRelease_v2, false)
GS_RELEASE(cuDevicePrimaryCtxReset, true)
GS_RELEASE(cuDevicePrimaryCtxReset_v2, true)

void gs_devices_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    for (unsigned int i = 0; i < DEVICES_MAX; i++) primaries[i].refs = 0;
}
