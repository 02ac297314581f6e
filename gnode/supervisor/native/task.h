/* What the fields of a task are that need a meaning: task.c reads them, plan.c says what is to be done. */
#ifndef GSV_TASK_H
#define GSV_TASK_H

#include "attempt.h"

/* A control group as a task names it. */
struct task_cgroup {
    char *path; /* NULL: there is none */
    int64_t version;
};

struct task {
    int64_t job, number, uid, gid, umask, open_files, nice, processes;
    double walltime_s, lease_s, lease_from_s;
    int append, no_new_privileges, switch_user;
    char *user, *cwd, *out, *err, *out_name, *err_name, *join, *user_dir, *cgroup;
    char *processes_cgroup, *away_mark, *away_dir;
    struct task_cgroup memory, cpuset, fence;
    int highest_cpu; /* negative: it has none of its own */
};

/* plan.c: complete an attempt whose argv, env, files and CPUs are read; -1: this library cannot run it. */
int gsv_plan(struct gsv_attempt *a, const struct task *t);

#endif
