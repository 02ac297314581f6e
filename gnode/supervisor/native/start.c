/* Starting the program of a plain job: of this process's own user by vfork(2), of another one by a child that becomes
   the owner.

   That child runs in this process's memory, but not instead of it: a file server that hangs, or a user who stops the
   child, hangs the child alone. From the first call with the owner's rights on it makes system calls only (calls.h),
   and writes nothing but its stack and `struct start`. The owner cannot write into that memory by the child: it cannot
   be traced or dumped, as the kernel decides when a process changes its ids (`suid_dumpable` 0 or 2: proc(5)). What
   the job's owner has named (directories, files) is touched with the owner's rights and no others. */
#define _GNU_SOURCE
#include "attempt.h"
#include "calls.h"

#include <linux/capability.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>

#define STACK_BYTES (256 * 1024)
#define STEP_S 1       /* for a child to come as far as the program; Python has more patience */
#define NEVER_STARTED 254 /* of a process that nobody asks for its code */
#define JOIN_SESSION_KEYRING 1
#define NO_LOGIN_UID "4294967295"

/* How far a child in our memory has come; the kernel writes GONE when it has become the program, or has ended. */
enum place { GONE = 0, BEGUN = 1, READY = 2, MAY_GO = 3 };

/* Arguments of clone3(2), up to the first version that knows control groups. */
struct clone_words {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

/* What the start needs until the program runs. */
struct start {
    const struct gsv_attempt *attempt;
    uint32_t place; /* a futex */
    int null, out, err;
    int group; /* for tracking, in which the child is born; negative: it joins it, or there is none */
    int fault; /* the child's errno, which it writes into our memory */
    pid_t supervisor;
};

static const uint64_t no_signals;
static int is_old_kernel; /* it has no clone3(2), or that knows no control groups */

/* --- what both kinds of child do --- */

/* Return whether the directory of submission is certainly here; gsched.directories knows all other cases. */
static int is_here(const struct gsv_attempt *a) {
    struct statx found;
    if (a->submit_dir == NULL)
        return 1;
    if (gsv_look(AT_FDCWD, a->submit_dir, &found) < 0 || found.stx_ino != a->submit_inode)
        return 0;
    return a->submit_is_shared || makedev(found.stx_dev_major, found.stx_dev_minor) == a->submit_device;
}

/* Open an output file as gnode.supervisor.output does; negative: not so simple. */
static int open_output(const struct gsv_attempt *a, const char *path) {
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_CLOEXEC | O_NONBLOCK | (a->append ? 0 : O_TRUNC);
    int fd = gsv_open(AT_FDCWD, path, flags, 0666);
    if (fd < 0)
        return -1;
    struct statx found;
    if (gsv_look(fd, "", &found) == 0 && (S_ISREG(found.stx_mode) || S_ISCHR(found.stx_mode)) &&
        gsv_call(SYS_fcntl, fd, F_SETFL, O_APPEND, 0, 0) == 0)
        return fd;
    gsv_close(fd);
    return -1;
}

static int write_file(int directory, const struct gsv_file *file) {
    int fd = gsv_open(directory, file->name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    size_t written = 0;
    while (written < file->bytes) {
        long bytes = gsv_write(fd, file->content + written, file->bytes - written);
        if (bytes <= 0)
            break;
        written += (size_t)bytes;
    }
    int is_whole = written == file->bytes && gsv_call(SYS_fchmod, fd, (long)file->mode, 0, 0, 0) == 0;
    gsv_close(fd);
    return is_whole ? 0 : -1;
}

/* Do all that touches what the owner has named, who has to be the owner; all of it may be done again. */
static int prepare(const struct gsv_attempt *a, struct start *s) {
    if (!is_here(a) || gsv_call(SYS_chdir, gsv_address(a->cwd), 0, 0, 0, 0) < 0)
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
    s->null = gsv_open(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC, 0);
    return s->null < 0 ? -1 : 0;
}

/* Set both limits of a resource. */
static long limit(int which, uint64_t soft, uint64_t hard) {
    const uint64_t limits[2] = {soft, hard};
    return gsv_call(SYS_prlimit64, 0, which, gsv_address(limits), 0, 0);
}

/* Change the niceness, as nice(3). */
static long add_to_niceness(int more) {
    long from_top = gsv_call(SYS_getpriority, PRIO_PROCESS, 0, 0, 0, 0); /* 20 less the niceness */
    return from_top < 0 ? from_top : gsv_call(SYS_setpriority, PRIO_PROCESS, 0, 20 - from_top + more, 0, 0);
}

/* Join a control group: in version 1 as a thread, for which the kernel waits for nobody else. */
static long join_cgroup(const struct gsv_cgroup *group) {
    long fd = -ENOENT;
    if (group->tasks)
        fd = gsv_open(AT_FDCWD, group->tasks, O_WRONLY | O_CLOEXEC, 0);
    if (fd == -ENOENT)
        fd = gsv_open(AT_FDCWD, group->procs, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    long result = gsv_write((int)fd, "0", 1);
    gsv_close((int)fd);
    return result;
}

/* Become a process of the attempt, with the rights that this process has. */
static long join(const struct gsv_attempt *a, const struct start *s) {
    long result = gsv_call(SYS_setsid, 0, 0, 0, 0, 0);
    if (result >= 0 && a->server->set_core)
        result = limit(RLIMIT_CORE, a->server->core_soft, a->server->core_hard);
    if (result >= 0 && a->server->oom_score_adj < 0) {
        int fd = gsv_open(AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC, 0);
        result = fd < 0 ? fd : gsv_write(fd, "0", 1);
        if (fd >= 0)
            gsv_close(fd);
    }
    if (result >= 0 && a->nice)
        result = add_to_niceness(a->nice);
    if (result >= 0 && a->processes)
        result = limit(RLIMIT_NPROC, a->processes, a->processes);
    for (int number = s->group >= 0; result >= 0 && number < a->cgroups_count; number++)
        result = join_cgroup(&a->cgroups[number]);
    if (result >= 0 && a->cpu_mask_bytes)
        result = gsv_call(SYS_sched_setaffinity, 0, (long)a->cpu_mask_bytes, gsv_address(a->cpu_mask), 0, 0);
    return result;
}

static long forbid_new_privileges(const struct gsv_attempt *a) {
    return a->no_new_privileges ? gsv_prctl(PR_SET_NO_NEW_PRIVS, 1, 0) : 0;
}

/* Become the program; return why that failed. */
static long run_program(const struct gsv_attempt *a, const struct start *s) {
    const int from[3] = {s->null, s->out, s->err < 0 ? s->out : s->err};
    long result = 0;
    for (int number = 0; number < 3; number++)
        if ((result = gsv_call(SYS_dup3, from[number], number, 0, 0, 0)) < 0)
            return result;
    result = gsv_call(SYS_rt_sigprocmask, SIG_SETMASK, gsv_address(&no_signals), 0, sizeof no_signals, 0);
    for (char **path = a->programs; *path; path++) /* it returns only if that is no program */
        result = gsv_call(SYS_execve, gsv_address(*path), gsv_address(a->argv), gsv_address(a->env), 0, 0);
    return result;
}

__attribute__((noreturn)) static void give_up(struct start *s, long why) {
    s->fault = why < 0 ? (int)-why : EIO;
    for (;;)
        gsv_call(SYS_exit_group, NEVER_STARTED, 0, 0, 0, 0);
}

/* --- of this process's own user --- */

__attribute__((noreturn)) static void become_program(const struct gsv_attempt *a, struct start *s) {
    long result = join(a, s);
    if (result >= 0)
        result = forbid_new_privileges(a);
    if (result >= 0)
        result = run_program(a, s);
    give_up(s, result);
}

/* As vfork(2), in a control group if that is not negative: return when the child is the program, or has ended. */
#if GSV_HAS_CLONE3
__attribute__((always_inline)) static inline long vfork_into(int group) {
    struct clone_words words = {0};
    words.flags = CLONE_VM | CLONE_VFORK | CLONE_INTO_CGROUP;
    words.exit_signal = SIGCHLD;
    words.cgroup = (uint64_t)group;
    return gsv_call(SYS_clone3, gsv_address(&words), sizeof words, 0, 0, 0);
}
#else
#define vfork_into(group) (-ENOSYS)
#endif

/* Whether a child is born in its group: joining one waits for all processors, up to 13 ms. */
static int is_born_in_group(const struct gsv_attempt *a) {
    return GSV_HAS_CLONE3 && a->cgroup && !is_old_kernel;
}

/* Open the group in which a child is born, if it is; 0: that cannot be done. */
static int open_group(const struct gsv_attempt *a, int *group) {
    *group = -1;
    return !is_born_in_group(a) || (*group = open(a->cgroup, O_PATH | O_DIRECTORY | O_CLOEXEC)) >= 0;
}

/* Learn from a child that could not be made; Python starts this one, in any case. */
static void note_refusal(long result, int group) {
    if (group >= 0 && (result == -ENOSYS || result == -EINVAL || result == -E2BIG || result == -EOPNOTSUPP || result == -EPERM))
        is_old_kernel = 1;
}

/* Start the program; 0: it does not run. */
__attribute__((noinline)) static pid_t spawn(const struct gsv_attempt *a, struct start *s) {
    long pid = s->group >= 0 ? vfork_into(s->group) : vfork();
    if (pid == 0)
        become_program(a, s);
    if (pid > 0 && ((volatile struct start *)s)->fault) {
        waitpid((pid_t)pid, NULL, 0);
        return 0;
    }
    note_refusal(pid, s->group);
    return pid < 0 ? 0 : (pid_t)pid;
}

static enum gsv_start start_own(struct gsv_attempt *a, struct start *s) {
    mode_t before = umask(a->umask);
    if (prepare(a, s) == 0 && gsv_append(a, "may run", "") == 0)
        a->job_pid = spawn(a, s);
    umask(before);
    if (chdir("/") < 0) { /* or the user's file system would stay busy: it cannot fail */
    }
    gsv_close_if_open(&s->null);
    gsv_close_if_open(&s->out);
    gsv_close_if_open(&s->err);
    if (a->job_pid == 0)
        return GSV_NOT_STARTED;
    gsv_passes(a, GSV_AFTER_FORK);
    return gsv_publish(a) < 0 ? GSV_STARTED_ONLY : GSV_STARTED;
}

/* --- of another user --- */

/* Tell the audit system whose session this is, where it wants to know and does not. */
static void tell_audit(int64_t uid) {
    char text[24];
    int fd = gsv_open(AT_FDCWD, "/proc/self/loginuid", O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) /* no audit in this kernel, or the container forbids it */
        return;
    long bytes = gsv_read(fd, text, sizeof text);
    if (bytes >= (long)strlen(NO_LOGIN_UID) && memcmp(text, NO_LOGIN_UID, strlen(NO_LOGIN_UID)) == 0) {
        char *at = text + sizeof text;
        for (; uid > 0; uid /= 10)
            *--at = (char)('0' + uid % 10);
        gsv_write(fd, at, (size_t)(text + sizeof text - at));
    }
    gsv_close(fd);
}

/* Return 1 if the ids and groups are the owner's, no capability is left, and root cannot be become again. */
static int is_owner(const struct gsv_attempt *a) {
    const uint32_t uid = (uint32_t)a->uid, gid = (uint32_t)a->gid;
    uint32_t ids[6], groups[GSV_GROUPS_MAX];
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct held[2];
    if (gsv_call(SYS_getresuid, gsv_address(&ids[0]), gsv_address(&ids[1]), gsv_address(&ids[2]), 0, 0) < 0 ||
        gsv_call(SYS_getresgid, gsv_address(&ids[3]), gsv_address(&ids[4]), gsv_address(&ids[5]), 0, 0) < 0 ||
        gsv_call(SYS_getgroups, GSV_GROUPS_MAX, gsv_address(groups), 0, 0, 0) != a->groups_count ||
        gsv_call(SYS_capget, gsv_address(&header), gsv_address(held), 0, 0, 0) < 0)
        return 0;
    for (int number = 0; number < 3; number++)
        if (ids[number] != uid || ids[3 + number] != gid)
            return 0;
    for (int number = 0; number < a->groups_count; number++) /* both are in order */
        if (groups[number] != a->groups[number])
            return 0;
    for (int number = 0; number < 2; number++) /* no ambient one can be left that is not permitted */
        if (held[number].effective || held[number].permitted || held[number].inheritable)
            return 0;
    for (long left = 0, number = 0; left >= 0; number++) /* negative: there is no such capability */
        if ((left = gsv_prctl(PR_CAPBSET_READ, number, 0)) > 0)
            return 0;
    return gsv_call(SYS_setuid, 0, 0, 0, 0, 0) < 0 && gsv_prctl(PR_GET_DUMPABLE, 0, 0) != 1;
}

/* Give up root for good, as gnode.supervisor.privilege does, in the same order. */
static long become_owner(const struct gsv_attempt *a) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    const struct __user_cap_data_struct nothing[2] = {{0, 0, 0}, {0, 0, 0}};
    long result;
    if (a->uid <= 0 || a->gid <= 0 || a->uid >= UINT32_MAX || a->gid >= UINT32_MAX)
        return -EPERM;
    gsv_call(SYS_keyctl, JOIN_SESSION_KEYRING, 0, 0, 0, 0); /* a kernel without keyrings has nothing to leave */
    tell_audit(a->uid);
    if ((result = gsv_prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0)) < 0)
        return result;
    for (long held = 0, number = 0; held >= 0; number++)
        if ((held = gsv_prctl(PR_CAPBSET_READ, number, 0)) > 0 && (result = gsv_prctl(PR_CAPBSET_DROP, number, 0)) < 0)
            return result;
    if ((result = gsv_call(SYS_setgroups, a->groups_count, gsv_address(a->groups), 0, 0, 0)) < 0 ||
        (result = gsv_call(SYS_setresgid, a->gid, a->gid, a->gid, 0, 0)) < 0 ||
        (result = gsv_call(SYS_setresuid, a->uid, a->uid, a->uid, 0, 0)) < 0 ||
        (result = gsv_call(SYS_capset, gsv_address(&header), gsv_address(nothing), 0, 0, 0)) < 0)
        return result;
    return is_owner(a) ? 0 : -EPERM;
}

/* Wait until the place is another one than it was, or for so long; return it. */
static uint32_t await_change(uint32_t *place, uint32_t was, int seconds) {
    const struct timespec patience = {seconds, 0};
    uint32_t now;
    while ((now = __atomic_load_n(place, __ATOMIC_ACQUIRE)) == was) {
        long result = gsv_call(SYS_futex, gsv_address(place), FUTEX_WAIT, (long)was, gsv_address(&patience), 0);
        if (result == -ETIMEDOUT)
            return __atomic_load_n(place, __ATOMIC_ACQUIRE);
    }
    return now;
}

/* Go to the next place; 0: this is no longer the one before. */
static int go_on(uint32_t *place, uint32_t before, uint32_t next) {
    int is_there = __atomic_compare_exchange_n(place, &before, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    gsv_call(SYS_futex, gsv_address(place), FUTEX_WAKE, 1, 0, 0);
    return is_there;
}

/* The child in our memory. */
static int become_owners_program(void *start) {
    struct start *s = start;
    const struct gsv_attempt *a = s->attempt;
    long result = join(a, s);
    if (result >= 0)
        result = become_owner(a);
    if (result >= 0)
        result = forbid_new_privileges(a);
    gsv_call(SYS_umask, (long)a->umask, 0, 0, 0, 0);
    if (result < 0 || prepare(a, s) < 0)
        give_up(s, result);
    go_on(&s->place, BEGUN, READY);
    while (await_change(&s->place, READY, STEP_S) == READY)
        if (gsv_call(SYS_getppid, 0, 0, 0, 0, 0) != s->supervisor) /* it was killed */
            give_up(s, -ESRCH);
    give_up(s, run_program(a, s));
}

/* Return the top of the child's stack, whose end is guarded; NULL: there is no memory. */
static void *stack_top(void) {
    static char *stack;
    if (stack == NULL) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK;
        char *made = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (made == MAP_FAILED)
            return NULL;
        if (mprotect(made, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE) < 0) {
            munmap(made, STACK_BYTES);
            return NULL;
        }
        stack = made;
    }
    return stack + STACK_BYTES;
}

/* A child that shares our memory and is not in vfork(2) has changed our own protection from the OOM killer, too. */
static void protect_again(const struct gsv_server *server) {
    char text[16];
    if (server->oom_score_adj >= 0)
        return;
    int length = snprintf(text, sizeof text, "%d", (int)server->oom_score_adj);
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, (size_t)length) < 0) { /* without the right to: the launcher takes over */
    }
    if (fd >= 0)
        close(fd);
}

