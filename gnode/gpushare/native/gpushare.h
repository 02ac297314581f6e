/* What the files of the library share. README.md describes the protocol with the token daemon. */
#ifndef GS_GPUSHARE_H
#define GS_GPUSHARE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

#define GS_EXPORT __attribute__((visibility("default")))
#define GS_LIKELY(x) __builtin_expect(!!(x), 1)
#define GS_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---- entry points of the driver: driver.c, trampolines.S, resolver.c ---- */

enum gs_index {
#define GS_SYMBOL(index, name, base, version, flags, kind) GS_##name = (index),
#include "symbols.inc"
#undef GS_SYMBOL
    GS_SYMBOLS
};

extern void *gs_real[GS_SYMBOLS]; /* NULL until first used */
void *gs_resolve(unsigned int index);
void *gs_driver(void); /* handle of the real driver, or NULL */
extern const char *const gs_names[GS_SYMBOLS];
extern _Atomic uint64_t gs_unhooked_symbols;
void gs_note_use(unsigned int index); /* before the first call of an entry point */

static inline void *gs_real_function(unsigned int index) {
    void *function = __atomic_load_n(&gs_real[index], __ATOMIC_ACQUIRE);
    return GS_LIKELY(function != NULL) ? function : gs_resolve(index);
}

/* The real function of that name, with the prototype of the hook. */
#define GS_REAL(name) ((__typeof__(&name))gs_real_function(GS_##name))

/* ---- environment and messages: settings.c ---- */

struct gs_settings {
    const char *socket_path; /* NULL: this process shares nothing */
    const char *secret;
    uint64_t memory_bytes; /* limit of the job */
    bool high;             /* class of the job */
    bool fail_open;        /* when the daemon does not answer */
    bool gate_copies;
    unsigned int patience_ms; /* how long to wait for the daemon */
};

const struct gs_settings *gs_settings(void);
void gs_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t gs_now_ns(void);

/* ---- messages: wire.c ---- */

enum gs_message_type {
    GS_HELLO = 1,    /* to the daemon, with the secret behind it; a: bytes in use, b: channel */
    GS_WELCOME = 2,  /* a: memory limit; the gate page's descriptor on a launch channel */
    GS_REQUEST = 3,  /* to the daemon: wants the token, or is busy again */
    GS_GRANT = 4,    /* the gate is open */
    GS_REVOKE = 5,   /* the gate is closed: drain and say so */
    GS_RELEASED = 6, /* to the daemon: drained; a: launches, b: ns of the drain */
    GS_YIELD = 7,    /* to the daemon: idle */
    GS_RESERVE = 8,  /* to the daemon; a: bytes; 0 asks for the numbers only */
    GS_RESERVED = 9, /* b: bytes in use by the job, c: limit */
    GS_REFUSED = 10, /* to RESERVE: as RESERVED; to HELLO: the daemon knows no such job */
    GS_FREE = 11,    /* to the daemon; a: bytes */
    GS_STAT = 12,    /* to the daemon; a: launches since the last one, b: unhooked symbols */
    GS_WAITING = 13, /* another job waits for the token: tell when idle */
    GS_BUSY = 14,    /* to HELLO: there is no place now; try again */
    GS_PING = 15,    /* to the daemon: a launch waits, and nothing was heard for long */
    GS_PONG = 16,
    GS_LOADING = 17, /* to the daemon: the drain waits for code that is loaded */
    GS_VERSION = 255, /* to HELLO: the daemon serves other versions, a to b; alike in all versions */
};

#ifndef GS_WIRE_VERSION /* a test builds others */
#define GS_WIRE_VERSION 2
#endif
#define GS_CLAIM_HELD 1u     /* HELLO: its gate was open when the daemon ended */
#define GS_FORCED 2u         /* RESERVE: is in use already, and counts whatever the limit is */
#define GS_CHANNEL_LAUNCH 0u /* HELLO, b */
#define GS_CHANNEL_MEMORY 1u

struct gs_message {
    uint16_t version;
    uint16_t type;
    uint32_t flags;
    uint32_t pid;
    uint32_t client;
    uint64_t seq;
    uint64_t epoch;
    uint64_t a;
    uint64_t b;
    uint64_t c;
    uint64_t reserved;
};
_Static_assert(sizeof(struct gs_message) == 64, "a message has 64 bytes");

/* Written by the daemon, mapped read-only. */
struct gs_gate_page {
    uint32_t gate_of_version_1[2]; /* 1: launches may pass; number of the last grant */
    _Atomic uint32_t window;       /* unfinished launches of this process; 0: no limit */
    _Atomic uint32_t gate; /* lowest bit: launches may pass; above it: number of the last grant.
                            * Threads sleep on it, and the daemon wakes them: see futex(2) */
};

#define GS_OPEN 1u
static inline uint32_t gs_epoch_of(uint32_t gate) { return gate >> 1; }

