/* Recordings of graphs, beside launches that are not recorded. */
#define _GNU_SOURCE
#include "commands.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu.h"

#define RELAXED 2

/* A recording of `kernels` launches; the device's counter tells whether the graph has done them. */
static CUresult end_of(CUstream stream, CUgraph *graph) {
    *graph = NULL;
    return stream == PER_THREAD ? cu.cuStreamEndCapture_ptsz(NULL, graph)
                                : cu.cuStreamEndCapture(stream, graph);
}

static CUresult begin_of(CUstream stream, int mode) {
    return stream == PER_THREAD ? cu.cuStreamBeginCapture_v2_ptsz(NULL, mode)
                                : cu.cuStreamBeginCapture_v2(stream, mode);
}

static CUresult record_one(CUstream stream) {
    return stream == PER_THREAD ? launch_per_thread(COUNT, 10) : launch(COUNT, 10, stream);
}

static CUresult replay(CUgraph graph, CUstream stream) {
    CUgraphExec exec = NULL;
    CUresult result = cu.cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (result == CUDA_SUCCESS) result = cu.cuGraphLaunch(exec, stream);
    if (result == CUDA_SUCCESS) result = cu.cuStreamSynchronize(stream);
    if (exec != NULL) cu.cuGraphExecDestroy(exec);
    return result;
}

/* Records again and again, with a launch that is not recorded between two of them. */
void record(void) {
    struct tally errors[] = {{.what = "begin"}, {.what = "launch"}, {.what = "end"},
                             {.what = "replay"}, {.what = "between"}};
    long count = (long)option("count", 1000000), kernels = (long)option("kernels", 20);
    long done = 0, good = 0, expected = 0;
    int mode = (int)option("mode", 0);
    double pause = option("pause_us", 0) * 1e-6, real_us = option("real_us", 50);
    long replay_every = (long)option("replay_every", 10);
    bool per_thread = option("per_thread", 0) != 0;
    CUstream stream = PER_THREAD;
    start();
    warm_up();
    if (!per_thread) check(cu.cuStreamCreate(&stream, NON_BLOCKING), "cuStreamCreate");
    counted();
    say_ready("ready");
    for (double end_s = now_s() + option("seconds", 5); done < count && now_s() < end_s; done++) {
        CUgraph graph = NULL;
        bool is_good = add(&errors[0], begin_of(stream, mode));
        for (long i = 0; i < kernels && is_good; i++) {
            is_good = add(&errors[1], record_one(stream));
            pause_s(pause);
        }
        is_good = add(&errors[2], end_of(stream, &graph)) && is_good;
        good += is_good;
        if (is_good && done % replay_every == 0 && add(&errors[3], replay(graph, stream)))
            expected += kernels;
        if (graph != NULL) cu.cuGraphDestroy(graph);
        if (real_us > 0) {
            add(&errors[4], launch(WORK, real_us, stream));
            if (done % 4 == 0) add(&errors[4], cu.cuStreamSynchronize(stream));
        }
    }
    check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    long found = counted();
    printf("{\"of\": %ld, \"recorded\": %ld, \"replayed\": %ld, \"counted\": %ld, ", done, good,
           expected, found < 0 ? expected : found);
    print_errors("errors", errors, 5);
    printf("}\n");
}

static CUresult launched;
static double launch_s;

static void launch_and_wait(CUstream stream) {
    double begun_s = now_s();
    launched = launch(WORK, 1000, stream);
    launch_s = now_s() - begun_s;
    if (launched == CUDA_SUCCESS) launched = cu.cuStreamSynchronize(stream);
}

static void *other_thread(void *stream) {
    launched = cu.cuCtxSetCurrent(gpu.context);
    if (launched == CUDA_SUCCESS) launch_and_wait(stream);
    return NULL;
}

/* Launches into a stream that does not record while another one does: by the same thread, as
 * Triton and cuBLAS do, or by another one (thread=1), as loaders of data do. */
