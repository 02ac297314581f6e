/* The window of a low job beside a high one: at most W of its launches are unfinished.
 *
 * An event is recorded behind every W/2 launches of a stream; a thread that would exceed W waits for
 * the oldest of them. It looks instead of sleeping in the driver, and gives up after some time:
 * a kernel may wait for another kernel that is not launched yet. */
#include <time.h>

#include "gpushare.h"

#define BATCHES_MAX 128
#define EVENTS_MAX 256
#define GIVE_UP_NS 200000000u
#define LOOK_NS 30000u

struct batch {
    CUevent event;
    CUcontext context;
    uint32_t launches;
};

struct spare {
    CUevent event;
    CUcontext context;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct batch batches[BATCHES_MAX];
static unsigned int first, batch_count;
static struct spare spares[EVENTS_MAX];
static unsigned int spare_count;
static uint32_t unfinished; /* launches in batches */
static struct {
    CUstream stream;
    CUcontext context;
    uint32_t launches;
} open_batch;

extern CUresult cuEventRecord(CUevent event, CUstream stream);
extern CUresult cuEventQuery(CUevent event);
extern CUresult cuEventDestroy_v2(CUevent event);

static CUevent take_event(CUcontext context) {
    for (unsigned int i = 0; i < spare_count; i++)
        if (spares[i].context == context) {
            CUevent event = spares[i].event;
            spares[i] = spares[--spare_count];
            return event;
        }
    return gs_new_event(context);
}

static void keep_event(CUevent event, CUcontext context) {
    if (spare_count < EVENTS_MAX)
        spares[spare_count++] = (struct spare){event, context};
    else
        GS_REAL(cuEventDestroy_v2)(event);
}

/* Returns an event behind the work of a stream, or NULL. The lock is held. */
static CUevent recorded(CUstream stream, CUcontext context) {
    CUevent event = take_event(context);
    if (event == NULL || GS_REAL(cuEventRecord)(event, stream) == CUDA_SUCCESS) return event;
    keep_event(event, context);
    return NULL;
}

/* Records an event behind the open batch: of the context that was current, or, since the driver
 * wants one of the stream's context, of that. The lock is held. */
static void close_batch(void) {
    if (open_batch.launches == 0) return;
    uint32_t launches = open_batch.launches;
    open_batch.launches = 0;
    if (batch_count == BATCHES_MAX) return;
    CUcontext context = open_batch.context;
    CUevent event = recorded(open_batch.stream, context);
    if (event == NULL) {
        context = gs_context_of(open_batch.stream);
        if (context == NULL || context == open_batch.context) return;
        event = recorded(open_batch.stream, context);
        if (event == NULL) return;
    }
    batches[(first + batch_count++) % BATCHES_MAX] = (struct batch){event, context, launches};
    unfinished += launches;
}

static void wait_for(CUevent event) {
    uint64_t end_ns = gs_now_ns() + GIVE_UP_NS;
    for (unsigned int looks = 0; GS_REAL(cuEventQuery)(event) == CUDA_ERROR_NOT_READY; looks++) {
        if (gs_now_ns() > end_ns) return;
        if (looks < 16) continue;
        struct timespec pause = {.tv_nsec = LOOK_NS};
        nanosleep(&pause, NULL);
    }
}

void gs_window_launched(CUstream stream, uint32_t window) {
    if (gs_is_capturing(stream)) return;
    CUcontext context = gs_current_context();
    /* Another thread cannot record on a thread's own stream; a late record on the legacy stream
     * would wait for what other streams have been given meanwhile. */
    bool at_once = (uintptr_t)stream <= 2;
    uint32_t half = window > 1 ? window / 2 : 1;
    CUstreamCaptureMode mode = gs_relax();
    pthread_mutex_lock(&lock);
    if (open_batch.launches > 0 && (open_batch.stream != stream || open_batch.context != context))
        close_batch();
    open_batch.stream = stream;
    open_batch.context = context;
    if (++open_batch.launches >= half || at_once) close_batch();
    while (batch_count > 0 && unfinished + half > window) {
        struct batch oldest = batches[first];
        first = (first + 1) % BATCHES_MAX;
        batch_count--;
        pthread_mutex_unlock(&lock);
        wait_for(oldest.event);
        pthread_mutex_lock(&lock);
        unfinished -= oldest.launches < unfinished ? oldest.launches : unfinished;
        keep_event(oldest.event, oldest.context);
    }
    pthread_mutex_unlock(&lock);
    gs_relax_end(mode);
}

/* Afterwards the open batch's stream may record, or the legacy stream must not be used. */
void gs_window_recording_begins(void) {
    pthread_mutex_lock(&lock);
    close_batch();
    pthread_mutex_unlock(&lock);
}

/* Nothing can be recorded on it later. */
void gs_window_stream_gone(CUstream stream) {
    pthread_mutex_lock(&lock);
    if (open_batch.stream == stream) {
        close_batch();
        open_batch.stream = NULL;
    }
    pthread_mutex_unlock(&lock);
}

/* Before the driver destroys it. */
void gs_window_context_gone(CUcontext context) {
    pthread_mutex_lock(&lock);
    if (open_batch.context == context) open_batch.launches = 0;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < batch_count; i++) {
        struct batch one = batches[(first + i) % BATCHES_MAX];
        if (one.context == context) {
            unfinished -= one.launches < unfinished ? one.launches : unfinished;
            GS_REAL(cuEventDestroy_v2)(one.event);
        } else {
            batches[(first + kept++) % BATCHES_MAX] = one;
        }
    }
    batch_count = kept;
    for (unsigned int i = 0; i < spare_count; i++)
        if (spares[i].context == context) {
            GS_REAL(cuEventDestroy_v2)(spares[i].event);
            spares[i--] = spares[--spare_count];
        }
    pthread_mutex_unlock(&lock);
}

void gs_window_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    first = batch_count = spare_count = unfinished = open_batch.launches = 0;
}
