/* Uses the interception library from C, built with sanitizers: all families of memory, threads that
 * launch while another job takes the token, captures, a fork, contexts that go, and errors. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_abi.h"

#define CHECK(call, wanted)                                                             \
    do {                                                                                \
        int result = (int)(call);                                                       \
        if (result != (wanted)) {                                                       \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, result);      \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

extern CUresult cuInit(unsigned int);
extern CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
extern CUresult cuCtxDestroy_v2(CUcontext);
extern CUresult cuCtxSetCurrent(CUcontext);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuCtxSetLimit(int, size_t);
extern CUresult cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemFree_v2(CUdeviceptr);
extern CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned int);
extern CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream), cuMemFreeAsync(CUdeviceptr, CUstream);
extern CUresult cuMemGetInfo_v2(size_t *, size_t *);
extern CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                            unsigned long long);
extern CUresult cuMemRelease(CUmemGenericAllocationHandle);
extern CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                         unsigned long long);
extern CUresult cuMemUnmap(CUdeviceptr, size_t);
extern CUresult cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *), cuArrayDestroy(CUarray);
extern CUresult cuStreamCreate(CUstream *, unsigned int), cuStreamDestroy_v2(CUstream);
extern CUresult cuStreamSynchronize(CUstream);
extern CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
extern CUresult cuStreamEndCapture(CUstream, CUgraph *);
extern CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
extern CUresult cuGraphLaunch(CUgraphExec, CUstream), cuGraphExecDestroy(CUgraphExec);
extern CUresult cuGraphDestroy(CUgraph);
extern CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                               unsigned int, unsigned int, unsigned int, CUstream, void **, void **);
extern CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
extern CUresult cuGetProcAddress_v2(const char *, void **, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult *);

static CUcontext context;

static CUresult launch(CUstream stream, unsigned int us) {
    return cuLaunchKernel(NULL, us, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void memory(size_t megabytes) {
    size_t bytes = megabytes << 20, pitch;
    CUdeviceptr pointer;
    for (int i = 0; i < 15; i++) {
        CHECK(cuMemAlloc_v2(&pointer, bytes), CUDA_SUCCESS);
        CHECK(cuMemFree_v2(pointer), CUDA_SUCCESS);
        CHECK(cuMemAllocPitch_v2(&pointer, &pitch, 1000, 10, 4), CUDA_SUCCESS);
        CHECK(cuMemFree_v2(pointer), CUDA_SUCCESS);
        CHECK(cuMemAllocAsync(&pointer, bytes, NULL), CUDA_SUCCESS);
        CHECK(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
        CUDA_ARRAY_DESCRIPTOR wanted = {1024, 16, 0x20, 4};
        CUarray array;
        CHECK(cuArrayCreate_v2(&array, &wanted), CUDA_SUCCESS);
        CHECK(cuArrayDestroy(array), CUDA_SUCCESS);
        CUmemAllocationProp device = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address = ((CUdeviceptr)(uintptr_t)&pointer & ~0xfffull) + ((CUdeviceptr)1 << 50);
        CHECK(cuMemCreate(&handle, bytes, &device, 0), CUDA_SUCCESS);
        CHECK(cuMemMap(address, bytes, 0, handle, 0), CUDA_SUCCESS);
        CHECK(cuMemRelease(handle), CUDA_SUCCESS);
        CHECK(cuMemUnmap(address, bytes), CUDA_SUCCESS);
    }
}

static void *worker(void *argument) {
    CUstream stream;
    CHECK(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    for (int i = 0; i < 120; i++) {
        CHECK(launch(stream, 50), CUDA_SUCCESS);
        CHECK(cuMemsetD8Async(4096, 0, 4096, stream), CUDA_SUCCESS);
        if (i % 16 == 0) CHECK(cuStreamSynchronize(stream), CUDA_SUCCESS);
    }
    memory(1);
    CHECK(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    return argument;
}

static void capture(void) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr pointer;
    CHECK(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    for (int i = 0; i < 8; i++) {
        CHECK(cuStreamBeginCapture_v2(stream, 0), CUDA_SUCCESS);
        for (int j = 0; j < 5; j++) CHECK(launch(stream, 10), CUDA_SUCCESS);
        CHECK(cuMemAllocAsync(&pointer, 1 << 20, stream), CUDA_SUCCESS);
        CHECK(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
        CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
        CHECK(cuGraphDestroy(graph), CUDA_SUCCESS);
        CHECK(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
        CHECK(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    }
    CHECK(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

int main(void) {
    size_t total;
    void *function;
    CUdeviceptr pointer;
    CHECK(cuInit(0), CUDA_SUCCESS);
    CHECK(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    CHECK(cuMemGetInfo_v2(NULL, &total), CUDA_SUCCESS);
    CHECK(cuMemAlloc_v2(&pointer, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemFree_v2(12345), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuCtxSetLimit(0, 0), 801);
    CHECK(cuGetProcAddress_v2("", &function, 12000, 0, NULL), CUDA_SUCCESS);
    CHECK(cuGetProcAddress_v2("cuLaunchKernel", &function, 12000, 2, NULL), CUDA_SUCCESS);
    memory(4);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, worker, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    capture();
    pid_t child = fork();
    if (child == 0) {
        CHECK(cuMemAlloc_v2(&pointer, 1 << 20), CUDA_SUCCESS);
        CHECK(launch(NULL, 10), CUDA_SUCCESS);
        CHECK(cuCtxSynchronize(), CUDA_SUCCESS);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status, 0);
    CHECK(cuMemAlloc_v2(&pointer, 1 << 20), CUDA_SUCCESS);
    CUstream busy; /* destroyed, and then its context, before its work has ended */
    CHECK(cuStreamCreate(&busy, 1), CUDA_SUCCESS);
    CHECK(launch(busy, 200000), CUDA_SUCCESS);
    CHECK(cuStreamDestroy_v2(busy), CUDA_SUCCESS);
    CHECK(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    CHECK(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    for (int i = 0; i < 8; i++) { /* so that no place in the library refers to those any longer */
        CHECK(cuStreamCreate(&busy, 1), CUDA_SUCCESS);
        CHECK(launch(busy, 10), CUDA_SUCCESS);
    }
    CHECK(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    puts("done");
    return 0;
}
