/* Recordings of graphs: what is not permitted beside them, and breaks them; waits and questions. */
#include "fake.h"

#define LOOK_NS 1000000u

_Atomic uint32_t fake_capturing;

uint32_t fake_thread(void) {
    static _Atomic uint32_t count;
    static __thread uint32_t number;
    if (number == 0) number = atomic_fetch_add(&count, 1) + 1;
    return number;
}

static bool leaves(struct CUstream_st *stream, void *capture) {
    if (stream->capture == capture) stream->capture = NULL;
    return false;
}
void fake_all_leave(struct fake_graph *capture) {
    fake_each_stream(leaves, capture);
    capture->origin = NULL;
    atomic_fetch_sub(&fake_capturing, 1);
}

static __thread CUstreamCaptureMode thread_mode; /* 0 global, 1 thread-local, 2 relaxed */

static bool break_if(struct CUstream_st *stream, void *concerns) {
    bool (*is_concerned)(struct CUstream_st *) = *(bool (**)(struct CUstream_st *))concerns;
    return stream->capture != NULL && is_concerned(stream) && (stream->capture->broken = true);
}
/* Breaks the recordings for which `concerns` is true; returns whether there was one. */
static bool break_those(bool (*concerns)(struct CUstream_st *stream)) {
    return atomic_load(&fake_capturing) != 0 && fake_each_stream(break_if, &concerns);
}
static bool is_any(struct CUstream_st *stream) { return true; }
static bool is_blocking(struct CUstream_st *stream) { return stream->blocking; }
static bool forbids_unsafe(struct CUstream_st *stream) {
    const struct fake_graph *capture = stream->capture;
    if (thread_mode == 2 || capture->mode == 2) return false;
    if (capture->thread == fake_thread()) return true;
    return thread_mode == 0 && capture->mode == 0;
}

/* See cuThreadExchangeStreamCaptureMode. */
CUresult fake_unsafe(void) {
    return break_those(forbids_unsafe) ? FAKE_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* The legacy stream encompasses all blocking ones. */
CUresult fake_may_use(struct CUstream_st *stream) {
    if (!fake_is_legacy(stream)) return CUDA_SUCCESS;
    return break_those(is_blocking) ? FAKE_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

static bool records_blocking(struct CUstream_st *stream, void *nothing) {
    return stream->capture != NULL && stream->blocking;
}
bool fake_blocking_records(void) {
    return atomic_load(&fake_capturing) != 0 && fake_each_stream(records_blocking, NULL);
}

static CUresult may_wait(struct CUstream_st *stream) {
    CUresult refused = fake_fault();
    if (refused == CUDA_SUCCESS) refused = fake_may_use(stream);
    if (refused != CUDA_SUCCESS) return refused;
    if (stream->capture == NULL) return fake_unsafe();
    stream->capture->broken = true;
    return FAKE_CAPTURE_UNSUPPORTED;
}

static bool last_end(struct CUstream_st *stream, void *last) {
    uint64_t end = atomic_load(&stream->free_ns);
    if (end > *(uint64_t *)last) *(uint64_t *)last = end;
    return false;
}
/* When all work of the stream, or of all streams, ends: never until what it waits for has come. */
static uint64_t end_ns(struct CUstream_st *stream) {
    if (stream != NULL) return fake_ready_ns(stream);
    uint64_t last = fake_ready_ns(fake_stream(CU_STREAM_LEGACY, false));
    fake_each_stream(last_end, &last);
    return last;
}
static void wait_for_end(struct CUstream_st *stream) {
    uint64_t end;
    while ((end = end_ns(stream)) >= FAKE_NEVER) fake_sleep_until(fake_now_ns() + LOOK_NS);
    fake_sleep_until(end);
}
static CUresult synchronize(struct CUstream_st *stream) {
    CUresult refused = may_wait(stream);
    if (refused != CUDA_SUCCESS) return refused;
    wait_for_end(stream);
    fake_pools_after_sync(stream);
    return fake_fault();
}
FAKE_API CUresult cuStreamSynchronize(CUstream stream) {
    return synchronize(fake_stream(stream, false));
}
FAKE_API CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return synchronize(fake_stream(stream, true));
}
FAKE_API CUresult cuStreamQuery(CUstream stream) {
    CUresult odd = (CUresult)fake_number("GSCHED_FAKE_ODD_QUERY", 0);
    if (odd != CUDA_SUCCESS) return odd;
    struct CUstream_st *one = fake_stream(stream, false);
    CUresult refused = may_wait(one);
    if (refused != CUDA_SUCCESS) return refused;
    return fake_ready_ns(one) > fake_now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxSynchronize(void) {
    CUresult fault = fake_fault();
    if (fault != CUDA_SUCCESS) return fault;
    if (fake_context() == NULL) return FAKE_INVALID_CONTEXT;
    if (break_those(is_any)) return FAKE_CAPTURE_UNSUPPORTED;
    wait_for_end(NULL);
    fake_pools_after_sync(NULL);
    return fake_fault();
}
FAKE_API CUresult cuCtxSynchronize_v2(CUcontext context) { return cuCtxSynchronize(); }
FAKE_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
