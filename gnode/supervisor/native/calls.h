/* System calls without the C library, which would write into `errno`, and so into memory that two processes share.
   They return a negative errno. */
#ifndef GSV_CALLS_H
#define GSV_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define GSV_SHARES_MEMORY 1 /* a child may run in this process's memory */
__attribute__((always_inline)) static inline long gsv_call(long number, long a, long b, long c, long d, long e) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

/* clone3(2) of a child that runs `entry` on a stack of its own, and never returns from it. */
static inline long gsv_clone3(const void *args, size_t bytes, int (*entry)(void *), void *given) {
    register int (*kept_entry)(void *) __asm__("r12") = entry;
    register void *kept_given __asm__("r13") = given;
    long result;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %%r13, %%rdi\n\t"
                     "call *%%r12\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(result)
                     : "a"((long)SYS_clone3), "D"(args), "S"(bytes), "r"(kept_entry), "r"(kept_given)
                     : "rcx", "r11", "memory");
    return result;
}
#define GSV_HAS_CLONE3 1
#elif defined(__aarch64__)
#define GSV_SHARES_MEMORY 1
#define GSV_HAS_CLONE3 0
static inline long gsv_call(long number, long a, long b, long c, long d, long e) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
#else
#define GSV_HAS_CLONE3 0
#define GSV_SHARES_MEMORY 0 /* such a child would need the calls of this processor: it is Python's */
static inline long gsv_call(long number, long a, long b, long c, long d, long e) {
    long result = syscall(number, a, b, c, d, e);
    return result < 0 ? -errno : result;
}
#endif

static inline long gsv_address(const void *of) {
    return (long)(intptr_t)of;
}

static inline int gsv_open(int directory, const char *path, int flags, mode_t mode) {
    return (int)gsv_call(SYS_openat, directory, gsv_address(path), flags, (long)mode, 0);
}

static inline long gsv_close(int fd) {
    return gsv_call(SYS_close, fd, 0, 0, 0, 0);
}

static inline long gsv_read(int fd, void *to, size_t bytes) {
    return gsv_call(SYS_read, fd, gsv_address(to), (long)bytes, 0, 0);
}

static inline long gsv_write(int fd, const void *from, size_t bytes) {
    return gsv_call(SYS_write, fd, gsv_address(from), (long)bytes, 0, 0);
}

/* Look at an open file, or with `fd` AT_FDCWD at a path. */
static inline long gsv_look(int fd, const char *path, struct statx *found) {
    int flags = path[0] ? 0 : AT_EMPTY_PATH;
    return gsv_call(SYS_statx, fd, gsv_address(path), flags, STATX_TYPE | STATX_INO, gsv_address(found));
}

static inline long gsv_prctl(int what, long value, long second) {
    return gsv_call(SYS_prctl, what, value, second, 0, 0);
}

#endif
