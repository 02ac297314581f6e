"""What one ordinary user does to a cluster, one kind of attack a process.

``hostile_attacks.py KIND SOCKET HOME SEED`` repeats the attack until it gets SIGTERM, and then
prints how often it did what, as JSON. Whoever starts it makes it another user. Jobs that it leaves
are deleted in small numbers, so that their sum stays bounded, as a user's quota does.
"""

import contextlib
import functools
import hashlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402 - the path comes first

from gsched.client import HeadClient, new_key  # noqa: E402 - as above
from gsched.errors import GschedError  # noqa: E402 - as above
from gsched.head_address import HeadAddress  # noqa: E402 - as above
from gsched.model.job import CodeSnapshot  # noqa: E402 - as above
from gsched.protocol.actions import DeleteJob  # noqa: E402 - as above
from gsched.protocol.submissions import SubmitJob  # noqa: E402 - as above
from gsched.transport import Transport  # noqa: E402 - as above
from tests.support.worst_requests import WORST  # noqa: E402 - as above

REQUEST_TIMEOUT_S = 30.0
JOBS_KEPT = 12
ARCHIVE_BYTES = 4 << 20
DEPENDANTS = 500
IDLE_CONNECTIONS = 300

NUMBERS = (0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**30, 1e-320, 1e18, 1e300, 1e301)
TEXTS = (
    "",
    "x",
    "x" * 255,
    "x" * 5000,
    "a/b",
    "../" * 40,
    "\x00",
    "\x1b]0;x\x07",
    "é\u202e",
    "$(id)",
)

#: A job that sends noise to every socket that its environment names, and leaves a child behind.
NOISE = r"""#!/bin/sh
setsid nohup sleep 600 >/dev/null 2>&1 &
exec /usr/bin/python3 - <<'END'
import os, random, socket, time
paths = [v for k, v in os.environ.items() if k.startswith("GSCHED_") and "SOCK" in k]
end = time.monotonic() + 8
kept = []
while time.monotonic() < end and paths:
    for path in paths:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
            s = socket.socket(socket.AF_UNIX, kind)
            s.settimeout(0.2)
            try:
                s.connect(path if len(path) < 100 else os.path.relpath(path))
                step = random.choice([1, 2**63, 10**30])
                s.send(random.choice([
                    os.urandom(64), os.urandom(5000), b'{"step":%d}\n' % step,
                    b'{"loss":1e400,"step":-1}\n', b'{}\n' * 200, b'[' * 4000, b'\x00' * 64]))
                kept.append(s)
            except OSError:
                s.close()
    for s in kept[:-200]:
        s.close()
    kept = kept[-200:]
END
"""

#: Where scp goes by its user's own configuration: a program that stays.
PROXY = "#!/bin/sh\nsetsid nohup sleep 600 >/dev/null 2>&1 &\nsleep 20\nexit 1\n"


