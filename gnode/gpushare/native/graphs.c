/* CUDA graphs: a launch of a graph is one unit at the gate. Memory of its allocation nodes belongs to
 * a pool of the device, which grows when a graph is launched or uploaded. The driver is asked which
 * nodes a graph has when it is instantiated, in whatever way they came into it. */
#include <stdlib.h>

#include "gpushare.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* from one reading to the next */
static uint64_t charged; /* of the device's pool for graphs */

extern CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which,
                                             void *value);
extern CUresult cuCtxGetDevice(CUdevice *device);
extern CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
extern CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type);
extern CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params);
extern CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph);
GS_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device);
GS_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream);

static uint64_t key_of(const void *handle) { return (uint64_t)(uintptr_t)handle; }

/* All allocations together are the most that a graph can need; the largest one is the least. */
struct need {
    uint64_t most, least;
};

static void add_node(CUgraphNode node, struct need *need);

static void add_graph(CUgraph graph, struct need *need) {
    size_t count = 0;
    if (GS_REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0) return;
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    if (nodes != NULL && GS_REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++) add_node(nodes[i], need);
    free(nodes);
}

static void add_node(CUgraphNode node, struct need *need) {
    CUgraphNodeType type = 0;
    CUgraph child = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {0};
    if (GS_REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) return;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
        GS_REAL(cuGraphMemAllocNodeGetParams)(node, &parameters) == CUDA_SUCCESS) {
        need->most += parameters.bytesize;
        if (need->least < parameters.bytesize) need->least = parameters.bytesize;
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
               GS_REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS) {
        add_graph(child, need);
    }
}

static CUresult instantiated(CUresult result, CUgraphExec *exec, CUgraph graph) {
    struct need need = {0, 0};
    if (result == CUDA_SUCCESS) add_graph(graph, &need);
    if (need.most == 0) return result;
    gs_table_lock();
    struct gs_entry *entry = gs_table_add(GS_KIND_GRAPH_EXEC, key_of(*exec), need.most, NULL);
    if (entry != NULL) entry->least = need.least;
    gs_table_unlock();
    return result;
}

#define GS_INSTANTIATE(name, parameters, arguments)            \
    GS_EXPORT CUresult name parameters;                        \
    GS_EXPORT CUresult name parameters {                       \
        return instantiated(GS_REAL(name) arguments, exec, graph); \
    }

#define GS_OLD (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t bytes)
#define GS_PARAMS (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)

GS_INSTANTIATE(cuGraphInstantiate, GS_OLD, (exec, graph, node, log, bytes))
GS_INSTANTIATE(cuGraphInstantiate_v2, GS_OLD, (exec, graph, node, log, bytes))
GS_INSTANTIATE(cuGraphInstantiateWithFlags,
               (CUgraphExec * exec, CUgraph graph, unsigned long long flags), (exec, graph, flags))
GS_INSTANTIATE(cuGraphInstantiateWithParams, GS_PARAMS, (exec, graph, parameters))
GS_INSTANTIATE(cuGraphInstantiateWithParams_ptsz, GS_PARAMS, (exec, graph, parameters))

GS_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec);
GS_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    gs_dispose(gs_detach(GS_KIND_GRAPH_EXEC, key_of(exec)));
    return GS_REAL(cuGraphExecDestroy)(exec);
}

/* Charges what the driver says; `reserved` bytes more are charged already. False: the job has more
 * than it may, and that is charged, too. The lock is held. */
static bool settle(CUdevice device, uint64_t reserved) {
    uint64_t before = charged + reserved, now = before;
    GS_REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now);
    bool fits = now <= before || gs_reserve(now - before);
    if (!fits) gs_charge_anyway(now - before);
    if (now < before) gs_give_back(before - now);
    charged = now;
    return fits;
}

GS_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    pthread_mutex_lock(&lock);
    CUresult result = GS_REAL(cuDeviceGraphMemTrim)(device);
    settle(device, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

void gs_graphs_reclaim(enum gs_effort effort) {
    CUdevice device = 0;
    pthread_mutex_lock(&lock);
    if (charged > 0 && GS_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS) {
        if (effort != GS_LOOK) GS_REAL(cuDeviceGraphMemTrim)(device);
        settle(device, 0);
    }
    pthread_mutex_unlock(&lock);
}

/* The allocations of a graph may use the same memory one after the other: what it needs is known
 * when it is uploaded, which runs nothing and can be undone. */
static bool fits_when_uploaded(CUdevice device, CUgraphExec exec, CUstream stream, uint64_t least) {
    pthread_mutex_lock(&lock);
    bool may_fit = least <= charged || least - charged <= gs_room();
    bool fits = may_fit && GS_REAL(cuGraphUpload)(exec, stream) == CUDA_SUCCESS &&
                settle(device, 0);
    if (may_fit && !fits) {
        GS_REAL(cuDeviceGraphMemTrim)(device);
        settle(device, 0);
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

static struct need need_of(CUgraphExec exec) {
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(GS_KIND_GRAPH_EXEC, key_of(exec));
    struct need need = {entry != NULL ? entry->bytes : 0, entry != NULL ? entry->least : 0};
    gs_table_unlock();
    return need;
}

/* With so much in the pool it has run. */
static void note_need(CUgraphExec exec, uint64_t bytes) {
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(GS_KIND_GRAPH_EXEC, key_of(exec));
    if (entry != NULL && entry->bytes > bytes && bytes > 0) entry->bytes = bytes;
    gs_table_unlock();
}

/* The pool has to grow to the needs of this graph, if it is smaller. */
static CUresult run(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream) {
    struct need need = need_of(exec);
    uint64_t reserved = 0;
    CUdevice device = 0;
    if (need.most == 0 || GS_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return real(exec, stream);
    pthread_mutex_lock(&lock);
    settle(device, 0);
    uint64_t growth = need.most > charged ? need.most - charged : 0;
    pthread_mutex_unlock(&lock);
    if (growth > gs_room()) {
        if (gs_obtain(growth))
            reserved = growth;
        else if (!fits_when_uploaded(device, exec, stream, need.least))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    CUresult result = real(exec, stream);
    settle(device, reserved); /* what runs cannot be undone */
    if (result == CUDA_SUCCESS) note_need(exec, charged);
    pthread_mutex_unlock(&lock);
    return result;
}

/* An upload is work of its stream, too, but of no kernel: it counts as a copy. */
#define GS_RUN(name, gated, on)                                                   \
    GS_EXPORT CUresult name(CUgraphExec exec, CUstream stream);                   \
    GS_EXPORT CUresult name(CUgraphExec exec, CUstream stream) {                  \
        CUresult result;                                                          \
        if (!(gated)) return run(GS_REAL(name), exec, stream);                    \
        struct gs_slot *slot = gs_begin(on, &result);                             \
        if (GS_UNLIKELY(slot == NULL)) return result;                             \
        result = run(GS_REAL(name), exec, stream);                                \
        gs_end(slot, on);                                                         \
        return result;                                                            \
    }

#define GS_PTSZ (stream == NULL ? CU_STREAM_PER_THREAD : stream)

GS_RUN(cuGraphLaunch, true, stream)
GS_RUN(cuGraphLaunch_ptsz, true, GS_PTSZ)
GS_RUN(cuGraphUpload, gs_settings()->gate_copies, stream)
GS_RUN(cuGraphUpload_ptsz, gs_settings()->gate_copies, GS_PTSZ)

void gs_graphs_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    charged = 0;
}
