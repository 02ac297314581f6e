/* CUDA graphs: a launch of a graph is one unit at the gate. Memory of its allocation nodes belongs
 * to a pool of the device, which grows when a graph is launched. */
#include "gpushare.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t charged; /* of the device's pool for graphs */

extern CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which,
                                             void *value);
extern CUresult cuCtxGetDevice(CUdevice *device);

static uint64_t key_of(const void *handle) { return (uint64_t)(uintptr_t)handle; }

static uint64_t bytes_of(enum gs_kind kind, const void *handle) {
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(kind, key_of(handle));
    uint64_t bytes = entry != NULL ? entry->bytes : 0;
    gs_table_unlock();
    return bytes;
}

/* Bytes of graphs are needs, not charges: they are in the table with the kinds of graphs only. */
static void note(enum gs_kind kind, const void *handle, uint64_t bytes) {
    if (bytes == 0) return;
    gs_table_lock();
    struct gs_entry *entry = gs_table_find(kind, key_of(handle));
    if (entry == NULL) entry = gs_table_add(kind, key_of(handle), 0, NULL);
    if (entry != NULL) entry->bytes += bytes;
    gs_table_unlock();
}

static uint64_t reserved_now(CUdevice device) {
    uint64_t reserved = charged;
    GS_REAL(cuDeviceGetGraphMemAttribute)
    (device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
    return reserved;
}

/* Charges what the driver says; `reserved` bytes more are charged already. The lock is held. */
static void settle(CUdevice device, uint64_t reserved) {
    uint64_t now = reserved_now(device);
    gs_adjust(charged + reserved, now);
    charged = now;
}

GS_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph,
                                          const CUgraphNode *dependencies, size_t count,
                                          CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
GS_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph,
                                          const CUgraphNode *dependencies, size_t count,
                                          CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    CUresult result =
        GS_REAL(cuGraphAddMemAllocNode)(node, graph, dependencies, count, parameters);
    if (result == CUDA_SUCCESS) note(GS_KIND_GRAPH, graph, parameters->bytesize);
    return result;
}

#define GS_INSTANTIATE(name, parameters, arguments)                                  \
    GS_EXPORT CUresult name parameters;                                              \
    GS_EXPORT CUresult name parameters {                                             \
        CUresult result = GS_REAL(name) arguments;                                   \
        if (result == CUDA_SUCCESS)                                                  \
            note(GS_KIND_GRAPH_EXEC, *exec, bytes_of(GS_KIND_GRAPH, graph));         \
        return result;                                                               \
    }

#define GS_OLD (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t bytes)
#define GS_PARAMS (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)

GS_INSTANTIATE(cuGraphInstantiate, GS_OLD, (exec, graph, node, log, bytes))
GS_INSTANTIATE(cuGraphInstantiate_v2, GS_OLD, (exec, graph, node, log, bytes))
GS_INSTANTIATE(cuGraphInstantiateWithFlags,
               (CUgraphExec * exec, CUgraph graph, unsigned long long flags), (exec, graph, flags))
GS_INSTANTIATE(cuGraphInstantiateWithParams, GS_PARAMS, (exec, graph, parameters))
GS_INSTANTIATE(cuGraphInstantiateWithParams_ptsz, GS_PARAMS, (exec, graph, parameters))

GS_EXPORT CUresult cuGraphDestroy(CUgraph graph);
GS_EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    gs_take(GS_KIND_GRAPH, key_of(graph));
    return GS_REAL(cuGraphDestroy)(graph);
}

GS_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec);
GS_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    gs_take(GS_KIND_GRAPH_EXEC, key_of(exec));
    return GS_REAL(cuGraphExecDestroy)(exec);
}

GS_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device);
GS_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    pthread_mutex_lock(&lock);
    CUresult result = GS_REAL(cuDeviceGraphMemTrim)(device);
    settle(device, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

/* The pool has to grow to the needs of this graph, if it is smaller. */
static CUresult launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream) {
    uint64_t needed = bytes_of(GS_KIND_GRAPH_EXEC, exec);
    CUdevice device = 0;
    if (needed == 0 || GS_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return real(exec, stream);
    pthread_mutex_lock(&lock);
    settle(device, 0);
    uint64_t growth = needed > charged ? needed - charged : 0;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (growth == 0 || gs_reserve(growth)) {
        result = real(exec, stream);
        settle(device, growth);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

#define GS_LAUNCH(name, on)                                                       \
    GS_EXPORT CUresult name(CUgraphExec exec, CUstream stream);                   \
    GS_EXPORT CUresult name(CUgraphExec exec, CUstream stream) {                  \
        CUresult result;                                                          \
        struct gs_slot *slot = gs_begin(on, &result);                             \
        if (GS_UNLIKELY(slot == NULL)) return result;                             \
        result = launch(GS_REAL(name), exec, stream);                             \
        gs_end(slot, on);                                                         \
        return result;                                                            \
    }

GS_LAUNCH(cuGraphLaunch, stream)
GS_LAUNCH(cuGraphLaunch_ptsz, (stream == NULL ? CU_STREAM_PER_THREAD : stream))

void gs_graphs_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    charged = 0;
}
