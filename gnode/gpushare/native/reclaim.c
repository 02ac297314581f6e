/* What is tried before an allocation fails for the job's limit. A pool keeps memory that was freed,
 * and the driver gives it back in steps: by itself when it is synchronised with, when it is told to,
 * and for frees of streams only after the host has waited for them. */
#include <poll.h>

#include "gpushare.h"

#define WAIT_NS 5000000000u
#define LOOK_MS 1

_Atomic bool gs_freed_in_streams;

/* Until all work has ended. The driver is asked, not waited in, so that neither a recording breaks
 * nor a kernel waits for another thread's launch; a program that never pauses is waited for in vain. */
static void wait_for_frees(void) {
    uint64_t end_ns = gs_now_ns() + WAIT_NS;
    bool unfinished = gs_work_unfinished();
    while (unfinished && gs_now_ns() < end_ns) {
        poll(NULL, 0, LOOK_MS);
        unfinished = gs_work_unfinished();
    }
    if (!unfinished) gs_synchronize_idle();
}

/* This thread may record a graph itself, which the driver's calls must not break. */
void gs_reclaim(enum gs_effort effort) {
    bool waits = effort == GS_WAIT;
    if (waits && !atomic_exchange(&gs_freed_in_streams, false)) return; /* nothing more to release */
    CUstreamCaptureMode mode = gs_relax();
    if (waits) wait_for_frees();
    gs_pools_reclaim(effort);
    gs_graphs_reclaim(effort);
    gs_relax_end(mode);
}

bool gs_obtain(uint64_t bytes) {
    if (gs_reserve(bytes)) return true;
    for (enum gs_effort effort = GS_LOOK; effort < GS_EFFORTS; effort++) {
        uint64_t before = gs_room();
        if (effort == GS_WAIT && before + gs_table_bytes(GS_KIND_POOL) < bytes) break;
        gs_reclaim(effort);
        if (gs_room() > before && gs_room() >= bytes && gs_reserve(bytes)) return true;
    }
    return false;
}