/* Start the child in our memory; negative: there is none. */
static pid_t start_child(struct start *s, void *stack) {
    const uint64_t flags = CLONE_VM | CLONE_CHILD_CLEARTID;
#if GSV_HAS_CLONE3
    if (s->group >= 0) {
        struct clone_words words = {0};
        words.flags = flags | CLONE_INTO_CGROUP;
        words.exit_signal = SIGCHLD;
        words.child_tid = (uint64_t)gsv_address(&s->place);
        words.stack = (uint64_t)gsv_address(stack) - STACK_BYTES;
        words.stack_size = STACK_BYTES;
        words.cgroup = (uint64_t)s->group;
        pid_t pid = (pid_t)gsv_clone3(&words, sizeof words, become_owners_program, s);
        note_refusal(pid, s->group);
        return pid;
    }
#endif
    return clone(become_owners_program, stack, (int)flags | SIGCHLD, s, NULL, NULL, &s->place);
}

static enum gsv_start start_other(struct gsv_attempt *a) {
    static struct start s; /* a child that was killed may still leave it */
    enum gsv_start came = GSV_NOT_STARTED;
    void *stack = stack_top();
    int group;
    if (stack == NULL || !open_group(a, &group))
        return GSV_NOT_STARTED;
    s = (struct start){a, BEGUN, -1, -1, -1, group, 0, getpid()};
    pid_t pid = start_child(&s, stack);
    gsv_close_if_open(&group); /* the child has its own, and only looks whether there is one */
    if (pid < 0)
        return GSV_NOT_STARTED;
    gsv_passes(a, GSV_AFTER_FORK);
    a->job_pid = pid;
    if (await_change(&s.place, BEGUN, STEP_S) == READY && gsv_publish(a) == 0 && !gsv_has_orders(a) &&
        go_on(&s.place, READY, MAY_GO))
        came = await_change(&s.place, MAY_GO, STEP_S) == GONE ? GSV_STARTED : GSV_STARTED_ONLY;
    if (came == GSV_STARTED_ONLY) /* it shares our memory still */
        return came;
    if (came == GSV_NOT_STARTED || __atomic_load_n(&s.fault, __ATOMIC_ACQUIRE)) {
        kill(pid, SIGKILL); /* it has not become the program, and does not any more */
        if (__atomic_load_n(&s.place, __ATOMIC_ACQUIRE) == GONE)
            waitpid(pid, NULL, 0);
        a->job_pid = 0;
        came = GSV_NOT_STARTED;
    }
    protect_again(a->server);
    return came;
}

