/* What processes of jobs do on a GPU, for scripts/gpu/sharing: one command each, and options as
 * NAME=NUMBER. A command prints one JSON value on each line, the last one is its result; behind a
 * word such as "ready" it waits for a line of input. */
#define _GNU_SOURCE
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

/* ---- what a device is and costs ---- */

static void device(void) {
    double begun_s = now_s();
    int version = 0;
    size_t total = 0;
    start();
    check(cu.cuDriverGetVersion(&version), "cuDriverGetVersion");
    check(cu.cuDeviceTotalMem_v2(&total, 0), "cuDeviceTotalMem");
    printf("{\"name\": \"%s\", \"cuda\": %d, \"total_bytes\": %zu, \"start_s\": %.6f}\n", gpu.name,
           version, total, now_s() - begun_s);
}

/* The files in memory after a launch: the driver loads more of itself when it needs it. */
static void libraries(void) {
    char line[4096];
    bool first = true;
    start();
    check(launch(SPIN, 10, NULL), "cuLaunchKernel");
    check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    FILE *maps = fopen("/proc/self/maps", "r");
    printf("[");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        char *path = strchr(line, '/');
        if (path == NULL || (strstr(path, "libcuda") == NULL && strstr(path, "nvidia") == NULL))
            continue;
        path[strcspn(path, "\n")] = '\0';
        printf("%s\"%s\"", first ? "" : ", ", path);
        first = false;
    }
    printf("]\n");
}

static double timed_us(enum kernel kernel, double us) {
    double begun_s = now_s();
    check(launch(kernel, us, NULL), "cuLaunchKernel");
    check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    return (now_s() - begun_s) * 1e6;
}

/* How fast this device is, alone: the least of several times, each of some milliseconds. */
static void calibrate(void) {
    double loops = 1000, vectors = 1000;
    start();
    make_copies();
    warm_up();
    for (double end_s = now_s() + option("seconds", 0.3); !gpu.fake && now_s() < end_s;) {
        gpu.loops_per_us = gpu.vectors_per_us = 0;
        timed_us(SPIN, 5000); /* the clock rises */
        gpu.loops_per_us = loops;
        double took_us = timed_us(WORK, 5000);
        loops *= 5000 / took_us;
        gpu.vectors_per_us = vectors;
        took_us = timed_us(COPY, 5000);
        vectors *= 5000 / took_us;
    }
    printf("{\"loops_per_us\": %.3f, \"vectors_per_us\": %.3f}\n", loops, vectors);
}

static int ascending(const void *left, const void *right) {
    double one = *(const double *)left, other = *(const double *)right;
    return (one > other) - (one < other);
}

static double quantile(double *sorted, long many, double part) {
    return many > 0 ? sorted[(long)((double)(many - 1) * part)] : 0;
}

static void launches(void) {
    double found[20];
    long count = (long)option("count", 500);
    start();
    warm_up();
    for (int round = 0; round < 20; round++) {
        check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
        double begun_s = now_s();
        for (long i = 0; i < count; i++) check(launch(SPIN, 1, NULL), "cuLaunchKernel");
        found[round] = (now_s() - begun_s) / (double)count * 1e6;
    }
    check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    qsort(found, 20, sizeof found[0], ascending);
    printf("%.4f\n", quantile(found, 20, 0.5));
}

static void hold(void) {
    CUdeviceptr pointer;
    start();
    int result = (int)cu.cuMemAlloc_v2(&pointer, (size_t)option("bytes", 1 << 30));
    check(launch(SPIN, 10, NULL), "cuLaunchKernel");
    check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    say_ready("ready");
    printf("%d\n", result);
}

/* Uses the GPU until somebody ends this; for the watchdog. */
static void around(void) {
    CUdeviceptr pointer;
    start();
    cu.cuMemAlloc_v2(&pointer, (size_t)1 << 30);
    printf("\"around\"\n");
    fflush(stdout);
    for (double end_s = now_s() + 60; now_s() < end_s; pause_s(0.01)) {
        check(launch(SPIN, 1000, NULL), "cuLaunchKernel");
        check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    }
    printf("\"not ended\"\n");
}

/* ---- trainings: iterations of kernels and a host's time ---- */

#define DEPTH_MAX 64

struct span {
    double begun_s, ended_s;
};

static void wait_for(CUevent event, bool polls) {
    if (!polls) {
        check(cu.cuEventSynchronize(event), "cuEventSynchronize");
        return;
    }
    CUresult result;
    while ((result = cu.cuEventQuery(event)) == CUDA_ERROR_NOT_READY) pause_s(0.00002);
    check(result, "cuEventQuery");
}

/* Prints when each iteration began and ended. The host is up to `depth` iterations ahead of the GPU,
 * and in each tenth one it takes `tenth_ms` longer. */
