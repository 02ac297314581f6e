/* The device: its state, memory, time; contexts, streams and events. */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

_Atomic uint32_t fake_capturing;
int fake_version = 13000;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct fake_state *state;
static _Atomic long allocations;

long fake_number(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? strtol(value, NULL, 10) : otherwise;
}

static void open_state(void) {
    const char *path = getenv("GSCHED_FAKE_STATE");
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    } else { /* a device of this process alone */
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        state->total_bytes = 16ull << 30;
    }
    if (state == MAP_FAILED) abort();
    fake_version = (int)fake_number("GSCHED_FAKE_VERSION", 13000);
}

struct fake_state *fake_state(void) {
    pthread_once(&once, open_state);
    return state;
}

uint64_t fake_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void fake_sleep_until(uint64_t when_ns) {
    struct timespec until = {.tv_sec = (time_t)(when_ns / 1000000000u),
                             .tv_nsec = (long)(when_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) continue;
}

/* A newer driver looks itself up while it is being loaded. */
__attribute__((constructor)) static void look_itself_up(void) {
    if (fake_number("GSCHED_FAKE_SELF_LOOKUP", 0) == 0) return;
    void *self = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*version)(int *) = (CUresult(*)(int *))dlsym(self, "cuDriverGetVersion");
    int number = 0;
    if (version == NULL || version(&number) != CUDA_SUCCESS) abort();
}

/* ---- memory ---- */

/* The memory of processes that are dead is free again. */
static void collect(void) {
    struct fake_state *all = fake_state();
    for (unsigned int i = 0; i < FAKE_PROCESSES_MAX; i++) {
        uint32_t pid = atomic_load(&all->processes[i].pid);
        if (pid == 0 || kill((pid_t)pid, 0) == 0 || errno != ESRCH) continue;
        atomic_fetch_sub(&all->used_bytes, atomic_exchange(&all->processes[i].used_bytes, 0));
    }
}

/* A place that has this number already is of a dead process, or of the program before exec(). */
static struct fake_process *new_process(uint32_t pid) {
    struct fake_state *all = fake_state();
    for (unsigned int i = 0; i < FAKE_PROCESSES_MAX; i++) {
        struct fake_process *one = &all->processes[i];
        uint32_t none = 0;
        if (atomic_load(&one->pid) == pid) {
            atomic_fetch_sub(&all->used_bytes, atomic_exchange(&one->used_bytes, 0));
            atomic_store(&one->peak_bytes, 0);
            return one;
        }
        if (atomic_compare_exchange_strong(&one->pid, &none, pid)) return one;
    }
    collect();
    for (unsigned int i = 0; i < FAKE_PROCESSES_MAX; i++) { /* the place of a dead process */
        struct fake_process *one = &all->processes[i];
        uint32_t dead = atomic_load(&one->pid);
        if (kill((pid_t)dead, 0) == 0 || !atomic_compare_exchange_strong(&one->pid, &dead, pid))
            continue;
        atomic_store(&one->peak_bytes, 0);
        return one;
    }
    abort();
}

static struct fake_process *own_process(void) {
    static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;
    static _Atomic uint32_t owner;
    static struct fake_process *process;
    uint32_t pid = (uint32_t)getpid();
    if (atomic_load(&owner) == pid) return process;
    pthread_mutex_lock(&taking);
    if (atomic_load(&owner) != pid) {
        process = new_process(pid);
        atomic_store(&owner, pid);
    }
    pthread_mutex_unlock(&taking);
    return process;
}

