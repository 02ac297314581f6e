/* The course of a plain job: start its program, wait until nothing of it is left, write the exit record.

   Python's supervisor (gnode.supervisor.supervise) goes on itself with whatever is not the usual course: an order, an
   alarm, a failure, a process that was left behind, another end than by exit. So this file has no rule about any of
   these; it says how far the attempt has come.

   It runs with the rights of the job's owner, who is this process's own user: it gives up none and needs none. Paths
   and texts come from the task, which only that user, or root, could have written. One attempt at a time; signals are
   blocked, and have no handlers. */
#define _GNU_SOURCE
#include "attempt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What the start needs until the program runs. */
struct start {
    int null, out, err;
    int procs; /* takes processes into the attempt's group */
    int fault; /* the child's errno, which it writes into our memory */
};

static char info_text[GSV_TEXT_BYTES], record_text[GSV_TEXT_BYTES];
static sigset_t watched, none;
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

static void close_if_open(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void passes(const struct gsv_attempt *a, enum gsv_point point) {
    if (a->server->failpoint)
        a->server->failpoint((int)point);
}

/* Signals and the alarm, once for each process: a timer is not inherited. */
static int get_ready(void) {
    if (is_ready)
        return 0;
    sigemptyset(&none);
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
static int append(struct gsv_attempt *a, const char *kind, const char *text) {
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
static int has_orders(const struct gsv_attempt *a) {
    struct stat status;
    return fstat(a->journal_fd, &status) < 0 || status.st_size != a->journal_bytes;
}

/* --- before the program --- */

/* Open a file of the group; negative: it cannot be opened. */
static int open_in_group(const struct gsv_attempt *a, const char *name, int flags) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", a->cgroup, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return -1;
    return open(path, flags | O_CLOEXEC);
}

static int confine(const struct gsv_attempt *a) {
    int fd = open_in_group(a, "cpuset.cpus", O_WRONLY);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, a->cpuset, strlen(a->cpuset));
    close(fd);
    return written < 0 ? -1 : 0;
}

/* Make the job's directory and its control group, and say that it is about to start; -1: nothing of it stays. */
static int announce(struct gsv_attempt *a) {
    if (a->place_fd >= 0) {
        if (mkdirat(a->place_fd, a->user_dir, 0700) < 0)
            return -1;
        a->user_dir_fd = openat(a->place_fd, a->user_dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (a->user_dir_fd < 0)
            goto undo;
    }
    if (a->cgroup && mkdir(a->cgroup, 0755) < 0 && errno != EEXIST)
        goto undo;
    if (a->cpuset && confine(a) < 0)
        goto undo;
    if (append(a, "starting", "") == 0)
        return 0;
undo:
    close_if_open(&a->user_dir_fd);
    if (a->place_fd >= 0)
        unlinkat(a->place_fd, a->user_dir, AT_REMOVEDIR);
    return -1; /* Python makes the group again, or finds out why it cannot */
}

/* Open an output file as gnode.supervisor.output does; negative: not so simple. */
static int open_output(const struct gsv_attempt *a, const char *path) {
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_CLOEXEC | O_NONBLOCK | (a->append ? 0 : O_TRUNC);
    int fd = open(path, flags, 0666);
    if (fd < 0)
        return -1;
    struct stat status;
    if (fstat(fd, &status) == 0 && (S_ISREG(status.st_mode) || S_ISCHR(status.st_mode)) &&
        fcntl(fd, F_SETFL, O_APPEND) == 0)
        return fd;
    close(fd);
    return -1;
}

static int write_file(int directory, const struct gsv_file *file) {
    int fd = openat(directory, file->name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    uint64_t written = 0;
    while (written < file->bytes) {
        ssize_t bytes = write(fd, file->content + written, file->bytes - written);
        if (bytes <= 0)
            break;
        written += (uint64_t)bytes;
    }
    int is_whole = written == file->bytes && fchmod(fd, file->mode) == 0;
    close(fd);
    return is_whole ? 0 : -1;
}

/* Enter the working directory, and open and write the job's files; all of it may be done again. */
static int prepare(const struct gsv_attempt *a, struct start *s) {
    if (chdir(a->cwd) < 0)
        return -1;
    s->out = open_output(a, a->out_path);
    if (s->out < 0)
        return -1;
    if (a->err_path) {
        s->err = open_output(a, a->err_path);
        if (s->err < 0)
            return -1;
    }
    for (int number = 0; number < a->files_count; number++)
        if (write_file(a->user_dir_fd, &a->files[number]) < 0)
            return -1;
    s->null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (s->null < 0)
        return -1;
    if (a->cgroup) {
        s->procs = open_in_group(a, "cgroup.procs", O_WRONLY);
        if (s->procs < 0)
            return -1;
    }
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return -1;
    rlim_t soft = a->open_files < files.rlim_max ? a->open_files : files.rlim_max;
    if (soft != files.rlim_cur) { /* it stays: a supervisor needs less than any job */
        files.rlim_cur = soft;
        if (setrlimit(RLIMIT_NOFILE, &files) < 0)
            return -1;
    }
    return 0;
}

/* Become the program, in a child of vfork(2): it has our memory, and writes nothing into it but the fault. */
__attribute__((noreturn)) static void become_program(const struct gsv_attempt *a, struct start *s, const char *path) {
    const struct rlimit cores = {a->server->core_soft, a->server->core_hard};
    if (setsid() < 0 || dup2(s->null, 0) < 0 || dup2(s->out, 1) < 0 ||
        dup2(s->err < 0 ? s->out : s->err, 2) < 0)
        goto fault;
    if (a->server->set_core && setrlimit(RLIMIT_CORE, &cores) < 0)
        goto fault;
    if (s->procs >= 0 && write(s->procs, "0", 1) != 1)
        goto fault;
    if (a->cpu_mask_bytes && sched_setaffinity(0, a->cpu_mask_bytes, (const cpu_set_t *)a->cpu_mask) < 0)
        goto fault;
    if (a->no_new_privileges && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        goto fault;
    if (sigprocmask(SIG_SETMASK, &none, NULL) < 0)
        goto fault;
    execve(path, a->argv, a->env);
fault:
    s->fault = errno ? errno : EIO;
    _exit(127);
}

/* Start the program; return its pid, or -1. */
__attribute__((noinline)) static pid_t spawn(const struct gsv_attempt *a, struct start *s, const char *path) {
    ((volatile struct start *)s)->fault = 0;
    pid_t pid = vfork(); /* it returns when the child has become the program, or has ended */
    if (pid == 0)
        become_program(a, s, path);
    if (pid > 0 && ((volatile struct start *)s)->fault) {
        waitpid(pid, NULL, 0);
        return -1;
    }
    return pid;
}

static void start_any(struct gsv_attempt *a, struct start *s) {
    for (char **path = a->programs; *path; path++) {
        pid_t pid = spawn(a, s, *path);
        if (pid > 0) {
            a->job_pid = pid;
            return;
        }
    }
}

static int start_program(struct gsv_attempt *a) {
    struct start s = {-1, -1, -1, -1, 0};
    mode_t before = umask(a->umask);
    if (prepare(a, &s) == 0 && append(a, "may run", "") == 0)
        start_any(a, &s);
    umask(before);
    if (chdir("/") < 0) { /* or the user's file system would stay busy: it cannot fail */
    }
    close_if_open(&s.null);
    close_if_open(&s.out);
    close_if_open(&s.err);
    close_if_open(&s.procs);
    return a->job_pid > 0 ? 0 : -1;
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
static int publish(struct gsv_attempt *a) {
    char started[64], boottime[64];
    a->started_s = seconds(CLOCK_REALTIME);
    a->started_boottime_s = seconds(CLOCK_BOOTTIME);
    put_number(started, sizeof started, a->started_s);
    put_number(boottime, sizeof boottime, a->started_boottime_s);
    int length = snprintf(
        info_text, sizeof info_text,
        "%s, \"job_pid\": %d, \"job_start_ticks\": %llu, \"started_s\": %s, \"started_boottime_s\": %s}",
        a->info_start, (int)a->job_pid, start_ticks(a->job_pid), started, boottime);
    if (length < 0 || (size_t)length >= sizeof info_text || append(a, "started ", info_text) < 0)
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

/* Return the number behind a name that begins a line of a file of the group; 0: it is not there. */
static unsigned long long group_number(const struct gsv_attempt *a, const char *file, const char *name) {
    char text[4096];
    int fd = open_in_group(a, file, O_RDONLY);
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

/* Remove the directory if it holds nothing but what was written for the job; gnode removes any other. */
static void remove_directory(struct gsv_attempt *a) {
    if (a->user_dir_fd < 0)
        return;
    for (int number = 0; number < a->files_count; number++)
        unlinkat(a->user_dir_fd, a->files[number].name, 0);
    unlinkat(a->place_fd, a->user_dir, AT_REMOVEDIR);
}

/* Write how the attempt ended; -1: Python does, and finds out why that was not possible here. */
static int write_end(struct gsv_attempt *a) {
    char started[64], ended[64], wall[64], cpu[64], line[GSV_TEXT_BYTES + 32];
    if (a->cgroup) {
        double group_s = (double)group_number(a, "cpu.stat", "usage_usec ") / 1e6;
        a->cpu_s = group_s > a->cpu_s ? group_s : a->cpu_s;
    }
    put_number(started, sizeof started, a->started_s);
    put_number(ended, sizeof ended, seconds(CLOCK_REALTIME));
    put_number(wall, sizeof wall, to_microseconds(seconds(CLOCK_BOOTTIME) - a->started_boottime_s));
    put_number(cpu, sizeof cpu, to_microseconds(a->cpu_s));
    passes(a, GSV_BEFORE_GROUPS);
    if (a->cgroup && rmdir(a->cgroup) < 0)
        return -1; /* somebody is in it, or the job has made others in it */
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
    passes(a, GSV_BEFORE_RECORD);
    if (a->server->half_record && write(a->journal_fd, line, (size_t)length / 2) > 0)
        passes(a, GSV_HALF_RECORD);
    if (append(a, line + 1, "") < 0)
        return -1;
    a->record = record_text;
    passes(a, GSV_AFTER_RECORD);
    return 0;
}

enum gsv_stage gsv_run(struct gsv_attempt *a) {
    a->user_dir_fd = -1;
    a->info = a->record = "";
    if (get_ready() < 0 || announce(a) < 0)
        return GSV_UNTOUCHED;
    passes(a, GSV_BEFORE_FORK);
    if (start_program(a) < 0)
        return GSV_ANNOUNCED;
    passes(a, GSV_AFTER_FORK);
    if (publish(a) < 0 || arm(a) < 0)
        return GSV_RUNS;
    if (has_orders(a)) {
        a->signal = SIGUSR1;
        return GSV_RUNS;
    }
    if (watch(a) < 0 || !a->has_status || (a->cgroup && group_number(a, "cgroup.events", "populated ") != 0))
        return GSV_RUNS;
    a->is_over = 1;
    if (!WIFEXITED(a->status) || WEXITSTATUS(a->status) == 126 || write_end(a) < 0) /* 126: it may tell of its code */
        return GSV_RUNS;
    close_if_open(&a->user_dir_fd);
    return GSV_ENDED;
}
