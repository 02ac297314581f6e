/* What the parts of this library share, and what native.py and the library tell each other (`gsv_server` alone). */
#ifndef GSV_ATTEMPT_H
#define GSV_ATTEMPT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GSV_ABI 4 /* a change of `gsv_server` needs the next number, here and in native.py */
#define GSV_FILES_MAX 8
#define GSV_GROUPS_MAX 256 /* of an owner */
#define GSV_CGROUPS_MAX 5
#define GSV_TEXT_BYTES 16384 /* of the record of a start, and of an exit */
#define GSV_REQUEST_BYTES 8192 /* of a request of the launcher */

/* How far an attempt has come; Python goes on from there. */
enum gsv_stage {
    GSV_UNTOUCHED = 0, /* nothing was done, or all was undone */
    GSV_ANNOUNCED = 1, /* directory, group and the line `starting` are there; no program runs */
    GSV_RUNS = 2,      /* the program was started; something came up that is not for here */
    GSV_ENDED = 3,     /* nothing of it is left, and the exit record is written */
};

/* Why `gsv_serve` returns. */
enum gsv_came {
    GSV_CLOSED = 0,  /* the launcher is gone, or has no more attempts for this process */
    GSV_RULES = 1,   /* a request that begins with other words than `rules`: call again when they are obeyed */
    GSV_ATTEMPT = 2, /* an attempt that Python takes over at `stage` */
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

/* What this process is, which Python says once, and what has come. */
struct gsv_server {
    const char *own;   /* JSON: pid and start ticks of this process, as they are in a journal */
    const char *rules; /* words of the requests whose rules this process obeys */
    void (*failpoint)(int point);         /* NULL: none is armed */
    int (*open_place)(const char *path); /* opens a directory that only root and we can change; negative: no */
    /* Whether jobs of this user run here: writes his groups, in order, and returns how many; negative: ask Python. */
    int (*find_groups)(const char *user, int64_t uid, int64_t gid, uint32_t *groups, int most);
    int (*prepare_cgroups)(const char *text); /* as `cgroups_text` says; 1: all is done */
    uint64_t core_soft, core_hard;        /* limits of jobs */
    double look_s;                        /* after which somebody looks after an attempt, seconds */
    double place_kept_s;                  /* for which a directory that was opened counts as in order */
    int32_t channel;                      /* to the launcher */
    int32_t half_record;                  /* whether GSV_HALF_RECORD is armed */
    int32_t has_groups;                   /* whether attempts may have control groups: Python finds back from them */
    int32_t set_core;                     /* whether the limits of core dumps differ from this process's */
    int32_t allow_root;                   /* rule: whether jobs of root run here */
    int32_t has_request;                  /* there is one that was not obeyed yet */

    int32_t request_bytes;
    int32_t stage;
    char request[GSV_REQUEST_BYTES]; /* name NUL directory NUL rules */
    char last[GSV_REQUEST_BYTES];    /* directory of the last attempt that ended here; empty: Python's was later */

    /* Of the attempt that is taken over. */
    int32_t place_fd, task_fd, journal_fd; /* of its spool; negative: not open, Python opens them */
    int32_t user_dir_fd;                   /* open; negative: there is none */
    int32_t job_pid;
    int32_t has_status, status; /* of the job's own process */
    int32_t signal;             /* what came up, 0: no signal */
    int32_t is_over;            /* nothing of it was left */
    int32_t oom_score_adj;      /* of this process; jobs have 0 where it is negative */
    double started_s, started_boottime_s;
    double cpu_s;
    int64_t memory_peak_bytes;
    const char *info;   /* the record of the start; empty: it is not written */
    const char *out_path, *err_path; /* of its output files; both the same: one file */
};

struct gsv_file {
    const char *name;
    const char *content;
    size_t bytes;
    mode_t mode;
};

/* A control group that a job's process joins, by the first of two files that is there. */
struct gsv_cgroup {
    const char *path, *tasks, *procs; /* `tasks` NULL: only by `procs` */
};

/* One attempt of a plain job: what is to be done, and what came of it. */
struct gsv_attempt {
    const struct gsv_server *server;
    char **programs, **argv, **env; /* end with NULL; paths to try in turn */
    const char *cwd;
    const char *out_path, *err_path; /* `err_path` NULL: both go to `out_path` */
    const char *user_dir;            /* a name in the directory `place_fd` (negative: it has none) */
    struct gsv_file files[GSV_FILES_MAX];
    int files_count;
    const char *cgroup; /* the group for tracking, NULL: none */
    struct gsv_cgroup cgroups[GSV_CGROUPS_MAX]; /* that one, and the others, in the order in which they are joined */
    int cgroups_count;
    const char *cgroups_text; /* JSON of the fields of the task for Python, NULL: they have no limits */
    const char *memory_cgroup; /* limits the memory, NULL: none does */
    int memory_version;
    const void *cpu_mask; /* affinity as sched_setaffinity(2) takes it; 0 bytes: that of this process */
    size_t cpu_mask_bytes;
    char *info_start; /* JSON of the record of the start, up to what is not known before */
    uint64_t open_files, processes; /* `processes` of the owner, 0: no limit but that of a group */
    int nice;
    int64_t job, number, uid, gid;
    uint32_t groups[GSV_GROUPS_MAX];
    int groups_count;
    int switch_user;         /* whether the owner is another user than this process's */
    const char *submit_dir;  /* must be this directory; NULL: any is in order */
    uint64_t submit_device, submit_inode;
    int submit_is_shared;    /* it lies on a network file system, where devices may differ */
    off_t journal_bytes; /* of the journal, as far as its orders were read */
    double look_s;       /* CLOCK_BOOTTIME at which somebody has to look */
    double walltime_s;   /* after the start; negative: no limit */
    int place_fd, journal_fd;
    int append, no_new_privileges;
    mode_t umask;

    double started_s, started_boottime_s, cpu_s;
    int64_t memory_peak_bytes;
    const char *info, *record; /* of its start and its exit, as in the journal; empty: not written */
    int user_dir_fd;
    pid_t job_pid;
    int has_status, status, signal, is_over;
};

/* task.c: fill in an attempt from its task, which ends with a NUL; 0: this library cannot run it, and Python does. */
int gsv_read_task(struct gsv_attempt *a, const char *content, size_t bytes);

/* start.c */
enum gsv_start {
    GSV_NOT_STARTED = 0,  /* and it will not run: Python starts it, or finds out why not */
    GSV_STARTED = 1,      /* and recorded */
    GSV_STARTED_ONLY = 2, /* Python goes on: it is not recorded, or takes long */
};
enum gsv_start gsv_start_program(struct gsv_attempt *a);
int gsv_may_share_memory(void);

/* supervisor.c: run an attempt as far as it takes its usual course. */
enum gsv_stage gsv_run(struct gsv_attempt *a);
int gsv_append(struct gsv_attempt *a, const char *kind, const char *text); /* a line of the journal; 0: it is there */
int gsv_publish(struct gsv_attempt *a);                                    /* 0: who runs the attempt is recorded */
int gsv_has_orders(const struct gsv_attempt *a);
void gsv_passes(const struct gsv_attempt *a, enum gsv_point point);
void gsv_close_if_open(int *fd);

double gsv_boottime_s(void);

#endif
