/* Streams: queues of work, each in its order, before one engine. */
#include "fake.h"

#include <stdlib.h>

#define STREAMS_MAX 1024
#define LOOK_NS 1000000u
static struct CUstream_st legacy = {.blocking = true};
static __thread struct CUstream_st *own;
static struct CUstream_st *streams[STREAMS_MAX]; /* all but the legacy one */
static struct CUevent_st *waiting;               /* events behind work that waits */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct CUstream_st *fake_new_stream(bool blocking, CUcontext context) {
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    stream->blocking = blocking;
    stream->context = context;
    pthread_mutex_lock(&lock);
    unsigned int i = 0;
    while (i < STREAMS_MAX && streams[i] != NULL) i++;
    if (i == STREAMS_MAX) abort();
    streams[i] = stream;
    pthread_mutex_unlock(&lock);
    return stream;
}

/* The stream of a thread that has ended stays in the list with its work. */
struct CUstream_st *fake_stream(CUstream stream, bool per_thread) {
    if (stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread)) {
        if (own == NULL) own = fake_new_stream(true, NULL);
        return own;
    }
    if (stream != NULL && stream != CU_STREAM_LEGACY) return stream;
    struct CUstream_st *of_green = fake_green_stream();
    return of_green != NULL ? of_green : &legacy;
}

bool fake_is_legacy(const struct CUstream_st *stream) { return stream == &legacy; }

/* Calls the function for each stream but the legacy one; returns whether any of them answered yes. */
bool fake_each_stream(bool (*visit)(struct CUstream_st *stream, void *data), void *data) {
    bool any = false;
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX; i++)
        if (streams[i] != NULL && visit(streams[i], data)) any = true;
    pthread_mutex_unlock(&lock);
    return any;
}

static bool later_end(struct CUstream_st *stream, void *last) {
    uint64_t end = stream->blocking ? atomic_load(&stream->free_ns) : 0;
    if (end > *(uint64_t *)last) *(uint64_t *)last = end;
    return false;
}

/* End of the work before which a stream's next work cannot start. */
uint64_t fake_ready_ns(struct CUstream_st *stream) {
    uint64_t ready = atomic_load(&stream->free_ns);
    if (stream == &legacy) {
        fake_each_stream(later_end, &ready);
    } else if (stream->blocking) {
        uint64_t first = atomic_load(&legacy.free_ns);
        if (first > ready) ready = first;
    }
    return ready;
}

void fake_streams_reset(void) {
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX; i++) streams[i] = NULL;
    pthread_mutex_unlock(&lock);
    own = NULL;
}

FAKE_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    if (fake_context() == NULL) return FAKE_INVALID_CONTEXT;
    *stream = fake_new_stream((flags & 1) == 0, fake_context()); /* CU_STREAM_NON_BLOCKING */
    return CUDA_SUCCESS;
}
/* Work that waits with it goes on, so that such a stream is kept. */
FAKE_API CUresult cuStreamDestroy_v2(CUstream stream) {
    struct fake_graph *capture = stream->capture;
    bool waits = atomic_load(&stream->free_ns) >= FAKE_NEVER;
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX && !waits; i++)
        if (streams[i] == stream) streams[i] = NULL;
    pthread_mutex_unlock(&lock);
    if (capture != NULL) capture->broken = true;
    if (capture != NULL && capture->origin == stream) fake_all_leave(capture);
    if (!waits) free(stream);
    return CUDA_SUCCESS;
}

/* ---- work ---- */

/* Whether the work had to wait with its stream for what has not come. */
static bool waits_with(struct CUstream_st *stream, uint64_t busy_ns, uint64_t place) {
    pthread_mutex_lock(&lock);
    bool waits = atomic_load(&stream->free_ns) >= FAKE_NEVER ||
                 (stream->blocking && atomic_load(&legacy.free_ns) >= FAKE_NEVER);
    for (unsigned int i = 0; i < STREAMS_MAX && stream == &legacy && !waits; i++)
        waits = streams[i] != NULL && streams[i]->blocking &&
                atomic_load(&streams[i]->free_ns) >= FAKE_NEVER;
    if (waits) {
        stream->pending_ns += busy_ns;
        atomic_store(&stream->free_ns, FAKE_NEVER);
        atomic_store(&stream->ends_ns[place], FAKE_NEVER);
    }
    pthread_mutex_unlock(&lock);
    return waits;
}

