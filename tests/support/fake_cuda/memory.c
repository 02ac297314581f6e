/* Allocations of all families: each takes the bytes that it says from the device's counter. */
#include "fake.h"

#include <stdlib.h>

#define POOL_GRANULE (2u << 20)
#define PITCH 512u
#define TABLE 16384u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr next_address = 0x7f0000000000;

struct pool {
    uint64_t reserved, used, threshold;
    bool host;
    struct pool *next;
};

struct block { /* one address, with an owner if it is of a pool */
    CUdeviceptr address;
    uint64_t bytes;
    struct pool *pool;
};

static struct block blocks[TABLE];
static struct pool default_pool, *pools = &default_pool;

static uint64_t up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

/* The lock is held. */
static CUresult add_block(CUdeviceptr *address, uint64_t bytes, struct pool *pool) {
    for (unsigned int i = 0; i < TABLE; i++)
        if (blocks[i].address == 0) {
            *address = next_address;
            next_address += up(bytes + 1, 4096);
            blocks[i] = (struct block){*address, bytes, pool};
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_UNKNOWN;
}

static CUresult plain(CUdeviceptr *address, uint64_t bytes) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_take(bytes);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    result = add_block(address, bytes, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult release(CUdeviceptr address) {
    if (address == 0) return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < TABLE; i++)
        if (blocks[i].address == address) {
            struct block found = blocks[i];
            blocks[i].address = 0;
            if (found.pool != NULL) found.pool->used -= found.bytes;
            pthread_mutex_unlock(&lock);
            if (found.pool == NULL) fake_give(found.bytes);
            return CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return CUDA_ERROR_INVALID_VALUE;
}

void fake_memory_reset(void) {
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < TABLE; i++)
        if (blocks[i].address != 0 && blocks[i].pool == NULL) {
            blocks[i].address = 0;
            fake_give(blocks[i].bytes);
        }
    pthread_mutex_unlock(&lock);
}

FAKE_API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) { return plain(pointer, bytes); }
FAKE_API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    return plain(pointer, bytes);
}
FAKE_API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width,
                                     size_t height, unsigned int element) {
    *pitch = up(width, PITCH);
    return plain(pointer, (uint64_t)*pitch * height);
}
FAKE_API CUresult cuMemFree_v2(CUdeviceptr pointer) { return release(pointer); }

/* ---- pools ---- */

static CUresult from_pool(CUdeviceptr *pointer, uint64_t bytes, struct pool *pool) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    uint64_t wanted = up(pool->used + bytes, POOL_GRANULE);
    if (wanted > pool->reserved) {
        if (!pool->host) result = fake_take(wanted - pool->reserved);
        if (result == CUDA_SUCCESS) pool->reserved = wanted;
    }
    if (result == CUDA_SUCCESS) {
        pool->used += bytes;
        result = add_block(pointer, bytes, pool);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static void shrink(struct pool *pool, uint64_t keep) {
    uint64_t wanted = up(pool->used, POOL_GRANULE);
    if (wanted < keep) wanted = keep < pool->reserved ? keep : pool->reserved;
    if (wanted >= pool->reserved) return;
    if (!pool->host) fake_give(pool->reserved - wanted);
    pool->reserved = wanted;
}

void fake_pools_after_sync(void) {
    pthread_mutex_lock(&lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) shrink(pool, pool->threshold);
    pthread_mutex_unlock(&lock);
}

static CUresult async(CUdeviceptr *pointer, size_t bytes, struct pool *pool, CUstream stream) {
    struct CUstream_st *one = fake_stream(stream, false);
    if (one->capture == NULL) return from_pool(pointer, bytes, pool);
    one->capture->bytes += bytes;
    *pointer = 4096;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return async(pointer, bytes, &default_pool, stream);
}
FAKE_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return async(pointer, bytes, &default_pool, stream);
}
FAKE_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                          CUstream stream) {
    return async(pointer, bytes, (struct pool *)(void *)pool, stream);
}
FAKE_API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return fake_stream(stream, false)->capture != NULL ? CUDA_SUCCESS : release(pointer);
}
FAKE_API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    struct pool *made = calloc(1, sizeof *made);
    made->host = ((const int *)(const void *)properties)[2] != CU_MEM_LOCATION_TYPE_DEVICE;
    pthread_mutex_lock(&lock);
    made->next = default_pool.next;
    default_pool.next = made;
    pthread_mutex_unlock(&lock);
    *pool = (CUmemoryPool)(void *)made;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    struct pool *gone = (struct pool *)(void *)pool;
    pthread_mutex_lock(&lock);
    struct pool *before = &default_pool;
    while (before->next != gone) before = before->next;
    before->next = gone->next;
    pthread_mutex_unlock(&lock);
    if (!gone->host) fake_give(gone->reserved);
    free(gone);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    pthread_mutex_lock(&lock);
    shrink((struct pool *)(void *)pool, keep);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value) {
    pthread_mutex_lock(&lock);
    if ((int)which == 4) ((struct pool *)(void *)pool)->threshold = *(uint64_t *)value;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value) {
    struct pool *one = (struct pool *)(void *)pool;
    pthread_mutex_lock(&lock);
    *(uint64_t *)value = (int)which == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? one->reserved
                         : (int)which == CU_MEMPOOL_ATTR_USED_MEM_CURRENT   ? one->used
                                                                            : one->threshold;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    *pool = (CUmemoryPool)(void *)&default_pool;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return cuDeviceGetDefaultMemPool(pool, device);
}

