/* The gate before each launch: the slots in which threads say that they are inside a launch.
 *
 * A thread sets its flag and then reads the gate; the control thread sees the closed gate and then
 * reads the flags. membarrier() in the control thread orders both, so that the launch path needs no
 * fence: either the thread has seen the closed gate, or the control thread sees its flag. */
#define _GNU_SOURCE
#include <linux/membarrier.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpushare.h"

__thread struct gs_slot *gs_my_slot __attribute__((tls_model("initial-exec")));
struct gs_gate_page gs_open_page = {.gate = GS_OPEN}, gs_closed_page = {.gate = 0};
struct gs_gate_page *_Atomic gs_gate = &gs_closed_page;
#ifdef GS_WITHOUT_MEMBARRIER /* for a test of kernels and sandboxes that lack it */
bool gs_no_membarrier = true;
#else
bool gs_no_membarrier;
#endif

static struct gs_slot *_Atomic slots;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void thread_ends(void *slot) {
    struct gs_slot *own = slot;
    gs_streams_owner_gone(own);
    gs_my_slot = NULL; /* a later destructor of this thread may launch */
    own->generation = 0;
    atomic_store(&own->in, 0);
    atomic_store(&own->taken, false);
}

static void make_key(void) {
    if (pthread_key_create(&key, thread_ends) != 0) gs_say("no key for threads is left");
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0)
        gs_no_membarrier = true;
}

/* Slots of ended threads are used again, with their counts: only sums are looked at. */
struct gs_slot *gs_own_slot(void) {
    if (gs_my_slot != NULL) return gs_my_slot;
    pthread_once(&once, make_key);
    struct gs_slot *slot = atomic_load(&slots);
    for (; slot != NULL; slot = slot->next) {
        bool free_one = false;
        if (atomic_compare_exchange_strong(&slot->taken, &free_one, true)) break;
    }
    if (slot == NULL) {
        slot = aligned_alloc(128, sizeof *slot > 128 ? 256 : 128); /* a cache line of its own */
        if (slot == NULL) abort();
        *slot = (struct gs_slot){.taken = true};
        slot->next = atomic_load(&slots);
        while (!atomic_compare_exchange_weak(&slots, &slot->next, slot)) continue;
    }
    pthread_setspecific(key, slot);
    gs_my_slot = slot;
    return slot;
}

struct gs_slot *gs_begin_slow(CUstream stream, CUresult *refused) {
    struct gs_slot *slot = gs_own_slot();
    for (;;) {
        atomic_store(&slot->in, GS_LAUNCHES);
        atomic_thread_fence(memory_order_seq_cst);
        if (atomic_load(&atomic_load(&gs_gate)->gate) & GS_OPEN) return slot;
        if (gs_is_capturing(stream)) return slot; /* recorded: nothing runs */
        atomic_store(&slot->in, 0);
        if (!gs_wait_for_token(refused)) return NULL;
    }
}

void gs_barrier(void) {
    atomic_thread_fence(memory_order_seq_cst);
    if (gs_no_membarrier) return;
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return;
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0)
        gs_no_membarrier = true;
    else
        syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

/* The parent's other threads are not here, and may have been inside a launch. */
void gs_slots_forget_after_fork(void) {
    for (struct gs_slot *slot = atomic_load(&slots); slot != NULL; slot = slot->next) {
        atomic_store(&slot->in, 0);
        atomic_store(&slot->launches, 0);
        atomic_store(&slot->synced_at, 0);
        if (slot != gs_my_slot) atomic_store(&slot->taken, false);
    }
}

bool gs_slots_busy(void) {
    for (struct gs_slot *slot = atomic_load(&slots); slot != NULL; slot = slot->next)
        if (atomic_load(&slot->in) != 0) return true;
    return false;
}

bool gs_slots_launching(void) {
    for (struct gs_slot *slot = atomic_load(&slots); slot != NULL; slot = slot->next)
        if (atomic_load(&slot->in) == GS_LAUNCHES) return true;
    return false;
}

void gs_slots_totals(uint64_t *launches, uint64_t *synced, bool *busy) {
    *launches = *synced = 0;
    *busy = false;
    for (struct gs_slot *slot = atomic_load(&slots); slot != NULL; slot = slot->next) {
        *launches += atomic_load(&slot->launches);
        *synced += atomic_load(&slot->synced_at);
        *busy = *busy || atomic_load(&slot->in) != 0;
    }
}