CUresult fake_take(uint64_t bytes) {
    struct fake_state *all = fake_state();
    long failing = fake_number("GSCHED_FAKE_FAIL_ALLOC", 0);
    if (failing > 0 && atomic_fetch_add(&allocations, 1) + 1 == failing)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (atomic_load(&all->used_bytes) + bytes > all->total_bytes) collect();
    if (atomic_fetch_add(&all->used_bytes, bytes) + bytes > all->total_bytes) {
        atomic_fetch_sub(&all->used_bytes, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct fake_process *own = own_process();
    uint64_t now = atomic_fetch_add(&own->used_bytes, bytes) + bytes;
    uint64_t peak = atomic_load(&own->peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&own->peak_bytes, &peak, now)) continue;
    return CUDA_SUCCESS;
}

void fake_give(uint64_t bytes) {
    atomic_fetch_sub(&fake_state()->used_bytes, bytes);
    atomic_fetch_sub(&own_process()->used_bytes, bytes);
}

/* ---- time: one engine, first come, first served ---- */

static uint64_t fake_ready_ns(struct CUstream_st *stream);

CUresult fake_run(enum fake_kind kind, struct CUstream_st *stream, uint64_t busy_ns) {
    struct fake_state *all = fake_state();
    uint64_t called = fake_now_ns(), start, end;
    uint64_t engine = atomic_load(&all->engine_free_ns);
    uint64_t before = fake_ready_ns(stream);
    uint64_t place = atomic_fetch_add(&stream->launches, 1) % FAKE_QUEUE_MAX;
    uint64_t oldest = atomic_load(&stream->ends_ns[place]);
    if (oldest > called) { /* the queue is full: the call returns when a place is free */
        fake_sleep_until(oldest);
        called = fake_now_ns();
    }
    do {
        start = called > engine ? called : engine;
        start = before > start ? before : start;
        end = start + busy_ns;
    } while (!atomic_compare_exchange_weak(&all->engine_free_ns, &engine, end));
    atomic_store(&stream->free_ns, end);
    atomic_store(&stream->ends_ns[place], end);
    if (busy_ns == 0) return CUDA_SUCCESS; /* a benchmark of the launch path */
    uint64_t index = atomic_fetch_add(&all->records, 1);
    all->log[index % FAKE_LOG_MAX] = (struct fake_record){
        (uint32_t)getpid(), (uint32_t)kind, (uint64_t)(uintptr_t)stream, called, start, end};
    return CUDA_SUCCESS;
}

/* ---- the driver, devices ---- */

FAKE_API CUresult cuInit(unsigned int flags) {
    fake_state();
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
FAKE_API CUresult cuDriverGetVersion(int *version) {
    fake_state();
    *version = fake_version;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : (CUresult)101;
}
FAKE_API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    strncpy(name, "Fake GPU", (size_t)length);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = fake_state()->total_bytes;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    if (free_bytes != NULL)
        *free_bytes = fake_state()->total_bytes - atomic_load(&fake_state()->used_bytes);
    if (total_bytes != NULL) *total_bytes = fake_state()->total_bytes;
    return CUDA_SUCCESS;
}

/* ---- contexts ---- */

struct CUctx_st {
    _Atomic bool dead; /* kept, so that its use is seen */
};
#define STACK_MAX 16
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
    if (atomic_load(&primary_refs) == 0) return (CUresult)201;
    if (atomic_fetch_sub(&primary_refs, 1) == 1) atomic_store(&primary.dead, true);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxSetCurrent(CUcontext context) {
    must_live(context);
    if (depth == 0) depth = 1;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    must_live(context);
    if (depth == STACK_MAX) return CUDA_ERROR_UNKNOWN;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (depth == 0) return (CUresult)201;
    *context = stack[--depth];
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return depth > 0 ? CUDA_SUCCESS : (CUresult)201;
}

/* ---- streams ---- */

#define STREAMS_MAX 1024
static struct CUstream_st legacy = {.blocking = true};
static __thread struct CUstream_st *own;
static struct CUstream_st *streams[STREAMS_MAX]; /* all but the legacy one */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct CUstream_st *new_stream(bool blocking) {
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    stream->blocking = blocking;
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
    if (stream == (CUstream)2 || (stream == NULL && per_thread)) {
        if (own == NULL) own = new_stream(true);
        return own;
    }
    if (stream == NULL || stream == (CUstream)1) return &legacy;
    return stream;
}

/* End of the work before which a stream's next work cannot start. */
static uint64_t fake_ready_ns(struct CUstream_st *stream) {
    uint64_t ready = atomic_load(&stream->free_ns);
    if (stream != &legacy) {
        uint64_t first = stream->blocking ? atomic_load(&legacy.free_ns) : 0;
        return first > ready ? first : ready;
    }
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX; i++) {
        if (streams[i] == NULL || !streams[i]->blocking) continue;
        uint64_t other = atomic_load(&streams[i]->free_ns);
        if (other > ready) ready = other;
    }
    pthread_mutex_unlock(&lock);
    return ready;
}

