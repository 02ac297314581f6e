/* The control thread: it talks to the token daemon, drains the GPU when the gate was closed, and
 * says when this process is idle. It starts with the first launch. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gpushare.h"

#define NS_PER_MS 1000000u
#define RETRY_NS (100 * NS_PER_MS)    /* between two attempts to reach the daemon */
#define WELCOME_MS 5000               /* for the daemon's first answer */
#define LOOK_AGAIN_NS (100 * NS_PER_MS) /* a waiting launch looks again, whatever was lost */
#define STAT_NS (1000 * NS_PER_MS)
#define PING_NS (500 * NS_PER_MS)     /* of silence, while a launch waits */
#define WATCH_NS 200000u              /* between two looks at idleness while somebody waits */
#define IDLE_SYNCED_NS 300000u        /* idle for so long after it has waited for the GPU */
#define IDLE_NS (1 * NS_PER_MS)       /* idle for so long otherwise */
#define DRAIN_NS 20000u               /* between two looks at a drain, at first */
#define DRAIN_MAX_NS 500000u          /* the same, later */
#define LOADING_NS (20 * NS_PER_MS)   /* a launch that takes so long loads code */
#define SILENCE_NS (5000 * NS_PER_MS) /* of a daemon that was asked */
#define SETTLE_NS (1000 * NS_PER_MS)  /* for work that is unfinished when the daemon is lost */
#define NEVER UINT64_MAX

enum state { STATE_NEW, STATE_RUNNING, STATE_ALONE };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum state state;
static struct gs_channel channel = {.kind = GS_CHANNEL_LAUNCH, .fd = -1};
static bool is_joined; /* launching threads may use the channel */
static uint64_t requested = NEVER; /* the gate for which the token was requested */
static CUresult verdict;           /* of launches that cannot get the token; 0: they wait */
static _Atomic uint32_t changes;   /* of page, channel and verdict: threads without a page sleep on it */
static _Atomic uint32_t waiting;   /* launches */

/* Only the control thread uses these. */
static uint64_t lost_ns, told_launches, stat_ns, heard_ns, pinged_ns;
static bool watching, yielded, has_said, has_said_busy, broken;
static uint64_t seen_launches, still_since_ns;
static struct {
    uint64_t epoch; /* 0: there is no drain */
    uint64_t since_ns;
    bool has_told; /* that it loads */
} drain;

static struct timespec timespec_of(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
}

static void pause_ns(uint64_t ns) {
    struct timespec pause = timespec_of(ns);
    nanosleep(&pause, NULL);
}

static void wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void set_gate(struct gs_gate_page *page, bool joined, CUresult new_verdict) {
    pthread_mutex_lock(&lock);
    struct gs_gate_page *before = atomic_exchange(&gs_gate, page);
    is_joined = joined;
    requested = NEVER;
    verdict = new_verdict;
    atomic_fetch_add(&changes, 1);
    pthread_mutex_unlock(&lock);
    wake_all(&changes);
    wake_all(&before->gate);
}

static void tell(enum gs_message_type type, uint64_t epoch, uint64_t a, uint64_t b) {
    if (!gs_send(&channel, type, 0, epoch, a, b)) broken = true;
}

/* Waits until no launch is under way and what was launched has ended; the daemon is not there. */
static void settle(void) {
    uint64_t end_ns = gs_now_ns() + SETTLE_NS;
    gs_barrier();
    while ((gs_slots_busy() || gs_work_unfinished()) && gs_now_ns() < end_ns) pause_ns(50000);
}

static void stop_watching(void) { watching = yielded = false; }

/* The gate was closed: the drain is over when no launch is under way and all work has ended. What
 * is recorded does not run, and what is loaded says so: neither is held against the job. */
static void look_at_drain(void) {
    uint64_t launches, synced, since_ns = gs_now_ns() - drain.since_ns;
    bool busy = gs_slots_busy();
    bool may_load = since_ns > LOADING_NS && gs_slots_launching();
    if (!drain.has_told && (atomic_load(&gs_loads) > 0 || may_load)) {
        tell(GS_LOADING, drain.epoch, 0, 0);
        drain.has_told = true;
    }
    if (busy || gs_work_unfinished()) return;
    gs_slots_totals(&launches, &synced, &busy);
    tell(GS_RELEASED, drain.epoch, launches - told_launches, gs_now_ns() - drain.since_ns);
    drain.epoch = 0;
}

static void revoked(uint64_t epoch) {
    stop_watching();
    drain.epoch = epoch;
    drain.since_ns = gs_now_ns();
    drain.has_told = false;
    gs_barrier();
    look_at_drain();
}

static void watch(void) {
    uint64_t launches, synced, now_ns = gs_now_ns();
    bool busy;
    gs_slots_totals(&launches, &synced, &busy);
    if (busy || launches != seen_launches || (!yielded && gs_work_unfinished())) {
        seen_launches = launches;
        still_since_ns = now_ns;
        if (yielded) tell(GS_REQUEST, 0, 0, 0); /* not idle any more */
        yielded = false;
        return;
    }
    uint64_t patience_ns = synced >= launches ? IDLE_SYNCED_NS : IDLE_NS;
    if (yielded || now_ns - still_since_ns < patience_ns) return;
    yielded = true;
    tell(GS_YIELD, gs_epoch_of(atomic_load(&atomic_load(&gs_gate)->gate)), 0, 0);
}

