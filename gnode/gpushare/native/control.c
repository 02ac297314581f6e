/* The control thread: it talks to the token daemon, drains the GPU when the gate was closed, and
 * says when this process is idle. It starts with the first launch. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpushare.h"

#define NS_PER_MS 1000000u
#define RETRY_NS (100 * NS_PER_MS)    /* between two attempts to reach the daemon */
#define WELCOME_MS 5000               /* for the daemon's first answer */
#define ASK_AGAIN_NS (100 * NS_PER_MS) /* a waiting launch looks again, whatever was lost */
#define STAT_NS (1000 * NS_PER_MS)
#define WATCH_NS 200000u              /* between two looks at idleness while somebody waits */
#define IDLE_SYNCED_NS 300000u        /* idle for so long after it has waited for the GPU */
#define IDLE_NS (1 * NS_PER_MS)       /* idle for so long otherwise */
#define CAPTURE_PAUSE_NS (1 * NS_PER_MS)

enum state { STATE_NEW, STATE_RUNNING, STATE_ALONE };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static enum state state;
static int channel = -1;
static bool requested; /* in this closed period */
static CUresult verdict; /* of launches that cannot get the token; 0: they wait */

/* Only the control thread uses these. */
static uint64_t lost_ns, told_launches, stat_ns;
static bool watching, yielded, has_said, has_said_busy;
static uint64_t seen_launches, still_since_ns;

extern CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);

static void pause_ns(uint64_t ns) {
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&pause, NULL);
}

