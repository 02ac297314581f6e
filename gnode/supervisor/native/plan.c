/* What a task means for this process and this machine, as Python plans it: whose job it is, where its files are, the
   paths of its program, when somebody has to look. */
#define _GNU_SOURCE
#include "json.h"
#include "task.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOOT_ID_BYTES 36
#define NICE_MOST 40 /* from one end of its range to the other */

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
    const char *program = a->argv[0], *path = "/bin:/usr/bin"; /* Python's os.defpath */
    size_t count = 1;
    for (char **each = a->env; *each; each++)
        if (strncmp(*each, "PATH=", 5) == 0)
            path = *each + 5;
    for (const char *at = path; *at; at++)
        count += *at == ':';
    char **next = a->programs = gsv_take((count + 1) * sizeof *next);
    if (next == NULL)
        return -1;
    if (strchr(program, '/')) {
        next[0] = a->argv[0];
        next[1] = NULL;
        return 0;
    }
    for (;; path++) {
        size_t length = strcspn(path, ":");
        char *made = gsv_take(length + strlen(program) + 2);
        if (made == NULL)
            return -1;
        sprintf(made, "%.*s/%s", (int)length, path, program);
        *next++ = made;
        path += length;
        if (*path == 0)
            break;
    }
    *next = NULL;
    return 0;
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

/* Note what the directory of submission must be to be certainly here: it has the number that is noted, under this kernel
   or on a network file system. gsched.directories knows all other cases. */
static int set_submit_dir(struct gsv_attempt *a, const char *mark, const char *path) {
    static char boot_id[BOOT_ID_BYTES + 1];
    if (boot_id[0] == 0) {
        int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return -1;
        ssize_t bytes = read(fd, boot_id, BOOT_ID_BYTES);
        close(fd);
        boot_id[bytes == BOOT_ID_BYTES ? BOOT_ID_BYTES : 0] = 0;
    }
    if (path == NULL || strlen(mark) <= BOOT_ID_BYTES || mark[BOOT_ID_BYTES] != ' ')
        return -1;
    const char *parts = mark + BOOT_ID_BYTES + 1, *end = strchr(parts, ' ');
    if (end == NULL)
        return -1;
    const char *last = end;
    while (last > parts && last[-1] != ',')
        last--;
    char *at;
    a->submit_device = strtoull(last, &at, 16);
    if (at == last || *at != '.')
        return -1;
    const char *after = at + 1;
    a->submit_inode = strtoull(after, &at, 16);
    a->submit_is_shared = at != after && *at == 'n';
    if (at == after || at + a->submit_is_shared != end)
        return -1;
    a->submit_dir = path;
    return a->submit_is_shared || strncmp(mark, boot_id, BOOT_ID_BYTES) == 0 ? 0 : -1;
}

static int set_owner(struct gsv_attempt *a, const struct task *t) {
    const struct gsv_server *server = a->server;
    a->uid = t->uid;
    a->gid = t->gid;
    a->switch_user = t->switch_user;
    if (!t->switch_user)
        return t->uid == (int64_t)getuid() && (t->uid != 0 || server->allow_root) ? 0 : -1;
    if (getuid() != 0 || !gsv_may_share_memory())
        return -1;
    a->groups_count = server->find_groups(t->user, t->uid, t->gid, a->groups, GSV_GROUPS_MAX);
    return a->groups_count < 0 ? -1 : 0;
}

/* Add a control group, once. */
static int add_cgroup(struct gsv_attempt *a, const char *path) {
    if (path == NULL || *path == 0)
        return 0;
    for (int number = 0; number < a->cgroups_count; number++)
        if (strcmp(a->cgroups[number].path, path) == 0)
            return 0;
    struct gsv_cgroup *made = &a->cgroups[a->cgroups_count++];
    made->path = path;
    made->tasks = path == a->cgroup ? NULL : gsv_joined(path, "/tasks", "");
    made->procs = gsv_joined(path, "/cgroup.procs", "");
    return made->procs && (made->tasks || path == a->cgroup) ? 0 : -1;
}

/* The groups, in the order of gnode.supervisor.cgroup; Python makes those that have a limit. */
static int set_cgroups(struct gsv_attempt *a, const struct task *t) {
    const char *const paths[] = {t->cgroup, t->memory.path, t->processes_cgroup, t->cpuset.path, t->fence.path};
    _Static_assert(sizeof paths / sizeof *paths == GSV_CGROUPS_MAX, "a place for each group");
    a->cgroup = t->cgroup && *t->cgroup ? t->cgroup : NULL;
    if (t->cgroup && !a->server->has_groups)
        return -1;
    for (size_t which = 0; which < sizeof paths / sizeof *paths; which++)
        if (add_cgroup(a, paths[which]) < 0)
            return -1;
    a->memory_cgroup = t->memory.path;
    a->memory_version = (int)t->memory.version;
    return 0;
}

/* Niceness and processes; values that no user can mean are Python's. */
static int set_limits(struct gsv_attempt *a, const struct task *t) {
    if (t->nice < -NICE_MOST || t->nice > NICE_MOST || t->processes < 0)
        return -1;
    a->nice = (int)t->nice;
    a->processes = t->processes_cgroup && *t->processes_cgroup ? 0 : (uint64_t)t->processes;
    return 0;
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

int gsv_plan(struct gsv_attempt *a, const struct task *t) {
    a->job = t->job;
    a->number = t->number;
    a->cwd = t->cwd;
    a->append = t->append;
    a->umask = (mode_t)t->umask;
    a->no_new_privileges = t->no_new_privileges;
    a->open_files = t->open_files > 0 ? (uint64_t)t->open_files : 0;
    if (t->away_mark && set_submit_dir(a, t->away_mark, t->away_dir) < 0)
        return -1;
    if (set_owner(a, t) < 0 || set_cgroups(a, t) < 0 || set_limits(a, t) < 0 || set_moments(a, t) < 0)
        return -1;
    if (set_output(a, t) < 0 || set_programs(a) < 0)
        return -1;
    return set_user_dir(a, t->user_dir);
}
