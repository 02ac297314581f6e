# mypy: allow-untyped-defs, allow-untyped-calls
"""A job that uses its GPU, or its share of one, and writes down who it is and what went wrong.

``python -m tests.support.share_program JOURNAL [--pair] [--steps N] [--code N] [--state FILE]``
appends lines of JSON to JOURNAL. It allocates memory up to its limit and tries to get more,
launches kernels of the fake driver, and ends with ``--code``; with 5 where a call of the driver has
had a result that it must not have. With ``--pair`` a second process does the same. With ``--state``
it keeps the number of its steps in a file when signal USR1 comes, ends, and resumes there.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.support.gpu_job import OUT_OF_MEMORY, SUCCESS, Cuda

KERNELS = 4  # of a step
KERNEL_US = 2000
GAP_S = 0.004
LONG_WAIT_S = 0.2  # is written down
WRONG = 5
WHOLE_BYTES = 8 << 30  # of a job with a whole GPU


class Program:
    """One process of the job."""

    def __init__(self, given):
        self.given = given
        self.leaving = False
        self.limit_bytes = int(os.environ.get("GSCHED_GPU_SHARE_MEMORY_BYTES", "0"))
        self.cuda = Cuda()

    def note(self, what, **more):
        row = {"what": what, "pid": os.getpid(), "at_ns": time.monotonic_ns(), **more}
        fd = os.open(self.given.journal, os.O_WRONLY | os.O_APPEND)
        os.write(fd, json.dumps(row).encode() + b"\n")
        os.close(fd)

    def begin(self):
        environment = os.environ
        self.note(
            "begin",
            job=int(environment["GSCHED_JOB_NUMBER"]),
            attempt=int(environment["GSCHED_ATTEMPT"]),
            node=environment["GSCHED_NODE"],
            gpu=int(environment["CUDA_VISIBLE_DEVICES"]),
            percent=int(environment.get("GSCHED_GPU_SHARE_PERCENT", "100")),
            memory_bytes=self.limit_bytes,
            share_class=environment.get("GSCHED_GPU_SHARE_CLASS", ""),
        )

    def expect(self, name, result, wanted=SUCCESS):
        if result == wanted:
            return
        self.note("wrong", text=f"{name} has returned {result}, not {wanted}")
        os._exit(WRONG)

    def timed(self, name, work):
        began_s = time.monotonic()
        self.expect(name, work())
        waited_s = time.monotonic() - began_s
        if waited_s > LONG_WAIT_S:
            self.note("waited", s=waited_s)

    def saved_steps(self):
        try:
            return int(self.given.state.read_text())
        except (AttributeError, FileNotFoundError):
            return 0

    def use(self, parts):
        """Use the GPU as one of so many processes of the job."""
        self.begin()
        self.expect("cuInit", self.cuda.start())
        if self.limit_bytes:
            more = self.limit_bytes + (1 << 20)
            self.expect("too large an allocation", self.cuda.alloc("plain", more)[0], OUT_OF_MEMORY)
        size = (self.limit_bytes or WHOLE_BYTES) * 9 // 10 // parts
        result, pointer = self.cuda.alloc("plain", size)
        self.expect("an allocation within the limit", result)
        first = self.saved_steps()
        for step in range(first, self.given.steps):
            self.timed("a launch", lambda: self.cuda.launch(KERNEL_US, count=KERNELS))
            self.timed("a wait", self.cuda.synchronize)
            if self.leaving:
                self.given.state.write_text(str(step + 1))
                return
            time.sleep(GAP_S)
        self.expect("a free", self.cuda.free("plain", pointer))
        self.note("end")

    def leave(self, _number, _frame):
        self.leaving = True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("journal", type=Path)
    parser.add_argument("--pair", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--code", type=int, default=0)
    parser.add_argument("--state", type=Path)
    given = parser.parse_args()
    program = Program(given)
    if given.state is not None:
        signal.signal(signal.SIGUSR1, program.leave)
    child = os.fork() if given.pair else 0
    if given.pair and child == 0:
        program.use(2)
        os._exit(given.code)
    program.use(2 if given.pair else 1)
    if given.pair:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        sys.exit(128 - code if code < 0 else code)
    sys.exit(given.code)


if __name__ == "__main__":
    main()
