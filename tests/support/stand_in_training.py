"""A program that talks to gnode as an elastic training does, and trains nothing.

It stands on the standard library alone, as what a user runs may not have gsched at hand. Each step
takes some milliseconds; a line of its output says what it has heard and done.

Usage: ``python stand_in_training.py [--fails MESSAGE] [--late SECONDS] [--first-step N]
[--save-s SECONDS]``
"""

import argparse
import json
import os
import select
import socket
import struct
import time

STEP_S = 0.02


class Training:
    """The loop of a training, and its side of the socket."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.step = given.first_step
        self.waits = 0
        self.saved: dict[str, object] | None = None
        self.socket: socket.socket | None = None
        self.rest = b""
        self.told_first = False

    def say(self, **message: object) -> None:
        """Send one line, if there is a connection."""
        if self.socket is not None:
            try:
                self.socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                self.lose()

    def lose(self) -> None:
        """Forget a connection that has broken."""
        assert self.socket is not None
        self.socket.close()
        self.socket, self.rest = None, b""

    def connect(self) -> None:
        """Try to connect, and say hello."""
        name = os.environ["GSCHED_ELASTIC_SOCKET"]
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.connect(name.replace("@", "\0", 1))
        except OSError:
            made.close()
            return
        raw = made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        assert struct.unpack("3i", raw)[1] in {0, os.getuid()}
        self.socket = made
        job, attempt = int(os.environ["GSCHED_JOB_NUMBER"]), int(os.environ["GSCHED_ATTEMPT"])
        hello = {"version": 1, "job": job, "attempt": attempt, "world_size": 1}
        self.say(hello={**hello, "saved": self.saved})
        print("connected", flush=True)

    def listen(self) -> None:
        """Read what has come, and obey."""
        assert self.socket is not None
        if not select.select([self.socket], [], [], 0)[0]:
            return
        try:
            data = self.socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.lose()
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            print("heard", line.decode(), flush=True)
            self.obey(json.loads(line))

    def obey(self, message: dict[str, dict[str, int]]) -> None:
        """Save the state, or go on."""
        if "go_on" in message:
            self.waits = 0
            self.say(progress={"step": self.step, "work_done": 32.0 * self.step, "gpus": 1})
            return
        if "checkpoint" not in message:
            return
        request = message["checkpoint"]["request"]
        if self.given.fails:
            self.say(checkpoint_failed={"request": request, "message": self.given.fails})
            return
        if self.saved is None or self.saved["request"] != request:
            time.sleep(self.given.save_s)
            self.saved = {
                "request": request,
                "step": self.step,
                "work_done": 32.0 * self.step,
                "path": os.environ["GSCHED_CHECKPOINT_DIR"],
                "size_bytes": 7,
                "wall_s": 0.01,
                "waits": True,
            }
            self.waits = request
        self.say(checkpointed=self.saved)

    def run(self) -> None:
        """Train until somebody ends this process."""
        time.sleep(self.given.late)
        while True:
            if self.socket is None:
                self.connect()
            if self.socket is not None:
                self.listen()
            if not self.waits:
                self.step += 1
                if not self.told_first and self.socket is not None:
                    self.told_first = True
                    self.say(progress={"step": self.step, "at_s": time.time(), "gpus": 1})
            time.sleep(STEP_S)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fails", default="")
    parser.add_argument("--late", type=float, default=0.0)
    parser.add_argument("--first-step", type=int, default=0)
    parser.add_argument("--save-s", type=float, default=0.0)
    Training(parser.parse_args()).run()


if __name__ == "__main__":
    main()
