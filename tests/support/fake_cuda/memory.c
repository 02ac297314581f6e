/* Allocations of all families, each as NVIDIA's documentation describes it: what it takes from the
 * device's counter is what a driver would take, which is more than the program has asked for. */
#include "fake.h"

#include <stdlib.h>

#define BLOCK (2u << 20) /* what linear memory and pools take at once */
#define SMALL (1u << 20) /* up to here several allocations share a block */
#define ALIGNMENT 512u
#define PITCH 512u
#define TABLE 16384u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr next_address = 0x7f0000000000;

static uint64_t up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

/* The lock is held. Addresses of different owners never share a block. */
static CUdeviceptr new_addresses(uint64_t bytes) {
    CUdeviceptr address = next_address;
    next_address += up(bytes, BLOCK);
    return address;
}

/* ---- linear memory: small allocations share blocks, large ones have blocks of their own ---- */

struct slab {
    CUdeviceptr address;
    uint64_t filled; /* the last place is used again, another one when all are free */
    uint32_t live;
    struct slab *next;
};

struct pool;

struct block { /* one address, with an owner if it is of a pool or shares a block */
    CUdeviceptr address;
    uint64_t bytes;
    struct pool *pool;
    struct slab *slab;
};

static struct block blocks[TABLE];
static struct slab *slabs;

/* The lock is held. */
static CUresult add_block(struct block block) {
    for (unsigned int i = 0; i < TABLE; i++)
        if (blocks[i].address == 0) {
            blocks[i] = block;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_UNKNOWN;
}

/* The lock is held. NULL: the device is full. */
static struct slab *slab_with(uint64_t bytes) {
    struct slab *slab = slabs;
    while (slab != NULL && slab->filled + bytes > BLOCK) slab = slab->next;
    if (slab != NULL || fake_take(BLOCK) != CUDA_SUCCESS) return slab;
    slab = calloc(1, sizeof *slab);
    slab->address = new_addresses(BLOCK);
    slab->next = slabs;
    slabs = slab;
    return slab;
}

/* The lock is held. */
static void leave_slab(struct slab *slab, const struct block *block) {
    uint64_t bytes = up(block->bytes, ALIGNMENT);
    if (block->address + bytes == slab->address + slab->filled) slab->filled -= bytes;
    if (--slab->live > 0) return;
    struct slab **place = &slabs;
    while (*place != slab) place = &(*place)->next;
    *place = slab->next;
    free(slab);
    fake_give(BLOCK);
}

/* Not observed by a recording, so that it is potentially unsafe beside one. */
static CUresult plain(CUdeviceptr *address, uint64_t bytes) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_unsafe();
    if (result != CUDA_SUCCESS) return result;
    struct slab *slab = NULL;
    pthread_mutex_lock(&lock);
    if (bytes <= SMALL) {
        slab = slab_with(up(bytes, ALIGNMENT));
        if (slab == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            *address = slab->address + slab->filled;
            slab->filled += up(bytes, ALIGNMENT);
            slab->live++;
        }
    } else {
        result = fake_take(up(bytes, BLOCK));
        if (result == CUDA_SUCCESS) *address = new_addresses(bytes);
    }
    if (result == CUDA_SUCCESS) result = add_block((struct block){*address, bytes, NULL, slab});
    pthread_mutex_unlock(&lock);
    return result;
}

/* The lock is held. */
static void drop_linear(const struct block *block) {
    if (block->slab != NULL)
        leave_slab(block->slab, block);
    else
        fake_give(up(block->bytes, BLOCK));
}

