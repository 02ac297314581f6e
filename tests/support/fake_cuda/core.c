/* The device: its state, memory and time. */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int fake_version = 13000;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct fake_state *state;
static _Atomic long allocations;

long fake_number(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? strtol(value, NULL, 10) : otherwise;
}

static void open_state(void) {
    const char *path = getenv("GSCHED_FAKE_STATE");
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    } else { /* a device of this process alone */
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        state->total_bytes = 16ull << 30;
    }
    if (state == MAP_FAILED) abort();
    fake_version = (int)fake_number("GSCHED_FAKE_VERSION", 13000);
}

struct fake_state *fake_state(void) {
    pthread_once(&once, open_state);
    return state;
}

uint64_t fake_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void fake_sleep_until(uint64_t when_ns) {
    struct timespec until = {.tv_sec = (time_t)(when_ns / 1000000000u),
                             .tv_nsec = (long)(when_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) continue;
}

/* A kernel has faulted: "any further CUDA work will return the same error", in this process. */
static _Atomic uint64_t faults_at_ns = UINT64_MAX;

void fake_fault_at(uint64_t when_ns) { atomic_store(&faults_at_ns, when_ns); }

CUresult fake_fault(void) {
    uint64_t when_ns = atomic_load_explicit(&faults_at_ns, memory_order_relaxed);
    return when_ns != UINT64_MAX && when_ns <= fake_now_ns() ? FAKE_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

/* A newer driver looks itself up while it is being loaded. */
__attribute__((constructor)) static void look_itself_up(void) {
    if (fake_number("GSCHED_FAKE_SELF_LOOKUP", 0) == 0) return;
    void *self = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*version)(int *) = (CUresult(*)(int *))dlsym(self, "cuDriverGetVersion");
    int number = 0;
    if (version == NULL || version(&number) != CUDA_SUCCESS) abort();
}

/* ---- memory ---- */

/* The memory of processes that are dead is free again. */
static void collect(void) {
    struct fake_state *all = fake_state();
    for (unsigned int i = 0; i < FAKE_PROCESSES_MAX; i++) {
        uint32_t pid = atomic_load(&all->processes[i].pid);
        if (pid == 0 || kill((pid_t)pid, 0) == 0 || errno != ESRCH) continue;
        atomic_fetch_sub(&all->used_bytes, atomic_exchange(&all->processes[i].used_bytes, 0));
    }
}

/* A place that has this number already is of a dead process, or of the program before exec(). */
static struct fake_process *new_process(uint32_t pid) {
    struct fake_state *all = fake_state();
    for (unsigned int i = 0; i < FAKE_PROCESSES_MAX; i++) {
        struct fake_process *one = &all->processes[i];
        uint32_t none = 0;
        if (atomic_load(&one->pid) == pid) {
            atomic_fetch_sub(&all->used_bytes, atomic_exchange(&one->used_bytes, 0));
            atomic_store(&one->peak_bytes, 0);
            return one;
        }
        if (atomic_compare_exchange_strong(&one->pid, &none, pid)) return one;
    }
    collect();
    for (unsigned int i = 0; i < FAKE_PROCESSES_MAX; i++) { /* the place of a dead process */
        struct fake_process *one = &all->processes[i];
        uint32_t dead = atomic_load(&one->pid);
        if (kill((pid_t)dead, 0) == 0 || !atomic_compare_exchange_strong(&one->pid, &dead, pid))
            continue;
        atomic_store(&one->peak_bytes, 0);
        return one;
    }
    abort();
}

static struct fake_process *own_process(void) {
    static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;
    static _Atomic uint32_t owner;
    static struct fake_process *process;
    uint32_t pid = (uint32_t)getpid();
    if (atomic_load(&owner) == pid) return process;
    pthread_mutex_lock(&taking);
    if (atomic_load(&owner) != pid) {
        process = new_process(pid);
        atomic_store(&owner, pid);
    }
    pthread_mutex_unlock(&taking);
    return process;
}

CUresult fake_take(uint64_t bytes) {
    struct fake_state *all = fake_state();
    CUresult fault = fake_fault();
    if (fault != CUDA_SUCCESS) return fault;
    long failing = fake_number("GSCHED_FAKE_FAIL_ALLOC", 0);
    if (failing > 0 && atomic_fetch_add(&allocations, 1) + 1 == failing)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (atomic_load(&all->used_bytes) + bytes > all->total_bytes) collect();
    if (atomic_fetch_add(&all->used_bytes, bytes) + bytes > all->total_bytes) {
        atomic_fetch_sub(&all->used_bytes, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct fake_process *own = own_process();
    uint64_t now = atomic_fetch_add(&own->used_bytes, bytes) + bytes;
    uint64_t peak = atomic_load(&own->peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&own->peak_bytes, &peak, now)) continue;
    return CUDA_SUCCESS;
}

void fake_give(uint64_t bytes) {
    atomic_fetch_sub(&fake_state()->used_bytes, bytes);
    atomic_fetch_sub(&own_process()->used_bytes, bytes);
}

/* ---- time: one engine, first come, first served ---- */

/* Takes the engine for work that cannot start before `ready_ns`; returns when it ends. */
uint64_t fake_engine(enum fake_kind kind, struct CUstream_st *stream, uint64_t called_ns,
                     uint64_t ready_ns, uint64_t busy_ns) {
    struct fake_state *all = fake_state();
    uint64_t start, end, engine = atomic_load(&all->engine_free_ns);
    do {
        start = called_ns > engine ? called_ns : engine;
        start = ready_ns > start ? ready_ns : start;
        end = start + busy_ns;
    } while (!atomic_compare_exchange_weak(&all->engine_free_ns, &engine, end));
    if (busy_ns == 0) return end; /* a benchmark of the launch path */
    uint64_t index = atomic_fetch_add(&all->records, 1);
    all->log[index % FAKE_LOG_MAX] = (struct fake_record){
        (uint32_t)getpid(), (uint32_t)kind, (uint64_t)(uintptr_t)stream, called_ns, start, end};
    return end;
}

/* ---- the driver, devices ---- */

FAKE_API CUresult cuInit(unsigned int flags) {
    fake_state();
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
FAKE_API CUresult cuDriverGetVersion(int *version) {
    fake_state();
    *version = fake_version;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : (CUresult)101;
}
FAKE_API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    strncpy(name, "Fake GPU", (size_t)length);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = fake_state()->total_bytes;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    if (free_bytes != NULL)
        *free_bytes = fake_state()->total_bytes - atomic_load(&fake_state()->used_bytes);
    if (total_bytes != NULL) *total_bytes = fake_state()->total_bytes;
    return CUDA_SUCCESS;
}
