/* Streams of green contexts, the order of the legacy stream, and a kernel that faults. */
#define _GNU_SOURCE
#include "commands.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu.h"

#define SM_RESOURCE 1
#define DEFAULT_STREAM 1 /* CU_GREEN_CTX_DEFAULT_STREAM, which must be given */
#define MULTIPROCESSORS_LEAST 8u

enum way { STREAM_OF_GREEN, GREEN_CURRENT, DEFAULT_OF_GREEN, NOTHING_GREEN };

static CUresult make_green(CUgreenCtx *made) {
    CUdevResource all, some;
    CUdevResourceDesc description;
    unsigned int groups = 1;
    CUresult result = cu.cuDeviceGetDevResource(0, &all, SM_RESOURCE);
    if (result == CUDA_SUCCESS)
        result = cu.cuDevSmResourceSplitByCount(&some, &groups, &all, NULL, 0, MULTIPROCESSORS_LEAST);
    if (result == CUDA_SUCCESS) result = cu.cuDevResourceGenerateDesc(&description, &some, 1);
    if (result == CUDA_SUCCESS) result = cu.cuGreenCtxCreate(made, description, 0, DEFAULT_STREAM);
    return result;
}

static long resident_kib(void) {
    long whole = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld %ld", &whole, &resident) != 2) resident = 0;
    if (file != NULL) fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Whether an event of the current context can be recorded on the stream: what the driver answers. */
static int event_on(CUstream stream) {
    CUevent event;
    check(cu.cuEventCreate(&event, 2), "cuEventCreate");
    return (int)cu.cuEventRecord(event, stream);
}

/* Launches ahead of the GPU, without a wait; way: whose stream, and which context is current. */
void green(void) {
    struct tally errors[] = {{.what = "launch"}, {.what = "wait"}};
    enum way way = (enum way)option("way", 0);
    CUgreenCtx made;
    CUcontext converted;
    CUstream stream = NULL;
    long done = 0, early_kib = 0;
    start();
    warm_up();
    if (way == NOTHING_GREEN) {
        check(cu.cuStreamCreate(&stream, NON_BLOCKING), "cuStreamCreate");
    } else if (cu.cuGreenCtxStreamCreate == NULL) {
        printf("{\"skipped\": \"the driver has no green contexts with streams\"}\n");
        return;
    } else {
        check(make_green(&made), "cuGreenCtxCreate");
        check(cu.cuCtxFromGreenCtx(&converted, made), "cuCtxFromGreenCtx");
        if (way != STREAM_OF_GREEN) check(cu.cuCtxSetCurrent(converted), "cuCtxSetCurrent");
        if (way != DEFAULT_OF_GREEN)
            check(cu.cuGreenCtxStreamCreate(&stream, made, NON_BLOCKING, 0), "cuGreenCtxStreamCreate");
    }
    int event = event_on(stream);
    counted();
    say_ready("ready");
    double begun_s = now_s(), seconds = option("seconds", 2), us = option("us", 20);
    for (; now_s() < begun_s + seconds; done++) {
        add(&errors[0], launch(WORK, us, stream));
        add(&errors[0], launch(COUNT, 1, stream));
        if (early_kib == 0 && now_s() > begun_s + seconds / 4) early_kib = resident_kib();
    }
    long grown_kib = resident_kib() - early_kib;
    add(&errors[1], cu.cuStreamSynchronize(stream));
    check(cu.cuCtxSetCurrent(gpu.context), "cuCtxSetCurrent");
    long found = counted();
    printf("{\"event\": %d, \"of\": %ld, \"counted\": %ld, \"grown_kib\": %ld, ", event, done,
           found < 0 ? done : found, grown_kib);
    print_errors("errors", errors, 2);
    printf("}\n");
}

static atomic_bool let_go;

static void wait_to_be_let_go(void *nothing) {
    (void)nothing;
    for (double end_s = now_s() + 3; !atomic_load(&let_go) && now_s() < end_s;) pause_s(0.0005);
}

/* One stream waits for a function of the host; another one, which waits for the legacy stream as
 * the first does, must not: the legacy stream was used before, and not since. */
void ordered(void) {
    struct tally errors[] = {{.what = "launch"}, {.what = "function"}, {.what = "wait"}};
    long rounds = (long)option("rounds", 24), held = 0;
    double longest_s = 0, most_s = option("most_s", 1);
    CUstream one, other;
    start();
    warm_up();
    check(cu.cuStreamCreate(&one, 0), "cuStreamCreate");
    check(cu.cuStreamCreate(&other, 0), "cuStreamCreate");
    say_ready("ready");
    for (long round = 0; round < rounds; round++) {
        atomic_store(&let_go, false);
        for (long i = 0; i < round % 6; i++) add(&errors[0], launch(COUNT, 1, other));
        add(&errors[0], launch(COUNT, 1, NULL));
        add(&errors[1], cu.cuLaunchHostFunc(one, wait_to_be_let_go, NULL));
        for (long i = 0; i < 1 + round % 4; i++) add(&errors[0], launch(COUNT, 1, other));
        double begun_s = now_s();
        CUresult asked;
        while ((asked = cu.cuStreamQuery(other)) == CUDA_ERROR_NOT_READY &&
               now_s() - begun_s < most_s)
            pause_s(0.0002);
        double took_s = now_s() - begun_s;
        if (asked == CUDA_ERROR_NOT_READY)
            held++;
        else
            add(&errors[2], asked);
        if (took_s > longest_s) longest_s = took_s;
        atomic_store(&let_go, true);
        add(&errors[2], cu.cuCtxSynchronize());
    }
    printf("{\"rounds\": %ld, \"held\": %ld, \"longest_s\": %.6f, ", rounds, held, longest_s);
    print_errors("errors", errors, 3);
    printf("}\n");
}

/* A kernel that faults: from then on the driver answers each call with its error. Launches go on. */
void fault(void) {
    struct tally errors[] = {{.what = "launch"}, {.what = "query"}};
    double longest_s = 0;
    start();
    warm_up();
    if (option("at_once", 0) == 0) say_ready("ready");
    check(launch(FAULT, 1, NULL), "cuLaunchKernel");
    int waited = (int)cu.cuCtxSynchronize();
    for (double end_s = now_s() + option("seconds", 1); now_s() < end_s; pause_s(0.01)) {
        double begun_s = now_s();
        add(&errors[0], launch(WORK, 10, NULL));
        add(&errors[1], cu.cuStreamQuery(NULL));
        if (now_s() - begun_s > longest_s) longest_s = now_s() - begun_s;
    }
    printf("{\"waited\": %d, \"longest_s\": %.6f, ", waited, longest_s);
    print_errors("errors", errors, 2);
    printf("}\n");
}