FAKE_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    *stream = new_stream((flags & 1) == 0); /* CU_STREAM_NON_BLOCKING */
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuStreamDestroy_v2(CUstream stream) {
    struct fake_graph *capture = stream->capture;
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX; i++)
        if (streams[i] == stream) streams[i] = NULL;
    pthread_mutex_unlock(&lock);
    if (capture != NULL) capture->broken = true;
    if (capture != NULL && capture->origin == stream) fake_all_leave(capture);
    free(stream);
    return CUDA_SUCCESS;
}

/* A stream waits for a value that nobody has written: until the next write of this process. */
#define NEVER (UINT64_MAX / 4)
FAKE_API CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value,
                                         unsigned int flags) {
    atomic_store(&fake_stream(stream, false)->free_ns, NEVER);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value,
                                          unsigned int flags) {
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX; i++)
        if (streams[i] != NULL && atomic_load(&streams[i]->free_ns) == NEVER)
            atomic_store(&streams[i]->free_ns, fake_now_ns());
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* A function of the host runs in a thread of the driver when the stream's earlier work has ended. */
struct host_call {
    struct CUstream_st *stream;
    uint64_t when_ns;
    void (*function)(void *);
    void *data;
};
static void *call_host(void *given) {
    struct host_call *call = given;
    fake_sleep_until(call->when_ns);
    call->function(call->data);
    atomic_store(&call->stream->free_ns, fake_now_ns());
    free(call);
    return NULL;
}
FAKE_API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) {
    struct host_call *call = malloc(sizeof *call);
    pthread_t thread;
    call->stream = fake_stream(stream, false);
    call->when_ns = fake_ready_ns(call->stream);
    call->function = function;
    call->data = data;
    atomic_store(&call->stream->free_ns, NEVER);
    if (pthread_create(&thread, NULL, call_host, call) != 0) abort();
    pthread_detach(thread);
    return CUDA_SUCCESS;
}

/* ---- recordings: what is not permitted beside them, and breaks them ---- */

uint32_t fake_thread(void) {
    static _Atomic uint32_t count;
    static __thread uint32_t number;
    if (number == 0) number = atomic_fetch_add(&count, 1) + 1;
    return number;
}

void fake_all_leave(struct fake_graph *capture) {
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX; i++)
        if (streams[i] != NULL && streams[i]->capture == capture) streams[i]->capture = NULL;
    pthread_mutex_unlock(&lock);
    capture->origin = NULL;
    atomic_fetch_sub(&fake_capturing, 1);
}

static __thread CUstreamCaptureMode thread_mode; /* 0 global, 1 thread-local, 2 relaxed */

/* Breaks the recordings for which `concerns` is true; returns whether there was one. */
static bool break_those(bool (*concerns)(struct CUstream_st *stream)) {
    bool any = false;
    if (atomic_load(&fake_capturing) == 0) return false;
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX; i++)
        if (streams[i] != NULL && streams[i]->capture != NULL && concerns(streams[i]))
            any = streams[i]->capture->broken = true;
    pthread_mutex_unlock(&lock);
    return any;
}
static bool is_any(struct CUstream_st *stream) { return true; }
static bool is_blocking(struct CUstream_st *stream) { return stream->blocking; }
static bool forbids_unsafe(struct CUstream_st *stream) {
    const struct fake_graph *capture = stream->capture;
    if (thread_mode == 2 || capture->mode == 2) return false;
    if (capture->thread == fake_thread()) return true;
    return thread_mode == 0 && capture->mode == 0;
}

