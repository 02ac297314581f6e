/* Contexts, ordinary and green ones. A green context is the primary one with other resources: it can
 * be current to one thread at a time, has a default stream of its own, and streams that wait for no
 * default stream. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>

#define STACK_MAX 16
#define NON_BLOCKING 1u
#define DEFAULT_STREAM 1u
#define SM_RESOURCE 1

struct CUctx_st {
    _Atomic bool dead; /* kept, so that its use is seen */
    struct CUstream_st *default_stream; /* of a green context; otherwise NULL */
    _Atomic uint32_t thread, uses;      /* of a green context: where it is current, and how often */
};

static struct CUctx_st primary;
static _Atomic uint32_t primary_refs;
static __thread CUcontext stack[STACK_MAX];
static __thread unsigned int depth;

static void must_live(CUcontext context) {
    if (context != NULL && atomic_load(&context->dead)) {
        fprintf(stderr, "fake driver: a destroyed context is used\n");
        abort();
    }
}

static bool is_green(CUcontext context) {
    return context != NULL && context->default_stream != NULL;
}

static void enter(CUcontext context) {
    must_live(context);
    if (!is_green(context)) return;
    if (atomic_fetch_add(&context->uses, 1) == 0) atomic_store(&context->thread, fake_thread());
    if (atomic_load(&context->thread) == fake_thread()) return;
    fprintf(stderr, "fake driver: a green context is current to two threads\n");
    abort();
}
static void leave(CUcontext context) {
    if (is_green(context)) atomic_fetch_sub(&context->uses, 1);
}

CUcontext fake_context(void) { return depth > 0 ? stack[depth - 1] : NULL; }

struct CUstream_st *fake_green_stream(void) {
    return is_green(fake_context()) ? fake_context()->default_stream : NULL;
}

/* "hEvent and hStream must be from the same context". Whether the primary context and its green ones
 * are the same can be read in both ways; GSCHED_FAKE_GREEN_EVENTS: they are. */
bool fake_event_fits(CUevent event, const struct CUstream_st *stream) {
    CUcontext own = stream->context != NULL ? stream->context : fake_context();
    if (event->context == own) return true;
    bool alike = (event->context == &primary || is_green(event->context)) &&
                 (own == &primary || is_green(own));
    return alike && fake_number("GSCHED_FAKE_GREEN_EVENTS", 0) != 0;
}

FAKE_API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    *context = calloc(1, sizeof **context);
    if (depth < STACK_MAX) stack[depth++] = *context;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxDestroy_v2(CUcontext context) {
    must_live(context);
    if (depth > 0 && stack[depth - 1] == context) depth--;
    atomic_store(&context->dead, true);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = &primary;
    atomic_store(&primary.dead, false);
    atomic_fetch_add(&primary_refs, 1);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (atomic_load(&primary_refs) == 0) return FAKE_INVALID_CONTEXT;
    if (atomic_fetch_sub(&primary_refs, 1) == 1) atomic_store(&primary.dead, true);
    return CUDA_SUCCESS;
}

/* All that the process had on the device ends with its primary context. */
static CUresult reset(CUdevice device) {
    fake_streams_reset();
    fake_memory_reset();
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return reset(device); }
FAKE_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return reset(device); }

FAKE_API CUresult cuCtxSetCurrent(CUcontext context) {
    if (depth > 0) leave(stack[depth - 1]);
    enter(context);
    if (depth == 0) depth = 1;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = fake_context();
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (depth == STACK_MAX) return CUDA_ERROR_UNKNOWN;
    enter(context);
    stack[depth++] = context;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (depth == 0) return FAKE_INVALID_CONTEXT;
    *context = stack[--depth];
    leave(*context);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return depth > 0 ? CUDA_SUCCESS : FAKE_INVALID_CONTEXT;
}

/* ---- green contexts: their resources are not divided ---- */

struct CUgreenCtx_st {
    struct CUctx_st context;
};
typedef struct {
    int type;
    unsigned char others[140];
} CUdevResource;
typedef void *CUdevResourceDesc;

FAKE_API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, int type) {
    if (type != SM_RESOURCE) return CUDA_ERROR_INVALID_VALUE;
    *resource = (CUdevResource){.type = type};
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *groups,
                                              const CUdevResource *input, CUdevResource *remaining,
                                              unsigned int flags, unsigned int least) {
    for (unsigned int i = 0; result != NULL && i < *groups; i++) result[i] = *input;
    if (remaining != NULL) *remaining = *input;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *made, CUdevResource *resources,
                                            unsigned int count) {
    *made = resources;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGreenCtxCreate(CUgreenCtx *made, CUdevResourceDesc resources, CUdevice device,
                                   unsigned int flags) {
    if (flags != DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    *made = calloc(1, sizeof **made);
    (*made)->context.default_stream = fake_new_stream(false, &(*made)->context);
    atomic_fetch_add(&primary_refs, 1);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    must_live(&green->context);
    atomic_store(&green->context.dead, true);
    return cuDevicePrimaryCtxRelease_v2(0);
}
FAKE_API CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    *context = &green->context;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags,
                                         int priority) {
    if (flags != NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    *stream = fake_new_stream(false, &green->context);
    return CUDA_SUCCESS;
}

static CUcontext context_of(CUstream stream, bool per_thread) {
    struct CUstream_st *one = fake_stream(stream, per_thread);
    return one->context != NULL ? one->context : fake_context();
}
static CUresult get_contexts(CUcontext context, CUcontext *ordinary, CUgreenCtx *green) {
    if (context == NULL) return FAKE_INVALID_CONTEXT;
    *ordinary = is_green(context) ? &primary : context;
    *green = is_green(context) ? (CUgreenCtx)(void *)context : NULL;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    *context = context_of(stream, false);
    return *context != NULL ? CUDA_SUCCESS : FAKE_INVALID_CONTEXT;
}
FAKE_API CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green) {
    if (stream == CU_STREAM_PER_THREAD && fake_green_stream() != NULL) return FAKE_INVALID_HANDLE;
    return get_contexts(context_of(stream, false), context, green);
}
