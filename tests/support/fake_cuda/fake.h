/* A CUDA driver without a GPU. All processes of a test share one device: a file with a counter of
 * memory, the end of the last kernel, and a log of what ran when. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

#define FAKE_SYMBOLS_MAX 1024
#define FAKE_LOG_MAX 1048576
#define FAKE_PROCESSES_MAX 2048
#define FAKE_INVALID_CONTEXT ((CUresult)201)
#define FAKE_INVALID_HANDLE ((CUresult)400)
#define FAKE_ILLEGAL_ADDRESS ((CUresult)700)
#define FAKE_NOT_SUPPORTED ((CUresult)801)
#define FAKE_CAPTURE_UNSUPPORTED ((CUresult)900)
#define FAKE_CAPTURE_INVALIDATED ((CUresult)901)
#define FAKE_CAPTURE_UNMATCHED ((CUresult)903)
#define FAKE_CAPTURE_ISOLATION ((CUresult)905)
#define FAKE_CAPTURE_IMPLICIT ((CUresult)906)
#define FAKE_CAPTURED_EVENT ((CUresult)907)
#define FAKE_CAPTURE_WRONG_THREAD ((CUresult)908)
#define FAKE_QUEUE_MAX 1024 /* a launch into a stream with so many unfinished ones waits */
#define FAKE_NEVER (UINT64_MAX / 4) /* until what is waited for has come */

enum fake_kind { FAKE_KERNEL = 1, FAKE_COPY = 2, FAKE_FILL = 3, FAKE_GRAPH = 4 };

struct fake_record {
    uint32_t pid;
    uint32_t kind;
    uint64_t stream;
    uint64_t called_ns, started_ns, ended_ns;
};

struct fake_process {
    _Atomic uint32_t pid;
    uint32_t unused;
    _Atomic uint64_t used_bytes;
    _Atomic uint64_t peak_bytes;
};

struct fake_state {
    uint64_t total_bytes; /* written by the test before any process starts */
    _Atomic uint64_t used_bytes;
    _Atomic uint64_t engine_free_ns;
    _Atomic uint64_t records;
    _Atomic uint64_t events; /* that were created and not destroyed */
    struct fake_process processes[FAKE_PROCESSES_MAX];
    _Atomic uint32_t stub_calls[FAKE_SYMBOLS_MAX];
    struct fake_record log[FAKE_LOG_MAX];
};

struct CUstream_st;

struct fake_graph {
    uint64_t busy_ns;
    void *nodes; /* with memory, and other graphs: graphs.c */
    /* While it is recorded: */
    struct CUstream_st *origin;
    CUstreamCaptureMode mode;
    uint32_t thread;
    _Atomic bool broken; /* another stream may break it */
};

struct CUstream_st {
    _Atomic uint64_t free_ns;    /* end of its last work; FAKE_NEVER: it waits */
    struct fake_graph *_Atomic capture; /* that it records, or has joined */
    bool blocking;               /* it waits for the legacy stream, and that for it */
    CUcontext context;           /* NULL: that of each thread that uses it */
    _Atomic uint64_t launches;
    _Atomic uint64_t ends_ns[FAKE_QUEUE_MAX];
    /* What it waits for that has no time: functions of the host and values, another stream. */
    uint64_t holds, holds_over, values;
    struct CUstream_st *behind;
    uint64_t pending_ns; /* of the work that waits with it */
};

struct CUevent_st {
    _Atomic uint64_t when_ns;
    struct fake_graph *captured; /* recorded into a stream that records */
    CUcontext context;
    struct CUstream_st *stream;
    struct CUevent_st *next; /* of those that wait with their streams */
};

struct fake_state *fake_state(void);
uint64_t fake_now_ns(void);
long fake_number(const char *name, long otherwise); /* from the environment */
CUresult fake_take(uint64_t bytes); /* device memory */
void fake_give(uint64_t bytes);
void fake_sleep_until(uint64_t when_ns);
uint64_t fake_engine(enum fake_kind kind, struct CUstream_st *stream, uint64_t called_ns,
                     uint64_t ready_ns, uint64_t busy_ns);
void fake_fault_at(uint64_t when_ns);
CUresult fake_fault(void); /* 0, or the error of a kernel that has faulted */

/* contexts.c */
CUcontext fake_context(void); /* current to this thread, or NULL */
struct CUstream_st *fake_green_stream(void); /* of the green context that is current, or NULL */
bool fake_event_fits(CUevent event, const struct CUstream_st *stream);

/* streams.c */
struct CUstream_st *fake_stream(CUstream stream, bool per_thread);
struct CUstream_st *fake_new_stream(bool blocking, CUcontext context);
bool fake_is_legacy(const struct CUstream_st *stream);
uint64_t fake_ready_ns(struct CUstream_st *stream);
bool fake_each_stream(bool (*visit)(struct CUstream_st *stream, void *data), void *data);
void fake_streams_reset(void);
CUresult fake_run(enum fake_kind kind, struct CUstream_st *stream, uint64_t busy_ns);

/* recordings.c */
extern _Atomic uint32_t fake_capturing;
CUresult fake_may_use(struct CUstream_st *stream); /* the legacy stream beside a recording? */
CUresult fake_unsafe(void); /* a call that might wait for what is recorded */
bool fake_blocking_records(void);
uint32_t fake_thread(void);
void fake_all_leave(struct fake_graph *capture); /* its streams record no more */

CUresult fake_launch(struct CUstream_st *stream, uint64_t busy_ns, enum fake_kind kind);
CUdeviceptr fake_graph_alloc(struct fake_graph *graph, uint64_t bytes); /* adds a node */
void fake_graph_free(struct fake_graph *graph, CUdeviceptr address);
void fake_pools_after_sync(struct CUstream_st *stream); /* NULL: all streams */
void fake_memory_reset(void); /* plain allocations are gone with their context */
extern int fake_version;

#define FAKE_API __attribute__((visibility("default")))

#endif
