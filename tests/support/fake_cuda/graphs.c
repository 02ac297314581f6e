/* Graphs: a list of nodes with memory or with a graph of their own; other work is only its time. The
 * memory of graphs is of one pool of the device, which grows when a graph is launched or uploaded
 * and keeps what it has until cuDeviceGraphMemTrim. Addresses are fixed when nodes are added. */
#include "fake.h"

#include <stdlib.h>

enum type { CHILD = 4, ALLOC = 10, FREE = 11 }; /* CUgraphNodeType of cuda.h */

struct node {
    enum type type;
    uint64_t bytes;
    CUdeviceptr address;
    struct fake_graph *child;
    struct node *next;
};

static uint64_t pool_bytes; /* of this process */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic CUdeviceptr next_address = 0x6f0000000000;

static struct node *add(struct fake_graph *graph, struct node node) {
    struct node **place = (struct node **)&graph->nodes, *made = malloc(sizeof *made);
    while (*place != NULL) place = &(*place)->next;
    *made = node;
    *place = made;
    return made;
}

CUdeviceptr fake_graph_alloc(struct fake_graph *graph, uint64_t bytes) {
    CUdeviceptr address = atomic_fetch_add(&next_address, (bytes | 4095) + 1);
    return add(graph, (struct node){ALLOC, bytes, address})->address;
}

void fake_graph_free(struct fake_graph *graph, CUdeviceptr address) {
    for (struct node *one = graph->nodes; one != NULL; one = one->next)
        if (one->type == ALLOC && one->address == address) {
            add(graph, (struct node){FREE, one->bytes, address});
            return;
        }
}

/* Memory that a node frees is there for the nodes behind it. */
static void measure(const struct fake_graph *graph, uint64_t *now, uint64_t *most) {
    for (const struct node *one = graph->nodes; one != NULL; one = one->next) {
        if (one->type == CHILD) measure(one->child, now, most);
        if (one->type == ALLOC) *now += one->bytes;
        if (one->type == FREE) *now -= one->bytes;
        if (*now > *most) *most = *now;
    }
}
static bool has_memory(const struct fake_graph *graph) {
    uint64_t now = 0, most = 0;
    measure(graph, &now, &most);
    return most > 0;
}

static struct fake_graph *copy(const struct fake_graph *graph) {
    struct fake_graph *made = calloc(1, sizeof *made);
    made->busy_ns = graph->busy_ns;
    for (const struct node *one = graph->nodes; one != NULL; one = one->next) {
        struct node *last = add(made, *one);
        last->next = NULL;
        if (one->type == CHILD) last->child = copy(one->child);
    }
    return made;
}
static void drop(struct fake_graph *graph) {
    for (struct node *one = graph->nodes, *next; one != NULL; one = next) {
        next = one->next;
        if (one->type == CHILD) drop(one->child);
        free(one);
    }
    free(graph);
}

FAKE_API CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    *graph = (CUgraph)calloc(1, sizeof(struct fake_graph));
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph,
                                         const CUgraphNode *dependencies, size_t count,
                                         CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    struct fake_graph *one = (struct fake_graph *)(void *)graph;
    parameters->dptr = fake_graph_alloc(one, parameters->bytesize);
    struct node *last = one->nodes;
    while (last->next != NULL) last = last->next;
    *node = (CUgraphNode)(void *)last;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph,
                                        const CUgraphNode *dependencies, size_t count,
                                        CUdeviceptr address) {
    fake_graph_free((struct fake_graph *)(void *)graph, address);
    return CUDA_SUCCESS;
}

/* CUgraphNodeParams: the type, 12 bytes, then the parameters of that type. */
static CUresult add_node(CUgraphNode *node, CUgraph graph, void *parameters) {
    struct fake_graph *one = (struct fake_graph *)(void *)graph;
    int type = *(int *)parameters;
    void *own = (char *)parameters + 16;
    if (type == ALLOC) return cuGraphAddMemAllocNode(node, graph, NULL, 0, own);
    if (type != CHILD) return FAKE_NOT_SUPPORTED;
    struct {
        struct fake_graph *graph;
        int moved; /* otherwise it is copied, and must have no memory */
    } *child = own;
    if (!child->moved && has_memory(child->graph)) return CUDA_ERROR_INVALID_VALUE;
    struct fake_graph *kept = child->moved ? child->graph : copy(child->graph);
    *node = (CUgraphNode)(void *)add(one, (struct node){.type = CHILD, .child = kept});
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                 size_t count, void *parameters) {
    return add_node(node, graph, parameters);
}
FAKE_API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph,
                                    const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                    size_t count, void *parameters) {
    return add_node(node, graph, parameters);
}
FAKE_API CUresult cuGraphClone(CUgraph *clone, CUgraph graph) {
    if (has_memory((struct fake_graph *)(void *)graph)) return FAKE_NOT_SUPPORTED;
    *clone = (CUgraph)(void *)copy((struct fake_graph *)(void *)graph);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    size_t found = 0;
    for (struct node *one = ((struct fake_graph *)(void *)graph)->nodes; one; one = one->next) {
        if (nodes != NULL && found < *count) nodes[found] = (CUgraphNode)(void *)one;
        found++;
    }
    if (nodes == NULL || *count > found) *count = found;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
    *type = (int)((struct node *)(void *)node)->type;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node,
                                               CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    parameters->bytesize = ((struct node *)(void *)node)->bytes;
    parameters->dptr = ((struct node *)(void *)node)->address;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
    *graph = (CUgraph)(void *)((struct node *)(void *)node)->child;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                              unsigned long long flags) {
    *exec = (CUgraphExec)(void *)copy((struct fake_graph *)(void *)graph);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                               CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}
FAKE_API CUresult cuGraphDestroy(CUgraph graph) {
    drop((struct fake_graph *)(void *)graph);
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuGraphExecDestroy(CUgraphExec exec) {
    drop((struct fake_graph *)(void *)exec);
    return CUDA_SUCCESS;
}

/* Memory for a graph is there before it runs. */
static CUresult grow(const struct fake_graph *graph) {
    CUresult result = CUDA_SUCCESS;
    uint64_t now = 0, most = 0;
    measure(graph, &now, &most);
    pthread_mutex_lock(&lock);
    if (most > pool_bytes) result = fake_take(most - pool_bytes);
    if (most > pool_bytes && result == CUDA_SUCCESS) pool_bytes = most;
    pthread_mutex_unlock(&lock);
    return result;
}
FAKE_API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return grow((struct fake_graph *)(void *)exec);
}
FAKE_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    struct fake_graph *graph = (struct fake_graph *)(void *)exec;
    CUresult result = grow(graph);
    return result != CUDA_SUCCESS ? result
                                  : fake_launch(fake_stream(stream, false), graph->busy_ns,
                                                FAKE_GRAPH);
}
FAKE_API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which,
                                               void *value) {
    *(uint64_t *)value = pool_bytes;
    return CUDA_SUCCESS;
}
FAKE_API CUresult cuDeviceGraphMemTrim(CUdevice device) {
    pthread_mutex_lock(&lock);
    fake_give(pool_bytes);
    pool_bytes = 0;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
