/* A program in a container that uses its share of a GPU by the driver's library, and tells. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *driver;

/* Entry points have different arguments; all of these fit into registers. */
#define CALL(name, ...) ((int (*)())dlsym(driver, name))(__VA_ARGS__)

static const char *value(const char *name)
{
    const char *found = getenv(name);
    return found == NULL ? "" : found;
}

int main(void)
{
    size_t total = 0, mib = 1 << 20;
    unsigned long long pointer = 0;
    void *context = NULL;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        printf("no driver: %s\n", dlerror());
        return 3;
    }
    printf("init %d\n", CALL("cuInit", 0));
    CALL("cuDevicePrimaryCtxRetain", &context, 0);
    CALL("cuCtxSetCurrent", context);
    CALL("cuDeviceTotalMem_v2", &total, 0);
    printf("total %zu\n", total / mib);
    printf("too much %d\n", CALL("cuMemAlloc_v2", &pointer, 65 * mib));
    printf("enough %d\n", CALL("cuMemAlloc_v2", &pointer, 64 * mib));
    for (int count = 0; count < 5; count++)
        CALL("cuLaunchKernel", NULL, 100, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    printf("done %d\n", CALL("cuCtxSynchronize"));
    printf("preload %s\n", value("LD_PRELOAD"));
    printf("libraries %s\n", value("LD_LIBRARY_PATH"));
    printf("visible %s\n", value("CUDA_VISIBLE_DEVICES"));
    return 0;
}
