/* Stream-ordered memory. A pool keeps what is freed, so the pool's reserved memory is charged: the
 * worst case is reserved before an allocation, and corrected by the driver's number after it. */
#include "gpushare.h"

#define GRANULE (2u << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* from one reading to the next */

extern CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value);
extern CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);
extern CUresult cuCtxGetDevice(CUdevice *device);
GS_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);

static uint64_t key_of(CUmemoryPool pool) { return (uint64_t)(uintptr_t)pool; }

static bool read_reserved(CUmemoryPool pool, uint64_t *reserved) {
    return GS_REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved) ==
           CUDA_SUCCESS;
}

static uint64_t charged(CUmemoryPool pool) {
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(GS_KIND_POOL, key_of(pool));
    if (entry == NULL) entry = gs_table_add(GS_KIND_POOL, key_of(pool), 0, NULL);
    uint64_t bytes = entry != NULL ? entry->bytes : 0;
    gs_table_unlock();
    return bytes;
}

/* A pool of host memory is in the table with a handle that is not 0. */
static bool is_on_device(CUmemoryPool pool) {
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(GS_KIND_POOL, key_of(pool));
    bool on_device = entry == NULL || entry->handle == 0;
    gs_table_unlock();
    return on_device;
}

/* Charges what the driver says; `reserved` bytes more than before are charged already. */
static void settle(CUmemoryPool pool, uint64_t reserved) {
    uint64_t before = charged(pool), now = before;
    if (!read_reserved(pool, &now)) now = before + reserved;
    gs_adjust(before + reserved, now);
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(GS_KIND_POOL, key_of(pool));
    if (entry != NULL) entry->bytes = now;
    gs_table_unlock();
}

struct request {
    CUdeviceptr *pointer;
    size_t bytes;
    CUmemoryPool pool;
    CUstream stream;
};

static CUresult allocate(CUresult (*call)(const struct request *), const struct request *request) {
    if (gs_is_capturing(request->stream)) { /* memory of the graph, which is charged at its launch */
        CUresult result = call(request);
        if (result == CUDA_SUCCESS) gs_capture_add_bytes(request->stream, request->bytes);
        return result;
    }
    if (request->pool == NULL || !is_on_device(request->pool)) return call(request);
    uint64_t worst = ((uint64_t)request->bytes + GRANULE - 1) / GRANULE * GRANULE;
    pthread_mutex_lock(&lock);
    settle(request->pool, 0);
    if (!gs_reserve(worst)) {
        GS_REAL(cuMemPoolTrimTo)(request->pool, 0); /* what it keeps may be enough */
        settle(request->pool, 0);
        if (!gs_reserve(worst)) {
            pthread_mutex_unlock(&lock);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    CUresult result = call(request);
    settle(request->pool, worst);
    pthread_mutex_unlock(&lock);
    return result;
}

static CUmemoryPool current_pool(void) {
    CUdevice device = 0;
    CUmemoryPool pool = NULL;
    if (GS_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return NULL;
    return GS_REAL(cuDeviceGetMemPool)(&pool, device) == CUDA_SUCCESS ? pool : NULL;
}

#define GS_ALLOC_ASYNC(name)                                                             \
    GS_EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUstream stream);        \
    static CUresult call_##name(const struct request *request) {                         \
        return GS_REAL(name)(request->pointer, request->bytes, request->stream);         \
    }                                                                                    \
    GS_EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUstream stream) {       \
        struct request request = {pointer, bytes, current_pool(), stream};               \
        return allocate(call_##name, &request);                                          \
    }

GS_ALLOC_ASYNC(cuMemAllocAsync)
GS_ALLOC_ASYNC(cuMemAllocAsync_ptsz)

#define GS_ALLOC_FROM_POOL(name)                                                                  \
    GS_EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,                \
                            CUstream stream);                                                     \
    static CUresult call_##name(const struct request *request) {                                  \
        return GS_REAL(name)(request->pointer, request->bytes, request->pool, request->stream);   \
    }                                                                                             \
    GS_EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,                \
                            CUstream stream) {                                                    \
        struct request request = {pointer, bytes, pool, stream};                                  \
        return allocate(call_##name, &request);                                                   \
    }

GS_ALLOC_FROM_POOL(cuMemAllocFromPoolAsync)
GS_ALLOC_FROM_POOL(cuMemAllocFromPoolAsync_ptsz)

/* It also frees what cuMemAlloc gave; memory of a pool stays charged until the pool gives it back. */
#define GS_FREE_ASYNC(name)                                                          \
    GS_EXPORT CUresult name(CUdeviceptr pointer, CUstream stream);                   \
    GS_EXPORT CUresult name(CUdeviceptr pointer, CUstream stream) {                  \
        uint64_t bytes = gs_take(GS_KIND_POINTER, pointer);                          \
        CUresult result = GS_REAL(name)(pointer, stream);                            \
        if (result == CUDA_SUCCESS)                                                  \
            gs_give_back(bytes);                                                     \
        else if (bytes > 0)                                                          \
            gs_record(GS_KIND_POINTER, pointer, bytes, gs_current_context());        \
        return result;                                                               \
    }

GS_FREE_ASYNC(cuMemFreeAsync)
GS_FREE_ASYNC(cuMemFreeAsync_ptsz)

GS_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties);
GS_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = GS_REAL(cuMemPoolCreate)(pool, properties);
    if (result != CUDA_SUCCESS) return result;
    /* allocType, handleTypes, location.type, location.id */
    const int *fields = (const int *)(const void *)properties;
    gs_table_lock();
    struct gs_entry *entry = gs_table_add(GS_KIND_POOL, key_of(*pool), 0, NULL);
    if (entry != NULL) entry->handle = fields[2] != CU_MEM_LOCATION_TYPE_DEVICE;
    gs_table_unlock();
    return result;
}

GS_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool);
GS_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    pthread_mutex_lock(&lock);
    CUresult result = GS_REAL(cuMemPoolDestroy)(pool);
    if (result == CUDA_SUCCESS) gs_forget(GS_KIND_POOL, key_of(pool));
    pthread_mutex_unlock(&lock);
    return result;
}

GS_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    pthread_mutex_lock(&lock);
    CUresult result = GS_REAL(cuMemPoolTrimTo)(pool, keep);
    if (is_on_device(pool)) settle(pool, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

void gs_pools_forget_after_fork(void) { pthread_mutex_init(&lock, NULL); }
