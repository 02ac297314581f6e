/* Kernels, copies and captures. A kernel runs for as many microseconds as its grid is wide; where it
 * has two rows, it faults at its end; where it has three, its code is loaded by the launch. */
#include "fake.h"

#include <stdlib.h>

#define NS_PER_US 1000u
#define COPY_NS_PER_KIB 20u
#define FAULTING_ROWS 2u
#define LOADING_ROWS 3u

/* Code takes as long to load as the test says. */
static void load(void) {
    fake_sleep_until(fake_now_ns() + (uint64_t)fake_number("GSCHED_FAKE_LOAD_MS", 0) * 1000000u);
}

CUresult fake_launch(struct CUstream_st *stream, uint64_t busy_ns, enum fake_kind kind) {
    CUresult refused = fake_fault();
    if (refused == CUDA_SUCCESS) refused = fake_may_use(stream);
    if (refused != CUDA_SUCCESS) return refused;
    if (stream->capture != NULL) {
        if (stream->capture->broken) return FAKE_CAPTURE_INVALIDATED;
        stream->capture->busy_ns += busy_ns;
        return CUDA_SUCCESS;
    }
    return fake_run(kind, stream, busy_ns);
}

#define KERNEL                                                                                  \
    (CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,   \
     unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **arguments,  \
     void **extra)
#define COOPERATIVE                                                                             \
    (CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,   \
     unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **arguments)

FAKE_API CUresult cuLaunchKernel KERNEL {
    struct CUstream_st *one = fake_stream(stream, false);
    if (gy == LOADING_ROWS) load();
    CUresult result = fake_launch(one, (uint64_t)gx * NS_PER_US, FAKE_KERNEL);
    if (gy == FAULTING_ROWS && result == CUDA_SUCCESS) fake_fault_at(fake_ready_ns(one));
    return result;
}
FAKE_API CUresult cuLaunchKernel_ptsz KERNEL {
    return fake_launch(fake_stream(stream, true), (uint64_t)gx * NS_PER_US, FAKE_KERNEL);
}
FAKE_API CUresult cuLaunchCooperativeKernel COOPERATIVE {
    return fake_launch(fake_stream(stream, false), (uint64_t)gx * NS_PER_US, FAKE_KERNEL);
}
FAKE_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                                   void **arguments, void **extra) {
    const unsigned int *numbers = (const unsigned int *)(const void *)config;
    CUstream stream = *(const CUstream *)(const void *)((const char *)config + 32);
    return fake_launch(fake_stream(stream, false), (uint64_t)numbers[0] * NS_PER_US, FAKE_KERNEL);
}
FAKE_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count,
                                  CUstream stream) {
    return fake_launch(fake_stream(stream, false), count / 1024 * COPY_NS_PER_KIB + 1, FAKE_FILL);
}
FAKE_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return fake_launch(fake_stream(NULL, false), count / 1024 * COPY_NS_PER_KIB + 1, FAKE_FILL);
}
FAKE_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    CUresult result = fake_launch(fake_stream(NULL, false), bytes / 1024 * COPY_NS_PER_KIB + 1, FAKE_COPY);
    fake_sleep_until(atomic_load(&fake_stream(NULL, false)->free_ns));
    return result;
}
FAKE_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
                                       CUstream stream) {
    return fake_launch(fake_stream(stream, false), bytes / 1024 * COPY_NS_PER_KIB + 1, FAKE_COPY);
}

/* ---- capture ---- */

static CUresult begin(struct CUstream_st *stream, CUstreamCaptureMode mode) {
    if (fake_is_legacy(stream)) return FAKE_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL) return FAKE_CAPTURE_UNSUPPORTED;
    struct fake_graph *graph = calloc(1, sizeof *graph);
    graph->origin = stream;
    graph->mode = mode;
    graph->thread = fake_thread();
    stream->capture = graph;
    atomic_fetch_add(&fake_capturing, 1);
    return CUDA_SUCCESS;
}
static CUresult end(struct CUstream_st *stream, CUgraph *graph) {
    struct fake_graph *capture = stream->capture;
    if (capture == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (capture->origin != stream) return FAKE_CAPTURE_UNMATCHED;
    if (capture->mode != 2 && capture->thread != fake_thread()) return FAKE_CAPTURE_WRONG_THREAD;
    fake_all_leave(capture);
    *graph = capture->broken ? NULL : (CUgraph)(void *)capture;
    return capture->broken ? FAKE_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
FAKE_API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return begin(fake_stream(stream, false), mode);
}
FAKE_API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return begin(fake_stream(stream, true), mode);
}
FAKE_API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return end(fake_stream(stream, false), graph);
}
FAKE_API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return end(fake_stream(stream, true), graph);
}
FAKE_API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    struct CUstream_st *one = fake_stream(stream, false);
    *status = 0;
    if (fake_is_legacy(one)) return fake_blocking_records() ? FAKE_CAPTURE_IMPLICIT : 0;
    const struct fake_graph *capture = one->capture;
    *status = capture == NULL ? 0 : capture->broken ? 2 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuModuleLoadData(void **module, const void *image) {
    load();
    *module = (void *)image;
    return CUDA_SUCCESS;
}