static void train(void) {
    double us = option("us", 1000), gap_ms = option("gap_ms", 0), tenth_ms = option("tenth_ms", 0);
    long kernels = (long)option("kernels", 1), iterations = (long)option("iterations", 100);
    long depth = (long)option("depth", 1), warm = (long)option("warm", 5);
    bool polls = option("poll", 0) != 0, launched = option("launched", 0) != 0;
    enum kernel kernel = option("copy", 0) != 0 ? COPY : WORK;
    double until_s = option("seconds", 1e9);
    CUevent events[DEPTH_MAX];
    if (depth < 1 || depth > DEPTH_MAX) depth = 1;
    start();
    if (kernel == COPY) make_copies();
    warm_up();
    for (long i = 0; i < depth; i++) check(cu.cuEventCreate(&events[i], 0), "cuEventCreate");
    struct span *spans = calloc((size_t)iterations, sizeof *spans);
    if (spans == NULL) abort();
    long done = 0;
    for (long n = 0; n < warm + iterations; n++) {
        CUevent event = events[n % depth];
        if (n == warm) {
            check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
            say_ready("ready");
            until_s += now_s();
        }
        if (n >= warm && now_s() > until_s) break;
        if (n >= depth) wait_for(event, polls);
        double begun_s = now_s();
        pause_s((gap_ms + (n >= warm && (n - warm) % 10 == 9 ? tenth_ms : 0)) / 1000);
        for (long k = 0; k < kernels; k++) check(launch(kernel, us, NULL), "cuLaunchKernel");
        if (launched) begun_s = now_s();
        check(cu.cuEventRecord(event, NULL), "cuEventRecord");
        if (depth == 1) wait_for(event, polls);
        if (n >= warm) spans[done++] = (struct span){begun_s, now_s()};
    }
    check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    if (done > 0) spans[done - 1].ended_s = now_s();
    printf("[");
    for (long i = 0; i < done; i++)
        printf("%s[%.6f, %.6f]", i > 0 ? ", " : "", spans[i].begun_s, spans[i].ended_s);
    printf("]\n");
}

/* A kernel and a wait for it, again and again: a job that takes the token with each period. */
static void beat(void) {
    double us = option("us", 100), period_s = option("period_us", 1000) * 1e-6;
    long most = (long)option("count", 1000000), done = 0;
    double *launched_s = calloc((size_t)most, sizeof *launched_s);
    double *took_s = calloc((size_t)most, sizeof *took_s);
    if (launched_s == NULL || took_s == NULL) abort();
    start();
    warm_up();
    check(launch(WORK, 1, NULL), "cuLaunchKernel");
    check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    say_ready("ready");
    double end_s = now_s() + option("seconds", 1), next_s = now_s(), stalled_s = 0;
    for (; done < most && now_s() < end_s; done++) {
        double begun_s = now_s();
        check(launch(WORK, us, NULL), "cuLaunchKernel");
        launched_s[done] = now_s();
        check(cu.cuStreamSynchronize(NULL), "cuStreamSynchronize");
        took_s[done] = now_s() - begun_s;
        if (took_s[done] > stalled_s) stalled_s = took_s[done];
        next_s += period_s;
        double idle_s = next_s - now_s();
        if (idle_s < period_s / 2) { /* it is idle for half a period, whatever is lost */
            next_s += period_s / 2 - idle_s;
            idle_s = period_s / 2;
        }
        pause_s(idle_s);
    }
    printf("{\"count\": %ld, \"stalled_s\": %.6f, ", done, stalled_s);
    if (option("spans", 0) != 0) {
        printf("\"spans\": [");
        for (long i = 0; i < done; i++) printf("%s%.6f", i > 0 ? ", " : "", launched_s[i]);
        printf("], ");
    }
    qsort(took_s, (size_t)done, sizeof *took_s, ascending);
    printf("\"p50_ms\": %.4f, \"p99_ms\": %.4f}\n", quantile(took_s, done, 0.5) * 1e3,
           quantile(took_s, done, 0.99) * 1e3);
}

/* Launches a kernel when told to, and says when that launch has returned and when it was done. */
static void single(void) {
    start();
    warm_up();
    if (option("reset", 0) != 0) {
        CUresult result = cu.cuDevicePrimaryCtxReset_v2(0);
        if (!gpu.fake) check(result, "cuDevicePrimaryCtxReset");
        gpu.from = gpu.to = 0;
        start();
    }
    if (option("touch", 1) != 0) {
        check(launch(WORK, 10, NULL), "cuLaunchKernel");
        check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    }
    say_ready("ready");
    double begun_s = now_s();
    check(launch(WORK, option("us", 100000), NULL), "cuLaunchKernel");
    double launched_s = now_s();
    printf("\"launched\"\n");
    fflush(stdout);
    check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    printf("{\"begun_s\": %.6f, \"launched_s\": %.6f, \"ended_s\": %.6f}\n", begun_s, launched_s,
           now_s());
}

static const struct {
    const char *name;
    void (*run)(void);
} commands[] = {
    {"device", device},     {"libraries", libraries}, {"calibrate", calibrate},
    {"launches", launches}, {"hold", hold},           {"around", around},
    {"train", train},       {"beat", beat},           {"single", single},
    {"await", await_flag},  {"set", set_flag},        {"record", record},
    {"beside", beside},     {"late", late},           {"slow", slow},
    {"reuse", reuse},       {"pieces", pieces},       {"graph", graph_memory},
    {"frees", frees},       {"resets", resets},       {"exits", exits},
    {"green", green},       {"ordered", ordered},     {"fault", fault},
};

int main(int count, char **words) {
    const char *driver = getenv("GPU_DRIVER");
    options = words + (count > 1 ? 2 : 1);
    for (size_t i = 0; count > 1 && i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(words[1], commands[i].name) != 0) continue;
        if (strcmp(words[1], "exits") != 0) load_driver(driver != NULL ? driver : "libcuda.so.1");
        commands[i].run();
        fflush(stdout);
        return 0;
    }
    fprintf(stderr, "a command and its options, as: train us=1000 kernels=22\n");
    return 2;
}
