/* Streams that record a graph: what is launched into them does not run, so it passes the gate, and
 * counts neither as work nor against the window. */
#include "gpushare.h"

#define CAPTURES_MAX 64

struct capture {
    CUstream stream;
    struct gs_slot *owner; /* of a thread's own stream; otherwise NULL */
};

_Atomic uint32_t gs_captures;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture captures[CAPTURES_MAX];

extern CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);

bool gs_is_capturing(CUstream stream) {
    if (atomic_load_explicit(&gs_captures, memory_order_relaxed) == 0) return false;
    CUstreamCaptureStatus status = 0;
    return GS_REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static struct gs_slot *owner_of(CUstream stream) {
    return stream == CU_STREAM_PER_THREAD ? gs_own_slot() : NULL;
}

static void begun(CUstream stream) {
    struct gs_slot *owner = owner_of(stream);
    pthread_mutex_lock(&lock);
    uint32_t count = atomic_load(&gs_captures);
    if (count < CAPTURES_MAX) {
        captures[count] = (struct capture){.stream = stream, .owner = owner};
        atomic_store(&gs_captures, count + 1);
    }
    pthread_mutex_unlock(&lock);
}

static void ended(CUstream stream) {
    struct gs_slot *owner = owner_of(stream);
    pthread_mutex_lock(&lock);
    uint32_t count = atomic_load(&gs_captures);
    for (uint32_t i = 0; i < count; i++)
        if (captures[i].stream == stream && captures[i].owner == owner) {
            captures[i] = captures[--count];
            break;
        }
    atomic_store(&gs_captures, count);
    pthread_mutex_unlock(&lock);
}

void gs_capture_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    atomic_store(&gs_captures, 0);
}

static CUstream legacy(CUstream stream) { return stream; }
static CUstream per_thread(CUstream stream) {
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

#define GS_BEGIN(name, parameters, arguments, normal) \
    GS_EXPORT CUresult name parameters;               \
    GS_EXPORT CUresult name parameters {              \
        gs_recording_begins(normal(stream));          \
        CUresult result = GS_REAL(name) arguments;    \
        if (result == CUDA_SUCCESS) begun(normal(stream)); \
        gs_recording_began();                         \
        return result;                                \
    }
#define GS_MODE (CUstream stream, CUstreamCaptureMode mode)
#define GS_TO_GRAPH                                                               \
    (CUstream stream, CUgraph graph, const CUgraphNode *dependencies,             \
     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)

GS_BEGIN(cuStreamBeginCapture, (CUstream stream), (stream), legacy)
GS_BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream), (stream), per_thread)
GS_BEGIN(cuStreamBeginCapture_v2, GS_MODE, (stream, mode), legacy)
GS_BEGIN(cuStreamBeginCapture_v2_ptsz, GS_MODE, (stream, mode), per_thread)
GS_BEGIN(cuStreamBeginCaptureToGraph, GS_TO_GRAPH,
         (stream, graph, dependencies, edges, count, mode), legacy)
GS_BEGIN(cuStreamBeginCaptureToGraph_ptsz, GS_TO_GRAPH,
         (stream, graph, dependencies, edges, count, mode), per_thread)

#define GS_END(name, normal)                                                             \
    GS_EXPORT CUresult name(CUstream stream, CUgraph *graph);                            \
    GS_EXPORT CUresult name(CUstream stream, CUgraph *graph) {                           \
        CUresult result = GS_REAL(name)(stream, graph);                                  \
        ended(normal(stream));                                                           \
        return result;                                                                   \
    }

GS_END(cuStreamEndCapture, legacy)
GS_END(cuStreamEndCapture_ptsz, per_thread)

#define GS_DESTROY(name)                          \
    GS_EXPORT CUresult name(CUstream stream);     \
    GS_EXPORT CUresult name(CUstream stream) {    \
        ended(stream);                            \
        gs_window_stream_gone(stream);            \
        gs_stream_gone(stream);                   \
        return GS_REAL(name)(stream);             \
    }

GS_DESTROY(cuStreamDestroy)
GS_DESTROY(cuStreamDestroy_v2)

/* A stream joins a recording when it waits for an event of it. */
#define GS_JOIN(name, normal)                                                         \
    GS_EXPORT CUresult name(CUstream stream, CUevent event, unsigned int flags);      \
    GS_EXPORT CUresult name(CUstream stream, CUevent event, unsigned int flags) {     \
        if (GS_LIKELY(atomic_load_explicit(&gs_captures, memory_order_relaxed) == 0)) \
            return GS_REAL(name)(stream, event, flags);                               \
        gs_recording_begins(normal(stream));                                          \
        CUresult result = GS_REAL(name)(stream, event, flags);                        \
        gs_recording_began();                                                         \
        return result;                                                                \
    }

GS_JOIN(cuStreamWaitEvent, legacy)
GS_JOIN(cuStreamWaitEvent_ptsz, per_thread)
