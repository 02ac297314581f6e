/* Virtual memory management. The memory of a handle lives until neither a reference to the handle
 * nor a mapping of it is left. The driver is called without the table's lock, as a call for many
 * gigabytes takes long: what a call ends is taken out of the table before it, and put back if the
 * driver refuses, so that another thread that gets the same number or address next finds a free one. */
#include <stdlib.h>

#include "gpushare.h"

#define RETIRED (1ull << 63) /* handles that the driver may give out again */

static uint64_t retired;

/* The table's lock is held. Returns bytes to give back. */
static uint64_t settle(struct gs_entry *handle) {
    if (handle->refs > 0 || handle->maps > 0 || handle->calls > 0) return 0;
    uint64_t bytes = handle->bytes;
    gs_table_pull(handle);
    free(handle);
    return bytes;
}

/* A handle for the time of a call; NULL: it is not known, as it is imported or of host memory. */
static struct gs_entry *enter(CUmemGenericAllocationHandle handle, int refs, int maps) {
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(GS_KIND_HANDLE, handle);
    if (entry != NULL && refs < 0 && entry->refs == 0) entry = NULL; /* released already */
    if (entry != NULL) {
        entry->refs += (uint32_t)refs;
        entry->maps += (uint32_t)maps;
        entry->calls++;
    }
    gs_table_unlock();
    return entry;
}

/* The end of the call, with what it did not do after all. */
static void leave(struct gs_entry *entry, int refs, int maps) {
    if (entry == NULL) return;
    gs_table_lock();
    entry->refs += (uint32_t)refs;
    entry->maps += (uint32_t)maps;
    entry->calls--;
    uint64_t bytes = settle(entry);
    gs_table_unlock();
    gs_give_back(bytes);
}

GS_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                               const CUmemAllocationProp *properties, unsigned long long flags);
GS_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                               const CUmemAllocationProp *properties, unsigned long long flags) {
    bool counts = properties != NULL && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (counts && !gs_obtain(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (!counts) return result;
    if (result != CUDA_SUCCESS) {
        gs_give_back(bytes);
        return result;
    }
    gs_table_lock();
    struct gs_entry *old = gs_table_find(GS_KIND_HANDLE, *handle);
    if (old != NULL) { /* only mapped any more, and its number is in use again */
        gs_table_pull(old);
        old->key = RETIRED | ++retired;
        gs_table_put(old);
    }
    struct gs_entry *entry = gs_table_add(GS_KIND_HANDLE, *handle, bytes, NULL);
    if (entry != NULL) entry->refs = 1;
    gs_table_unlock();
    return result;
}

GS_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
GS_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct gs_entry *entry = enter(handle, -1, 0);
    CUresult result = GS_REAL(cuMemRelease)(handle);
    leave(entry, result == CUDA_SUCCESS ? 0 : 1, 0);
    return result;
}

/* Of memory that was released the handle is another one, perhaps with another number. */
GS_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
GS_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                               void *address) {
    CUresult result = GS_REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result != CUDA_SUCCESS) return result;
    gs_table_lock();
    struct gs_entry *mapping = gs_table_find(GS_KIND_MAPPING, (uint64_t)(uintptr_t)address);
    struct gs_entry *entry =
        mapping != NULL ? mapping->handle : gs_table_find(GS_KIND_HANDLE, *handle);
    if (entry != NULL) {
        entry->refs++;
        gs_table_pull(entry);
        entry->key = *handle;
        gs_table_put(entry);
    }
    gs_table_unlock();
    return result;
}

GS_EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags);
GS_EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags) {
    struct gs_entry *entry = enter(handle, 0, 1);
    CUresult result = GS_REAL(cuMemMap)(pointer, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS) {
        gs_table_lock();
        struct gs_entry *mapping = gs_table_add(GS_KIND_MAPPING, pointer, bytes, NULL);
        if (mapping != NULL) mapping->handle = entry;
        gs_table_unlock();
    }
    leave(entry, 0, result == CUDA_SUCCESS ? 0 : -1);
    return result;
}

/* Takes the mappings of a range out of the table, in a list. Only whole mappings can be unmapped, so
 * each begins where the one before it ends. The lock is held. */
static struct gs_entry *mappings_of(CUdeviceptr from, CUdeviceptr to) {
    struct gs_entry *list = NULL;
    while (from < to) {
        struct gs_entry *entry = gs_table_find(GS_KIND_MAPPING, from);
        if (entry == NULL || entry->bytes == 0) break; /* the driver refuses a range with holes */
        gs_table_pull(entry);
        entry->next = list;
        list = entry;
        from += entry->bytes;
    }
    return list;
}

GS_EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes);
GS_EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    uint64_t freed = 0;
    gs_table_lock();
    struct gs_entry *list = mappings_of(pointer, pointer + bytes);
    gs_table_unlock();
    CUresult result = GS_REAL(cuMemUnmap)(pointer, bytes);
    gs_table_lock();
    while (list != NULL) {
        struct gs_entry *mapping = list;
        list = mapping->next;
        if (result != CUDA_SUCCESS) {
            gs_table_put(mapping);
            continue;
        }
        if (mapping->handle != NULL) {
            mapping->handle->maps--;
            freed += settle(mapping->handle);
        }
        free(mapping);
    }
    gs_table_unlock();
    gs_give_back(freed);
    return result;
}
