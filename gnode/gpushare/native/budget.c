/* The job's memory: the token daemon adds up what all processes of the job use, and is asked before
 * more is used. Without the daemon this process's own bytes are held against the limit. */
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "gpushare.h"

#define ANSWER_MS 5000
#define SEND_S 5 /* a daemon that reads nothing for so long is hung up on */
#define RETRY_NS 500000000u
#define BUSY_MS 100 /* between two questions of a daemon that has no place */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gs_channel channel = {.kind = GS_CHANNEL_MEMORY, .fd = -1};
static bool rejected, has_said, is_busy;
static uint64_t own_bytes, next_try_ns;
static _Atomic uint64_t room; /* that the job had left when the daemon was last asked */

/* A message of memory that was freed has no answer: its sender must not wait for ever. */
static void bound_sending(void) {
    struct timeval longest = {.tv_sec = SEND_S};
    setsockopt(channel.fd, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);
}

/* Connects and tells what is in use here. The lock is held. */
static bool join(void) {
    struct gs_message message;
    if (channel.fd >= 0) return true;
    if (rejected || gs_now_ns() < next_try_ns) return false;
    gs_watch_forks();
    is_busy = false;
    if (gs_dial(&channel, 0, 0, own_bytes) && gs_receive(&channel, &message, NULL, ANSWER_MS) == 1) {
        if (message.type == GS_WELCOME) {
            bound_sending();
            has_said = false;
            return true;
        }
        rejected = message.type == GS_REFUSED;
        is_busy = message.type == GS_BUSY || message.type == GS_VERSION;
        if (rejected) gs_say("the token daemon does not know this job: it gets no GPU memory");
    }
    gs_hang_up(&channel);
    if (is_busy) return false;
    next_try_ns = gs_now_ns() + RETRY_NS;
    if (!rejected && !has_said)
        gs_say("the token daemon does not answer: the limit of GPU memory holds for each process");
    has_said = true;
    return false;
}

/* The next daemon has to know what is in use before it lets others have it. */
void gs_budget_rejoin(void) {
    pthread_mutex_lock(&lock);
    if (own_bytes > 0) {
        struct pollfd ended = {.fd = channel.fd};
        if (!gs_is_own(&channel) || poll(&ended, 1, 0) > 0) gs_hang_up(&channel);
        next_try_ns = 0;
        join();
    }
    pthread_mutex_unlock(&lock);
}

/* Connects, and waits for a place at a daemon that has none, as long as for one that is gone. */
static bool join_in_time(void) {
    uint64_t end_ns = gs_now_ns() + gs_settings()->patience_ms * (uint64_t)1000000;
    while (!join()) {
        if (!is_busy || gs_now_ns() >= end_ns) return false;
        poll(NULL, 0, BUSY_MS);
    }
    return true;
}

static void note_room(uint64_t used, uint64_t limit) {
    atomic_store(&room, used < limit ? limit - used : 0);
}

/* Sends a question and waits for its answer; tries a second time after a lost connection, and not
 * after a daemon that is stuck, which would not greet either. */
static bool ask(uint64_t bytes, uint32_t flags, struct gs_message *answer) {
    for (int attempt = 0; attempt < 2 && join_in_time(); attempt++) {
        bool sent = gs_send(&channel, GS_RESERVE, flags, 0, bytes, 0);
        int received = sent ? gs_receive(&channel, answer, NULL, ANSWER_MS) : 0;
        if (received == 1) {
            note_room(answer->b, answer->c);
            return true;
        }
        gs_hang_up(&channel);
        if (received < 0) next_try_ns = gs_now_ns() + RETRY_NS;
    }
    return false;
}

bool gs_reserve(uint64_t bytes) {
    const struct gs_settings *settings = gs_settings();
    struct gs_message answer;
    if (settings->socket_path == NULL) return true;
    pthread_mutex_lock(&lock);
    bool granted;
    if (ask(bytes, 0, &answer))
        granted = answer.type == GS_RESERVED;
    else if (rejected || !settings->fail_open)
        granted = false;
    else
        granted = settings->memory_bytes == 0 || (own_bytes <= settings->memory_bytes &&
                                                  bytes <= settings->memory_bytes - own_bytes);
    if (granted) own_bytes += bytes;
    if (channel.fd < 0) note_room(own_bytes, settings->memory_bytes);
    pthread_mutex_unlock(&lock);
    return granted;
}

/* Memory that is in use already: the next reservation is refused if it is too much. */
void gs_charge_anyway(uint64_t bytes) {
    struct gs_message answer;
    if (gs_settings()->socket_path == NULL || bytes == 0) return;
    pthread_mutex_lock(&lock);
    ask(bytes, GS_FORCED, &answer);
    own_bytes += bytes;
    pthread_mutex_unlock(&lock);
}

void gs_give_back(uint64_t bytes) {
    if (gs_settings()->socket_path == NULL || bytes == 0) return;
    pthread_mutex_lock(&lock);
    own_bytes -= bytes < own_bytes ? bytes : own_bytes;
    atomic_fetch_add(&room, bytes);
    if (channel.fd >= 0 && !gs_send(&channel, GS_FREE, 0, 0, bytes, 0)) gs_hang_up(&channel);
    pthread_mutex_unlock(&lock);
}

/* What the job may still have, as far as it is known here; other processes may have taken it. */
uint64_t gs_room(void) {
    return gs_settings()->socket_path == NULL ? UINT64_MAX : atomic_load(&room);
}

void gs_adjust(uint64_t reserved, uint64_t real) {
    if (real > reserved)
        gs_charge_anyway(real - reserved);
    else
        gs_give_back(reserved - real);
}

bool gs_memory_numbers(uint64_t *used, uint64_t *limit) {
    const struct gs_settings *settings = gs_settings();
    struct gs_message answer;
    if (settings->socket_path == NULL || settings->memory_bytes == 0) return false;
    pthread_mutex_lock(&lock);
    *used = own_bytes;
    if (ask(0, 0, &answer)) *used = answer.b;
    *limit = settings->memory_bytes;
    pthread_mutex_unlock(&lock);
    return true;
}

void gs_budget_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    gs_hang_up(&channel);
    rejected = has_said = is_busy = false;
    own_bytes = next_try_ns = 0;
    atomic_store(&room, 0);
}