/* A connection to the daemon. A program may close all descriptors, and have a file of its own under
 * the number: then it is nobody's. */
struct gs_channel {
    uint64_t kind;
    int fd; /* -1: there is none */
    uint64_t inode;
};

bool gs_dial(struct gs_channel *channel, uint32_t flags, uint64_t epoch, uint64_t bytes);
bool gs_is_own(const struct gs_channel *channel);
void gs_hang_up(struct gs_channel *channel);
bool gs_send(const struct gs_channel *channel, enum gs_message_type type, uint32_t flags,
             uint64_t epoch, uint64_t a, uint64_t b);
/* 1: a message, 0: closed or broken, -1: nothing before the time-out. `passed` may be NULL. */
int gs_receive(const struct gs_channel *channel, struct gs_message *message, int *passed,
               int timeout_ms);

/* ---- the gate: gate.c; the control thread: control.c ---- */

#define GS_LAUNCHES 1u /* it may load code */
#define GS_WAITS 2u    /* for work: for a place in its window, or for a copy */
struct gs_slot {            /* one for each thread that launches */
    _Atomic uint32_t in;    /* not 0 from the test of the gate to the return of the driver */
    _Atomic uint64_t launches;
    _Atomic uint64_t synced_at; /* launches when it last waited for the GPU */
    _Atomic bool taken;
    struct gs_slot *next;
    /* Where its thread has launched last, as the control thread knows. */
    CUstream stream;
    uint32_t generation; /* 0: nowhere, or in another context */
};

extern __thread struct gs_slot *gs_my_slot __attribute__((tls_model("initial-exec")));
extern struct gs_gate_page *_Atomic gs_gate;
extern struct gs_gate_page gs_open_page, gs_closed_page;
extern bool gs_no_membarrier;

struct gs_slot *gs_begin_slow(CUstream stream, CUresult *refused);
struct gs_slot *gs_own_slot(void);
void gs_window_launched(CUstream stream, uint32_t window);
extern _Atomic uint32_t gs_captures; /* streams that record */
bool gs_is_capturing(CUstream stream);
/* streams.c */
extern _Atomic uint32_t gs_streams_generation; /* changes when a stream or context ends */
void gs_stream_used(struct gs_slot *slot, CUstream stream);
bool gs_work_unfinished(void);
void gs_recording_begins(CUstream stream); /* takes a lock that gs_recording_began gives back */
void gs_recording_began(void);
void gs_synchronize_idle(void);
void gs_stream_gone(CUstream stream);
void gs_streams_owner_gone(struct gs_slot *owner);
void gs_streams_context_gone(CUcontext context);
void gs_streams_watch_exit(void);
void gs_streams_forget_after_fork(void);
CUcontext gs_context_of(CUstream stream); /* of one that was created; otherwise NULL */
CUevent gs_new_event(CUcontext context);  /* or NULL */
CUstreamCaptureMode gs_relax(void); /* this thread may do what breaks no recording of others */
void gs_relax_end(CUstreamCaptureMode mode);
bool gs_slots_busy(void);
bool gs_slots_launching(void); /* and not only waiting */
void gs_slots_totals(uint64_t *launches, uint64_t *synced, bool *busy);
void gs_barrier(void);
void gs_slots_forget_after_fork(void);

/* Waits for the gate. NULL: the launch must not happen, and `refused` says why. */
static inline struct gs_slot *gs_begin(CUstream stream, CUresult *refused) {
    struct gs_slot *slot = gs_my_slot;
    if (GS_LIKELY(slot != NULL && !gs_no_membarrier)) {
        atomic_store_explicit(&slot->in, GS_LAUNCHES, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst); /* the control thread's membarrier is the rest */
        struct gs_gate_page *page = atomic_load_explicit(&gs_gate, memory_order_relaxed);
        if (GS_LIKELY(atomic_load_explicit(&page->gate, memory_order_relaxed) & GS_OPEN)) return slot;
    }
    return gs_begin_slow(stream, refused);
}

static inline void gs_end(struct gs_slot *slot, CUstream stream) {
    if (GS_UNLIKELY(atomic_load_explicit(&gs_captures, memory_order_relaxed) != 0) &&
        gs_is_capturing(stream)) { /* recorded: nothing runs */
        atomic_store_explicit(&slot->in, 0, memory_order_release);
        return;
    }
    if (GS_UNLIKELY(slot->stream != stream || stream == CU_STREAM_PER_THREAD ||
                    slot->generation !=
                        atomic_load_explicit(&gs_streams_generation, memory_order_relaxed)))
        gs_stream_used(slot, stream);
    uint64_t launches = atomic_load_explicit(&slot->launches, memory_order_relaxed);
    atomic_store_explicit(&slot->launches, launches + 1, memory_order_relaxed);
    struct gs_gate_page *page = atomic_load_explicit(&gs_gate, memory_order_relaxed);
    uint32_t window = atomic_load_explicit(&page->window, memory_order_relaxed);
    if (GS_UNLIKELY(window != 0)) {
        atomic_store_explicit(&slot->in, GS_WAITS, memory_order_relaxed);
        gs_window_launched(stream, window);
    }
    atomic_store_explicit(&slot->in, 0, memory_order_release);
}

