/* A thread whose key destructor launches, behind that of the library, while a new thread is inside a
 * launch that takes long. The driver is found in the program's own scope. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_abi.h"

#define FIRST_US 10u
#define LOADED_ROWS 3u /* a kernel whose code is loaded by its launch */

extern CUresult cuInit(unsigned int), cuCtxSetCurrent(CUcontext), cuCtxSynchronize(void);
extern CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
extern CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                               unsigned int, unsigned int, unsigned int, CUstream, void **, void **);

static CUcontext context;
static pthread_key_t key;
static pthread_t second;

static void launch(unsigned int rows) {
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        cuLaunchKernel(NULL, FIRST_US, rows, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS)
        abort();
}

static void *loads(void *nothing) {
    launch(LOADED_ROWS);
    return nothing;
}

static void at_end(void *value) {
    (void)value;
    if (pthread_create(&second, NULL, loads, NULL) != 0) abort();
    usleep(300000); /* it is inside its launch now */
    launch(1);
    puts("launched");
    fflush(stdout);
}

/* Keys are destroyed in the order in which they were made: the library's comes first. */
static void *ends(void *nothing) {
    launch(1);
    if (pthread_key_create(&key, at_end) != 0 || pthread_setspecific(key, &key) != 0) abort();
    return nothing;
}

int main(void) {
    pthread_t first;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) abort();
    if (pthread_create(&first, NULL, ends, NULL) != 0) abort();
    pthread_join(first, NULL);
    pthread_join(second, NULL);
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS || cuCtxSynchronize() != CUDA_SUCCESS) abort();
    puts("done");
    return 0;
}
