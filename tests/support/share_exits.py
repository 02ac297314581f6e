# mypy: allow-untyped-defs, allow-untyped-calls
"""A job whose processes end in every way while their launches are taken away from them.

``python -m tests.support.share_exits COUNT SEED`` forks one process after the other: each launches
without a pause and ends after a few milliseconds by `exit`, `_exit`, SIGKILL, a reset of its
context, or the destruction of a context of its own. Ends with 5 where one has ended otherwise.
"""

import ctypes
import os
import random
import signal
import sys
import threading
import time

from tests.support.gpu_job import SUCCESS, Cuda

KERNEL_US = 200
LIFE_S_MAX = 0.02
WAYS = ("exit", "_exit", "kill", "reset", "destroy", "thread")
WRONG = 5


def live(way, life_s):
    """Use the GPU in a process of its own, and end in one way."""
    cuda = Cuda()
    assert cuda.start() == SUCCESS
    context = ctypes.c_void_p()
    if way == "destroy":
        assert cuda.api.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == SUCCESS
    assert cuda.alloc("plain", 1 << 20)[0] == SUCCESS
    if way == "thread":  # the process ends while another thread launches, or waits to
        threading.Thread(target=launch_until, args=(cuda, 3600.0), daemon=True).start()
        time.sleep(life_s)
        os._exit(0)
    launch_until(cuda, life_s)
    if way == "_exit":
        os._exit(0)
    elif way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "reset":  # and again from the beginning, as frameworks do after an error
        assert cuda.api.cuDevicePrimaryCtxReset_v2(0) == SUCCESS
        assert cuda.start() == SUCCESS
        launch_until(cuda, life_s)
    elif way == "destroy":
        assert cuda.api.cuCtxDestroy_v2(context) == SUCCESS
    sys.exit(0)


def launch_until(cuda, life_s):
    end_s = time.monotonic() + life_s
    while True:
        assert cuda.launch(KERNEL_US) == SUCCESS
        if time.monotonic() >= end_s:
            return


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(seed)
    for number in range(count):
        way, life_s = WAYS[number % len(WAYS)], chance.uniform(0, LIFE_S_MAX)
        child = os.fork()
        if child == 0:
            live(way, life_s)
        _, status = os.waitpid(child, 0)
        wanted = -signal.SIGKILL if way == "kill" else 0
        code = os.waitstatus_to_exitcode(status)
        if code != wanted:
            print(f"process {number} ({way}, {life_s:.4f} s) has ended with {code}", flush=True)
            os._exit(WRONG)
    print(f"{count} processes have ended", flush=True)


if __name__ == "__main__":
    main()
