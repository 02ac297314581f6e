/* From a task, the JSON of `gnode.task.Task`, to an attempt that `gsv_run` can run.

   A field that is not in `FIELDS`, or has a value that no plain job has, makes the task Python's: so a task with a new
   field is, until this file knows it. What a job needs of Python is decided here alone. */
#define _GNU_SOURCE
#include "json.h"
#include "task.h"

#include <stdio.h>
#include <string.h>

#define CPUS_MAX 65536

/* --- the fields of a task --- */

enum kind { SKIP, NOTHING, ONLY_NULL, TEXT, NO_TEXT, INTEGER, NUMBER, NO_NUMBER, TRUTH, ARGV, ENV, TASK_FILES, CPUS, CGROUP, AWAY };

enum use { NEEDED = 1, OF_CGROUPS = 2 }; /* what Python wants to know that prepares them */

struct field {
    const char *name;
    enum kind kind;
    int use; /* of `enum use` */
    size_t place; /* in struct task */
};

#define AT(member) offsetof(struct task, member)

static const struct field FIELDS[] = {
    {"join", TEXT, NEEDED, AT(join)},
    {"umask", INTEGER, NEEDED, AT(umask)},
    {"grace_s", SKIP, 0, 0},
    {"early_signal", NOTHING, 0, 0},
    {"checkpoint_signal", SKIP, 0, 0},
    {"job", INTEGER, NEEDED, AT(job)},
    {"attempt", INTEGER, NEEDED, AT(number)},
    {"user", TEXT, NEEDED, AT(user)},
    {"uid", INTEGER, NEEDED, AT(uid)},
    {"gid", INTEGER, NEEDED, AT(gid)},
    {"switch_user", TRUTH, NEEDED, AT(switch_user)},
    {"argv", ARGV, NEEDED, 0},
    {"env", ENV, NEEDED, 0},
    {"cwd", TEXT, NEEDED, AT(cwd)},
    {"stdout_path", TEXT, NEEDED, AT(out)},
    {"stderr_path", TEXT, NEEDED, AT(err)},
    {"stdout_name", TEXT, NEEDED, AT(out_name)},
    {"stderr_name", TEXT, NEEDED, AT(err_name)},
    {"append", TRUTH, NEEDED, AT(append)},
    {"files", TASK_FILES, NEEDED, 0},
    {"user_dir", TEXT, NEEDED, AT(user_dir)},
    {"walltime_s", NO_NUMBER, NEEDED, AT(walltime_s)},
    {"leftover_grace_s", SKIP, 0, 0},
    {"launch_timeout_s", SKIP, 0, 0},
    {"cgroup", NO_TEXT, OF_CGROUPS, AT(cgroup)},
    {"memory_cgroup", CGROUP, OF_CGROUPS, AT(memory)},
    {"failure_report", NOTHING, 0, 0},
    {"nice", INTEGER, 0, AT(nice)},
    {"no_new_privileges", TRUTH, 0, AT(no_new_privileges)},
    {"open_files", INTEGER, 0, AT(open_files)},
    {"processes", INTEGER, OF_CGROUPS, AT(processes)},
    {"processes_cgroup", NO_TEXT, OF_CGROUPS, AT(processes_cgroup)},
    {"lease_s", NUMBER, 0, AT(lease_s)},
    {"lease_from_s", NUMBER, 0, AT(lease_from_s)},
    {"lease_grace_s", SKIP, 0, 0},
    {"gate", NOTHING, 0, 0},
    {"yields", SKIP, 0, 0},
    {"cpus", CPUS, OF_CGROUPS, AT(highest_cpu)},
    {"cpuset", CGROUP, OF_CGROUPS, AT(cpuset)},
    {"fence", CGROUP, OF_CGROUPS, AT(fence)},
    {"detach_timeout_s", ONLY_NULL, 0, 0}, /* 0 is a terminal */
    {"removal", NOTHING, 0, 0},
    {"stage_in", NOTHING, 0, 0},
    {"stage_out", NOTHING, 0, 0},
    {"stage_timeout_s", SKIP, 0, 0},
    {"directory_wait_s", SKIP, 0, 0},
    {"private", NOTHING, 0, 0},
    {"programs", NOTHING, 0, 0},
    {"away", AWAY, 0, 0},
    {"boot_id", SKIP, 0, 0}, /* from here on gnode's own */
    {"gpu_indices", SKIP, 0, 0},
    {"gpu_shares", SKIP, 0, 0},
    {"origin", SKIP, 0, 0},
};
#define FIELDS_COUNT (sizeof FIELDS / sizeof *FIELDS)

static uint64_t cpu_mask[CPUS_MAX / 64];

/* A growing array of texts; it ends with NULL. */
struct texts {
    char **at;
    int count, room;
};

