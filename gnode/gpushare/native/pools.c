/* Stream-ordered memory. A pool keeps what is freed and uses it again, so its growth is charged, as
 * the driver measures it, and not what is asked for: a program that allocates and frees again and
 * again asks nobody. Only when the job has less left than the pool may grow by, that is reserved
 * before; memory that was freed in a stream may still be reused, which nobody knows before. */
#include "gpushare.h"

#define POOLS_MAX 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* from one reading to the next */
static _Atomic bool beyond; /* the limit: see come_back() */

extern CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value);
extern CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);
extern CUresult cuCtxGetDevice(CUdevice *device);
GS_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
GS_EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);

static uint64_t key_of(CUmemoryPool pool) { return (uint64_t)(uintptr_t)pool; }

static uint64_t read_number(CUmemoryPool pool, int which, uint64_t otherwise) {
    uint64_t number = otherwise;
    if (GS_REAL(cuMemPoolGetAttribute)(pool, (CUmemPool_attribute)which, &number) != CUDA_SUCCESS)
        return otherwise;
    return number;
}

static uint64_t charged(CUmemoryPool pool) {
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(GS_KIND_POOL, key_of(pool));
    if (entry == NULL) entry = gs_table_add(GS_KIND_POOL, key_of(pool), 0, NULL);
    uint64_t bytes = entry != NULL ? entry->bytes : 0;
    gs_table_unlock();
    return bytes;
}

static bool is_on_device(CUmemoryPool pool) {
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(GS_KIND_POOL, key_of(pool));
    bool on_device = entry == NULL || !entry->on_host;
    gs_table_unlock();
    return on_device;
}

/* Charges what the driver says; `reserved` bytes more than before are charged already. False: the
 * job has more than it may, and that is charged, too. The lock is held. */
static bool settle(CUmemoryPool pool, uint64_t reserved) {
    uint64_t before = charged(pool) + reserved;
    uint64_t now = read_number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, before);
    bool fits = now <= before || gs_reserve(now - before);
    if (!fits) gs_charge_anyway(now - before);
    if (now < before) gs_give_back(before - now);
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(GS_KIND_POOL, key_of(pool));
    if (entry != NULL) entry->bytes = now;
    gs_table_unlock();
    return fits;
}

void gs_pools_reclaim(enum gs_effort effort) {
    uint64_t pools[POOLS_MAX];
    pthread_mutex_lock(&lock);
    size_t count = gs_table_keys(GS_KIND_POOL, pools, POOLS_MAX);
    for (size_t i = 0; i < count; i++) {
        CUmemoryPool pool = (CUmemoryPool)(uintptr_t)pools[i];
        if (!is_on_device(pool)) continue;
        if (effort != GS_LOOK) GS_REAL(cuMemPoolTrimTo)(pool, 0);
        settle(pool, 0);
    }
    pthread_mutex_unlock(&lock);
}

struct request {
    CUdeviceptr *pointer;
    size_t bytes;
    CUmemoryPool pool;
    CUstream stream;
};

/* The most that the pool may grow by. The driver may count memory as used whose free a stream has
 * not come to; then less is needed, if it is reused. */
