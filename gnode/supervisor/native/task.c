/* From a task, the JSON of `gnode.task.Task`, to an attempt that `gsv_run` can run.

   A field that is not in `FIELDS`, or has a value that no plain job has, makes the task Python's: so a task with a new
   field is, until this file knows it. What a job needs of Python is decided here alone. */
#define _GNU_SOURCE
#include "attempt.h"
#include "json.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CPUS_MAX 65536
#define BOOT_ID_BYTES 36

/* --- the fields of a task --- */

enum kind { SKIP, NOTHING, ONLY_NULL, TEXT, NO_TEXT, INTEGER, NUMBER, NO_NUMBER, TRUTH, ARGV, ENV, TASK_FILES, CPUS, CPUSET, AWAY };

struct task {
    int64_t job, number, uid, umask, open_files;
    double walltime_s, lease_s, lease_from_s;
    int append, no_new_privileges;
    char *cwd, *out, *err, *out_name, *err_name, *join, *user_dir, *cgroup;
    char *cpuset_path, *away_mark, *away_dir;
    int64_t cpuset_version;
    int highest_cpu; /* negative: it has none of its own */
};

struct field {
    const char *name;
    enum kind kind;
    int is_needed;
    size_t place; /* in struct task */
};

#define AT(member) offsetof(struct task, member)

static const struct field FIELDS[] = {
    {"join", TEXT, 1, AT(join)},
    {"umask", INTEGER, 1, AT(umask)},
    {"grace_s", SKIP, 0, 0},
    {"early_signal", NOTHING, 0, 0},
    {"checkpoint_signal", SKIP, 0, 0},
    {"job", INTEGER, 1, AT(job)},
    {"attempt", INTEGER, 1, AT(number)},
    {"user", SKIP, 0, 0},
    {"uid", INTEGER, 1, AT(uid)},
    {"gid", SKIP, 0, 0},
    {"switch_user", NOTHING, 1, 0},
    {"argv", ARGV, 1, 0},
    {"env", ENV, 1, 0},
    {"cwd", TEXT, 1, AT(cwd)},
    {"stdout_path", TEXT, 1, AT(out)},
    {"stderr_path", TEXT, 1, AT(err)},
    {"stdout_name", TEXT, 1, AT(out_name)},
    {"stderr_name", TEXT, 1, AT(err_name)},
    {"append", TRUTH, 1, AT(append)},
    {"files", TASK_FILES, 1, 0},
    {"user_dir", TEXT, 1, AT(user_dir)},
    {"walltime_s", NO_NUMBER, 1, AT(walltime_s)},
    {"leftover_grace_s", SKIP, 0, 0},
    {"launch_timeout_s", SKIP, 0, 0},
    {"cgroup", NO_TEXT, 0, AT(cgroup)},
    {"memory_cgroup", NOTHING, 0, 0},
    {"failure_report", NOTHING, 0, 0},
    {"nice", NOTHING, 0, 0},
    {"no_new_privileges", TRUTH, 0, AT(no_new_privileges)},
    {"open_files", INTEGER, 0, AT(open_files)},
    {"processes", NOTHING, 0, 0},
    {"processes_cgroup", SKIP, 0, 0},
    {"lease_s", NUMBER, 0, AT(lease_s)},
    {"lease_from_s", NUMBER, 0, AT(lease_from_s)},
    {"lease_grace_s", SKIP, 0, 0},
    {"gate", NOTHING, 0, 0},
    {"yields", SKIP, 0, 0},
    {"cpus", CPUS, 0, AT(highest_cpu)},
    {"cpuset", CPUSET, 0, 0},
    {"fence", NOTHING, 0, 0},
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

static void read_cpus(struct reader *r, struct gsv_attempt *a, int *highest) {
    int count = 0;
    char *to = NULL, *made = NULL;
    memset(cpu_mask, 0, sizeof cpu_mask);
    if (!gsv_eat(r, '['))
        gsv_bad(r);
    const char *end = r->at;
    while (*end && *end != ']')
        end++;
    made = to = gsv_take(2 * (size_t)(end - r->at) + 16);
    if (made == NULL)
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
        to += sprintf(to, "%s%d", count > 1 ? "," : "", (int)cpu);
    }
    if (count > 0)
        a->cpuset = made;
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
        read_cpus(r, a, place);
        break;
    case CPUSET:
        read_object(r, (const char *[2]){"path", NULL}, (char **[2]){&t->cpuset_path, NULL}, &t->cpuset_version);
        break;
    case AWAY:
        read_object(r, (const char *[2]){"mark", "submit_dir"}, (char **[2]){&t->away_mark, &t->away_dir}, NULL);
        break;
    }
}