static void add(struct reader *r, struct texts *all, char *one) {
    if (one == NULL) {
        gsv_bad(r);
        return;
    }
    if (all->count + 1 >= all->room) {
        int room = all->room ? 2 * all->room : 64;
        char **larger = gsv_take((size_t)room * sizeof *larger);
        if (larger == NULL) {
            gsv_bad(r);
            return;
        }
        if (all->count)
            memcpy(larger, all->at, (size_t)all->count * sizeof *larger);
        all->at = larger;
        all->room = room;
    }
    all->at[all->count++] = one;
    all->at[all->count] = NULL;
}

static char **read_argv(struct reader *r) {
    struct texts all = {NULL, 0, 0};
    int count = 0;
    if (!gsv_eat(r, '['))
        gsv_bad(r);
    while (gsv_next(r, &count, ']'))
        add(r, &all, gsv_text(r, 0, NULL));
    if (all.count == 0)
        gsv_bad(r);
    return all.at;
}

/* Read the variables, as execve(2) takes them. */
static char **read_env(struct reader *r) {
    struct texts all = {NULL, 0, 0};
    int count = 0;
    add(r, &all, (char *)""); /* so that there is an array */
    all.count = 0;
    if (all.at)
        all.at[0] = NULL;
    if (!gsv_eat(r, '{'))
        gsv_bad(r);
    while (gsv_next(r, &count, '}')) {
        char *name = gsv_text(r, 0, NULL);
        if (!gsv_eat(r, ':'))
            gsv_bad(r);
        char *value = gsv_text(r, 0, NULL);
        if (r->is_bad || strcmp(name, "SLURM_JOB_ID") == 0) { /* only its own process knows SLURM_TASK_PID */
            gsv_bad(r);
            break;
        }
        add(r, &all, gsv_joined(name, "=", value));
    }
    return all.at;
}

static void read_files(struct reader *r, struct gsv_attempt *a) {
    int count = 0;
    if (!gsv_eat(r, '['))
        gsv_bad(r);
    while (gsv_next(r, &count, ']')) {
        int keys = 0;
        if (count > GSV_FILES_MAX || !gsv_eat(r, '{')) {
            gsv_bad(r);
            return;
        }
        struct gsv_file *file = &a->files[a->files_count++];
        *file = (struct gsv_file){NULL, NULL, 0, 0};
        while (gsv_next(r, &keys, '}')) {
            char *key = gsv_text(r, 0, NULL);
            if (!gsv_eat(r, ':') || key == NULL)
                gsv_bad(r);
            else if (strcmp(key, "name") == 0)
                file->name = gsv_text(r, 0, NULL);
            else if (strcmp(key, "content") == 0)
                file->content = gsv_text(r, 0, &file->bytes);
            else if (strcmp(key, "mode") == 0)
                file->mode = (mode_t)gsv_integer(r);
            else
                gsv_bad(r);
        }
        if (r->is_bad || file->name == NULL || file->content == NULL || strchr(file->name, '/')) {
            gsv_bad(r);
            return;
        }
    }
}

static void read_cpus(struct reader *r, int *highest) {
    int count = 0;
    memset(cpu_mask, 0, sizeof cpu_mask);
    if (!gsv_eat(r, '['))
        gsv_bad(r);
    while (gsv_next(r, &count, ']')) {
        int64_t cpu = gsv_integer(r);
        if (r->is_bad || cpu < 0 || cpu >= CPUS_MAX) {
            gsv_bad(r);
            return;
        }
        cpu_mask[cpu / 64] |= (uint64_t)1 << cpu % 64;
        if (cpu > *highest)
            *highest = (int)cpu;
    }
}

/* Read the values of an object that have these names, and skip the others. */
static void read_object(struct reader *r, const char *names[2], char **texts[2], int64_t *version) {
    int count = 0;
    if (gsv_eat_word(r, "null"))
        return;
    if (!gsv_eat(r, '{'))
        gsv_bad(r);
    while (gsv_next(r, &count, '}')) {
        char *key = gsv_text(r, 0, NULL);
        if (!gsv_eat(r, ':') || key == NULL)
            gsv_bad(r);
        else if (strcmp(key, names[0]) == 0)
            *texts[0] = gsv_text(r, 0, NULL);
        else if (names[1] && strcmp(key, names[1]) == 0)
            *texts[1] = gsv_text(r, 0, NULL);
        else if (version && strcmp(key, "version") == 0)
            *version = gsv_integer(r);
        else
            gsv_skip(r, 0);
    }
}