CUresult fake_run(enum fake_kind kind, struct CUstream_st *stream, uint64_t busy_ns) {
    uint64_t called = fake_now_ns(), oldest;
    uint64_t place = atomic_fetch_add(&stream->launches, 1) % FAKE_QUEUE_MAX;
    while ((oldest = atomic_load(&stream->ends_ns[place])) > called) {
        /* The queue is full: the call returns when a place is free. */
        fake_sleep_until(oldest >= FAKE_NEVER ? called + LOOK_NS : oldest);
        called = fake_now_ns();
    }
    uint64_t before = fake_ready_ns(stream);
    if (before >= FAKE_NEVER && waits_with(stream, busy_ns, place)) return CUDA_SUCCESS;
    uint64_t end = fake_engine(kind, stream, called, before < FAKE_NEVER ? before : called, busy_ns);
    atomic_store(&stream->free_ns, end);
    atomic_store(&stream->ends_ns[place], end);
    return CUDA_SUCCESS;
}

/* The lock is held. */
static bool is_held(const struct CUstream_st *stream) { return stream->holds != stream->holds_over; }

/* What the stream waits for has come: its work runs. The lock is held. */
static void run_pending(struct CUstream_st *stream) {
    uint64_t now = fake_now_ns();
    uint64_t end = fake_engine(FAKE_KERNEL, stream, now, now, stream->pending_ns);
    if (stream->pending_ns == 0) end = now;
    stream->pending_ns = 0;
    stream->behind = NULL;
    atomic_store(&stream->free_ns, end);
    for (unsigned int i = 0; i < FAKE_QUEUE_MAX; i++)
        if (atomic_load(&stream->ends_ns[i]) >= FAKE_NEVER) atomic_store(&stream->ends_ns[i], end);
    for (struct CUevent_st **place = &waiting; *place != NULL;) {
        struct CUevent_st *event = *place;
        if (event->stream != stream) {
            place = &event->next;
            continue;
        }
        *place = event->next;
        atomic_store(&event->when_ns, end);
    }
}

/* Lets all streams go on that wait for nothing any more. The lock is held. */
static void settle(void) {
    bool holds = false, again = true;
    for (unsigned int i = 0; i < STREAMS_MAX; i++)
        holds = holds || (streams[i] != NULL && streams[i]->blocking && is_held(streams[i]));
    if (!holds && !is_held(&legacy) && atomic_load(&legacy.free_ns) >= FAKE_NEVER)
        run_pending(&legacy);
    while (again) {
        again = false;
        for (unsigned int i = 0; i < STREAMS_MAX; i++) {
            struct CUstream_st *one = streams[i];
            if (one == NULL || atomic_load(&one->free_ns) < FAKE_NEVER || is_held(one)) continue;
            if (one->blocking && atomic_load(&legacy.free_ns) >= FAKE_NEVER) continue;
            if (one->behind != NULL && atomic_load(&one->behind->free_ns) >= FAKE_NEVER) continue;
            run_pending(one);
            again = true;
        }
    }
}

/* ---- values and functions of the host: nobody knows when they come ---- */

static void hold(struct CUstream_st *stream, uint64_t *ticket) {
    pthread_mutex_lock(&lock);
    *ticket = stream->holds++;
    atomic_store(&stream->free_ns, FAKE_NEVER);
    pthread_mutex_unlock(&lock);
}

/* A stream waits for a value that nobody has written: until the next write of this process. */
FAKE_API CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value,
                                         unsigned int flags) {
    uint64_t ticket;
    hold(fake_stream(stream, false), &ticket);
    fake_stream(stream, false)->values++;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value,
                                          unsigned int flags) {
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX; i++) {
        if (streams[i] == NULL) continue;
        streams[i]->holds_over += streams[i]->values;
        streams[i]->values = 0;
    }
    settle();
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* A function of the host runs in a thread of the driver when the stream's earlier work has ended. */
struct host_call {
    struct CUstream_st *stream;
    uint64_t ticket, ready_ns;
    void (*function)(void *);
    void *data;
};
static bool is_turn(const struct host_call *call) {
    pthread_mutex_lock(&lock);
    bool turn = call->stream->holds_over == call->ticket;
    pthread_mutex_unlock(&lock);
    return turn;
}
static void *call_host(void *given) {
    struct host_call *call = given;
    if (call->ready_ns < FAKE_NEVER) fake_sleep_until(call->ready_ns);
    while (!is_turn(call)) fake_sleep_until(fake_now_ns() + LOOK_NS);
    call->function(call->data);
    pthread_mutex_lock(&lock);
    call->stream->holds_over++;
    settle();
    pthread_mutex_unlock(&lock);
    free(call);
    return NULL;
}
FAKE_API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) {
    struct host_call *call = malloc(sizeof *call);
    pthread_t thread;
    call->stream = fake_stream(stream, false);
    call->ready_ns = fake_ready_ns(call->stream);
    call->function = function;
    call->data = data;
    hold(call->stream, &call->ticket);
    if (pthread_create(&thread, NULL, call_host, call) != 0) abort();
    pthread_detach(thread);
    return CUDA_SUCCESS;
}