class Attacker:
    """One kind of attack, its client, and how often it did what."""

    def __init__(self, path: str, home: Path, seed: str) -> None:
        self.path = path
        self.home = home
        self.random = random.Random(seed)
        self.head = HeadClient(path)
        self.transport = Transport(HeadAddress(path, source="bench", path=path))
        self.counts: Counter[str] = Counter()
        self._jobs: list[int] = []

    # --- one round of each kind ---

    def requests(self) -> None:
        """Send one of the requests that cost most."""
        worst = self.random.choice(WORST)
        with contextlib.suppress(GschedError):
            self.transport.exchange(
                worst.method, worst.target, worst.make(), timeout_s=REQUEST_TIMEOUT_S
            )
        self.counts["requests"] += 1

    def fields(self) -> None:
        """Submit jobs some of whose fields hold extreme values, and delete what was accepted."""
        wrong = {name: self._extreme(name) for name in self.random.sample(sorted(_SIMPLE), 2)}
        job = self._job("fields") | wrong
        if self.random.random() < 0.3:
            job["movable"] = True
            job["checkpoint_dir"] = str(self.home)
        self._submit(job)

    def sockets(self) -> None:
        """Keep idle connections to the head, send noise, and have jobs do so on the node."""
        self._submit(self._job("noise") | {"launch": "script", "script": NOISE, "arguments": []})
        kept = []
        for _ in range(IDLE_CONNECTIONS):
            with contextlib.suppress(OSError):
                end = socket.socket(socket.AF_UNIX)
                end.settimeout(1.0)
                end.connect(self.path)
                end.send(self.random.choice((b"", b"POST /v1/", os.urandom(2000))))
                kept.append(end)
        self.counts["connections"] += len(kept)
        time.sleep(2.0)
        for end in kept:
            end.close()

    def staging(self) -> None:
        """Stage files by a program that does not end and leaves a child."""
        far = {"local": f"{self.home}/in", "host": "evil", "remote": "/x"}
        which = self.random.choice(("stage_in", "stage_out"))
        self._submit(self._job("stage", walltime="5") | {which: [far]})
        time.sleep(3.0)

    def snapshots(self) -> None:
        """Send archives that no job uses."""
        data = self.random.randbytes(ARCHIVE_BYTES)
        digest = hashlib.sha256(data).hexdigest()
        snapshot = CodeSnapshot(digest=digest, size_bytes=len(data), files=1)
        try:
            self.head.send_code(snapshot, io.BytesIO(data))
            self.counts["archives"] += 1
        except GschedError as error:
            self.counts[f"archives refused: {type(error).__name__}"] += 1
            time.sleep(0.5)

    def shells(self) -> None:
        """Open shells in one job, and leave one of them without a word."""
        if not self._jobs:
            self._submit(self._job("shells") | {"arguments": ["sleep", "600"]})
            time.sleep(2.0)
        job = str(self._jobs[-1]) if self._jobs else "1"
        shells = [self._command("gshell", job, "--", "true") for _ in range(3)]
        shells.append(self._command("gshell", job, "--", "sleep", "300"))
        time.sleep(1.5)
        shells[-1].kill()
        for shell in shells:
            shell.wait()
        self.counts["shells"] += len(shells)

    def notices(self) -> None:
        """Have hundreds of dependants cancelled, each with notices by every way."""
        notices = {"mail_points": "abe", "mail_to": "u@example.invalid"}
        first = self._submit(self._job("first") | {"holds": ["user"]} | notices)
        if first:
            jobs = [
                self._job("after") | {"depends": [f"afterok:{first}"], "key": new_key()} | notices
                for _ in range(DEPENDANTS)
            ]
            self._send({"jobs": jobs})
            self._delete([first])
            self._jobs = [each for each in self._jobs if each != first]
            self.counts["dependants"] += DEPENDANTS

    def arrays(self) -> None:
        """Submit an array of 100,000 elements and delete it."""
        job = self._submit(self._job("array") | {"array": "0-99999", "holds": ["user"]})
        self.head.jobs([job or 1])
        if job:
            self._delete([job])

    def commands(self) -> None:
        """Run commands that only ask, and messages to an own job's output."""
        for words in (("gstat", "-a"), ("gstat", "-f"), ("ghist",), ("gnodes", "--predictions")):
            self._command(*words).wait()
            self.counts["commands"] += 1

    # --- helpers ---

    def _job(self, name: str, *, walltime: str = "30") -> dict[str, object]:
        return {
            "key": new_key(),
            "name": name,
            "workdir": str(self.home),
            "launch": "command",
            "arguments": ["true"],
            "resources": [f"nodes=1:ppn=1,walltime={walltime}"],
            "stdout_path": "/dev/null",
            "stderr_path": "/dev/null",
        }

    def _extreme(self, name: str) -> object:
        match _SIMPLE[name]:
            case "number":
                return self.random.choice(NUMBERS)
            case "texts":
                return [self.random.choice(TEXTS)]
            case _:
                return self.random.choice(TEXTS)

    def _submit(self, job: Mapping[str, object]) -> int:
        """Submit one job; return its number, 0 if it is refused."""
        reply = self._send({"jobs": [job]})
        number = int(reply["results"][0].get("id", 0)) if "results" in reply else 0
        self.counts["accepted" if number else "refused"] += 1
        if number:
            self._jobs.append(number)
            if len(self._jobs) > JOBS_KEPT:
                self._delete(self._jobs[:-JOBS_KEPT])
                self._jobs = self._jobs[-JOBS_KEPT:]
        return number

    def _send(self, request: object) -> dict:
        try:
            answer = self.transport.exchange(
                "POST", "/v1/jobs", json.dumps(request).encode(), timeout_s=REQUEST_TIMEOUT_S
            )
            return json.loads(bytes(answer.body)) if answer.body else {}
        except GschedError:
            return {}

    def _delete(self, jobs: list[int]) -> None:
        with contextlib.suppress(GschedError):
            self.head.act(DeleteJob(ids=tuple(map(str, jobs))))

    def _command(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", f"gsched.cli.commands.{words[0]}", *words[1:]],
            cwd=self.home,
            env=os.environ | {"GSCHED_HEAD": self.path, "HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _kind_of(default: object) -> str:
    """Return which extreme values a field of a submission takes; empty: none of these."""
    if isinstance(default, bool):
        return ""
    if default is None or isinstance(default, int | float):
        return "number"
    if isinstance(default, tuple):
        return "texts"
    return "text" if isinstance(default, str) else ""


_SIMPLE = {
    field.name: kind
    for field in msgspec.structs.fields(SubmitJob)
    if (kind := _kind_of("" if field.required else field.default)) and field.name != "key"
}

KINDS: tuple[str, ...] = (
    *("requests", "fields", "sockets", "staging", "snapshots", "shells", "notices", "arrays"),
    "commands",
)


class Ended(BaseException):
    """SIGTERM came."""


def _end(*_: object) -> None:
    raise Ended


def main() -> None:
    """Attack until SIGTERM."""
    kind, path, home, seed = sys.argv[1:]
    attacker = Attacker(path, Path(home), f"{kind} {seed}")
    once: Callable[[], None] = getattr(attacker, kind)
    signal.signal(signal.SIGTERM, _end)
    pause = functools.partial(time.sleep, 0.05)
    try:
        while True:
            try:
                once()
            except (GschedError, OSError) as error:
                attacker.counts[type(error).__name__] += 1
                pause()
    except Ended:
        print(json.dumps(attacker.counts), flush=True)


if __name__ == "__main__":
    main()
