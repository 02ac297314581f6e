/* The loop of a supervisor: take the launcher's requests, run the attempts that are plain jobs, and answer.

   `gnode.supervisor.pool` does the same in Python, with all attempts that `gsv_serve` gives to it. */
#define _GNU_SOURCE
#include "attempt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define ANSWER_BYTES_MAX 32768 /* longer records are read from the journal */
#define KEPT_BYTES_MAX (1 << 20)

EXPORTED const uint32_t gsv_abi = GSV_ABI;
EXPORTED const uint32_t gsv_server_bytes = sizeof(struct gsv_server);

static void close_all(struct gsv_server *s) {
    int32_t *const open_now[] = {&s->place_fd, &s->task_fd, &s->journal_fd};
    for (size_t which = 0; which < sizeof open_now / sizeof *open_now; which++) {
        if (*open_now[which] >= 0)
            close(*open_now[which]);
        *open_now[which] = -1;
    }
}

/* Keep the descriptors of an attempt's directory and task, if both came; others are closed. */
static void take_descriptors(struct gsv_server *s, struct msghdr *message) {
    for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each)) {
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
            continue;
        int came[2];
        size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof *came;
        memcpy(came, CMSG_DATA(each), (count < 2 ? count : 2) * sizeof *came);
        if (count == 2) {
            s->place_fd = came[0];
            s->task_fd = came[1];
        } else if (count == 1) { /* there was no room for both: Python opens them */
            close(came[0]);
        }
    }
}

/* Wait for a request; 0: there is none any more. */
static int receive(struct gsv_server *s) {
    char space[CMSG_SPACE(2 * sizeof(int))];
    struct iovec part = {s->request, sizeof s->request - 1};
    struct msghdr message = {0};
    ssize_t bytes;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    prctl(PR_SET_NAME, "gsv idle", 0, 0, 0);
    do
        bytes = recvmsg(s->channel, &message, MSG_CMSG_CLOEXEC);
    while (bytes < 0 && errno == EINTR);
    if (bytes <= 0)
        return 0;
    s->request_bytes = (int32_t)bytes;
    s->request[bytes] = 0;
    take_descriptors(s, &message);
    return 1;
}

/* Return the part of the request behind as many NULs. */
static const char *part_of_request(const struct gsv_server *s, int number) {
    const char *at = s->request, *end = s->request + s->request_bytes;
    while (number-- > 0 && at <= end)
        at += strlen(at) + 1;
    return at <= end ? at : "";
}

/* Orders and alarms of the attempt before mean nothing to the next one. */
static void forget_signals(void) {
    const struct timespec now = {0, 0};
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGUSR1);
    sigaddset(&watched, SIGALRM);
    sigaddset(&watched, SIGTERM);
    while (sigtimedwait(&watched, NULL, &now) > 0) {
    }
}

/* Return whether only root and we could have written the journal, and nobody has written anything into it yet. */
static int is_new_journal(int fd) {
    struct stat status;
    uid_t own = geteuid();
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) || status.st_nlink > 1 || status.st_size != 0)
        return 0;
    return (status.st_uid == 0 || status.st_uid == own) &&
           !(status.st_mode & (own == 0 ? S_IWGRP | S_IWOTH : S_IWOTH));
}

/* Return the task's content, with a NUL behind it; NULL: it cannot be read. */
static char *read_content(int fd, size_t *bytes) {
    static char *content;
    static size_t room;
    struct stat status;
    if (fstat(fd, &status) < 0 || status.st_size <= 0)
        return NULL;
    size_t needed = (size_t)status.st_size + 1;
    if (needed > room || room > KEPT_BYTES_MAX) {
        free(content);
        content = malloc(needed);
        room = content ? needed : 0;
        if (content == NULL)
            return NULL;
    }
    ssize_t got = pread(fd, content, needed, 0);
    if (got != (ssize_t)status.st_size)
        return NULL;
    content[got] = 0;
    *bytes = (size_t)got;
    return content;
}

/* Claim the attempt of the request, and run it if it is a plain job. */
static enum gsv_stage run(struct gsv_server *s, struct gsv_attempt *a) {
    size_t bytes;
    memset(a, 0, sizeof *a);
    a->server = s;
    a->place_fd = a->user_dir_fd = -1;
    if (s->task_fd < 0 || flock(s->task_fd, LOCK_EX | LOCK_NB) < 0)
        return GSV_UNTOUCHED;
    int flags = O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    int journal = openat(s->place_fd, "journal", flags);
    if (journal < 0)
        return GSV_UNTOUCHED;
    a->journal_fd = s->journal_fd = journal;
    const char *content = is_new_journal(journal) ? read_content(s->task_fd, &bytes) : NULL;
    enum gsv_stage stage = GSV_UNTOUCHED;
    if (content && gsv_read_task(a, content, bytes) == 0)
        stage = gsv_run(a);
    if (a->place_fd >= 0)
        close(a->place_fd);
    return stage;
}

/* Say that the attempt has ended, with its records; 0: the launcher is gone. */
static int answer(const struct gsv_server *s, const struct gsv_attempt *a) {
    struct iovec parts[] = {
        {(void *)"D", 1},
        {(void *)a->record, strlen(a->record)},
        {(void *)"\n", 1},
        {(void *)a->info, strlen(a->info)},
    };
    int count = parts[1].iov_len + parts[3].iov_len + 2 > ANSWER_BYTES_MAX ? 1 : 4;
    return writev(s->channel, parts, count) > 0;
}

/* Say in the server what has become of the attempt, for Python. */
static void give(struct gsv_server *s, const struct gsv_attempt *a, enum gsv_stage stage) {
    s->stage = (int32_t)stage;
    s->user_dir_fd = a->user_dir_fd;
    s->job_pid = a->job_pid;
    s->has_status = a->has_status;
    s->status = a->status;
    s->signal = a->signal;
    s->is_over = a->is_over;
    s->started_s = a->started_s;
    s->started_boottime_s = a->started_boottime_s;
    s->cpu_s = a->cpu_s;
    s->memory_peak_bytes = a->memory_peak_bytes;
    s->info = a->info;
    s->out_path = a->out_path;
    s->err_path = a->err_path ? a->err_path : a->out_path;
    if (stage == GSV_UNTOUCHED && s->journal_fd >= 0) { /* Python begins anew */
        close(s->journal_fd);
        s->journal_fd = -1;
    }
}

/* Serve the launcher; return an `enum gsv_came`. */
EXPORTED int gsv_serve(struct gsv_server *s) {
    static struct gsv_attempt attempt;
    for (;;) {
        if (!s->has_request) {
            s->place_fd = s->task_fd = s->journal_fd = -1;
            if (!receive(s))
                return GSV_CLOSED;
        }
        s->has_request = strcmp(part_of_request(s, 2), s->rules) != 0;
        if (s->has_request)
            return GSV_RULES;
        char name[16];
        snprintf(name, sizeof name, "gsv %s", s->request);
        prctl(PR_SET_NAME, name, 0, 0, 0);
        forget_signals();
        enum gsv_stage stage = run(s, &attempt);
        if (stage != GSV_ENDED) {
            give(s, &attempt, stage);
            return GSV_ATTEMPT;
        }
        close_all(s);
        snprintf(s->last, sizeof s->last, "%s", part_of_request(s, 1));
        if (!answer(s, &attempt))
            return GSV_CLOSED;
    }
}
