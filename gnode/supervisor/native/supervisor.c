/* The course of a plain job: have its program started, wait until nothing of it is left, write the exit record.

   Python's supervisor (gnode.supervisor.supervise) goes on itself with whatever is not the usual course: an order, an
   alarm, a failure, a process that was left behind, another end than by exit. So this file has no rule about any of
   these; it says how far the attempt has come.

   It keeps the rights of its process; where the job's owner is another user, start.c gives them up in the job's process.
   Paths and texts come from the task, which only this process's user, or root, could have written. One attempt at a
   time; signals are blocked, and have no handlers. */
#define _GNU_SOURCE
#include "attempt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char info_text[GSV_TEXT_BYTES], record_text[GSV_TEXT_BYTES];
static sigset_t watched;
static timer_t timer;
static int is_ready;

static double seconds(clockid_t clock) {
    struct timespec now = {0, 0};
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double gsv_boottime_s(void) {
    return seconds(CLOCK_BOOTTIME);
}

void gsv_close_if_open(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void gsv_passes(const struct gsv_attempt *a, enum gsv_point point) {
    if (a->server->failpoint)
        a->server->failpoint((int)point);
}

/* Signals and the alarm, once for each process: a timer is not inherited. */
static int get_ready(void) {
    if (is_ready)
        return 0;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGUSR1);
    sigaddset(&watched, SIGALRM);
    sigaddset(&watched, SIGTERM);
    if (timer_create(CLOCK_BOOTTIME, NULL, &timer) < 0) /* NULL: SIGALRM */
        return -1;
    is_ready = 1;
    return 0;
}

/* --- texts --- */

/* Write a number as Python's repr() does: the shortest text that is read as the same number. */
static void put_number(char *to, size_t size, double number) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(to, size, "%.*g", digits, number);
        if (strtod(to, NULL) == number)
            break;
    }
    size_t length = strlen(to);
    if (strspn(to, "-0123456789") == length && length + 3 <= size)
        memcpy(to + length, ".0", 3);
}

/* Round as Python's round(number, 6). */
static double to_microseconds(double number) {
    char text[64];
    snprintf(text, sizeof text, "%.6f", number);
    return strtod(text, NULL);
}