void fake_memory_reset(void) {
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < TABLE; i++)
        if (blocks[i].address != 0 && blocks[i].pool == NULL) {
            drop_linear(&blocks[i]);
            blocks[i].address = 0;
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

/* ---- pools of stream-ordered memory ----
 *
 * A free is an operation of its stream: until the stream has come to it, the memory is for later
 * work of the same stream only. Other streams may have it once the stream has passed ("reuse of
 * already completed frees"). It goes back to the system when the host has seen the free's end, by a
 * synchronisation: at once down to the release threshold, which is 0, or by cuMemPoolTrimTo. When
 * the system has no memory, a stream waits for a free of another one. GSCHED_FAKE_USED_LATE: memory
 * counts as in use until the host has seen its free; the documentation allows both. */

struct freed {
    struct CUstream_st *stream;
    uint64_t when_ns, bytes;
    struct freed *next;
};

struct pool {
    uint64_t reserved, used, threshold;
    struct freed *freed; /* whose end the host has not seen */
    bool host;
    struct pool *next;
};

static struct pool default_pool, *pools = &default_pool;

static uint64_t granule(void) { return (uint64_t)fake_number("GSCHED_FAKE_POOL_GRANULE", BLOCK); }

/* The lock is held, here and below. */
static uint64_t unseen(const struct pool *pool) {
    uint64_t bytes = 0;
    for (const struct freed *one = pool->freed; one != NULL; one = one->next) bytes += one->bytes;
    return bytes;
}

static bool is_usable(const struct freed *one, struct CUstream_st *stream) {
    return one->stream == stream || one->when_ns <= fake_now_ns();
}

/* Uses memory that was freed; returns the bytes that are still wanted. `all`: also of streams that
 * have not come to the free, for which this one then waits. */
static uint64_t use_again(struct pool *pool, uint64_t bytes, struct CUstream_st *stream, bool all) {
    for (struct freed **place = &pool->freed; *place != NULL && bytes > 0;) {
        struct freed *one = *place;
        if (!all && !is_usable(one, stream)) {
            place = &one->next;
            continue;
        }
        uint64_t taken = one->bytes < bytes ? one->bytes : bytes;
        bytes -= taken;
        one->bytes -= taken;
        if (all && one->when_ns > atomic_load(&stream->free_ns))
            atomic_store(&stream->free_ns, one->when_ns);
        if (one->bytes > 0) continue;
        *place = one->next;
        free(one);
    }
    return bytes;
}

static CUresult from_pool(CUdeviceptr *pointer, uint64_t bytes, struct pool *pool,
                          struct CUstream_st *stream) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    uint64_t unused = pool->reserved - pool->used - unseen(pool);
    uint64_t wanted = bytes > unused ? use_again(pool, bytes - unused, stream, false) : 0;
    uint64_t more = up(wanted, granule());
    if (more > 0 && !pool->host && fake_take(more) != CUDA_SUCCESS) {
        if (unseen(pool) < wanted)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        else
            use_again(pool, wanted, stream, true);
        more = 0;
    }
    pool->reserved += more;
    if (result == CUDA_SUCCESS) {
        pool->used += bytes;
        *pointer = new_addresses(bytes);
        result = add_block((struct block){*pointer, bytes, pool, NULL});
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static void shrink(struct pool *pool, uint64_t keep) {
    uint64_t wanted = up(pool->used + unseen(pool), BLOCK);
    if (wanted < keep) wanted = keep;
    if (wanted >= pool->reserved) return;
    if (!pool->host) fake_give(pool->reserved - wanted);
    pool->reserved = wanted;
}

/* The host has waited for this stream; NULL: for all. */
void fake_pools_after_sync(struct CUstream_st *stream) {
    pthread_mutex_lock(&lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        for (struct freed **place = &pool->freed; *place != NULL;) {
            struct freed *one = *place;
            if ((stream != NULL && one->stream != stream) || one->when_ns > fake_now_ns()) {
                place = &one->next;
                continue;
            }
            *place = one->next;
            free(one);
        }
        shrink(pool, pool->threshold);
    }
    pthread_mutex_unlock(&lock);
}

/* Frees at once, or where `stream` comes to it. */
static CUresult release(CUdeviceptr address, struct CUstream_st *stream) {
    if (address == 0) return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < TABLE; i++) {
        if (blocks[i].address != address) continue;
        struct block found = blocks[i];
        blocks[i].address = 0;
        if (found.pool == NULL) {
            drop_linear(&found);
        } else {
            found.pool->used -= found.bytes;
            if (stream != NULL) {
                struct freed *one = malloc(sizeof *one);
                uint64_t now = fake_now_ns(), end = atomic_load(&stream->free_ns);
                *one = (struct freed){stream, end > now ? end : now, found.bytes, found.pool->freed};
                found.pool->freed = one;
            }
        }
        pthread_mutex_unlock(&lock);
        return CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CUresult refused = fake_unsafe();
    return refused != CUDA_SUCCESS ? refused : release(pointer, NULL);
}

static CUresult async(CUdeviceptr *pointer, size_t bytes, struct pool *pool,
                      struct CUstream_st *stream) {
    if (stream->capture == NULL) return from_pool(pointer, bytes, pool, stream);
    *pointer = fake_graph_alloc(stream->capture, bytes);
    return CUDA_SUCCESS;
}
static CUresult free_async(CUdeviceptr pointer, struct CUstream_st *stream) {
    if (stream->capture == NULL) return release(pointer, stream);
    fake_graph_free(stream->capture, pointer);
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return async(pointer, bytes, &default_pool, fake_stream(stream, false));
}
FAKE_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return async(pointer, bytes, &default_pool, fake_stream(stream, true));
}
FAKE_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                          CUstream stream) {
    return async(pointer, bytes, (struct pool *)(void *)pool, fake_stream(stream, false));
}
FAKE_API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return free_async(pointer, fake_stream(stream, false));
}
FAKE_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return free_async(pointer, fake_stream(stream, true));
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
    while (gone->freed != NULL) {
        struct freed *one = gone->freed;
        gone->freed = one->next;
        free(one);
    }
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
    uint64_t used = one->used + (fake_number("GSCHED_FAKE_USED_LATE", 0) ? unseen(one) : 0);
    *(uint64_t *)value = (int)which == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? one->reserved
                         : (int)which == CU_MEMPOOL_ATTR_USED_MEM_CURRENT   ? used
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
    uint64_t bytes;
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
    next_address += up(bytes, BLOCK);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                           CUmemGenericAllocationHandle handle, unsigned long long flags) {
    pthread_mutex_lock(&lock);
    unsigned int i = 0;
    while (mappings[i].address != 0) i++;
    mappings[i] = (struct mapping){pointer, bytes, &handles[handle - 1]};
    handles[handle - 1].maps++;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
/* Only whole mappings that fill the range. */
FAKE_API CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    uint64_t mapped = 0;
    fake_sleep_until(fake_now_ns() + (uint64_t)fake_number("GSCHED_FAKE_UNMAP_MS", 0) * 1000000u);
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < TABLE; i++)
        if (mappings[i].address >= pointer && mappings[i].address < pointer + bytes)
            mapped += mappings[i].bytes;
    for (unsigned int i = 0; i < TABLE && mapped == bytes; i++)
        if (mappings[i].address >= pointer && mappings[i].address < pointer + bytes) {
            mappings[i].address = 0;
            mappings[i].handle->maps--;
            settle(mappings[i].handle);
        }
    pthread_mutex_unlock(&lock);
    return mapped == bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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

