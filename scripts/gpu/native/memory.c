/* Memory under a limit: what is freed in the order of a stream, small pieces, graphs. */
#define _GNU_SOURCE
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#define MIB ((size_t)1 << 20)
#define NOT_SUPPORTED 801
#define MEM_ALLOC_NODE 10
#define PINNED 1

/* Takes and frees the same bytes in the order of a stream: the pool has them already. */
void reuse(void) {
    struct tally errors[] = {{.what = "allocate"}, {.what = "launch"}, {.what = "free"}};
    size_t bytes = (size_t)option("bytes", 600 * (double)MIB);
    long rounds = (long)option("rounds", 100);
    CUdeviceptr pointer = 0;
    CUstream stream;
    start();
    warm_up();
    check(cu.cuStreamCreate(&stream, NON_BLOCKING), "cuStreamCreate");
    double begun_s = now_s();
    for (long i = 0; i < rounds; i++) {
        if (!add(&errors[0], cu.cuMemAllocAsync(&pointer, bytes, stream))) continue;
        add(&errors[1], launch(WORK, option("us", 100), stream));
        add(&errors[2], cu.cuMemFreeAsync(pointer, stream));
    }
    double took_s = now_s() - begun_s;
    check(cu.cuStreamSynchronize(stream), "cuStreamSynchronize");
    int more = (int)cu.cuMemAllocAsync(&pointer, (size_t)option("more", 2048 * (double)MIB), stream);
    int plain = (int)cu.cuMemAlloc_v2(&pointer, bytes);
    printf("{\"us_each\": %.3f, \"more\": %d, \"plain\": %d, ", took_s / (double)rounds * 1e6, more,
           plain);
    print_errors("errors", errors, 3);
    printf("}\n");
}

/* Takes pieces until it gets no more, and holds them. */
void pieces(void) {
    size_t bytes = (size_t)option("bytes", 4096), got = 0;
    long count = (long)option("count", 100000), done = 0;
    int result = CUDA_SUCCESS;
    start();
    check(launch(SPIN, 10, NULL), "cuLaunchKernel");
    check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    say_ready("ready");
    double begun_s = now_s();
    for (; done < count && result == CUDA_SUCCESS; done += result == CUDA_SUCCESS) {
        CUdeviceptr pointer;
        result = (int)cu.cuMemAlloc_v2(&pointer, bytes);
        if (result == CUDA_SUCCESS) got += bytes;
    }
    printf("{\"got_bytes\": %zu, \"count\": %ld, \"result\": %d, \"us_each\": %.3f}\n", got, done,
           result, (now_s() - begun_s) / (double)(done > 0 ? done : 1) * 1e6);
    fflush(stdout);
    say_ready("held");
    printf("{}\n");
}

/* CUgraphNodeParams, as far as it is needed: 256 bytes. */
struct node {
    int type;
    int reserved[3];
    union {
        long long padding[29];
        CUDA_MEM_ALLOC_NODE_PARAMS memory;
    } of;
    long long end;
};
_Static_assert(sizeof(struct node) == 256, "as in cuda.h");

static CUresult add_memory(int way, CUgraph graph, size_t bytes) {
    CUgraphNode added = NULL;
    struct node node;
    memset(&node, 0, sizeof node);
    node.type = MEM_ALLOC_NODE;
    node.of.memory.poolProps.allocType = PINNED;
    node.of.memory.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    node.of.memory.bytesize = bytes;
    if (way == 0)
        return cu.cuGraphAddMemAllocNode(&added, graph, NULL, 0, &node.of.memory);
    return cu.cuGraphAddNode_v2(&added, graph, NULL, NULL, 0, (CUgraphNodeParams *)(void *)&node);
}

/* Memory of a graph, which is taken when it is launched; way=0: cuGraphAddMemAllocNode, way=1:
 * cuGraphAddNode. */
void graph_memory(void) {
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    const char *step = "add";
    start();
    check(cu.cuGraphCreate(&graph, 0), "cuGraphCreate");
    CUresult result = add_memory((int)option("way", 0), graph, (size_t)option("bytes", 4096 * (double)MIB));
    if (result == CUDA_SUCCESS) {
        step = "instantiate";
        result = cu.cuGraphInstantiateWithFlags(&exec, graph, 0);
    }
    if (result == CUDA_SUCCESS) {
        step = "launch";
        result = cu.cuGraphLaunch(exec, NULL);
    }
    if (result == CUDA_SUCCESS) result = cu.cuCtxSynchronize();
    printf("{\"step\": \"%s\", \"result\": %d}\n", step, (int)result);
}

/* Frees much while nobody may be there who counts it; allocates afterwards. */
void frees(void) {
    long count = (long)option("count", 1500);
    double longest_s = 0, again_s = 0;
    struct tally errors[] = {{.what = "allocate"}, {.what = "free"}, {.what = "again"}};
    CUdeviceptr *pointers = calloc((size_t)count, sizeof *pointers);
    if (pointers == NULL) abort();
    start();
    for (long i = 0; i < count; i++) add(&errors[0], cu.cuMemAlloc_v2(&pointers[i], 65536));
    say_ready("ready");
    double first_s = now_s();
    for (long i = 0; i < count; i++) {
        double begun_s = now_s();
        add(&errors[1], cu.cuMemFree_v2(pointers[i]));
        if (now_s() - begun_s > longest_s) longest_s = now_s() - begun_s;
    }
    double freed_s = now_s() - first_s;
    double begun_s = now_s();
    add(&errors[2], cu.cuMemAlloc_v2(&pointers[0], 65536));
    again_s = now_s() - begun_s;
    printf("{\"freed_s\": %.6f, \"longest_s\": %.6f, \"again_s\": %.6f, ", freed_s, longest_s, again_s);
    print_errors("errors", errors, 3);
    printf("}\n");
}