void beside(void) {
    struct tally errors[] = {{.what = "begin"}, {.what = "record"}, {.what = "launch"},
                             {.what = "end"}, {.what = "replay"}};
    CUstream records, other;
    CUgraph graph = NULL;
    bool has_thread = option("thread", 0) != 0;
    start();
    warm_up();
    check(cu.cuStreamCreate(&records, NON_BLOCKING), "cuStreamCreate");
    check(cu.cuStreamCreate(&other, NON_BLOCKING), "cuStreamCreate");
    counted();
    launch_and_wait(other); /* it has the token when it begins to record */
    add(&errors[2], launched);
    add(&errors[0], begin_of(records, has_thread ? 1 : RELAXED));
    add(&errors[1], record_one(records));
    say_ready("ready");
    if (has_thread) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, other_thread, other) != 0) abort();
        pthread_join(thread, NULL);
    } else {
        launch_and_wait(other);
    }
    add(&errors[2], launched);
    add(&errors[1], record_one(records));
    if (add(&errors[3], end_of(records, &graph))) add(&errors[4], replay(graph, records));
    long found = counted();
    printf("{\"launch_s\": %.6f, \"counted\": %ld, ", launch_s, found < 0 ? 2 : found);
    print_errors("errors", errors, 5);
    printf("}\n");
}

/* A recording that begins on a stream with launches before, while others launch elsewhere. */
void late(void) {
    struct tally errors[] = {{.what = "before"}, {.what = "begin"}, {.what = "elsewhere"},
                             {.what = "record"}, {.what = "end"}};
    CUstream one, other;
    long done = 0, good = 0;
    start();
    warm_up();
    check(cu.cuStreamCreate(&one, NON_BLOCKING), "cuStreamCreate");
    check(cu.cuStreamCreate(&other, NON_BLOCKING), "cuStreamCreate");
    say_ready("ready");
    for (double end_s = now_s() + option("seconds", 2); now_s() < end_s; done++) {
        CUgraph graph = NULL;
        bool is_good = add(&errors[0], launch(WORK, 50, one));
        is_good = add(&errors[1], begin_of(one, RELAXED)) && is_good;
        for (int i = 0; i < 12 && is_good; i++)
            is_good = add(&errors[2], launch(WORK, 20, other));
        is_good = add(&errors[3], record_one(one)) && is_good;
        is_good = add(&errors[4], end_of(one, &graph)) && is_good;
        good += is_good;
        if (graph != NULL) cu.cuGraphDestroy(graph);
        if (done % 4 == 0) check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    }
    printf("{\"of\": %ld, \"recorded\": %ld, ", done, good);
    print_errors("errors", errors, 5);
    printf("}\n");
}

/* Recordings that take long, as those of an inference server when it starts; launches then. */
void slow(void) {
    struct tally errors[] = {{.what = "begin"}, {.what = "record"}, {.what = "end"},
                             {.what = "replay"}};
    CUstream stream;
    double seconds = option("seconds", 1.2), longest_s = 0;
    start();
    warm_up();
    check(cu.cuStreamCreate(&stream, NON_BLOCKING), "cuStreamCreate");
    say_ready("ready");
    for (long i = 0; i < (long)option("count", 4); i++) {
        CUgraph graph = NULL;
        add(&errors[0], begin_of(stream, (int)option("mode", 0)));
        for (int k = 0; k < 10; k++) {
            add(&errors[1], record_one(stream));
            pause_s(seconds / 10);
        }
        if (add(&errors[2], end_of(stream, &graph))) add(&errors[3], replay(graph, stream));
        if (graph != NULL) cu.cuGraphDestroy(graph);
    }
    say_ready("recorded");
    for (double end_s = now_s() + option("after_s", 2); now_s() < end_s; pause_s(0.01)) {
        double begun_s = now_s();
        check(launch(WORK, 200, stream), "cuLaunchKernel");
        check(cu.cuStreamSynchronize(stream), "cuStreamSynchronize");
        if (now_s() - begun_s > longest_s) longest_s = now_s() - begun_s;
    }
    printf("{\"longest_s\": %.6f, ", longest_s);
    print_errors("errors", errors, 4);
    printf("}\n");
}