static void set_gate(struct gs_gate_page *page, int fd, CUresult new_verdict) {
    pthread_mutex_lock(&lock);
    atomic_store(&gs_gate, page);
    channel = fd;
    requested = false;
    verdict = new_verdict;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wake(bool ask_again) {
    pthread_mutex_lock(&lock);
    if (ask_again) requested = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Waits until nothing of this process runs on the GPU. The gate is closed. */
static uint64_t drain(void) {
    uint64_t start_ns = gs_now_ns();
    gs_barrier();
    for (unsigned int looks = 0; gs_slots_busy(); looks++)
        if (looks > 64) pause_ns(50000);
    while (gs_captures_active()) pause_ns(CAPTURE_PAUSE_NS); /* a wait would break the recording */
    gs_contexts_synchronize();
    return gs_now_ns() - start_ns;
}

static void stop_watching(void) { watching = yielded = false; }

static void revoked(uint64_t epoch) {
    uint64_t launches, synced;
    bool busy;
    stop_watching();
    wake(true); /* who waits from now on asks for the next grant */
    uint64_t took_ns = drain();
    gs_slots_totals(&launches, &synced, &busy);
    gs_send(channel, GS_RELEASED, 0, epoch, launches - told_launches, took_ns);
}

static void watch(void) {
    uint64_t launches, synced, now_ns = gs_now_ns();
    bool busy;
    gs_slots_totals(&launches, &synced, &busy);
    if (busy || launches != seen_launches) {
        seen_launches = launches;
        still_since_ns = now_ns;
        if (yielded) gs_send(channel, GS_REQUEST, 0, 0, 0, 0); /* not idle any more */
        yielded = false;
        return;
    }
    uint64_t patience_ns = synced >= launches ? IDLE_SYNCED_NS : IDLE_NS;
    if (yielded || now_ns - still_since_ns < patience_ns) return;
    yielded = gs_send(channel, GS_YIELD, 0, atomic_load(&atomic_load(&gs_gate)->epoch), 0, 0);
}

static void report(void) {
    uint64_t launches, synced, now_ns = gs_now_ns();
    bool busy;
    if (now_ns - stat_ns < STAT_NS) return;
    stat_ns = now_ns;
    gs_slots_totals(&launches, &synced, &busy);
    if (launches == told_launches) return;
    gs_send(channel, GS_STAT, 0, 0, launches - told_launches, atomic_load(&gs_unhooked_symbols));
    told_launches = launches;
}

static void handle(const struct gs_message *message) {
    switch (message->type) {
        case GS_GRANT:
            stop_watching();
            wake(true);
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

/* One connection, from the first message to its end. */
static void serve(int fd) {
    for (;;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        uint64_t wait_ns = watching ? WATCH_NS : STAT_NS;
        struct timespec timeout = {.tv_sec = (time_t)(wait_ns / 1000000000u),
                                   .tv_nsec = (long)(wait_ns % 1000000000u)};
        struct gs_message message;
        if (ppoll(&ready, 1, &timeout, NULL) > 0) {
            if (gs_receive(fd, &message, NULL, 0) != 1) return;
            handle(&message);
        }
        if (watching) watch();
        report();
    }
}

/* Connects; returns the descriptor, -1: the daemon does not answer, -2: it refuses this job, -3: it
 * has no place for this process now. */
static int join(bool held) {
    struct gs_message message;
    int memfd = -1;
    int fd = gs_dial(GS_CHANNEL_LAUNCH, held ? GS_CLAIM_HELD : 0, 0, 0);
    if (fd < 0) return -1;
    if (gs_receive(fd, &message, &memfd, WELCOME_MS) != 1) {
        close(fd);
        return -1;
    }
    void *page = MAP_FAILED;
    if (message.type == GS_WELCOME && memfd >= 0)
        page = mmap(NULL, sizeof(struct gs_gate_page), PROT_READ, MAP_SHARED, memfd, 0);
    if (memfd >= 0) close(memfd);
    if (page == MAP_FAILED) {
        close(fd);
        return message.type == GS_REFUSED ? -2 : message.type == GS_BUSY ? -3 : -1;
    }
    set_gate(page, fd, CUDA_SUCCESS);
    return fd;
}

/* The daemon does not answer. Whether launches pass then is the site's decision, and always said. */
static void without_daemon(void) {
    const struct gs_settings *settings = gs_settings();
    uint64_t patience_ns = (uint64_t)settings->patience_ms * NS_PER_MS;
    bool impatient = gs_now_ns() - lost_ns >= patience_ns;
    if (settings->fail_open && (settings->high || impatient)) {
        if (atomic_load(&gs_gate) == &gs_open_page) return;
        gs_say("the token daemon does not answer: launches pass without it (fail = \"open\")");
        set_gate(&gs_open_page, -1, CUDA_SUCCESS);
    } else if (impatient && !settings->fail_open) {
        if (!has_said)
            gs_say("the token daemon does not answer: launches are refused (fail = \"closed\")");
        has_said = true;
        set_gate(&gs_closed_page, -1, CUDA_ERROR_SYSTEM_NOT_READY);
    }
}

/* The daemon lives and controls the others: launches wait, whatever passed without it before. */
static void busy(void) {
    if (!has_said_busy)
        gs_say("the token daemon has no place for this process now: its launches wait");
    has_said_busy = true;
    lost_ns = gs_now_ns();
    if (atomic_load(&gs_gate) == &gs_closed_page && verdict == CUDA_SUCCESS) return;
    set_gate(&gs_closed_page, -1, CUDA_SUCCESS);
    drain();
}

static void lost(int fd) {
    const struct gs_settings *settings = gs_settings();
    stop_watching();
    lost_ns = gs_now_ns();
    if (settings->fail_open && settings->high) {
        without_daemon();
    } else {
        gs_say("the token daemon has ended: launches wait for the next one");
        set_gate(&gs_closed_page, -1, CUDA_SUCCESS);
        drain();
    }
    close(fd);
}

static void *control(void *nothing) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    GS_REAL(cuThreadExchangeStreamCaptureMode)(&mode); /* other threads' recordings stay whole */
    lost_ns = stat_ns = gs_now_ns();
    for (;;) {
        int fd = join(atomic_load(&gs_gate) == &gs_open_page);
        if (fd == -2) {
            gs_say("the token daemon does not know this job: its launches are refused");
            set_gate(&gs_closed_page, -1, CUDA_ERROR_NOT_PERMITTED);
            return nothing;
        }
        if (fd < 0) {
            if (fd == -3)
                busy();
            else
                without_daemon();
            pause_ns(RETRY_NS);
            continue;
        }
        has_said = has_said_busy = false;
        gs_budget_rejoin();
        serve(fd);
        lost(fd);
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

bool gs_wait_for_token(CUresult *refused) {
    pthread_mutex_lock(&lock);
    if (state == STATE_NEW) start();
    while (atomic_load(&atomic_load(&gs_gate)->gate) == 0 && verdict == CUDA_SUCCESS) {
        if (channel >= 0 && !requested) requested = gs_send(channel, GS_REQUEST, 0, 0, 0, 0);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += ASK_AGAIN_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&changed, &lock, &until);
    }
    *refused = verdict;
    pthread_mutex_unlock(&lock);
    return *refused == CUDA_SUCCESS;
}

void gs_control_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&changed, NULL);
    if (channel >= 0) close(channel);
    channel = -1;
    state = STATE_NEW;
    requested = false;
    verdict = CUDA_SUCCESS;
    told_launches = 0;
    stop_watching();
    atomic_store(&gs_gate, &gs_closed_page);
}