/* ---- events ---- */

FAKE_API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    if (fake_context() == NULL) return FAKE_INVALID_CONTEXT;
    *event = calloc(1, sizeof **event);
    (*event)->context = fake_context();
    atomic_fetch_add(&fake_state()->events, 1);
    return CUDA_SUCCESS;
}

/* The lock is held. */
static void take_out(CUevent event) {
    struct CUevent_st **place = &waiting;
    while (*place != NULL && *place != event) place = &(*place)->next;
    if (*place == event) *place = event->next;
}
FAKE_API CUresult cuEventDestroy_v2(CUevent event) {
    pthread_mutex_lock(&lock);
    take_out(event);
    pthread_mutex_unlock(&lock);
    free(event);
    atomic_fetch_sub(&fake_state()->events, 1);
    return CUDA_SUCCESS;
}

/* An event is an operation of its stream: in the legacy one it waits for all blocking streams, and
 * what is launched into those afterwards waits for it. */
static CUresult record(CUevent event, struct CUstream_st *stream) {
    CUresult refused = (CUresult)fake_number("GSCHED_FAKE_ODD_RECORD", 0);
    if (refused == CUDA_SUCCESS) refused = fake_fault();
    if (refused == CUDA_SUCCESS) refused = fake_may_use(stream);
    if (refused != CUDA_SUCCESS) return refused;
    if (!fake_event_fits(event, stream)) return FAKE_INVALID_HANDLE;
    uint64_t ready = fake_ready_ns(stream);
    pthread_mutex_lock(&lock);
    take_out(event);
    atomic_store(&event->when_ns, ready);
    event->captured = stream->capture;
    event->stream = stream;
    if (ready >= FAKE_NEVER) {
        event->next = waiting;
        waiting = event;
    }
    if (stream == &legacy && ready > atomic_load(&legacy.free_ns))
        atomic_store(&legacy.free_ns, ready);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    return record(event, fake_stream(stream, false));
}
FAKE_API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
    return record(event, fake_stream(stream, true));
}
static CUresult may_ask(CUevent event) {
    CUresult fault = fake_fault();
    if (fault != CUDA_SUCCESS) return fault;
    if (event->captured == NULL) return fake_unsafe();
    event->captured->broken = true;
    return FAKE_CAPTURED_EVENT;
}
FAKE_API CUresult cuEventQuery(CUevent event) {
    CUresult refused = may_ask(event);
    if (refused != CUDA_SUCCESS) return refused;
    return atomic_load(&event->when_ns) > fake_now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
FAKE_API CUresult cuEventSynchronize(CUevent event) {
    CUresult refused = may_ask(event);
    if (refused != CUDA_SUCCESS) return refused;
    uint64_t when;
    while ((when = atomic_load(&event->when_ns)) >= FAKE_NEVER)
        fake_sleep_until(fake_now_ns() + LOOK_NS);
    fake_sleep_until(when);
    return fake_fault();
}
static CUresult wait_for(struct CUstream_st *stream, CUevent event) {
    CUresult refused = fake_may_use(stream);
    if (refused != CUDA_SUCCESS) return refused;
    if (stream->capture != NULL && event->captured != stream->capture) {
        stream->capture->broken = true;
        return FAKE_CAPTURE_ISOLATION;
    }
    if (event->captured != NULL) {
        stream->capture = event->captured;
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    uint64_t before = atomic_load(&stream->free_ns), when = atomic_load(&event->when_ns);
    if (when >= FAKE_NEVER) stream->behind = event->stream;
    while (when > before && !atomic_compare_exchange_weak(&stream->free_ns, &before, when)) continue;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    return wait_for(fake_stream(stream, false), event);
}
FAKE_API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
    return wait_for(fake_stream(stream, true), event);
}
