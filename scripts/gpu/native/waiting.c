/* Kernels that wait for a later launch, and contexts and processes that end while others wait. */
#define _GNU_SOURCE
#include "commands.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"

#define PAGE 4096u

/* A page that several processes have, one descriptor for all of them; the GPU can write it. */
static volatile uint32_t *shared_page(CUdeviceptr *on_device) {
    int fd = (int)option("flag", -1);
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        fprintf(stderr, "flag=DESCRIPTOR of a page is needed\n");
        exit(2);
    }
    *on_device = 0;
    if (!gpu.fake) {
        check(cu.cuMemHostRegister_v2(page, PAGE, 3), "cuMemHostRegister"); /* portable, mapped */
        check(cu.cuMemHostGetDevicePointer_v2(on_device, page, 0), "cuMemHostGetDevicePointer");
    }
    return page;
}

static double timed_set(CUdeviceptr flag, CUstream stream) {
    double begun_s = now_s();
    check(launch_set(flag, stream), "cuLaunchKernel");
    return now_s() - begun_s;
}

/* A kernel that ends when another launch has set the flag: of this process (own=1), or of another
 * one. It gives up after `most_s`, so that the GPU is free again whatever happens. */
void await_flag(void) {
    CUstream one, other;
    CUdeviceptr on_device;
    double most_s = option("most_s", 10), launch_s = -1;
    start();
    warm_up();
    volatile uint32_t *flag = shared_page(&on_device);
    check(cu.cuStreamCreate(&one, NON_BLOCKING), "cuStreamCreate");
    check(cu.cuStreamCreate(&other, NON_BLOCKING), "cuStreamCreate");
    double begun_s = now_s();
    check(launch_await(on_device, most_s, on_device + 64, one), "cuLaunchKernel");
    say_ready("ready");
    if (option("own", 0) != 0) launch_s = timed_set(on_device, other);
    if (gpu.fake) { /* its kernel takes all its time: only the launch is looked at */
        printf("{\"launch_s\": %.6f, \"by_the_flag\": null}\n", launch_s);
        return;
    }
    check(cu.cuStreamSynchronize(one), "cuStreamSynchronize");
    printf("{\"launch_s\": %.6f, \"by_the_flag\": %s, \"took_s\": %.6f}\n", launch_s,
           flag[16] == 1 ? "true" : "false", now_s() - begun_s);
}

void set_flag(void) {
    CUdeviceptr on_device;
    start();
    warm_up();
    shared_page(&on_device);
    say_ready("ready");
    double launch_s = timed_set(on_device, NULL);
    if (!gpu.fake) check(cu.cuStreamSynchronize(NULL), "cuStreamSynchronize");
    printf("{\"launch_s\": %.6f}\n", launch_s);
}

/* Resets its context again and again, half of the time with work that has not ended. */
void resets(void) {
    struct tally errors[] = {{.what = "launch"}, {.what = "wait"}, {.what = "reset"}};
    long count = (long)option("count", 1000), done = 0;
    start();
    say_ready("ready");
    for (double end_s = now_s() + option("seconds", 10); done < count && now_s() < end_s; done++) {
        for (int i = 0; i < 3; i++) add(&errors[0], launch(WORK, 50, NULL));
        if (done % 2 == 0) add(&errors[1], cu.cuCtxSynchronize());
        CUresult result = cu.cuDevicePrimaryCtxReset_v2(0);
        if (!gpu.fake) add(&errors[2], result);
        start();
    }
    check(launch(WORK, 50, NULL), "cuLaunchKernel");
    check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    printf("{\"resets\": %ld, ", done);
    print_errors("errors", errors, 3);
    printf("}\n");
}

static void child(void) {
    load_driver("libcuda.so.1");
    start();
    for (int i = 0; i < 3; i++) check(launch(WORK, option("us", 200), NULL), "cuLaunchKernel");
    exit(0); /* with unfinished work, and all that is registered for the end */
}

/* Starts processes that launch and end. A process of its own for each has no driver before. */
void exits(void) {
    enum { PARALLEL_MAX = 64 };
    long count = (long)option("count", 1000), parallel = (long)option("parallel", 8);
    long started = 0, running = 0, good = 0, failed = 0, crashed = 0, hung = 0;
    struct {
        pid_t pid;
        double until_s;
    } children[PARALLEL_MAX] = {0};
    if (parallel > PARALLEL_MAX) parallel = PARALLEL_MAX;
    say_ready("ready");
    double end_s = now_s() + option("seconds", 20);
    for (;;) {
        while (running < parallel && started < count && now_s() < end_s) {
            long place = 0;
            while (children[place].pid != 0) place++;
            fflush(stdout);
            pid_t pid = fork();
            if (pid == 0) child();
            if (pid < 0) break;
            children[place].pid = pid;
            children[place].until_s = now_s() + option("hang_s", 15);
            started++;
            running++;
        }
        if (running == 0) break;
        for (long i = 0; i < parallel; i++) {
            int status = 0;
            if (children[i].pid == 0) continue;
            if (waitpid(children[i].pid, &status, WNOHANG) == children[i].pid) {
                good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
                failed += WIFEXITED(status) && WEXITSTATUS(status) != 0;
                crashed += WIFSIGNALED(status) && children[i].until_s > 0;
                children[i].pid = 0;
                running--;
            } else if (children[i].until_s > 0 && now_s() > children[i].until_s) {
                kill(children[i].pid, SIGKILL);
                children[i].until_s = -1;
                hung++;
            }
        }
        pause_s(0.002);
    }
    printf("{\"started\": %ld, \"good\": %ld, \"failed\": %ld, \"crashed\": %ld, \"hung\": %ld}\n",
           started, good, failed, crashed, hung);
}
