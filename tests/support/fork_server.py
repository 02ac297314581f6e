"""Runs scripts in forks of a process that has imported torch, which costs seconds of CPU time.

Run in the Python that has torch. Each line of the standard input is a request, answered by a line:
``{"start": {...}}`` by a process id, ``{"poll": pid}`` by the wait status, or null while it runs.
The environment must hold what torch reads when it is imported (``OMP_NUM_THREADS``).
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
from typing import Any

PRELOADED = (
    "torch._dynamo",  # by an optimiser
    "torch.distributed.checkpoint.state_dict",
    "torch.nn.parallel",
)
PR_SET_PDEATHSIG = 1


def serve() -> dict[str, Any] | None:
    """Serve requests; return None at the end of the input, and in a fork what it is to run."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # a fork's collections leave the pages that all share alone
    assert "gsched" not in sys.modules, "each fork imports it, as it reads the environment"
    assert len(os.listdir("/proc/self/task")) == 1, "only this thread would be in the forks"
    for line in sys.stdin:
        request = json.loads(line)
        answer: int | None
        if "start" in request:
            answer = os.fork()
            if answer == 0:
                start: dict[str, Any] = request["start"]
                return start
        else:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = status if pid else None
        print(json.dumps(answer), flush=True)
    return None


def become(start: dict[str, Any]) -> None:
    """Run a script in this process, as the interpreter would."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(start["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    kind = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    output, errors = (os.open(start[name], kind) for name in ("output", "errors"))
    for new, old in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(new, old)
    sys.argv = start["command"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    to_run = serve()
    if to_run is not None:
        become(to_run)
