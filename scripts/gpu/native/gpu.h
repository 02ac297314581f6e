/* The driver API of one process on a GPU, its kernels, and how it speaks to who has started it.
 *
 * On the driver without a GPU of the tests a kernel is a launch that takes as long as its grid is
 * wide. On a real one all multiprocessors work: kernels have a fixed amount of work, so that the
 * time-slicing of a GPU makes them longer, as it does with those of programs. */
#ifndef SHARING_GPU_H
#define SHARING_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

#ifndef GS_HAVE_CUDA_H
typedef struct CUmod_st *CUmodule;
typedef int CUdevice_attribute;
typedef struct CUgraphNodeParams_st CUgraphNodeParams;
typedef void (*CUhostFn)(void *);
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef int CUdevResourceType;
typedef struct { /* of the multiprocessors of a device: opaque here */
    int type;
    unsigned char others[140];
} CUdevResource;
#endif

#define PER_THREAD ((CUstream)2)
#define NON_BLOCKING 1u
#define CODES 1000

/* With -DGS_HAVE_CUDA_H the compiler compares these with NVIDIA's own. */
extern CUresult cuInit(unsigned int);
extern CUresult cuDriverGetVersion(int *);
extern CUresult cuDeviceGetName(char *, int, CUdevice);
extern CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
extern CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice);
extern CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
extern CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
extern CUresult cuCtxSetCurrent(CUcontext);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuModuleLoadData(CUmodule *, const void *);
extern CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
extern CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                               unsigned int, unsigned int, unsigned int, CUstream, void **, void **);
extern CUresult cuLaunchKernel_ptsz(CUfunction, unsigned int, unsigned int, unsigned int,
                                    unsigned int, unsigned int, unsigned int, unsigned int,
                                    CUstream, void **, void **);
extern CUresult cuStreamCreate(CUstream *, unsigned int);
extern CUresult cuStreamDestroy_v2(CUstream);
extern CUresult cuStreamSynchronize(CUstream);
extern CUresult cuStreamSynchronize_ptsz(CUstream);
extern CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
extern CUresult cuStreamBeginCapture_v2_ptsz(CUstream, CUstreamCaptureMode);
extern CUresult cuStreamEndCapture(CUstream, CUgraph *);
extern CUresult cuStreamEndCapture_ptsz(CUstream, CUgraph *);
extern CUresult cuGraphCreate(CUgraph *, unsigned int);
extern CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *);
extern CUresult cuGraphAddNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *,
                                  const CUgraphEdgeData *, size_t, CUgraphNodeParams *);
extern CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
extern CUresult cuGraphLaunch(CUgraphExec, CUstream);
extern CUresult cuGraphDestroy(CUgraph);
extern CUresult cuGraphExecDestroy(CUgraphExec);
extern CUresult cuEventCreate(CUevent *, unsigned int);
extern CUresult cuEventRecord(CUevent, CUstream);
extern CUresult cuEventQuery(CUevent);
extern CUresult cuEventSynchronize(CUevent);
extern CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
extern CUresult cuMemFree_v2(CUdeviceptr);
extern CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
extern CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
extern CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
extern CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t);
extern CUresult cuMemHostRegister_v2(void *, size_t, unsigned int);
extern CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *, void *, unsigned int);
extern CUresult cuStreamQuery(CUstream);
extern CUresult cuLaunchHostFunc(CUstream, CUhostFn, void *);
extern CUresult cuDeviceGetDevResource(CUdevice, CUdevResource *, CUdevResourceType);
extern CUresult cuDevSmResourceSplitByCount(CUdevResource *, unsigned int *, const CUdevResource *,
                                            CUdevResource *, unsigned int, unsigned int);
extern CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *, CUdevResource *, unsigned int);
extern CUresult cuGreenCtxCreate(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned int);
extern CUresult cuGreenCtxStreamCreate(CUstream *, CUgreenCtx, unsigned int, int);
extern CUresult cuCtxFromGreenCtx(CUcontext *, CUgreenCtx);

#define FUNCTIONS(X)                                                                              \
    X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetName) X(cuDeviceTotalMem_v2)                     \
    X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxReset_v2)             \
    X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuModuleLoadData) X(cuModuleGetFunction)             \
    X(cuLaunchKernel) X(cuLaunchKernel_ptsz) X(cuStreamCreate) X(cuStreamDestroy_v2)              \
    X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz) X(cuStreamBeginCapture_v2)                 \
    X(cuStreamBeginCapture_v2_ptsz) X(cuStreamEndCapture) X(cuStreamEndCapture_ptsz)              \
    X(cuGraphCreate) X(cuGraphAddMemAllocNode) X(cuGraphAddNode_v2)                               \
    X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphDestroy) X(cuGraphExecDestroy)       \
    X(cuEventCreate) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuMemAlloc_v2)      \
    X(cuMemFree_v2) X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuMemcpyDtoH_v2) X(cuMemsetD8_v2)      \
    X(cuMemHostRegister_v2) X(cuMemHostGetDevicePointer_v2) X(cuStreamQuery) X(cuLaunchHostFunc)
/* Of CUDA 12.4 and later; NULL in an older driver. */
#define NEWER_FUNCTIONS(X)                                                                        \
    X(cuDeviceGetDevResource) X(cuDevSmResourceSplitByCount) X(cuDevResourceGenerateDesc)         \
    X(cuGreenCtxCreate) X(cuGreenCtxStreamCreate) X(cuCtxFromGreenCtx)

struct driver {
#define MEMBER(name) __typeof__(&name) name;
    FUNCTIONS(MEMBER)
    NEWER_FUNCTIONS(MEMBER)
#undef MEMBER
};
extern struct driver cu; /* found with dlsym, as ctypes and many frameworks do it */

/* Kernels of a real GPU; on the driver without one all are the same. */
enum kernel { WORK, COPY, SPIN, COUNT, AWAIT, SET, FAULT, KERNELS };

struct gpu {
    bool fake;
    char name[256];
    CUcontext context;
    CUfunction functions[KERNELS];
    unsigned int blocks;      /* that fill the device */
    CUdeviceptr counter;      /* what COUNT adds 1 to */
    CUdeviceptr from, to;     /* what COPY copies */
    double loops_per_us;      /* of WORK; 0: unknown, and SPIN stands for it */
    double vectors_per_us;    /* of COPY: 16 bytes each */
};
extern struct gpu gpu;

/* Arguments: NAME=NUMBER. */
extern char **options;
double option(const char *name, double otherwise);

double now_s(void);
void pause_s(double seconds);
void check(CUresult result, const char *what); /* ends the process, and says why */
void say_ready(const char *what); /* prints it, and waits for a line of input */

void load_driver(const char *path);
void start(void);   /* a context, and kernels */
void warm_up(void); /* each kernel once: the driver loads them at their first launch */
void make_copies(void);
CUresult launch(enum kernel kernel, double us, CUstream stream);
CUresult launch_per_thread(enum kernel kernel, double us);
CUresult launch_await(CUdeviceptr flag, double most_s, CUdeviceptr seen, CUstream stream);
CUresult launch_set(CUdeviceptr flag, CUstream stream);
long counted(void); /* by COUNT since the last time; -1: on the driver without a GPU */

/* How often each CUDA error has come, by what was called. */
struct tally {
    const char *what;
    long count[CODES];
};
bool add(struct tally *tally, CUresult result); /* whether it is 0 */
void print_errors(const char *name, const struct tally *tallies, size_t many);

#endif
