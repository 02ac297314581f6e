#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS 1024u
#define BLOCKS_OF_ONE 2u /* of a multiprocessor */
#define MULTIPROCESSORS 16 /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
#define COPY_BYTES ((size_t)256 << 20)

struct driver cu;
struct gpu gpu;
char **options;

static const char ptx[] = "\
.version 7.0\n\
.target sm_70\n\
.address_size 64\n\
.visible .entry k_work(.param .u64 loops, .param .u64 sink)\n\
{\n\
    .reg .u64 %rd<3>;\n\
    .reg .f32 %f<2>;\n\
    .reg .pred %p<3>;\n\
    ld.param.u64 %rd1, [loops];\n\
    ld.param.u64 %rd2, [sink];\n\
    mov.f32 %f1, 0f3F800000;\n\
AGAIN:\n\
    fma.rn.f32 %f1, %f1, %f1, %f1;\n\
    sub.u64 %rd1, %rd1, 1;\n\
    setp.ne.u64 %p1, %rd1, 0;\n\
    @%p1 bra AGAIN;\n\
    setp.lt.f32 %p2, %f1, 0f00000000;\n\
    @%p2 st.global.f32 [%rd2], %f1;\n\
    ret;\n\
}\n\
.visible .entry k_copy(.param .u64 from, .param .u64 to, .param .u64 count, .param .u64 passes)\n\
{\n\
    .reg .u64 %rd<11>;\n\
    .reg .u32 %r<11>;\n\
    .reg .pred %p<3>;\n\
    ld.param.u64 %rd1, [from];\n\
    ld.param.u64 %rd2, [to];\n\
    ld.param.u64 %rd3, [count];\n\
    ld.param.u64 %rd4, [passes];\n\
    mov.u32 %r1, %ctaid.x;\n\
    mov.u32 %r2, %ntid.x;\n\
    mov.u32 %r3, %tid.x;\n\
    mad.lo.u32 %r4, %r1, %r2, %r3;\n\
    cvt.u64.u32 %rd5, %r4;\n\
    mov.u32 %r5, %nctaid.x;\n\
    mul.lo.u32 %r6, %r5, %r2;\n\
    cvt.u64.u32 %rd6, %r6;\n\
PASS:\n\
    mov.u64 %rd7, %rd5;\n\
NEXT:\n\
    setp.ge.u64 %p1, %rd7, %rd3;\n\
    @%p1 bra DONE;\n\
    shl.b64 %rd8, %rd7, 4;\n\
    add.u64 %rd9, %rd1, %rd8;\n\
    add.u64 %rd10, %rd2, %rd8;\n\
    ld.global.v4.u32 {%r7, %r8, %r9, %r10}, [%rd9];\n\
    st.global.v4.u32 [%rd10], {%r7, %r8, %r9, %r10};\n\
    add.u64 %rd7, %rd7, %rd6;\n\
    bra NEXT;\n\
DONE:\n\
    sub.u64 %rd4, %rd4, 1;\n\
    setp.ne.u64 %p2, %rd4, 0;\n\
    @%p2 bra PASS;\n\
    ret;\n\
}\n\
.visible .entry k_spin(.param .u64 ns)\n\
{\n\
    .reg .u64 %rd<4>;\n\
    .reg .pred %p<2>;\n\
    ld.param.u64 %rd1, [ns];\n\
    mov.u64 %rd2, %globaltimer;\n\
AGAIN:\n\
    mov.u64 %rd3, %globaltimer;\n\
    sub.u64 %rd3, %rd3, %rd2;\n\
    setp.lt.u64 %p1, %rd3, %rd1;\n\
    @%p1 bra AGAIN;\n\
    ret;\n\
}\n\
.visible .entry k_count(.param .u64 counter)\n\
{\n\
    .reg .u64 %rd<2>;\n\
    ld.param.u64 %rd1, [counter];\n\
    red.global.add.u32 [%rd1], 1;\n\
    ret;\n\
}\n\
.visible .entry k_await(.param .u64 flag, .param .u64 ns, .param .u64 seen)\n\
{\n\
    .reg .u64 %rd<6>;\n\
    .reg .u32 %r<3>;\n\
    .reg .pred %p<3>;\n\
    ld.param.u64 %rd1, [flag];\n\
    ld.param.u64 %rd2, [ns];\n\
    ld.param.u64 %rd3, [seen];\n\
    mov.u64 %rd4, %globaltimer;\n\
    mov.u32 %r2, 2;\n\
AGAIN:\n\
    ld.volatile.global.u32 %r1, [%rd1];\n\
    setp.ne.u32 %p1, %r1, 0;\n\
    @%p1 bra SEEN;\n\
    mov.u64 %rd5, %globaltimer;\n\
    sub.u64 %rd5, %rd5, %rd4;\n\
    setp.lt.u64 %p2, %rd5, %rd2;\n\
    @%p2 bra AGAIN;\n\
    bra DONE;\n\
SEEN:\n\
    mov.u32 %r2, 1;\n\
DONE:\n\
    st.volatile.global.u32 [%rd3], %r2;\n\
    membar.sys;\n\
    ret;\n\
}\n\
.visible .entry k_set(.param .u64 flag)\n\
{\n\
    .reg .u64 %rd<2>;\n\
    .reg .u32 %r<2>;\n\
    ld.param.u64 %rd1, [flag];\n\
    mov.u32 %r1, 1;\n\
    st.volatile.global.u32 [%rd1], %r1;\n\
    membar.sys;\n\
    ret;\n\
}\n\
.visible .entry k_fault()\n\
{\n\
    .reg .u64 %rd<2>;\n\
    .reg .u32 %r<2>;\n\
    mov.u64 %rd1, 16;\n\
    mov.u32 %r1, 1;\n\
    st.global.u32 [%rd1], %r1;\n\
    ret;\n\
}\n";