/* ---- arrays: 8-, 16- and 32-bit formats; their widest extents are those of current devices ---- */

struct extent {
    size_t width, height, depth;
};
static const struct extent one_dimension = {131072, 0, 0}, two_dimensions = {131072, 65536, 0},
                           three_dimensions = {16384, 16384, 16384};
static const struct extent mipmap_one = {32768, 0, 0}, mipmap_two = {32768, 32768, 0};

static bool fits(size_t width, size_t height, size_t depth, const struct extent *most) {
    return width >= 1 && width <= most->width && height <= most->height && depth <= most->depth;
}
static uint64_t volume(size_t width, size_t height, size_t depth, int format, unsigned int channels) {
    uint64_t bytes = format == 0x01 || format == 0x08                     ? 1
                     : format == 0x02 || format == 0x09 || format == 0x10 ? 2
                                                                          : 4;
    return (width ? width : 1) * (height ? height : 1) * (depth ? depth : 1) * bytes * channels;
}
static CUresult make_array(void **array, uint64_t bytes) {
    CUresult result = fake_unsafe();
    if (result == CUDA_SUCCESS) result = fake_take(up(bytes, bytes > SMALL ? BLOCK : ALIGNMENT));
    if (result != CUDA_SUCCESS) return result;
    uint64_t *made = malloc(sizeof *made);
    *made = up(bytes, bytes > SMALL ? BLOCK : ALIGNMENT);
    *array = made;
    return CUDA_SUCCESS;
}
static CUresult drop_array(void *array) {
    CUresult refused = fake_unsafe();
    if (refused != CUDA_SUCCESS) return refused;
    fake_give(*(uint64_t *)array);
    free(array);
    return CUDA_SUCCESS;
}
static const struct extent *extent_of(size_t height, size_t depth) {
    return depth > 0 ? &three_dimensions : height > 0 ? &two_dimensions : &one_dimension;
}
FAKE_API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted) {
    if (!fits(wanted->Width, wanted->Height, 0, extent_of(wanted->Height, 0)))
        return CUDA_ERROR_INVALID_VALUE;
    return make_array((void **)array, volume(wanted->Width, wanted->Height, 1, (int)wanted->Format,
                                             wanted->NumChannels));
}
FAKE_API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted) {
    if (!fits(wanted->Width, wanted->Height, wanted->Depth,
              extent_of(wanted->Height, wanted->Depth)))
        return CUDA_ERROR_INVALID_VALUE;
    return make_array((void **)array, volume(wanted->Width, wanted->Height, wanted->Depth,
                                             (int)wanted->Format, wanted->NumChannels));
}
FAKE_API CUresult cuArrayDestroy(CUarray array) { return drop_array(array); }
FAKE_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                         const CUDA_ARRAY3D_DESCRIPTOR *wanted,
                                         unsigned int levels) {
    uint64_t bytes = 0;
    const struct extent *most = wanted->Depth > 0    ? &three_dimensions
                                : wanted->Height > 0 ? &mipmap_two
                                                     : &mipmap_one;
    if (!fits(wanted->Width, wanted->Height, wanted->Depth, most)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int level = 0; level < levels; level++)
        bytes += volume(wanted->Width >> level, wanted->Height >> level, wanted->Depth >> level,
                        (int)wanted->Format, wanted->NumChannels);
    return make_array((void **)array, bytes);
}
FAKE_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) { return drop_array(array); }