/* A call that might wait for what is recorded: see cuThreadExchangeStreamCaptureMode. */
static CUresult unsafe(void) {
    return break_those(forbids_unsafe) ? FAKE_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* The legacy stream encompasses all blocking ones. */
CUresult fake_may_use(struct CUstream_st *stream) {
    if (stream != &legacy) return CUDA_SUCCESS;
    return break_those(is_blocking) ? FAKE_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

bool fake_blocking_records(void) {
    bool any = false;
    if (atomic_load(&fake_capturing) == 0) return false;
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX; i++)
        any = any || (streams[i] != NULL && streams[i]->capture != NULL && streams[i]->blocking);
    pthread_mutex_unlock(&lock);
    return any;
}

static CUresult may_wait(struct CUstream_st *stream) {
    CUresult refused = fake_may_use(stream);
    if (refused != CUDA_SUCCESS) return refused;
    if (stream->capture == NULL) return CUDA_SUCCESS;
    stream->capture->broken = true;
    return FAKE_CAPTURE_UNSUPPORTED;
}
/* When all work of the stream, or of all streams, ends: NEVER until what it waits for has come. */
static uint64_t end_ns(struct CUstream_st *stream) {
    if (stream != NULL) return fake_ready_ns(stream);
    uint64_t last = atomic_load(&legacy.free_ns);
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX; i++)
        if (streams[i] != NULL && atomic_load(&streams[i]->free_ns) > last)
            last = atomic_load(&streams[i]->free_ns);
    pthread_mutex_unlock(&lock);
    return last;
}
static void wait_for_end(struct CUstream_st *stream) {
    uint64_t end;
    while ((end = end_ns(stream)) >= NEVER) fake_sleep_until(fake_now_ns() + 1000000u);
    fake_sleep_until(end);
}
static CUresult synchronize(struct CUstream_st *stream) {
    CUresult refused = may_wait(stream);
    if (refused == CUDA_SUCCESS) refused = unsafe();
    if (refused != CUDA_SUCCESS) return refused;
    wait_for_end(stream);
    fake_pools_after_sync(stream);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuStreamSynchronize(CUstream stream) {
    return synchronize(fake_stream(stream, false));
}
FAKE_API CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return synchronize(fake_stream(stream, true));
}
FAKE_API CUresult cuStreamQuery(CUstream stream) {
    struct CUstream_st *one = fake_stream(stream, false);
    CUresult refused = may_wait(one);
    if (refused == CUDA_SUCCESS) refused = unsafe();
    if (refused != CUDA_SUCCESS) return refused;
    return fake_ready_ns(one) > fake_now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxSynchronize(void) {
    if (depth == 0) return (CUresult)201;
    must_live(stack[depth - 1]);
    if (break_those(is_any)) return FAKE_CAPTURE_UNSUPPORTED;
    wait_for_end(NULL);
    fake_pools_after_sync(NULL);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuCtxSynchronize_v2(CUcontext context) { return cuCtxSynchronize(); }
FAKE_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* All that the process had on the device ends with its primary context. */
static CUresult reset(CUdevice device) {
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < STREAMS_MAX; i++) streams[i] = NULL;
    pthread_mutex_unlock(&lock);
    own = NULL;
    fake_memory_reset();
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return reset(device); }
FAKE_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return reset(device); }

/* ---- events ---- */

struct CUevent_st {
    _Atomic uint64_t when_ns;
    struct fake_graph *captured; /* recorded into a stream that records */
};

FAKE_API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    *event = calloc(1, sizeof **event);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuEventDestroy_v2(CUevent event) {
    free(event);
    return CUDA_SUCCESS;
}
static CUresult record(CUevent event, struct CUstream_st *stream) {
    CUresult refused = fake_may_use(stream);
    if (refused != CUDA_SUCCESS) return refused;
    atomic_store(&event->when_ns, fake_ready_ns(stream));
    event->captured = stream->capture;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    return record(event, fake_stream(stream, false));
}
FAKE_API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
    return record(event, fake_stream(stream, true));
}
static CUresult may_ask(CUevent event) {
    if (event->captured == NULL) return unsafe();
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
    fake_sleep_until(atomic_load(&event->when_ns));
    return CUDA_SUCCESS;
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
    uint64_t before = atomic_load(&stream->free_ns), when = atomic_load(&event->when_ns);
    while (when > before && !atomic_compare_exchange_weak(&stream->free_ns, &before, when)) continue;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    return wait_for(fake_stream(stream, false), event);
}
FAKE_API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
    return wait_for(fake_stream(stream, true), event);
}