static const char *const names[KERNELS] = {"k_work",  "k_copy", "k_spin", "k_count",
                                          "k_await", "k_set",  "k_fault"};

double option(const char *name, double otherwise) {
    size_t length = strlen(name);
    for (char **one = options; one != NULL && *one != NULL; one++)
        if (strncmp(*one, name, length) == 0 && (*one)[length] == '=')
            return strtod(*one + length + 1, NULL);
    return otherwise;
}

double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void pause_s(double seconds) {
    if (seconds <= 0) return;
    struct timespec pause = {.tv_sec = (time_t)seconds,
                             .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
}

void check(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
    exit(1);
}

void say_ready(const char *what) {
    char line[64];
    printf("\"%s\"\n", what);
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) _exit(0); /* nobody wants the rest */
}

static double environment(const char *name) {
    const char *value = getenv(name);
    return value != NULL ? strtod(value, NULL) : 0;
}

void load_driver(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define FIND(name)                                                  \
    if ((cu.name = (__typeof__(cu.name))dlsym(library, #name)) == NULL) \
        fprintf(stderr, "the driver has no %s\n", #name);
    FUNCTIONS(FIND)
#undef FIND
#define FIND(name) cu.name = (__typeof__(cu.name))dlsym(library, #name);
    NEWER_FUNCTIONS(FIND)
#undef FIND
    gpu.loops_per_us = environment("GPU_LOOPS_PER_US");
    gpu.vectors_per_us = environment("GPU_VECTORS_PER_US");
}

void start(void) {
    check(cu.cuInit(0), "cuInit");
    check(cu.cuDeviceGetName(gpu.name, sizeof gpu.name, 0), "cuDeviceGetName");
    check(cu.cuDevicePrimaryCtxRetain(&gpu.context, 0), "cuDevicePrimaryCtxRetain");
    check(cu.cuCtxSetCurrent(gpu.context), "cuCtxSetCurrent");
    gpu.fake = strcmp(gpu.name, "Fake GPU") == 0;
    if (gpu.fake) return;
    CUmodule module;
    int multiprocessors = 0;
    check(cu.cuModuleLoadData(&module, ptx), "cuModuleLoadData");
    for (int i = 0; i < KERNELS; i++)
        check(cu.cuModuleGetFunction(&gpu.functions[i], module, names[i]), names[i]);
    check(cu.cuDeviceGetAttribute(&multiprocessors, MULTIPROCESSORS, 0), "cuDeviceGetAttribute");
    gpu.blocks = (unsigned int)multiprocessors * BLOCKS_OF_ONE;
    check(cu.cuMemAlloc_v2(&gpu.counter, 4096), "cuMemAlloc");
}

void make_copies(void) {
    if (gpu.fake || gpu.from != 0) return;
    check(cu.cuMemAlloc_v2(&gpu.from, COPY_BYTES), "cuMemAlloc");
    check(cu.cuMemAlloc_v2(&gpu.to, COPY_BYTES), "cuMemAlloc");
}

/* Of one launch: the arguments of all kernels, in the order of their parameters. */
struct plan {
    enum kernel kernel;
    unsigned int blocks, threads;
    uint64_t values[4];
    void *arguments[4];
};

static void make_plan(struct plan *plan, enum kernel kernel, double us) {
    if (kernel == WORK && gpu.loops_per_us <= 0) kernel = SPIN;
    if (kernel == COPY && gpu.vectors_per_us <= 0) kernel = SPIN;
    *plan = (struct plan){.kernel = kernel, .blocks = gpu.blocks, .threads = THREADS};
    double vectors = us * gpu.vectors_per_us, buffer = (double)(COPY_BYTES / 16);
    switch (kernel) {
        case WORK:
            plan->values[0] = (uint64_t)(us * gpu.loops_per_us) + 1;
            plan->values[1] = gpu.counter + 256;
            break;
        case COPY:
            plan->values[0] = gpu.from;
            plan->values[1] = gpu.to;
            plan->values[3] = (uint64_t)(vectors / buffer) + 1; /* passes, all of one length */
            plan->values[2] = (uint64_t)(vectors / (double)plan->values[3]) + 1;
            break;
        case SPIN:
            plan->values[0] = (uint64_t)(us * 1000);
            break;
        default:
            plan->values[0] = gpu.counter;
            plan->blocks = plan->threads = 1;
            break;
    }
}

static CUresult carry_out(struct plan *plan, double us, CUstream stream, bool per_thread) {
    __typeof__(cu.cuLaunchKernel) call = per_thread ? cu.cuLaunchKernel_ptsz : cu.cuLaunchKernel;
    if (gpu.fake) /* there a grid of 2 rows is a kernel that faults */
        return call(NULL, (unsigned int)us, plan->kernel == FAULT ? 2 : 1, 1, 1, 1, 1, 0, stream,
                    NULL, NULL);
    for (int i = 0; i < 4; i++) plan->arguments[i] = &plan->values[i];
    return call(gpu.functions[plan->kernel], plan->blocks, 1, 1, plan->threads, 1, 1, 0, stream,
                plan->arguments, NULL);
}

CUresult launch(enum kernel kernel, double us, CUstream stream) {
    struct plan plan;
    make_plan(&plan, kernel, us);
    return carry_out(&plan, us, stream, false);
}

CUresult launch_per_thread(enum kernel kernel, double us) {
    struct plan plan;
    make_plan(&plan, kernel, us);
    return carry_out(&plan, us, NULL, true);
}

CUresult launch_await(CUdeviceptr flag, double most_s, CUdeviceptr seen, CUstream stream) {
    struct plan plan = {.kernel = AWAIT, .blocks = 1, .threads = 1};
    plan.values[0] = flag;
    plan.values[1] = (uint64_t)(most_s * 1e9);
    plan.values[2] = seen;
    return carry_out(&plan, most_s * 1e6, stream, false);
}

CUresult launch_set(CUdeviceptr flag, CUstream stream) {
    struct plan plan = {.kernel = SET, .blocks = 1, .threads = 1, .values = {flag}};
    return carry_out(&plan, 1, stream, false);
}

void warm_up(void) {
    if (gpu.fake) return;
    check(launch(WORK, 1, NULL), "work");
    check(launch(SPIN, 1, NULL), "spin");
    check(launch(COUNT, 1, NULL), "count");
    if (gpu.from != 0) check(launch(COPY, 1, NULL), "copy");
    check(launch_set(gpu.counter + 512, NULL), "set");
    check(launch_await(gpu.counter + 512, 0.001, gpu.counter + 768, NULL), "await");
    check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    counted();
}

long counted(void) {
    uint32_t found = 0;
    if (gpu.fake) return -1;
    check(cu.cuMemcpyDtoH_v2(&found, gpu.counter, sizeof found), "cuMemcpyDtoH");
    check(cu.cuMemsetD8_v2(gpu.counter, 0, sizeof found), "cuMemsetD8");
    return found;
}

bool add(struct tally *tally, CUresult result) {
    if (result != CUDA_SUCCESS) tally->count[(unsigned int)result % CODES]++;
    return result == CUDA_SUCCESS;
}

void print_errors(const char *name, const struct tally *tallies, size_t many) {
    bool first = true;
    printf("\"%s\": {", name);
    for (size_t i = 0; i < many; i++)
        for (int code = 0; code < CODES; code++)
            if (tallies[i].count[code] != 0) {
                printf("%s\"%s %d\": %ld", first ? "" : ", ", tallies[i].what, code,
                       tallies[i].count[code]);
                first = false;
            }
    printf("}");
}
