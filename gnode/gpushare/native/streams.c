/* The streams that this process has launched into, and whether their work has ended.
 *
 * The control thread asks the driver stream by stream, so that it never waits inside it. A stream
 * that records a graph must not be asked, nor the legacy stream beside a recording of a blocking
 * one: either breaks the recording. So an event is recorded behind the work of such streams before
 * a recording begins, and asked instead. A green context can be current to one thread only, so that
 * its default stream is asked by events, too. One lock stands before the beginning of recordings and the
 * end of streams and contexts, so that none of them happens during a question. */
#include <stdlib.h>
#include <time.h>

#include "gpushare.h"

#define EXIT_S 2

struct work {
    CUstream stream;
    struct gs_slot *owner; /* of a stream that only this thread can ask; otherwise NULL */
    CUcontext context;     /* in which it is asked: the primary one of a green context */
    CUevent behind; /* NULL: never recorded */
    bool gone;      /* the stream was destroyed; its event is asked still */
};

_Atomic uint32_t gs_streams_generation = 1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct work *table;
static size_t count, places, last_unfinished;
static _Atomic bool exiting;
static bool has_said;

extern CUresult cuCtxPushCurrent_v2(CUcontext context);
extern CUresult cuCtxPopCurrent_v2(CUcontext *context);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuEventCreate(CUevent *event, unsigned int flags);
extern CUresult cuEventDestroy_v2(CUevent event);
extern CUresult cuEventRecord(CUevent event, CUstream stream);
extern CUresult cuEventQuery(CUevent event);
extern CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
extern CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green);
extern CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
extern CUresult cuStreamQuery(CUstream stream);
extern CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);

CUstreamCaptureMode gs_relax(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    GS_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

void gs_relax_end(CUstreamCaptureMode mode) { GS_REAL(cuThreadExchangeStreamCaptureMode)(&mode); }

static bool is_legacy(CUstream stream) { return stream == NULL || stream == CU_STREAM_LEGACY; }

static struct work *find(CUstream stream, struct gs_slot *owner, CUcontext context) {
    for (size_t i = 0; i < count; i++)
        if (!table[i].gone && table[i].stream == stream && table[i].owner == owner &&
            (table[i].context == context || (owner == NULL && !is_legacy(stream))))
            return &table[i];
    return NULL;
}

static struct work *add(CUstream stream, struct gs_slot *owner, CUcontext context) {
    if (count == places) {
        size_t more = places == 0 ? 64 : 2 * places;
        struct work *bigger = realloc(table, more * sizeof *table);
        if (bigger == NULL) abort();
        table = bigger;
        places = more;
    }
    table[count] = (struct work){.stream = stream, .owner = owner, .context = context};
    return &table[count++];
}

static void drop(size_t index) { table[index] = table[--count]; }

/* While the context of its event exists. */
static void drop_with_event(size_t index) {
    if (table[index].behind != NULL) GS_REAL(cuEventDestroy_v2)(table[index].behind);
    drop(index);
}

/* Whether the driver may be asked about the stream itself. */
static bool may_ask(const struct work *one) {
    CUstreamCaptureStatus status = 0;
    if (one->owner != NULL || one->gone) return false;
    if (atomic_load(&gs_captures) == 0) return true;
    return GS_REAL(cuStreamIsCapturing)(one->stream, &status) == CUDA_SUCCESS && status == 0;
}

CUcontext gs_context_of(CUstream stream) {
    CUcontext context = NULL;
    if (is_legacy(stream) || stream == CU_STREAM_PER_THREAD) return NULL;
    return GS_REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS ? context : NULL;
}

CUevent gs_new_event(CUcontext context) {
    CUevent event = NULL;
    CUcontext popped;
    bool is_current = context == gs_current_context();
    if (!is_current && GS_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) return NULL;
    if (GS_REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) event = NULL;
    if (!is_current) GS_REAL(cuCtxPopCurrent_v2)(&popped);
    return event;
}

static bool record(struct work *one) {
    if (one->behind == NULL) return false;
    if (GS_REAL(cuEventRecord)(one->behind, one->stream) == CUDA_SUCCESS) return true;
    GS_REAL(cuEventDestroy_v2)(one->behind);
    one->behind = NULL;
    return false;
}

/* An event of the context that is current here or, since the driver wants one of the stream's
 * context, of that. */
static void record_behind(struct work *one) {
    if (one->behind == NULL) one->behind = gs_new_event(gs_current_context());
    if (record(one)) return;
    CUcontext context = gs_context_of(one->stream);
    if (context != NULL) one->behind = gs_new_event(context);
    record(one);
}

/* Where a stream can be asked, and whether it is the default one of a green context. */
static CUcontext place_of(CUstream stream, bool *of_green) {
    CUcontext context = NULL;
    CUgreenCtx green = NULL;
    bool known = GS_REAL(cuStreamGetCtx_v2)(stream, &context, &green) == CUDA_SUCCESS;
    *of_green = known && green != NULL && is_legacy(stream);
    return known ? context : gs_current_context(); /* a driver without green contexts */
}

/* A launch into a stream that the slot does not remember, or that only its thread can ask. The slot
 * says that its thread is inside a launch, so no drain ends before the stream is known. */
void gs_stream_used(struct gs_slot *slot, CUstream stream) {
    bool of_green;
    CUcontext context = place_of(stream, &of_green);
    bool own = of_green || stream == CU_STREAM_PER_THREAD;
    uint32_t generation = atomic_load(&gs_streams_generation);
    if (context == NULL) return;
    CUstreamCaptureMode mode = own ? gs_relax() : 0;
    pthread_mutex_lock(&lock);
    struct work *one = find(stream, own ? slot : NULL, context);
    if (one == NULL) one = add(stream, own ? slot : NULL, context);
    if (own) record_behind(one);
    pthread_mutex_unlock(&lock);
    if (own) gs_relax_end(mode);
    slot->stream = stream;
    slot->generation = own ? 0 : generation;
}

static CUresult ask(const struct work *one) {
    if (may_ask(one)) return GS_REAL(cuStreamQuery)(one->stream);
    return one->behind != NULL ? GS_REAL(cuEventQuery)(one->behind) : CUDA_SUCCESS;
}

static void say_if_odd(CUresult result) {
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_CONTEXT ||
        result == CUDA_ERROR_CONTEXT_IS_DESTROYED || has_said)
        return;
    has_said = true;
    gs_say("the driver answered with error %d whether work has ended", (int)result);
}