/* ---- virtual memory ---- */

struct handle {
    uint64_t bytes;
    int refs, maps;
    bool host;
};
struct mapping {
    CUdeviceptr address;
    struct handle *handle;
};
static struct handle handles[TABLE];
static struct mapping mappings[TABLE];

/* The lock is held. */
static void settle(struct handle *handle) {
    if (handle->refs > 0 || handle->maps > 0) return;
    if (!handle->host) fake_give(handle->bytes);
    handle->bytes = 0;
}

FAKE_API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                              const CUmemAllocationProp *properties, unsigned long long flags) {
    bool host = properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    CUresult result = host ? CUDA_SUCCESS : fake_take(bytes);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    unsigned int i = 0;
    while (handles[i].bytes != 0) i++;
    handles[i] = (struct handle){bytes, 1, 0, host};
    pthread_mutex_unlock(&lock);
    *handle = i + 1;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&lock);
    struct handle *one = &handles[handle - 1];
    CUresult result = one->refs > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) one->refs--;
    settle(one);
    pthread_mutex_unlock(&lock);
    return result;
}
FAKE_API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
                                      CUdeviceptr wanted, unsigned long long flags) {
    pthread_mutex_lock(&lock);
    *pointer = next_address;
    next_address += up(bytes, POOL_GRANULE);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                           CUmemGenericAllocationHandle handle, unsigned long long flags) {
    pthread_mutex_lock(&lock);
    unsigned int i = 0;
    while (mappings[i].address != 0) i++;
    mappings[i] = (struct mapping){pointer, &handles[handle - 1]};
    handles[handle - 1].maps++;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < TABLE; i++)
        if (mappings[i].address >= pointer && mappings[i].address < pointer + bytes) {
            mappings[i].address = 0;
            mappings[i].handle->maps--;
            settle(mappings[i].handle);
        }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < TABLE; i++)
        if (mappings[i].address == (CUdeviceptr)(uintptr_t)address) {
            mappings[i].handle->refs++;
            *handle = (CUmemGenericAllocationHandle)(mappings[i].handle - handles + 1);
            result = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- arrays: 8-, 16- and 32-bit formats ---- */

static uint64_t volume(size_t width, size_t height, size_t depth, int format, unsigned int channels) {
    uint64_t bytes = format == 0x01 || format == 0x08                     ? 1
                     : format == 0x02 || format == 0x09 || format == 0x10 ? 2
                                                                          : 4;
    return (width ? width : 1) * (height ? height : 1) * (depth ? depth : 1) * bytes * channels;
}
static CUresult make_array(void **array, uint64_t bytes) {
    CUresult result = fake_take(bytes);
    if (result != CUDA_SUCCESS) return result;
    uint64_t *made = malloc(sizeof *made);
    *made = bytes;
    *array = made;
    return CUDA_SUCCESS;
}
static CUresult drop_array(void *array) {
    fake_give(*(uint64_t *)array);
    free(array);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted) {
    return make_array((void **)array, volume(wanted->Width, wanted->Height, 1, (int)wanted->Format,
                                             wanted->NumChannels));
}
FAKE_API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted) {
    return make_array((void **)array, volume(wanted->Width, wanted->Height, wanted->Depth,
                                             (int)wanted->Format, wanted->NumChannels));
}
FAKE_API CUresult cuArrayDestroy(CUarray array) { return drop_array(array); }
FAKE_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                         const CUDA_ARRAY3D_DESCRIPTOR *wanted,
                                         unsigned int levels) {
    uint64_t bytes = 0;
    for (unsigned int level = 0; level < levels; level++)
        bytes += volume(wanted->Width >> level, wanted->Height >> level, wanted->Depth >> level,
                        (int)wanted->Format, wanted->NumChannels);
    return make_array((void **)array, bytes);
}
FAKE_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) { return drop_array(array); }
