/* The least that a native supervisor of a plain job does, for `launch`: a lower bound, not a supervisor.

   Arguments: directory of the attempts, number of jobs, number of workers, program and its arguments.
   Worker W runs the jobs W, W + workers, ... one after the other: it locks and reads the task, appends the lines of
   the journal that a supervisor writes, starts the program with posix_spawn in a session of its own, waits for it, and
   flushes the exit record. It knows no orders, limits, users, groups, leases, and no loss of a supervisor. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static char text[1 << 16];

static void must(int is_so, const char *what) {
    if (!is_so) {
        perror(what);
        _exit(1);
    }
}

static uint32_t crc32(const char *at) {
    uint32_t crc = ~0u;
    for (; *at; at++) {
        crc ^= (unsigned char)*at;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void append(int journal, const char *line, size_t length) {
    must(write(journal, line, length) == (ssize_t)length, "journal");
}

static void run(const char *attempts, int job, char **argv) {
    char path[4096], line[2048], record[1024];
    snprintf(path, sizeof path, "%s/%d.1", attempts, job);
    int place = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int task = openat(place, "task.json", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    must(task >= 0 && flock(task, LOCK_EX | LOCK_NB) == 0, path);
    int journal = openat(place, "journal", O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    must(journal >= 0 && pread(journal, text, sizeof text, 0) >= 0, "journal");
    must(read(task, text, sizeof text) > 0, "task");
    close(place);
    append(journal, "\nstarting\n", 10);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    for (int number = 0; number < 3; number++)
        posix_spawn_file_actions_adddup2(&actions, null, number);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    append(journal, "\nmay run\n", 9);
    pid_t pid;
    must(posix_spawn(&pid, argv[0], &actions, &attributes, argv, environ) == 0, argv[0]);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(null);
    double started_s = seconds(CLOCK_REALTIME), boottime_s = seconds(CLOCK_BOOTTIME);
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int stat = open(path, O_RDONLY | O_CLOEXEC);
    must(stat >= 0 && read(stat, text, sizeof text) > 0, path);
    close(stat);
    int length = snprintf(line, sizeof line,
        "\nstarted {\"pid\": %d, \"start_ticks\": 1, \"job_pid\": %d, \"job_start_ticks\": 1, "
        "\"started_s\": %.6f, \"started_boottime_s\": %.6f, \"stdout_path\": \"/dev/null\", "
        "\"stderr_path\": \"/dev/null\", \"away\": false}\n", getpid(), pid, started_s, boottime_s);
    append(journal, line, (size_t)length);
    int status;
    struct rusage used;
    must(wait4(pid, &status, 0, &used) == pid, "wait4");
    snprintf(record, sizeof record,
        "{\"job\": %d, \"attempt\": 1, \"started_s\": %.6f, \"ended_s\": %.6f, \"wall_s\": %.6f, "
        "\"cpu_s\": %.6f, \"memory_peak_bytes\": %ld, \"kind\": \"exited\", \"exit_code\": %d}",
        job, started_s, seconds(CLOCK_REALTIME), seconds(CLOCK_BOOTTIME) - boottime_s,
        (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec)
            + 1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec),
        used.ru_maxrss * 1024, WEXITSTATUS(status));
    length = snprintf(line, sizeof line, "\nended %08x %s\n", crc32(record), record);
    append(journal, line, (size_t)length);
    must(fsync(journal) == 0, "fsync");
    close(journal);
    close(task);
}

int main(int count, char **arguments) {
    must(count > 4, "usage");
    int jobs = atoi(arguments[2]), workers = atoi(arguments[3]), failed = 0, status;
    for (int worker = 0; worker < workers; worker++)
        if (fork() == 0) {
            for (int job = worker; job < jobs; job += workers)
                run(arguments[1], job, arguments + 4);
            _exit(0);
        }
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