static int read_fields(struct reader *r, struct task *t, struct gsv_attempt *a) {
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
        read_value(r, &FIELDS[which], t, a);
        if (r->is_bad)
            return -1;
        seen |= (uint64_t)1 << which;
    }
    for (size_t which = 0; which < FIELDS_COUNT; which++)
        if (FIELDS[which].is_needed && !(seen >> which & 1))
            return -1;
    gsv_skip_space(r);
    return r->is_bad ? -1 : 0;
}

/* --- from the task to the attempt --- */

/* Write a text as Python's json.dumps() does. */
static char *put_json(char *to, const char *from) {
    *to++ = '"';
    for (const unsigned char *at = (const unsigned char *)from; *at; at++) {
        unsigned code = *at;
        int more = code >= 0xC2 && code < 0xE0 ? 1 : code >= 0xE0 && code < 0xF0 ? 2 : code >= 0xF0 && code < 0xF5 ? 3 : 0;
        unsigned whole = more == 1 ? code & 0x1F : more == 2 ? code & 0x0F : code & 0x07;
        int length = 0;
        while (length < more && (at[length + 1] & 0xC0) == 0x80) {
            length++;
            whole = whole << 6 | (at[length] & 0x3F);
        }
        if (code == '"' || code == '\\') {
            to += sprintf(to, "\\%c", (int)code);
        } else if (code >= 0x20 && code < 0x7F) {
            *to++ = (char)code;
        } else if (code == '\n' || code == '\r' || code == '\t' || code == '\b' || code == '\f') {
            to += sprintf(to, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : code == '\t' ? 't' : code == '\b' ? 'b' : 'f');
        } else if (code < 0x80) {
            to += sprintf(to, "\\u%04x", code);
        } else if (more == 0 || length < more) { /* a byte that is no text */
            to += sprintf(to, "\\udc%02x", code);
        } else {
            at += more;
            if (whole >= 0x10000)
                to += sprintf(to, "\\u%04x\\u%04x", 0xD800 + ((whole - 0x10000) >> 10), 0xDC00 + (whole & 0x3FF));
            else
                to += sprintf(to, "\\u%04x", whole);
        }
    }
    *to++ = '"';
    *to = 0;
    return to;
}

static int set_info_start(struct gsv_attempt *a, const char *out, const char *err) {
    const char *own = a->server->own;
    a->info_start = gsv_take(6 * (strlen(out) + strlen(err)) + strlen(own) + 64);
    if (a->info_start == NULL)
        return -1;
    char *to = a->info_start;
    to = put_json(to + sprintf(to, "{\"stdout_path\": "), out);
    to = put_json(to + sprintf(to, ", \"stderr_path\": "), err);
    sprintf(to, ", \"away\": false, %s", own);
    return 0;
}

/* The paths of the output files, as gnode.supervisor.output plans them. */
static int set_output(struct gsv_attempt *a, const struct task *t) {
    const char *out = t->out, *err = t->err;
    if (*out && out[strlen(out) - 1] == '/')
        out = gsv_joined(t->out, t->out_name, "");
    if (*err && err[strlen(err) - 1] == '/')
        err = gsv_joined(t->err, t->err_name, "");
    if (out == NULL || err == NULL)
        return -1;
    if (strcmp(t->join, "eo") == 0)
        out = err;
    else if (strcmp(t->join, "oe") == 0 || strcmp(t->err, out) == 0)
        err = out;
    a->out_path = out;
    a->err_path = strcmp(err, out) == 0 ? NULL : err;
    return set_info_start(a, out, err);
}

/* The paths at which the program may be, in turn. */
static int set_programs(struct gsv_attempt *a) {
    struct reader r = {"", 0};
    struct texts all = {NULL, 0, 0};
    const char *program = a->argv[0];
    if (strchr(program, '/')) {
        add(&r, &all, a->argv[0]);
    } else {
        const char *path = "/bin:/usr/bin"; /* Python's os.defpath */
        for (char **each = a->env; *each; each++)
            if (strncmp(*each, "PATH=", 5) == 0)
                path = *each + 5;
        for (;;) {
            size_t length = strcspn(path, ":");
            char *made = gsv_take(length + strlen(program) + 2);
            if (made)
                sprintf(made, "%.*s/%s", (int)length, path, program);
            add(&r, &all, made);
            if (path[length] == 0)
                break;
            path += length + 1;
        }
    }
    a->programs = all.at;
    return r.is_bad ? -1 : 0;
}