static void read_value(struct reader *r, const struct field *field, struct task *t, struct gsv_attempt *a) {
    void *place = (char *)t + field->place;
    switch (field->kind) {
    case SKIP:
        gsv_skip(r, 0);
        break;
    case ONLY_NULL:
        if (!gsv_eat_word(r, "null"))
            gsv_bad(r);
        break;
    case NOTHING:
        gsv_nothing(r);
        break;
    case NO_TEXT:
        if (gsv_eat_word(r, "null"))
            break;
        __attribute__((fallthrough));
    case TEXT:
        *(char **)place = gsv_text(r, 0, NULL);
        break;
    case INTEGER:
        *(int64_t *)place = gsv_integer(r);
        break;
    case NO_NUMBER:
        if (gsv_eat_word(r, "null"))
            break;
        __attribute__((fallthrough));
    case NUMBER:
        *(double *)place = gsv_number(r);
        break;
    case TRUTH:
        *(int *)place = gsv_truth(r);
        break;
    case ARGV:
        a->argv = read_argv(r);
        break;
    case ENV:
        a->env = read_env(r);
        break;
    case TASK_FILES:
        read_files(r, a);
        break;
    case CPUS:
        read_cpus(r, place);
        break;
    case CGROUP: {
        struct task_cgroup *group = place;
        if (gsv_eat_word(r, "null"))
            break;
        read_object(r, (const char *[2]){"path", NULL}, (char **[2]){&group->path, NULL}, &group->version);
        if (group->path == NULL)
            gsv_bad(r);
        break;
    }
    case AWAY:
        read_object(r, (const char *[2]){"mark", "submit_dir"}, (char **[2]){&t->away_mark, &t->away_dir}, NULL);
        break;
    }
}

/* Where the values of the fields are in the task. */
struct place {
    const char *from, *to;
};

/* Return the fields that say what control groups the attempt has, as JSON; NULL: there is no memory. */
static char *text_of_cgroups(const struct place *places) {
    size_t bytes = 3;
    for (size_t which = 0; which < FIELDS_COUNT; which++)
        if (FIELDS[which].use & OF_CGROUPS && places[which].from)
            bytes += strlen(FIELDS[which].name) + 6 + (size_t)(places[which].to - places[which].from);
    char *made = gsv_take(bytes), *to = made;
    if (made == NULL)
        return NULL;
    for (size_t which = 0; which < FIELDS_COUNT; which++)
        if (FIELDS[which].use & OF_CGROUPS && places[which].from)
            to += sprintf(to, "%s\"%s\": %.*s", to == made ? "{" : ", ", FIELDS[which].name,
                          (int)(places[which].to - places[which].from), places[which].from);
    strcpy(to, "}");
    return made;
}

static int read_fields(struct reader *r, struct task *t, struct gsv_attempt *a) {
    struct place places[FIELDS_COUNT] = {{NULL, NULL}};
    uint64_t seen = 0;
    int count = 0;
    _Static_assert(FIELDS_COUNT < 64, "a bit for each field");
    if (!gsv_eat(r, '{'))
        return -1;
    while (gsv_next(r, &count, '}')) {
        char *name = gsv_text(r, 0, NULL);
        size_t which = 0;
        if (name == NULL || !gsv_eat(r, ':'))
            return -1;
        /* they come in this order: gnode writes them so */
        for (size_t tried = 0; tried < FIELDS_COUNT; tried++) {
            which = ((size_t)count - 1 + tried) % FIELDS_COUNT;
            if (strcmp(FIELDS[which].name, name) == 0)
                break;
            if (tried + 1 == FIELDS_COUNT)
                return -1; /* a field of a newer version */
        }
        places[which].from = r->at;
        read_value(r, &FIELDS[which], t, a);
        places[which].to = r->at;
        if (r->is_bad)
            return -1;
        seen |= (uint64_t)1 << which;
    }
    for (size_t which = 0; which < FIELDS_COUNT; which++)
        if (FIELDS[which].use & NEEDED && !(seen >> which & 1))
            return -1;
    if (t->memory.path || t->processes_cgroup || t->cpuset.path || t->fence.path) {
        a->cgroups_text = text_of_cgroups(places);
        if (a->cgroups_text == NULL)
            return -1;
    }
    gsv_skip_space(r);
    return r->is_bad ? -1 : 0;
}

int gsv_read_task(struct gsv_attempt *a, const char *content, size_t bytes) {
    struct reader r = {content, 0};
    struct task t;
    memset(&t, 0, sizeof t);
    t.walltime_s = -1;
    t.open_files = 1024;
    t.highest_cpu = -1;
    gsv_forget_all();
    if (read_fields(&r, &t, a) < 0 || r.at != content + bytes)
        return -1;
    a->cpu_mask = cpu_mask;
    a->cpu_mask_bytes = t.highest_cpu < 0 ? 0 : 8 * (size_t)(t.highest_cpu / 64 + 1);
    return gsv_plan(a, &t);
}
