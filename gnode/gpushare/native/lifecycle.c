/* A forked child shares nothing with its parent: it forgets all and registers anew when it uses
 * CUDA. Its copies of the sockets are closed, or the daemon would not see its parent's end. */
#include "gpushare.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void) {
    gs_control_forget_after_fork();
    gs_slots_forget_after_fork();
    gs_streams_forget_after_fork();
    gs_window_forget_after_fork();
    gs_capture_forget_after_fork();
    gs_budget_forget_after_fork();
    gs_graphs_forget_after_fork();
    gs_pools_forget_after_fork();
    gs_devices_forget_after_fork();
    gs_table_forget_after_fork();
}

static void watch(void) { pthread_atfork(NULL, NULL, in_child); }

void gs_watch_forks(void) { pthread_once(&once, watch); }
