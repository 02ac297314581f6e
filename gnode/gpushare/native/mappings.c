/* Virtual memory management. The memory of a handle lives until neither a reference to the handle
 * nor a mapping of it is left. */
#include "gpushare.h"

#define RETIRED (1ull << 63) /* handles that the driver may give out again */

static uint64_t retired;

/* The table's lock is held. Returns bytes to give back. */
static uint64_t settle(struct gs_entry *handle) {
    if (handle->refs > 0 || handle->maps > 0) return 0;
    uint64_t bytes = handle->bytes;
    gs_table_remove(handle);
    return bytes;
}

struct move {
    uint64_t from, to;
};

static bool rename_mapping(struct gs_entry *entry, void *argument) {
    struct move *move = argument;
    if (entry->kind == GS_KIND_MAPPING && entry->handle == move->from) entry->handle = move->to;
    return true;
}

GS_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                               const CUmemAllocationProp *properties, unsigned long long flags);
GS_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                               const CUmemAllocationProp *properties, unsigned long long flags) {
    bool counts = properties != NULL && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (counts && !gs_reserve(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (!counts) return result;
    if (result != CUDA_SUCCESS) {
        gs_give_back(bytes);
        return result;
    }
    gs_table_lock();
    struct gs_entry *old = gs_table_find(GS_KIND_HANDLE, *handle);
    if (old != NULL) { /* only mapped any more, and its number is in use again */
        struct move move = {old->key, RETIRED | ++retired};
        gs_table_rename(old, move.to);
        gs_table_each(rename_mapping, &move);
    }
    struct gs_entry *entry = gs_table_add(GS_KIND_HANDLE, *handle, bytes, NULL);
    if (entry != NULL) entry->refs = 1;
    gs_table_unlock();
    return result;
}

GS_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
GS_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    uint64_t bytes = 0;
    gs_table_lock(); /* around the call: another thread may get the number next */
    CUresult result = GS_REAL(cuMemRelease)(handle);
    struct gs_entry *entry = gs_table_find(GS_KIND_HANDLE, handle);
    if (result == CUDA_SUCCESS && entry != NULL && entry->refs > 0) {
        entry->refs--;
        bytes = settle(entry);
    }
    gs_table_unlock();
    gs_give_back(bytes);
    return result;
}

GS_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
GS_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                               void *address) {
    gs_table_lock();
    CUresult result = GS_REAL(cuMemRetainAllocationHandle)(handle, address);
    struct gs_entry *entry =
        result == CUDA_SUCCESS ? gs_table_find(GS_KIND_HANDLE, *handle) : NULL;
    if (entry != NULL) entry->refs++;
    gs_table_unlock();
    return result;
}

GS_EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags);
GS_EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags) {
    gs_table_lock();
    CUresult result = GS_REAL(cuMemMap)(pointer, bytes, offset, handle, flags);
    struct gs_entry *entry =
        result == CUDA_SUCCESS ? gs_table_find(GS_KIND_HANDLE, handle) : NULL;
    struct gs_entry *mapping =
        entry != NULL ? gs_table_add(GS_KIND_MAPPING, pointer, 0, NULL) : NULL;
    if (mapping != NULL) {
        mapping->handle = handle;
        entry->maps++;
    }
    gs_table_unlock();
    return result;
}

struct unmap {
    CUdeviceptr from, to;
    uint64_t bytes;
};

/* Handles are settled by the caller: the walk must not remove other entries than the one it is at. */
static bool outside(struct gs_entry *entry, void *argument) {
    struct unmap *unmap = argument;
    if (entry->kind != GS_KIND_MAPPING || entry->key < unmap->from || entry->key >= unmap->to)
        return true;
    struct gs_entry *handle = gs_table_find(GS_KIND_HANDLE, entry->handle);
    if (handle != NULL && handle->maps > 0) handle->maps--;
    return false;
}

static bool in_use(struct gs_entry *entry, void *argument) {
    struct unmap *unmap = argument;
    if (entry->kind != GS_KIND_HANDLE || entry->refs > 0 || entry->maps > 0) return true;
    unmap->bytes += entry->bytes;
    return false;
}

GS_EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes);
GS_EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    struct unmap unmap = {.from = pointer, .to = pointer + bytes};
    gs_table_lock();
    CUresult result = GS_REAL(cuMemUnmap)(pointer, bytes);
    if (result == CUDA_SUCCESS) {
        gs_table_each(outside, &unmap);
        gs_table_each(in_use, &unmap);
    }
    gs_table_unlock();
    gs_give_back(unmap.bytes);
    return result;
}
