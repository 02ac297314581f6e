/* Loads of code: the driver compiles and copies for seconds, and runs nothing meanwhile. */
#include "gpushare.h"

_Atomic uint32_t gs_loads;

#define GS_LOAD(name, parameters, arguments)       \
    GS_EXPORT CUresult name parameters;            \
    GS_EXPORT CUresult name parameters {           \
        atomic_fetch_add(&gs_loads, 1);            \
        CUresult result = GS_REAL(name) arguments; \
        atomic_fetch_sub(&gs_loads, 1);            \
        return result;                             \
    }

#define GS_LIBRARY_OPTIONS                                                                        \
    CUjit_option *jit, void **jit_values, unsigned int jit_count, CUlibraryOption *options,       \
        void **values, unsigned int count

GS_LOAD(cuModuleLoad, (CUmodule * module, const char *path), (module, path))
GS_LOAD(cuModuleLoadData, (CUmodule * module, const void *image), (module, image))
GS_LOAD(cuModuleLoadDataEx,
        (CUmodule * module, const void *image, unsigned int count, CUjit_option *options,
         void **values),
        (module, image, count, options, values))
GS_LOAD(cuModuleLoadFatBinary, (CUmodule * module, const void *image), (module, image))
GS_LOAD(cuLibraryLoadData, (CUlibrary * library, const void *code, GS_LIBRARY_OPTIONS),
        (library, code, jit, jit_values, jit_count, options, values, count))
GS_LOAD(cuLibraryLoadFromFile, (CUlibrary * library, const char *path, GS_LIBRARY_OPTIONS),
        (library, path, jit, jit_values, jit_count, options, values, count))