static uint32_t crc32_of(const char *at, size_t bytes) {
    uint32_t crc = ~0u;
    while (bytes--) {
        crc ^= (unsigned char)*at++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

/* --- the journal --- */

/* Append a line by one write; 0: it is there as a whole. */
int gsv_append(struct gsv_attempt *a, const char *kind, const char *text) {
    struct iovec parts[] = {
        {(void *)"\n", 1},
        {(void *)kind, strlen(kind)},
        {(void *)text, strlen(text)},
        {(void *)"\n", 1},
    };
    size_t bytes = 2 + parts[1].iov_len + parts[2].iov_len;
    ssize_t written = writev(a->journal_fd, parts, 4);
    if (written > 0)
        a->journal_bytes += written;
    return written == (ssize_t)bytes ? 0 : -1;
}

/* Return whether somebody else, who can only be gnode, has written into the journal. */
int gsv_has_orders(const struct gsv_attempt *a) {
    struct stat status;
    return fstat(a->journal_fd, &status) < 0 || status.st_size != a->journal_bytes;
}

/* --- before the program --- */

/* Make the control groups: where they have limits, Python does, which has the rules about them. */
static int make_cgroups(const struct gsv_attempt *a) {
    if (a->cgroups_text)
        return a->server->prepare_cgroups(a->cgroups_text) == 1 ? 0 : -1; /* not 0: a call that failed may give it */
    return a->cgroup && mkdir(a->cgroup, 0755) < 0 && errno != EEXIST ? -1 : 0;
}

/* Make the job's directory and its control groups, and say that it is about to start; -1: nothing of it stays. */
static int announce(struct gsv_attempt *a) {
    if (a->place_fd >= 0) {
        if (mkdirat(a->place_fd, a->user_dir, 0700) < 0)
            return -1;
        a->user_dir_fd = openat(a->place_fd, a->user_dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (a->user_dir_fd < 0)
            goto undo;
        if (a->switch_user && fchown(a->user_dir_fd, (uid_t)a->uid, (gid_t)a->gid) < 0)
            goto undo;
    }
    if (make_cgroups(a) < 0)
        goto undo;
    if (gsv_append(a, "starting", "") == 0)
        return 0;
undo:
    gsv_close_if_open(&a->user_dir_fd);
    if (a->place_fd >= 0)
        unlinkat(a->place_fd, a->user_dir, AT_REMOVEDIR);
    return -1; /* Python makes the groups again, or finds out why it cannot */
}

/* --- while it runs --- */

/* Return when a process started, in clock ticks after boot; 0: it cannot be told. */
static unsigned long long start_ticks(pid_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0)
        return 0;
    text[bytes] = 0;
    char *at = strrchr(text, ')'); /* the command in the brackets may hold anything */
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    return at ? strtoull(at, NULL, 10) : 0;
}

/* Record who runs the attempt; -1: that is not written. */
int gsv_publish(struct gsv_attempt *a) {
    char started[64], boottime[64];
    a->started_s = seconds(CLOCK_REALTIME);
    a->started_boottime_s = seconds(CLOCK_BOOTTIME);
    put_number(started, sizeof started, a->started_s);
    put_number(boottime, sizeof boottime, a->started_boottime_s);
    int length = snprintf(
        info_text, sizeof info_text,
        "%s, \"job_pid\": %d, \"job_start_ticks\": %llu, \"started_s\": %s, \"started_boottime_s\": %s}",
        a->info_start, (int)a->job_pid, start_ticks(a->job_pid), started, boottime);
    if (length < 0 || (size_t)length >= sizeof info_text || gsv_append(a, "started ", info_text) < 0)
        return -1;
    a->info = info_text;
    return 0;
}

/* Have SIGALRM sent when somebody has to look at the attempt. */
static int arm(const struct gsv_attempt *a) {
    double at_s = a->look_s, limit_s = a->started_boottime_s + a->walltime_s;
    if (a->walltime_s >= 0 && limit_s < at_s)
        at_s = limit_s;
    if (at_s < 1e-9) /* zero would disarm it */
        at_s = 1e-9;
    struct itimerspec when = {{0, 0}, {0, 0}};
    when.it_value.tv_sec = (time_t)at_s;
    when.it_value.tv_nsec = (long)((at_s - (double)when.it_value.tv_sec) * 1e9);
    return timer_settime(timer, TIMER_ABSTIME, &when, NULL);
}

/* Take in all processes that have ended; return 1 if that was the last one, 0 if others run. */
static int reap(struct gsv_attempt *a) {
    for (;;) {
        struct rusage used;
        int status;
        pid_t pid = wait4(-1, &status, WNOHANG, &used);
        if (pid < 0)
            return errno == ECHILD;
        if (pid == 0)
            return 0;
        a->cpu_s += (double)used.ru_utime.tv_sec + 1e-6 * (double)used.ru_utime.tv_usec +
                    (double)used.ru_stime.tv_sec + 1e-6 * (double)used.ru_stime.tv_usec;
        if (a->memory_peak_bytes < 1024 * (int64_t)used.ru_maxrss)
            a->memory_peak_bytes = 1024 * (int64_t)used.ru_maxrss;
        if (pid == a->job_pid) {
            a->has_status = 1;
            a->status = status;
        }
    }
}

/* Wait for the end; 0: nothing of the job is left, -1: something else came up. */
static int watch(struct gsv_attempt *a) {
    for (;;) {
        int number = sigwaitinfo(&watched, NULL);
        if (number < 0 && errno == EINTR)
            continue;
        a->signal = number;
        if (number != SIGCHLD)
            return -1;
        if (reap(a))
            return 0;
        if (a->has_status)
            return -1; /* it has left processes behind */
    }
}

/* --- after its end --- */

/* Return the number behind a name that begins a line of a file of a control group; 0: it is not there. */
static unsigned long long cgroup_number(const char *group, const char *file, const char *name) {
    char path[PATH_MAX], text[4096];
    int length = snprintf(path, sizeof path, "%s/%s", group, file);
    if (length < 0 || (size_t)length >= sizeof path)
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    text[bytes > 0 ? bytes : 0] = 0;
    const char *at = text;
    while (at && strncmp(at, name, strlen(name)) != 0) {
        at = strchr(at, '\n');
        at = at ? at + 1 : NULL;
    }
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static int was_killed_for_memory(const struct gsv_attempt *a) {
    const char *file = a->memory_version == 1 ? "memory.oom_control" : "memory.events";
    return a->memory_cgroup && cgroup_number(a->memory_cgroup, file, "oom_kill ") != 0;
}

static void remove_files(const struct gsv_attempt *a) {
    for (int number = 0; a->user_dir_fd >= 0 && number < a->files_count; number++)
        unlinkat(a->user_dir_fd, a->files[number].name, 0);
}

/* Remove the directory if it holds nothing but what was written for the job; gnode removes any other. */
static void remove_directory(const struct gsv_attempt *a) {
    remove_files(a);
    if (a->user_dir_fd >= 0)
        unlinkat(a->place_fd, a->user_dir, AT_REMOVEDIR);
}

/* Write how the attempt ended; -1: Python does, and finds out why that was not possible here. */
static int write_end(struct gsv_attempt *a) {
    char started[64], ended[64], wall[64], cpu[64], line[GSV_TEXT_BYTES + 32];
    if (a->cgroup) {
        double group_s = (double)cgroup_number(a->cgroup, "cpu.stat", "usage_usec ") / 1e6;
        a->cpu_s = group_s > a->cpu_s ? group_s : a->cpu_s;
    }
    if (a->memory_cgroup) {
        const char *file = a->memory_version == 1 ? "memory.max_usage_in_bytes" : "memory.peak";
        int64_t peak = (int64_t)cgroup_number(a->memory_cgroup, file, "");
        a->memory_peak_bytes = peak > a->memory_peak_bytes ? peak : a->memory_peak_bytes;
    }
    put_number(started, sizeof started, a->started_s);
    put_number(ended, sizeof ended, seconds(CLOCK_REALTIME));
    put_number(wall, sizeof wall, to_microseconds(seconds(CLOCK_BOOTTIME) - a->started_boottime_s));
    put_number(cpu, sizeof cpu, to_microseconds(a->cpu_s));
    gsv_passes(a, GSV_BEFORE_GROUPS);
    if (a->cgroup && rmdir(a->cgroup) < 0)
        return -1; /* somebody is in it, or the job has made others in it */
    for (int number = a->cgroup != NULL; number < a->cgroups_count; number++)
        rmdir(a->cgroups[number].path); /* one that the job has made others in is gnode's to remove */
    remove_directory(a);
    int length = snprintf(
        record_text, sizeof record_text,
        "{\"job\": %lld, \"attempt\": %lld, \"started_s\": %s, \"ended_s\": %s, \"wall_s\": %s, \"cpu_s\": %s, "
        "\"memory_peak_bytes\": %lld, \"kind\": \"exited\", \"exit_code\": %d}",
        (long long)a->job, (long long)a->number, started, ended, wall, cpu, (long long)a->memory_peak_bytes,
        WEXITSTATUS(a->status));
    if (length < 0 || (size_t)length >= sizeof record_text)
        return -1;
    length = snprintf(line, sizeof line, "\nended %08x %s", crc32_of(record_text, (size_t)length), record_text);
    if (length < 0 || (size_t)length >= sizeof line)
        return -1;
    gsv_passes(a, GSV_BEFORE_RECORD);
    if (a->server->half_record && write(a->journal_fd, line, (size_t)length / 2) > 0)
        gsv_passes(a, GSV_HALF_RECORD);
    if (gsv_append(a, line + 1, "") < 0)
        return -1;
    a->record = record_text;
    gsv_passes(a, GSV_AFTER_RECORD);
    return 0;
}

enum gsv_stage gsv_run(struct gsv_attempt *a) {
    a->user_dir_fd = -1;
    a->info = a->record = "";
    if (get_ready() < 0 || announce(a) < 0)
        return GSV_UNTOUCHED;
    gsv_passes(a, GSV_BEFORE_FORK);
    enum gsv_start came = gsv_start_program(a);
    if (came == GSV_NOT_STARTED) {
        remove_files(a); /* their owner may not write them, and Python writes them again */
        return GSV_ANNOUNCED;
    }
    if (came == GSV_STARTED_ONLY || arm(a) < 0)
        return GSV_RUNS;
    if (gsv_has_orders(a)) {
        a->signal = SIGUSR1;
        return GSV_RUNS;
    }
    if (watch(a) < 0 || !a->has_status || (a->cgroup && cgroup_number(a->cgroup, "cgroup.events", "populated ") != 0))
        return GSV_RUNS;
    a->is_over = 1;
    if (!WIFEXITED(a->status) || WEXITSTATUS(a->status) == 126) /* 126: it may tell of its code */
        return GSV_RUNS;
    if ((WEXITSTATUS(a->status) != 0 && was_killed_for_memory(a)) || write_end(a) < 0)
        return GSV_RUNS;
    gsv_close_if_open(&a->user_dir_fd);
    return GSV_ENDED;
}