static uint64_t most_growth(const struct request *request) {
    pthread_mutex_lock(&lock);
    settle(request->pool, 0);
    uint64_t used = read_number(request->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    uint64_t reserved = charged(request->pool);
    pthread_mutex_unlock(&lock);
    uint64_t needed = used + request->bytes;
    if (needed < used) return UINT64_MAX;
    return needed > reserved ? gs_whole_blocks(needed - reserved) : 0;
}

/* A pool has kept more than the job may have, because a recording forbade to wait: it is made to
 * give that back as soon as it can. */
static void come_back(void) {
    uint64_t used = 0, limit = 0;
    for (enum gs_effort effort = GS_LOOK; effort < GS_EFFORTS; effort++) gs_reclaim(effort);
    if (!gs_memory_numbers(&used, &limit) || used <= limit) atomic_store(&beyond, false);
}

static CUresult allocate(CUresult (*call)(const struct request *), const struct request *request) {
    if (gs_is_capturing(request->stream)) return call(request); /* charged when the graph runs */
    if (request->pool == NULL || !is_on_device(request->pool)) return call(request);
    if (atomic_load(&beyond)) come_back();
    for (int attempt = 0; attempt < 2; attempt++) {
        uint64_t growth = most_growth(request), reserved = 0;
        if (growth > gs_room()) {
            if (!gs_obtain(growth)) return CUDA_ERROR_OUT_OF_MEMORY;
            reserved = growth;
        }
        pthread_mutex_lock(&lock);
        uint64_t before = charged(request->pool);
        CUresult result = call(request);
        bool fits = settle(request->pool, reserved);
        pthread_mutex_unlock(&lock);
        if (fits || result != CUDA_SUCCESS) return result;
        /* It has grown although there was enough, as other streams had not come to their frees. */
        GS_REAL(cuMemFreeAsync)(*request->pointer, request->stream);
        atomic_store(&gs_freed_in_streams, true);
        gs_reclaim(GS_WAIT);
        if (charged(request->pool) > before) { /* it could not be waited for */
            atomic_store(&beyond, true);
            break;
        }
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUmemoryPool current_pool(void) {
    CUdevice device = 0;
    CUmemoryPool pool = NULL;
    if (GS_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return NULL;
    return GS_REAL(cuDeviceGetMemPool)(&pool, device) == CUDA_SUCCESS ? pool : NULL;
}

#define GS_LEGACY(stream) (stream)
#define GS_PTSZ(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))

#define GS_ALLOC_ASYNC(name, on)                                                         \
    GS_EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUstream stream);        \
    static CUresult call_##name(const struct request *request) {                         \
        return GS_REAL(name)(request->pointer, request->bytes, request->stream);         \
    }                                                                                    \
    GS_EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUstream stream) {       \
        struct request request = {pointer, bytes, current_pool(), on(stream)};           \
        return allocate(call_##name, &request);                                          \
    }

GS_ALLOC_ASYNC(cuMemAllocAsync, GS_LEGACY)
GS_ALLOC_ASYNC(cuMemAllocAsync_ptsz, GS_PTSZ)

#define GS_ALLOC_FROM_POOL(name, on)                                                              \
    GS_EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,                \
                            CUstream stream);                                                     \
    static CUresult call_##name(const struct request *request) {                                  \
        return GS_REAL(name)(request->pointer, request->bytes, request->pool, request->stream);   \
    }                                                                                             \
    GS_EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,                \
                            CUstream stream) {                                                    \
        struct request request = {pointer, bytes, pool, on(stream)};                              \
        return allocate(call_##name, &request);                                                   \
    }

GS_ALLOC_FROM_POOL(cuMemAllocFromPoolAsync, GS_LEGACY)
GS_ALLOC_FROM_POOL(cuMemAllocFromPoolAsync_ptsz, GS_PTSZ)

/* It also frees what cuMemAlloc gave; memory of a pool stays charged until the pool gives it back. */
#define GS_FREE_ASYNC(name)                                                          \
    GS_EXPORT CUresult name(CUdeviceptr pointer, CUstream stream);                   \
    GS_EXPORT CUresult name(CUdeviceptr pointer, CUstream stream) {                  \
        struct gs_entry *entry = gs_detach(GS_KIND_POINTER, pointer);                \
        CUresult result = GS_REAL(name)(pointer, stream);                            \
        atomic_store_explicit(&gs_freed_in_streams, true, memory_order_release);     \
        if (result == CUDA_SUCCESS)                                                  \
            gs_give_back(gs_dispose(entry));                                         \
        else                                                                         \
            gs_attach(entry);                                                        \
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
    if (entry != NULL) entry->on_host = fields[2] != CU_MEM_LOCATION_TYPE_DEVICE;
    gs_table_unlock();
    return result;
}

GS_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool);
GS_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    pthread_mutex_lock(&lock);
    struct gs_entry *entry = gs_detach(GS_KIND_POOL, key_of(pool));
    CUresult result = GS_REAL(cuMemPoolDestroy)(pool);
    if (result == CUDA_SUCCESS)
        gs_give_back(gs_dispose(entry));
    else
        gs_attach(entry);
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

void gs_pools_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    atomic_store(&beyond, false);
}