/* Open the directory in which the job's own one is made: as it was opened a moment ago, or by Python, which walks. */
static int open_place(const struct gsv_attempt *a, const char *path) {
    static char kept_path[PATH_MAX];
    static dev_t device;
    static ino_t inode;
    static double kept_until_s;
    struct stat status;
    int fd = -1;
    if (strlen(path) >= sizeof kept_path)
        return -1;
    if (strcmp(kept_path, path) == 0 && gsv_boottime_s() < kept_until_s) {
        fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &status) == 0 && status.st_dev == device && status.st_ino == inode)
            return fd;
        if (fd >= 0)
            close(fd);
    }
    kept_path[0] = 0;
    fd = a->server->open_place(path);
    if (fd >= 0 && fstat(fd, &status) == 0) {
        device = status.st_dev;
        inode = status.st_ino;
        kept_until_s = gsv_boottime_s() + a->server->place_kept_s;
        strcpy(kept_path, path);
    }
    return fd;
}

static int set_user_dir(struct gsv_attempt *a, char *user_dir) {
    a->place_fd = -1;
    if (a->files_count == 0)
        return 0;
    char *slash = strrchr(user_dir, '/');
    if (slash == NULL || slash == user_dir || slash[1] == 0)
        return -1;
    *slash = 0;
    a->user_dir = slash + 1;
    a->place_fd = open_place(a, user_dir);
    return a->place_fd < 0 ? -1 : 0;
}

/* Return whether the directory of submission is certainly here: it has the number that is noted, under this kernel.
   gsched.directories knows all other cases. */
static int is_here(const char *mark, const char *path) {
    static char boot_id[BOOT_ID_BYTES + 1];
    if (boot_id[0] == 0) {
        int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return 0;
        ssize_t bytes = read(fd, boot_id, BOOT_ID_BYTES);
        close(fd);
        boot_id[bytes == BOOT_ID_BYTES ? BOOT_ID_BYTES : 0] = 0;
    }
    if (boot_id[0] == 0 || strncmp(mark, boot_id, BOOT_ID_BYTES) != 0 || mark[BOOT_ID_BYTES] != ' ')
        return 0;
    const char *parts = mark + BOOT_ID_BYTES + 1, *end = strchr(parts, ' ');
    if (end == NULL)
        return 0;
    const char *last = end;
    while (last > parts && last[-1] != ',')
        last--;
    char *at;
    unsigned long long device = strtoull(last, &at, 16);
    if (at == last || *at != '.')
        return 0;
    const char *after = at + 1;
    unsigned long long inode = strtoull(after, &at, 16);
    if (at == after || (*at != 'n' && at != end))
        return 0;
    struct stat status;
    return stat(path, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

static int is_allowed(const struct gsv_attempt *a, const struct task *t) {
    const struct gsv_server *server = a->server;
    if (t->uid != (int64_t)getuid() || (t->uid == 0 && !server->allow_root))
        return 0;
    if (t->cgroup && !server->has_groups)
        return 0;
    if (t->cpuset_path && (t->cgroup == NULL || strcmp(t->cpuset_path, t->cgroup) != 0))
        return 0; /* a group of version 1: it would have to be joined besides */
    return t->away_mark == NULL || (t->away_dir && is_here(t->away_mark, t->away_dir));
}

static int set_moments(struct gsv_attempt *a, const struct task *t) {
    double now_s = gsv_boottime_s();
    a->look_s = now_s + a->server->look_s;
    a->walltime_s = t->walltime_s;
    if (t->lease_s == 0)
        return 0;
    double until_s = t->lease_from_s + t->lease_s;
    if (until_s < a->look_s)
        a->look_s = until_s;
    return until_s <= now_s ? -1 : 0;
}

int gsv_read_task(struct gsv_attempt *a, const char *content, size_t bytes) {
    struct reader r = {content, 0};
    struct task t;
    memset(&t, 0, sizeof t);
    t.walltime_s = -1;
    t.open_files = 1024;
    t.highest_cpu = -1;
    gsv_forget_all();
    if (read_fields(&r, &t, a) < 0 || r.at != content + bytes || !is_allowed(a, &t))
        return -1;
    a->job = t.job;
    a->number = t.number;
    a->cwd = t.cwd;
    a->append = t.append;
    a->umask = (mode_t)t.umask;
    a->no_new_privileges = t.no_new_privileges;
    a->open_files = t.open_files > 0 ? (uint64_t)t.open_files : 0;
    a->cgroup = t.cgroup && *t.cgroup ? t.cgroup : NULL;
    if (t.cpuset_path == NULL)
        a->cpuset = NULL;
    a->cpu_mask = cpu_mask;
    a->cpu_mask_bytes = t.highest_cpu < 0 ? 0 : 8 * (size_t)(t.highest_cpu / 64 + 1);
    if (set_moments(a, &t) < 0 || set_output(a, &t) < 0 || set_programs(a) < 0)
        return -1;
    return set_user_dir(a, t.user_dir);
}