static void report(void) {
    uint64_t launches, synced, now_ns = gs_now_ns();
    bool busy;
    if (now_ns - stat_ns < STAT_NS) return;
    stat_ns = now_ns;
    gs_slots_totals(&launches, &synced, &busy);
    if (launches == told_launches) return;
    tell(GS_STAT, 0, launches - told_launches, atomic_load(&gs_unhooked_symbols));
    told_launches = launches;
}

static void handle(const struct gs_message *message) {
    heard_ns = gs_now_ns();
    pinged_ns = 0;
    switch (message->type) {
        case GS_GRANT:
            stop_watching();
            drain.epoch = 0;
            break;
        case GS_REVOKE:
            revoked(message->epoch);
            break;
        case GS_WAITING:
            if (!watching) still_since_ns = gs_now_ns();
            watching = true;
            yielded = false; /* asked again: what was told is forgotten */
            break;
        default: /* of a newer daemon */
            break;
    }
}

/* Nothing was heard: a daemon that is stopped keeps its connections. Returns whether it is lost. */
static bool is_silent(void) {
    uint64_t now_ns = gs_now_ns();
    if (atomic_load(&waiting) == 0) {
        pinged_ns = 0;
        return false;
    }
    uint64_t patience_ns = (uint64_t)gs_settings()->patience_ms * NS_PER_MS;
    if (pinged_ns != 0)
        return now_ns - pinged_ns > (patience_ns < SILENCE_NS ? patience_ns : SILENCE_NS);
    if (now_ns - heard_ns > PING_NS) {
        tell(GS_PING, 0, 0, 0);
        pinged_ns = now_ns;
    }
    return false;
}

static uint64_t next_look_ns(void) {
    if (drain.epoch != 0) {
        uint64_t tenth_ns = (gs_now_ns() - drain.since_ns) / 10;
        return tenth_ns < DRAIN_NS ? DRAIN_NS : tenth_ns > DRAIN_MAX_NS ? DRAIN_MAX_NS : tenth_ns;
    }
    return watching ? WATCH_NS : PING_NS;
}

/* One connection, from the first message to its end. */
static void serve(void) {
    broken = false;
    heard_ns = gs_now_ns();
    pinged_ns = 0;
    drain.epoch = 0;
    while (!broken) {
        struct pollfd ready = {.fd = channel.fd, .events = POLLIN};
        struct timespec timeout = timespec_of(next_look_ns());
        struct gs_message message;
        if (ppoll(&ready, 1, &timeout, NULL) > 0) {
            if (gs_receive(&channel, &message, NULL, 0) != 1) return;
            handle(&message);
        } else if (is_silent()) {
            gs_say("the token daemon does not answer any more");
            return;
        }
        if (drain.epoch != 0)
            look_at_drain();
        else if (watching)
            watch();
        report();
    }
}

enum joining { JOINED, NO_ANSWER, UNKNOWN_JOB, NO_PLACE, OTHER_VERSION, HUNG_UP };

static enum joining failed_join(const struct gs_message *answer) {
    switch (answer->type) {
        case GS_REFUSED: return UNKNOWN_JOB;
        case GS_BUSY: return NO_PLACE;
        case GS_VERSION: return OTHER_VERSION;
        default: return NO_ANSWER;
    }
}

static enum joining join(bool held) {
    struct gs_message message;
    int memfd = -1;
    if (!gs_dial(&channel, held ? GS_CLAIM_HELD : 0, 0, 0)) return NO_ANSWER;
    int received = gs_receive(&channel, &message, &memfd, WELCOME_MS);
    if (received != 1) {
        gs_hang_up(&channel);
        return received == 0 ? HUNG_UP : NO_ANSWER;
    }
    void *page = MAP_FAILED;
    if (message.type == GS_WELCOME && memfd >= 0)
        page = mmap(NULL, sizeof(struct gs_gate_page), PROT_READ, MAP_SHARED, memfd, 0);
    if (memfd >= 0) close(memfd);
    if (page == MAP_FAILED) {
        gs_hang_up(&channel);
        return failed_join(&message);
    }
    /* A stopped daemon reads nothing. */
    if (gs_is_own(&channel)) fcntl(channel.fd, F_SETFL, O_NONBLOCK);
    set_gate(page, true, CUDA_SUCCESS);
    return JOINED;
}