/* What the driver cannot tell counts as ended: the program meets the same error itself. */
static bool is_unfinished(const struct work *one) {
    CUresult result = ask(one);
    if (result == CUDA_ERROR_NOT_READY) return true;
    say_if_odd(result);
    return false;
}

bool gs_work_unfinished(void) {
    bool unfinished = false;
    CUcontext pushed = NULL, popped;
    pthread_mutex_lock(&lock);
    if (exiting) { /* the driver may be gone; the daemon sees the end of the process */
        pthread_mutex_unlock(&lock);
        return true;
    }
    size_t start = last_unfinished < count ? last_unfinished : 0;
    for (size_t looks = 0; looks < count && !unfinished;) {
        size_t i = (start + looks) % count;
        bool by_event = table[i].owner != NULL || table[i].gone;
        if (!by_event && pushed != table[i].context) {
            if (pushed != NULL) GS_REAL(cuCtxPopCurrent_v2)(&popped);
            pushed = NULL;
            CUresult result = GS_REAL(cuCtxPushCurrent_v2)(table[i].context);
            if (result != CUDA_SUCCESS) {
                say_if_odd(result);
                drop(i);
                continue;
            }
            pushed = table[i].context;
        }
        unfinished = is_unfinished(&table[i]);
        if (unfinished) last_unfinished = i;
        if (!unfinished && table[i].gone) {
            drop_with_event(i);
            continue;
        }
        looks++;
    }
    if (pushed != NULL) GS_REAL(cuCtxPopCurrent_v2)(&popped);
    pthread_mutex_unlock(&lock);
    return unfinished;
}

/* ---- recordings, and the end of streams, contexts and the process ---- */

static void record_unless_recording(struct work *one) {
    CUcontext popped;
    if (!may_ask(one)) return;
    if (GS_REAL(cuCtxPushCurrent_v2)(one->context) != CUDA_SUCCESS) return;
    record_behind(one);
    GS_REAL(cuCtxPopCurrent_v2)(&popped);
}

/* The stream begins to record, or may join a recording. The lock is held until gs_recording_began. */
void gs_recording_begins(CUstream stream) {
    pthread_mutex_lock(&lock);
    CUstreamCaptureMode mode = gs_relax();
    gs_window_recording_begins();
    for (size_t i = 0; i < count; i++)
        if (table[i].stream == stream || is_legacy(table[i].stream))
            record_unless_recording(&table[i]);
    gs_relax_end(mode);
}

void gs_recording_began(void) { pthread_mutex_unlock(&lock); }

/* The host has seen the end of all work, of which none should be left; unless a graph is recorded,
 * which this would break. */
void gs_synchronize_idle(void) {
    pthread_mutex_lock(&lock);
    if (atomic_load(&gs_captures) == 0) GS_REAL(cuCtxSynchronize)();
    pthread_mutex_unlock(&lock);
}

/* Its work goes on after it was destroyed. */
void gs_stream_gone(CUstream stream) {
    pthread_mutex_lock(&lock);
    struct work *one = find(stream, NULL, NULL);
    if (one != NULL) {
        CUstreamCaptureMode mode = gs_relax();
        record_unless_recording(one);
        gs_relax_end(mode);
        one->gone = true;
        if (one->behind == NULL) drop((size_t)(one - table));
        atomic_fetch_add(&gs_streams_generation, 1);
    }
    pthread_mutex_unlock(&lock);
}

/* A thread has ended: the work in its own stream goes on. */
void gs_streams_owner_gone(struct gs_slot *owner) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++)
        if (table[i].owner == owner) table[i].gone = true;
    pthread_mutex_unlock(&lock);
}

/* Before the driver destroys it. */
void gs_streams_context_gone(CUcontext context) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count;)
        if (table[i].context == context)
            drop_with_event(i);
        else
            i++;
    atomic_fetch_add(&gs_streams_generation, 1);
    pthread_mutex_unlock(&lock);
}

/* A program that exits from a signal's handler may hold the lock itself. */
static void at_exit(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += EXIT_S;
    bool locked = pthread_mutex_timedlock(&lock, &until) == 0;
    exiting = true;
    if (locked) pthread_mutex_unlock(&lock);
}

/* Called at the first launch: so the handler runs before those of the driver. */
void gs_streams_watch_exit(void) { atexit(at_exit); }

void gs_streams_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    count = 0;
    exiting = false;
    has_said = false;
    atomic_fetch_add(&gs_streams_generation, 1);
}
