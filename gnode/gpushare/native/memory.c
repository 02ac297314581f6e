/* Linear memory and arrays: reserve, allocate, and undo the reservation if the driver refuses. */
#include "gpushare.h"

#define PITCH_GUESS 512u

static uint64_t key_of(const void *handle) { return (uint64_t)(uintptr_t)handle; }

GS_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
GS_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    if (!gs_reserve(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuMemAlloc_v2)(pointer, bytes);
    if (result == CUDA_SUCCESS)
        gs_record(GS_KIND_POINTER, *pointer, bytes, gs_current_context());
    else
        gs_give_back(bytes);
    return result;
}

GS_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags);
GS_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    if (!gs_reserve(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuMemAllocManaged)(pointer, bytes, flags);
    if (result == CUDA_SUCCESS)
        gs_record(GS_KIND_POINTER, *pointer, bytes, gs_current_context());
    else
        gs_give_back(bytes);
    return result;
}

/* The driver chooses the pitch: a usual one is reserved, the real one is charged. */
GS_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width,
                                      size_t height, unsigned int element);
GS_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width,
                                      size_t height, unsigned int element) {
    uint64_t guess = (width + PITCH_GUESS - 1) / PITCH_GUESS * PITCH_GUESS * height;
    if (!gs_reserve(guess)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    if (result != CUDA_SUCCESS) {
        gs_give_back(guess);
        return result;
    }
    uint64_t real = (uint64_t)*pitch * height;
    gs_adjust(guess, real);
    gs_record(GS_KIND_POINTER, *pointer, real, gs_current_context());
    return result;
}

/* An unknown pointer is the driver's business: imported, or allocated before there was a limit. */
GS_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer);
GS_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    uint64_t bytes = gs_take(GS_KIND_POINTER, pointer); /* before another thread gets the address */
    CUcontext context = bytes > 0 ? gs_current_context() : NULL;
    CUresult result = GS_REAL(cuMemFree_v2)(pointer);
    if (result == CUDA_SUCCESS)
        gs_give_back(bytes);
    else if (bytes > 0)
        gs_record(GS_KIND_POINTER, pointer, bytes, context);
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

GS_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted);
GS_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted) {
    if (wanted == NULL) return GS_REAL(cuArrayCreate_v2)(array, wanted);
    uint64_t bytes = volume(wanted->Width, wanted->Height, 1) *
                     element_bytes((int)wanted->Format, wanted->NumChannels);
    if (!gs_reserve(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuArrayCreate_v2)(array, wanted);
    if (result == CUDA_SUCCESS)
        gs_record(GS_KIND_ARRAY, key_of(*array), bytes, gs_current_context());
    else
        gs_give_back(bytes);
    return result;
}

GS_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted);
GS_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted) {
    if (wanted == NULL) return GS_REAL(cuArray3DCreate_v2)(array, wanted);
    uint64_t bytes = volume(wanted->Width, wanted->Height, wanted->Depth) *
                     element_bytes((int)wanted->Format, wanted->NumChannels);
    if (!gs_reserve(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuArray3DCreate_v2)(array, wanted);
    if (result == CUDA_SUCCESS)
        gs_record(GS_KIND_ARRAY, key_of(*array), bytes, gs_current_context());
    else
        gs_give_back(bytes);
    return result;
}

GS_EXPORT CUresult cuArrayDestroy(CUarray array);
GS_EXPORT CUresult cuArrayDestroy(CUarray array) {
    uint64_t bytes = gs_take(GS_KIND_ARRAY, key_of(array));
    CUresult result = GS_REAL(cuArrayDestroy)(array);
    if (result == CUDA_SUCCESS)
        gs_give_back(bytes);
    else if (bytes > 0)
        gs_record(GS_KIND_ARRAY, key_of(array), bytes, gs_current_context());
    return result;
}

GS_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                          const CUDA_ARRAY3D_DESCRIPTOR *wanted,
                                          unsigned int levels);
GS_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                          const CUDA_ARRAY3D_DESCRIPTOR *wanted,
                                          unsigned int levels) {
    if (wanted == NULL) return GS_REAL(cuMipmappedArrayCreate)(array, wanted, levels);
    uint64_t bytes = 0;
    for (unsigned int level = 0; level < levels && level < 32; level++)
        bytes += volume(wanted->Width >> level, wanted->Height >> level, wanted->Depth >> level) *
                 element_bytes((int)wanted->Format, wanted->NumChannels);
    if (!gs_reserve(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GS_REAL(cuMipmappedArrayCreate)(array, wanted, levels);
    if (result == CUDA_SUCCESS)
        gs_record(GS_KIND_MIPMAP, key_of(*array), bytes, gs_current_context());
    else
        gs_give_back(bytes);
    return result;
}

GS_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);
GS_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    uint64_t bytes = gs_take(GS_KIND_MIPMAP, key_of(array));
    CUresult result = GS_REAL(cuMipmappedArrayDestroy)(array);
    if (result == CUDA_SUCCESS)
        gs_give_back(bytes);
    else if (bytes > 0)
        gs_record(GS_KIND_MIPMAP, key_of(array), bytes, gs_current_context());
    return result;
}
