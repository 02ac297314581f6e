/* What native.py and this library tell each other about one attempt; `_NativeAttempt` there has the same fields. */
#ifndef GSV_ATTEMPT_H
#define GSV_ATTEMPT_H

#include <stddef.h>
#include <stdint.h>

#define GSV_ABI 1 /* a change of this file needs the next number, here and in native.py */
#define GSV_FILES_MAX 8
#define GSV_TEXT_BYTES 16384 /* of the record of a start, and of an exit */

/* How far an attempt has come; native.py goes on from there. */
enum gsv_stage {
    GSV_UNTOUCHED = 0, /* nothing was done, or all was undone */
    GSV_ANNOUNCED = 1, /* directory, group and the line `starting` are there; no program runs */
    GSV_RUNS = 2,      /* the program was started; something came up that is not for here */
    GSV_ENDED = 3,     /* nothing of it is left, and the exit record is written */
};

/* The points at which a test can stop or kill this process (gsched.failpoint). */
enum gsv_point {
    GSV_BEFORE_FORK = 0,
    GSV_AFTER_FORK = 1,
    GSV_BEFORE_GROUPS = 2,
    GSV_BEFORE_RECORD = 3,
    GSV_HALF_RECORD = 4,
    GSV_AFTER_RECORD = 5,
};

struct gsv_file {
    const char *name;
    const char *content;
    uint64_t content_bytes;
    uint32_t mode;
    uint32_t unused;
};

/* Texts with a count are that many strings, each but the last followed by one NUL; `_bytes` is their length. */
struct gsv_attempt {
    /* The program: paths to try in turn, arguments, environment, working directory. */
    const char *programs;
    uint64_t programs_bytes;
    const char *argv;
    uint64_t argv_bytes;
    const char *env;
    uint64_t env_bytes;
    const char *cwd;
    /* Its output; `err_path` NULL: both go to `out_path`. */
    const char *out_path;
    const char *err_path;
    /* `user_dir`: a name in the directory that is open as `place_fd` (negative: it has none), with these files. */
    const char *user_dir;
    struct gsv_file files[GSV_FILES_MAX];
    /* The group for tracking, NULL: none; `cpuset`: its CPUs as that group takes them, NULL: it confines nothing. */
    const char *cgroup;
    const char *cpuset;
    /* Affinity of the program, as sched_setaffinity(2) takes it; 0 bytes: that of this process. */
    const char *cpu_mask;
    uint64_t cpu_mask_bytes;
    /* JSON of the record of the start, up to what is not known before. */
    const char *info_start;
    uint64_t core_soft, core_hard, open_files;
    int64_t job, number;
    int64_t journal_bytes; /* of the journal when its orders were read */
    /* When somebody has to look: seconds of CLOCK_BOOTTIME, and seconds after the start; negative: never. */
    double look_s;
    double walltime_s;
    void (*failpoint)(int point); /* NULL: none is armed */
    int32_t programs_count, argv_count, env_count, files_count;
    int32_t place_fd, journal_fd;
    int32_t append, umask, set_core, no_new_privileges;
    int32_t half_record, unused; /* whether GSV_HALF_RECORD is armed */

    /* What came of it. */
    double started_s, started_boottime_s;
    double cpu_s;
    int64_t memory_peak_bytes;
    const char *info;   /* the record of the start; empty: it is not written */
    const char *record; /* the exit record */
    int32_t user_dir_fd; /* open, unless the attempt has ended; negative: there is none */
    int32_t job_pid;
    int32_t has_status, status; /* of the job's own process */
    int32_t signal; /* what came up, 0: no signal */
    int32_t is_over; /* nothing of it was left */
};

#endif