/* The daemon does not answer. Whether launches pass then is the site's decision, and always said. */
static void without_daemon(void) {
    const struct gs_settings *settings = gs_settings();
    uint64_t patience_ns = (uint64_t)settings->patience_ms * NS_PER_MS;
    bool impatient = gs_now_ns() - lost_ns >= patience_ns;
    if (settings->fail_open && (settings->high || impatient)) {
        if (atomic_load(&gs_gate) == &gs_open_page) return;
        gs_say("the token daemon does not answer: launches pass without it (fail = \"open\")");
        set_gate(&gs_open_page, false, CUDA_SUCCESS);
    } else if (impatient && !settings->fail_open) {
        if (!has_said)
            gs_say("the token daemon does not answer: launches are refused (fail = \"closed\")");
        has_said = true;
        set_gate(&gs_closed_page, false, CUDA_ERROR_SYSTEM_NOT_READY);
    }
}

/* The daemon lives and controls the others: launches wait, whatever passed without it before. */
static void busy(enum joining why) {
    if (!has_said_busy)
        gs_say("the token daemon %s: the launches of this process wait",
               why == NO_PLACE ? "has no place for this process now"
               : why == OTHER_VERSION
                   ? "is of another version than this job's library, and is not replaced yet"
                   : "hangs up without an answer: it ends, or is of an older version");
    has_said_busy = true;
    lost_ns = gs_now_ns();
    if (atomic_load(&gs_gate) == &gs_closed_page && verdict == CUDA_SUCCESS) return;
    set_gate(&gs_closed_page, false, CUDA_SUCCESS);
    settle();
}

static void lost(void) {
    const struct gs_settings *settings = gs_settings();
    bool was_closed = !gs_is_own(&channel);
    stop_watching();
    lost_ns = gs_now_ns();
    if (settings->fail_open && settings->high && !was_closed) {
        without_daemon();
    } else {
        gs_say(was_closed ? "the program has closed the connection to the token daemon: another one "
                            "is made"
                          : "the token daemon has ended: launches wait for the next one");
        set_gate(&gs_closed_page, false, CUDA_SUCCESS);
        settle();
    }
    gs_hang_up(&channel);
}

static void *control(void *nothing) {
    gs_relax(); /* other threads' recordings stay whole */
    prctl(PR_SET_TIMERSLACK, 1000ul);
    lost_ns = stat_ns = gs_now_ns();
    for (;;) {
        enum joining how = join(atomic_load(&gs_gate) == &gs_open_page);
        if (how == UNKNOWN_JOB) {
            gs_say("the token daemon does not know this job: its launches are refused");
            set_gate(&gs_closed_page, false, CUDA_ERROR_NOT_PERMITTED);
            return nothing;
        }
        if (how != JOINED) {
            if (how == NO_ANSWER)
                without_daemon();
            else
                busy(how);
            pause_ns(RETRY_NS);
            continue;
        }
        has_said = has_said_busy = false;
        gs_budget_rejoin();
        serve();
        lost();
    }
}

/* The lock is held. */
static void start(void) {
    if (gs_settings()->socket_path == NULL) {
        state = STATE_ALONE;
        atomic_store(&gs_gate, &gs_open_page);
        return;
    }
    sigset_t all, before;
    pthread_t thread;
    pthread_attr_t attributes;
    gs_watch_forks();
    gs_streams_watch_exit();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, control, NULL) == 0) {
        state = STATE_RUNNING;
    } else {
        gs_say("no thread for GPU sharing: launches are refused");
        verdict = CUDA_ERROR_SYSTEM_NOT_READY;
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Sleeps until the gate or anything else has changed since both were read, or a signal came. */
static void sleep_until_changed(struct gs_gate_page *page, uint32_t gate, uint32_t seen_changes) {
    struct timespec longest = timespec_of(LOOK_AGAIN_NS);
    bool has_page = page != &gs_closed_page && page != &gs_open_page;
    if (syscall(SYS_futex, has_page ? &page->gate : &changes, FUTEX_WAIT,
                has_page ? gate : seen_changes, &longest, NULL, 0) != 0 &&
        errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT)
        pause_ns(NS_PER_MS); /* a sandbox without futexes on shared pages */
}

/* The thread that waits sends the request itself: once for each period in which the gate is closed,
 * since the gate's number changes with each grant. */
bool gs_wait_for_token(CUresult *refused) {
    atomic_fetch_add(&waiting, 1);
    for (;;) {
        pthread_mutex_lock(&lock);
        if (state == STATE_NEW) start();
        uint32_t seen_changes = atomic_load(&changes);
        struct gs_gate_page *page = atomic_load(&gs_gate);
        uint32_t gate = atomic_load(&page->gate);
        *refused = verdict;
        bool waits = !(gate & GS_OPEN) && verdict == CUDA_SUCCESS;
        if (waits && is_joined && requested != gate && gs_send(&channel, GS_REQUEST, 0, 0, 0, 0))
            requested = gate;
        pthread_mutex_unlock(&lock);
        if (!waits) break;
        sleep_until_changed(page, gate, seen_changes);
    }
    atomic_fetch_sub(&waiting, 1);
    return *refused == CUDA_SUCCESS;
}

void gs_control_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    gs_hang_up(&channel);
    is_joined = false;
    state = STATE_NEW;
    requested = NEVER;
    verdict = CUDA_SUCCESS;
    told_launches = 0;
    atomic_store(&waiting, 0);
    stop_watching();
    atomic_store(&gs_gate, &gs_closed_page);
}
