/* Linear memory and arrays. What an allocation surely takes is reserved before it; what it has taken
 * is charged after it; if that is more than the job may have, the allocation is undone. A small one
 * that fits into a block of others takes nothing, and asks nobody. */
#include "gpushare.h"

#define PITCH_GUESS 512u

GS_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
GS_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer);
GS_EXPORT CUresult cuArrayDestroy(CUarray array);
GS_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);

static uint64_t key_of(const void *handle) { return (uint64_t)(uintptr_t)handle; }

/* Begins an allocation; false: it is more than the job may have. */
static bool begin(uint64_t bytes, uint64_t *reserved) {
    *reserved = gs_shares_block(bytes) ? 0 : gs_whole_blocks(bytes);
    if (*reserved > 0) return gs_obtain(*reserved);
    gs_sharing_lock();
    return true;
}

/* Ends it: charges what was allocated. False: that is too much, and must be freed. */
static bool end(bool done, enum gs_kind kind, uint64_t key, uint64_t bytes, uint64_t reserved) {
    uint64_t growth = done ? gs_record(kind, key, bytes, gs_current_context()) : 0;
    bool fits = growth <= reserved || gs_obtain(growth - reserved);
    if (growth < reserved) gs_give_back(reserved - growth);
    /* A block that another thread has touched meanwhile stays in use. */
    if (!fits) gs_adjust(reserved, growth - gs_dispose(gs_detach(kind, key)));
    if (reserved == 0) gs_sharing_unlock();
    return fits;
}

static CUresult end_linear(CUresult result, CUdeviceptr *pointer, uint64_t bytes,
                           uint64_t reserved) {
    bool done = result == CUDA_SUCCESS;
    if (end(done, GS_KIND_POINTER, done ? *pointer : 0, bytes, reserved)) return result;
    GS_REAL(cuMemFree_v2)(*pointer);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

GS_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    uint64_t reserved;
    if (!begin(bytes, &reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuMemAlloc_v2)(pointer, bytes);
    return end_linear(result, pointer, bytes, reserved);
}

GS_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags);
GS_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    uint64_t reserved;
    if (!begin(bytes, &reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuMemAllocManaged)(pointer, bytes, flags);
    return end_linear(result, pointer, bytes, reserved);
}

/* The driver chooses the pitch: a usual one is reserved, the real one is charged. */
GS_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width,
                                      size_t height, unsigned int element);
GS_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width,
                                      size_t height, unsigned int element) {
    uint64_t reserved;
    uint64_t guess = (width + PITCH_GUESS - 1) / PITCH_GUESS * PITCH_GUESS * height;
    if (!begin(guess, &reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    uint64_t bytes = result == CUDA_SUCCESS ? (uint64_t)*pitch * height : 0;
    return end_linear(result, pointer, bytes, reserved);
}

/* An unknown pointer is the driver's business: imported, or allocated before there was a limit. */
GS_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct gs_entry *entry = gs_detach(GS_KIND_POINTER, pointer); /* another thread may get it next */
    CUresult result = GS_REAL(cuMemFree_v2)(pointer);
    if (result == CUDA_SUCCESS)
        gs_give_back(gs_dispose(entry));
    else
        gs_attach(entry);
    return result;
}

/* ---- arrays ---- */

struct format {
    int first, last;
    unsigned int bytes;
};

/* Bytes of one channel; CUarray_format of cuda.h. Block formats and formats that are not here count
 * 4, which is the most that any of them needs for a channel. */
static const struct format formats[] = {
    {0x01, 0x01, 1}, {0x02, 0x02, 2}, {0x03, 0x03, 4}, {0x08, 0x08, 1}, {0x09, 0x09, 2},
    {0x0a, 0x0a, 4}, {0x10, 0x10, 2}, {0x20, 0x20, 4}, {0x91, 0x9e, 1}, {0xb0, 0xb0, 2},
    {0xc0, 0xc2, 1}, {0xc3, 0xc5, 2}, {0xc6, 0xc8, 1}, {0xc9, 0xcb, 2},
};

static uint64_t element_bytes(int format, unsigned int channels) {
    uint64_t bytes = 4;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (format >= formats[i].first && format <= formats[i].last) bytes = formats[i].bytes;
    return bytes * (channels > 0 ? channels : 1);
}

static uint64_t atleast1(size_t number) { return number > 0 ? number : 1; }

static uint64_t volume(size_t width, size_t height, size_t depth) {
    return atleast1(width) * atleast1(height) * atleast1(depth);
}

static CUresult end_array(CUresult result, CUarray *array, uint64_t bytes, uint64_t reserved) {
    bool done = result == CUDA_SUCCESS;
    if (end(done, GS_KIND_ARRAY, done ? key_of(*array) : 0, bytes, reserved)) return result;
    GS_REAL(cuArrayDestroy)(*array);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

GS_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted);
GS_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted) {
    uint64_t reserved;
    if (wanted == NULL) return GS_REAL(cuArrayCreate_v2)(array, wanted);
    uint64_t bytes = volume(wanted->Width, wanted->Height, 1) *
                     element_bytes((int)wanted->Format, wanted->NumChannels);
    if (!begin(bytes, &reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuArrayCreate_v2)(array, wanted);
    return end_array(result, array, bytes, reserved);
}

GS_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted);
GS_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted) {
    uint64_t reserved;
    if (wanted == NULL) return GS_REAL(cuArray3DCreate_v2)(array, wanted);
    uint64_t bytes = volume(wanted->Width, wanted->Height, wanted->Depth) *
                     element_bytes((int)wanted->Format, wanted->NumChannels);
    if (!begin(bytes, &reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuArray3DCreate_v2)(array, wanted);
    return end_array(result, array, bytes, reserved);
}

#define GS_ARRAY_DESTROY(name, type)                                        \
    GS_EXPORT CUresult name(type array) {                                   \
        struct gs_entry *entry = gs_detach(GS_KIND_ARRAY, key_of(array));   \
        CUresult result = GS_REAL(name)(array);                             \
        if (result == CUDA_SUCCESS)                                         \
            gs_give_back(gs_dispose(entry));                                \
        else                                                                \
            gs_attach(entry);                                               \
        return result;                                                      \
    }

GS_ARRAY_DESTROY(cuArrayDestroy, CUarray)
GS_ARRAY_DESTROY(cuMipmappedArrayDestroy, CUmipmappedArray)

GS_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                          const CUDA_ARRAY3D_DESCRIPTOR *wanted,
                                          unsigned int levels);
GS_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                          const CUDA_ARRAY3D_DESCRIPTOR *wanted,
                                          unsigned int levels) {
    uint64_t bytes = 0, reserved;
    if (wanted == NULL) return GS_REAL(cuMipmappedArrayCreate)(array, wanted, levels);
    for (unsigned int level = 0; level < levels && level < 32; level++)
        bytes += volume(wanted->Width >> level, wanted->Height >> level, wanted->Depth >> level) *
                 element_bytes((int)wanted->Format, wanted->NumChannels);
    if (!begin(bytes, &reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuMipmappedArrayCreate)(array, wanted, levels);
    bool done = result == CUDA_SUCCESS;
    if (end(done, GS_KIND_ARRAY, done ? key_of(*array) : 0, bytes, reserved)) return result;
    GS_REAL(cuMipmappedArrayDestroy)(*array);
    return CUDA_ERROR_OUT_OF_MEMORY;
}