/* control.c */
bool gs_wait_for_token(CUresult *refused); /* false: `refused` is the launch's result */
void gs_control_forget_after_fork(void);
/* loads.c */
extern _Atomic uint32_t gs_loads; /* threads that load code now */
/* window.c */
void gs_window_recording_begins(void);
void gs_window_context_gone(CUcontext context);
void gs_window_stream_gone(CUstream stream);
void gs_window_forget_after_fork(void);
/* capture.c */
void gs_capture_forget_after_fork(void);
/* lifecycle.c */
void gs_watch_forks(void);
/* graphs.c, pools.c, devices.c */
void gs_graphs_forget_after_fork(void);
void gs_pools_forget_after_fork(void);
void gs_devices_forget_after_fork(void);
CUcontext gs_current_context(void);

/* ---- memory: accounting.c, budget.c, reclaim.c ---- */

#define GS_BLOCK ((uint64_t)2 << 20) /* what the driver takes of the GPU at once */

enum gs_kind {
    GS_KIND_POINTER = 1,
    GS_KIND_BLOCK, /* an address / GS_BLOCK: allocations that share it */
    GS_KIND_ARRAY, /* also with mipmaps */
    GS_KIND_HANDLE,  /* of cuMemCreate */
    GS_KIND_MAPPING, /* address of cuMemMap */
    GS_KIND_POOL,
    GS_KIND_GRAPH_EXEC /* bytes that it needs, which are no charge */
};

struct gs_entry {
    enum gs_kind kind;
    uint64_t key;
    uint64_t bytes;
    uint64_t least;          /* of a graph: what it needs at least */
    struct gs_entry *handle; /* of a mapping */
    uint32_t refs;           /* of a handle: references; of a block: allocations */
    uint32_t maps;           /* of a handle: mappings */
    uint32_t calls;          /* of a handle: in the driver */
    bool on_host;            /* of a pool */
    CUcontext context;       /* whose end frees it; NULL: none */
    struct gs_entry *next;
};

/* budget.c: the job's memory, by a question to the daemon when more of it is taken. */
bool gs_reserve(uint64_t bytes);
void gs_charge_anyway(uint64_t bytes);
void gs_give_back(uint64_t bytes);
void gs_adjust(uint64_t reserved, uint64_t real); /* corrects a reservation afterwards */
uint64_t gs_room(void);
bool gs_memory_numbers(uint64_t *used, uint64_t *limit); /* false: there is no limit */
void gs_budget_rejoin(void);
void gs_budget_forget_after_fork(void);

/* reclaim.c, with what pools.c and graphs.c do for it */
enum gs_effort {
    GS_LOOK, /* at what the driver has released by itself */
    GS_TRIM, /* have it release what it can */
    GS_WAIT, /* the same, after all work has ended */
    GS_EFFORTS
};
bool gs_obtain(uint64_t bytes); /* reserves; gives back what is not needed rather than fail */
void gs_reclaim(enum gs_effort effort);
void gs_pools_reclaim(enum gs_effort effort);
void gs_graphs_reclaim(enum gs_effort effort);
extern _Atomic bool gs_freed_in_streams; /* since the last wait: it may release more */

/* accounting.c: what was allocated here. The table has one lock. */
void gs_table_lock(void);
void gs_table_unlock(void);
struct gs_entry *gs_table_find(enum gs_kind kind, uint64_t key); /* the lock is held, here and below */
struct gs_entry *gs_table_add(enum gs_kind kind, uint64_t key, uint64_t bytes, CUcontext context);
void gs_table_put(struct gs_entry *entry);
void gs_table_pull(struct gs_entry *entry); /* out of the table, and still there */
/* These lock the table themselves. */
uint64_t gs_record(enum gs_kind kind, uint64_t key, uint64_t bytes, CUcontext context); /* growth */
struct gs_entry *gs_detach(enum gs_kind kind, uint64_t key); /* still charged; NULL: unknown */
void gs_attach(struct gs_entry *entry);                      /* undoes it; NULL is fine, here, too */
uint64_t gs_dispose(struct gs_entry *entry);                 /* returns bytes to give back */
uint64_t gs_table_drop_context(CUcontext context); /* bytes that were freed with it */
uint64_t gs_table_bytes(enum gs_kind kind);
size_t gs_table_keys(enum gs_kind kind, uint64_t *keys, size_t most);
void gs_table_forget_after_fork(void);

void gs_sharing_lock(void); /* for allocations that may share a block */
void gs_sharing_unlock(void);
uint64_t gs_whole_blocks(uint64_t bytes);
static inline bool gs_shares_block(uint64_t bytes) { return bytes <= GS_BLOCK / 2; }

#endif
