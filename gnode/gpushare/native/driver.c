/* The real driver: found once, opened by its absolute path, its functions looked up when used. */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpushare.h"

void *gs_real[GS_SYMBOLS];

const char *const gs_names[GS_SYMBOLS] = {
#define GS_SYMBOL(index, name, base, version, flags, kind) [index] = #name,
#include "symbols.inc"
#undef GS_SYMBOL
};

static const char *const usual_places[] = {
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/libcuda.so.1",
};

static void *_Atomic driver;
static __thread bool loading __attribute__((tls_model("initial-exec")));

static CUresult no_device(void) { return CUDA_ERROR_NO_DEVICE; }
static CUresult not_found(void) { return CUDA_ERROR_NOT_FOUND; }

static const char *driver_path(void) {
    const char *given = getenv("GSCHED_REAL_LIBCUDA");
    if (given != NULL && given[0] == '/') return given;
    for (size_t i = 0; i < sizeof usual_places / sizeof usual_places[0]; i++)
        if (access(usual_places[i], R_OK) == 0) return usual_places[i];
    return NULL;
}

/* Newer drivers look themselves up while their constructors run, in the thread that opens them: it
 * must not wait for itself. Two threads may both open it, since the loader counts references. */
void *gs_driver(void) {
    void *handle = atomic_load_explicit(&driver, memory_order_acquire);
    if (handle != NULL) return handle;
    const char *path = driver_path();
    if (path == NULL) return NULL;
    if (loading) return dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    loading = true;
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    loading = false;
    if (handle == NULL)
        gs_say("the CUDA driver %s cannot be loaded: %s", path, dlerror());
    else
        atomic_store_explicit(&driver, handle, memory_order_release);
    return handle;
}

void *gs_resolve(unsigned int index) {
    void *handle = gs_driver();
    if (handle == NULL) return (void *)no_device; /* looked for again: it may be being loaded */
    void *function = dlsym(handle, gs_names[index]);
    if (function == NULL) function = (void *)not_found; /* an older driver */
    if (atomic_load_explicit(&driver, memory_order_relaxed) == NULL) return function;
    if (__atomic_load_n(&gs_real[index], __ATOMIC_RELAXED) == NULL) gs_note_use(index);
    __atomic_store_n(&gs_real[index], function, __ATOMIC_RELEASE);
    return function;
}
