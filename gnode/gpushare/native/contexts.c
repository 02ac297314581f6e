/* The contexts of this process: a drain waits for each of them. */
#include "gpushare.h"

#define CONTEXTS_MAX 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext contexts[CONTEXTS_MAX];
static unsigned int count;

/* Entry points that the library itself calls and does not hook. */
extern CUresult cuCtxGetCurrent(CUcontext *context);
extern CUresult cuCtxPushCurrent_v2(CUcontext context);
extern CUresult cuCtxPopCurrent_v2(CUcontext *context);
extern CUresult cuCtxSynchronize(void);

CUcontext gs_current_context(void) {
    CUcontext context = NULL;
    return GS_REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

void gs_context_created(CUcontext context) {
    if (context == NULL) return;
    pthread_mutex_lock(&lock);
    unsigned int i = 0;
    while (i < count && contexts[i] != context) i++;
    if (i == count && count < CONTEXTS_MAX) contexts[count++] = context;
    pthread_mutex_unlock(&lock);
}

void gs_context_gone(CUcontext context) {
    pthread_mutex_lock(&lock);
    for (unsigned int i = 0; i < count; i++)
        if (contexts[i] == context) contexts[i--] = contexts[--count];
    pthread_mutex_unlock(&lock);
    gs_window_context_gone(context);
    uint64_t bytes = gs_table_drop_context(context);
    if (bytes > 0) gs_give_back(bytes);
}

/* An error of the work that is waited for is sticky, and the program will see it itself. */
void gs_contexts_synchronize(void) {
    CUcontext now[CONTEXTS_MAX];
    pthread_mutex_lock(&lock);
    unsigned int many = count;
    for (unsigned int i = 0; i < many; i++) now[i] = contexts[i];
    pthread_mutex_unlock(&lock);
    for (unsigned int i = 0; i < many; i++) {
        CUcontext popped = NULL;
        if (GS_REAL(cuCtxPushCurrent_v2)(now[i]) != CUDA_SUCCESS) continue;
        GS_REAL(cuCtxSynchronize)();
        GS_REAL(cuCtxPopCurrent_v2)(&popped);
    }
}

void gs_contexts_forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    count = 0;
}