/* Return whether no setting of the kernel lets users trace a process that has changed its ids. */
int gsv_may_share_memory(void) {
    static int fd = -1;
    char mode = '1';
    if (!GSV_SHARES_MEMORY)
        return 0;
    if (fd < 0)
        fd = open("/proc/sys/fs/suid_dumpable", O_RDONLY | O_CLOEXEC);
    return fd >= 0 && pread(fd, &mode, 1, 0) == 1 && mode != '1';
}

/* Give this process the job's soft limit of open files, which stays: a supervisor needs less than any job. */
static int limit_open_files(const struct gsv_attempt *a) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return -1;
    rlim_t soft = a->open_files < files.rlim_max ? a->open_files : files.rlim_max;
    if (soft == files.rlim_cur)
        return 0;
    files.rlim_cur = soft;
    return setrlimit(RLIMIT_NOFILE, &files);
}

enum gsv_start gsv_start_program(struct gsv_attempt *a) {
    if (limit_open_files(a) < 0)
        return GSV_NOT_STARTED;
    if (a->switch_user)
        return start_other(a);
    struct start s = {a, GONE, -1, -1, -1, -1, 0, 0};
    if (!open_group(a, &s.group))
        return GSV_NOT_STARTED;
    enum gsv_start came = start_own(a, &s);
    gsv_close_if_open(&s.group);
    return came;
}
