"""Frames from the API and from jobs' sockets through the real head core and the real codecs.

Each input takes the way of a user's or a job's: JSON that is decoded as the head or gnode decodes
it, the head's decision, the message, the frame, and the receiver's decoding. A frame that its
receiver cannot read is a fault, and so is a message that the sender had to set aside.
"""

import copy
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gnode.gpushare import wire as token_wire
from gnode.gpushare.node_tokens import Admission, NodeTokens
from gnode.gpushare.tokend import TokenDaemon
from gnode.gpushare.tokens import Tokens
from gsched.errors import GschedError
from gsched.model.resources import Load
from gsched.model.states import ShareClass
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gsched.protocol import submissions
from gsched.protocol import training as wire
from gsched.protocol.framing import frames_from_head, frames_from_node
from gsched.protocol.job_steps import StepFailed, StepRequest
from gsched.protocol.reading import read_from_head, read_from_node
from gschedd.core.head import Head
from gschedd.core.requests import commands as c
from gschedd.core.state import effects as e
from gschedd.core.state.state import State
from gschedd.core.state.step import Step
from gschedd.http.decoding import decoded
from gschedd.http.launches import BlobCache, Launches
from gschedd.policies.queue import fifo
from tests.support.dialler import registration
from tests.support.machines import GIB, inventory
from tests.support.world import ADMIN, ALICE, BEGIN_S, BOB, settings

#: Jobs after which a new head begins, so that each input costs the same.
JOBS_OF_A_HEAD = 60
#: JSON that a field gets in place of its own: a number mostly another one.
WILD_NUMBERS = (
    *("0", "-0", "1", "-1", "0.5", "1e-320", "1e300", "-1e300", "1e301", "1.7e308", "1e309"),
    *("2147483648", "9007199254740992", "9007199254740993", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551615", "-9223372036854775809", "9" * 40),
)
WILD = (
    *WILD_NUMBERS,
    *("null", "true", "[]", "{}", '""', '"x"', '"\\u0000"', '"\\ud800"', '"\\udc80\\ud800"'),
    *('"\\ud83d\\ude00"', '"\\u001b]0;x\\u0007"', '"$PBS_JOBID"', '"' + "x" * 5000 + '"'),
    *('["user"]', '["afterok:1"]', '["nodes=1:ppn=1"]', "[[1,1e301]]", '{"a":"b"}'),
)
JOB: dict[str, Any] = {
    "key": "",
    "name": "job",
    "workdir": "/tmp",
    "launch": "command",
    "arguments": ["true"],
    "resources": ["nodes=1"],
}
#: Fields of jobs of several kinds, which are changed one by one.
KINDS: tuple[dict[str, Any], ...] = (
    {"priority": 1, "grace_s": 5.0, "umask": 18, "start_after_s": 0.0, "lease_s": 60.0},
    {"movable": True, "checkpoint_interval_s": 60.0, "checkpoint_dir": "/c"},
    {"checkpoint_signal": 10, "requeue_on": "node-failure", "requeue_limit": 2},
    {"launch": "script", "script": "true", "environment": {"A": "b"}, "shell": "/bin/sh"},
    {"early_signal": {"signal": 10, "before_s": 60.0, "script_only": True}},
    {"interactive": {"detach_timeout_s": 60.0}, "arguments": []},
    {"resources": ["nodes=1:gpus=1"], "training": {"iterations": 9.0, "rates": [[1, 2.0]]}},
    {
        "resources": ["nodes=1:gpus=1"],
        "movable": True,
        "places_max": 2,
        "adaptive": {"batch": 8, "batch_max": 64, "inference": {"latency_s": 1.0}},
    },
    {"deadline_after_s": 9e4, "resources": ["nodes=1,walltime=60"], "urgency": ""},
    {"stage_in": [{"local": "a", "host": "h", "remote": "/b"}], "stdout_path": "/o"},
    {"array": "0-1%1", "lines": "a\nb"},
    {"resources": ["nodes=1:ppn=2,walltime=1:00:00,mem=1gb"], "mail_points": "n"},
    {"resources": ["gpu_share=20:1gb"]},
    {"container": {"image": "i", "mounts": ["/a:/b"]}, "profile": True, "append": True},
)
RESOURCES = (
    *("walltime={}", "mem={}", "nodes={}", "nodes=1:ppn={}", "nodes=1:gpus={}", "licence={}"),
    *("select={}:ncpus=1", "gpu_share={}", "walltime=+{}", "place={}", "ncpus={}"),
)
ACTIONS: tuple[dict[str, Any], ...] = (
    {"action": "delete", "grace_s": 1.0, "message": "m"},
    {"action": "hold", "holds": ["user"]},
    {"action": "release", "holds": ["user"]},
    {"action": "signal", "signal": 10},
    {"action": "rerun", "grace_s": 1.0, "force": True},
    {"action": "migrate", "nodes": [], "gpus": 0},
    {"action": "alter", "alteration": {"priority": 1, "grace_s": 5.0, "start_after_s": 0.0}},
    {"action": "alter", "alteration": {"resources": ["walltime=99"], "deadline_after_s": 9e3}},
    {"action": "alter", "alteration": {"name": "y", "stdout_path": "/p", "shell": "/bin/sh"}},
)
KEY = {"version": 1, "job": 1, "attempt": 1}
LINES: tuple[dict[str, Any], ...] = (
    {"progress": {"at_s": 1.0, "step": 1, "work_done": 2.0, "step_s": 0.1, "gpus": 1}},
    {"progress": {"step": 9, "world_sizes": [1, 2], "batch_per_gpu": 4, "gradient_sqr": 1.0}},
    {"progress": {"step": 9, "profile": [{"batch_per_gpu": 1, "step_s": 1.0, "gradient_s": 1.0}]}},
    {"checkpointed": {"request": 1, "step": 1, "path": "/c", "size_bytes": 9, "wall_s": 1.0}},
    {"checkpoint_failed": {"request": 1, "message": "m"}},
    {"hello": {**KEY, "world_size": 1, "world_sizes": [1], "saved": {"step": 3}}},
    {"step": {**KEY, "nodes": ["n2"], "port": 4000, "secret": "0f" * 16}},
    {"failed": {"origin": "n1", "step": 1, "message": "m"}},
    {"read": {"offset": 1}},
)


class FrameFuzz:
    """Sends one fuzzed input after the other.

    Attributes:
        counts: inputs, refusals and messages by name.
        faults: what is wrong, in words.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.now_s = BEGIN_S
        self._blobs: dict[str, bytes] = {}
        self._tokens = _tokens()
        self._frames: list[bytes] = []
        self._begin()

    def run(self, number: int) -> None:
        """Send so many inputs."""
        ways: tuple[tuple[Callable[[], None], int], ...] = (
            (self.submission, 10),
            (self.action, 10),
            (self.line, 45),
            (self.token, 20),
            (self.bytes_of_a_frame, 15),
        )
        calls, weights = zip(*ways, strict=True)
        for call in self.random.choices(calls, weights, k=number):
            self.counts[f"input: {call.__name__}"] += 1
            try:
                call()
            except Exception as error:  # noqa: BLE001 - whatever is raised is a finding
                self.faults.append(f"{call.__name__}: {type(error).__name__}: {error}"[:500])

    # --- the ways in ---

    def wild_submission(self) -> bytes:
        """Return a submission of a job with a few fields that are wild."""
        job = copy.deepcopy(JOB | self.random.choice(KINDS))
        if self.random.random() < 0.3:
            wild = self.random.choice(WILD).strip('"')[:100]
            job["resources"] = [self.random.choice(RESOURCES).format(wild)]
        return self._changed({"jobs": [job]}, self.random.randrange(3))

    def wild_request(self, spared: int) -> tuple[str, str, bytes]:
        """Return method, path and body of a request to a real head.

        It only reads the output of the running job ``spared``.
        """
        if self.random.random() < 0.1:
            offset, most = self.random.choices(WILD_NUMBERS, k=2)
            return "GET", f"/v1/jobs/{spared}/output?offset={offset}&max={most}", b""
        if self.random.random() < 0.6:
            return "POST", "/v1/jobs", self.wild_submission()
        asked = copy.deepcopy(self.random.choice(ACTIONS))
        asked["ids"] = [str(spared + 1 + self.random.randrange(50))]
        return "POST", "/v1/jobs/actions", self._changed(asked, self.random.randrange(2))

    def wild_line(self) -> bytes:
        """Return a line for the socket of training jobs, step agents and code snapshots."""
        line = copy.deepcopy(self.random.choice(LINES))
        return self._changed(line, self.random.randrange(3))

    def submission(self) -> None:
        """Submit a job with a few fields that are wild."""
        self.submit(self.wild_submission())

    def submit(self, body: bytes) -> None:
        """Submit what the body of a request says, and start it if the head accepts it."""
        if self.head.state.next_job > JOBS_OF_A_HEAD:
            self._begin()
        request = self._decoded(body, submissions.SubmitRequest)
        for asked in request.jobs if request is not None else ():
            digests = tuple(map(self._kept, (asked.script, _environment(asked))))
            submit = c.Submit(
                caller=ALICE,
                submitted=asked,
                digests=(digests[0], digests[1]),
                lines_digest=self._kept(asked.lines),
            )
            self._command(submit)

    def action(self) -> None:
        """Act on a job that may be there."""
        asked: a.AnyJobAction | None = self._decoded(
            self._changed(copy.deepcopy(self.random.choice(ACTIONS)), self.random.randrange(2)),
            a.JOB_ACTION,
        )
        if asked is not None:
            number = self.random.randrange(1, self.head.state.next_job + 1)
            caller = self.random.choice((ALICE, ALICE, BOB, ADMIN))
            self._command(c.ActOnJob(caller=caller, job=number, action=asked))

    def line(self) -> None:
        """Say a line on the socket of training jobs, step agents and code snapshots."""
        try:
            said = wire.decode_line(self.wild_line())
        except wire.BadLineError:
            self.counts["refused: line"] += 1
            return
        job, attempt = self._running()
        message = _message_of(said, job, attempt)
        if message is not None:
            self._to_head(message)

    def token(self) -> None:
        """Say something on the socket of GPU sharing, and report what the node knows then."""
        tokens, number = self._tokens.tokens, self._number
        client = self.random.choice((1, 2))
        match self.random.randrange(6):
            case 0:
                tokens.stat(client, number(), number())
            case 1:
                forced = self.random.random() < 0.5
                tokens.memory.reserve("1.1", client, number(), forced=forced)
            case 2:
                tokens.memory.free("1.1", client, number())
            case 3:
                tokens.request(client, self.now_s)
            case 4:
                tokens.idle(client, self.now_s)
            case _:
                tokens.released(client, number(), self.now_s, drain_s=number() / 1e9)
        report = Tokens(self._tokens.metrics(), restarts=0).report("words", {"0": 0})
        self._to_head(n.Heartbeat(load=Load(), usage=(), gpu_sharing=report))

    def bytes_of_a_frame(self) -> None:
        """Change bytes of a frame, as a peer of another version would send another one."""
        payload = bytearray(self.random.choice(self._frames))
        for _ in range(1 + self.random.randrange(3)):
            at = self.random.randrange(len(payload))
            wild = self.random.choice(WILD).encode()
            payload[at : at + self.random.randrange(4)] = wild[: 1 + self.random.randrange(40)]
        for read in (read_from_head, read_from_node):
            try:
                read(bytes(payload))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self.counts["refused: no list"] += 1

    # --- the way of a message ---

    def _command(self, command: c.AnyCommand) -> None:
        step = self.head.command(command, self.now_s)
        if step.error is not None:
            self.counts["refused: by the head"] += 1
            return
        self._take(step)
        self.now_s += 1.0
        self._take(self.head.tick(self.now_s))
        self._take(self.head.cycle(self.now_s))

    def _take(self, step: Step) -> None:
        self.head.state.unstored.finished.clear()
        for effect in step.effects:
            message = self._message(effect)
            if message is not None:
                self._to_node(message)
                if isinstance(message, n.Launch):
                    job, attempt = message.job, message.attempt
                    self._to_head(n.Started(job=job, attempt=attempt, pid=9, started_s=1.0))

    def _message(self, effect: e.AnyEffect) -> n.HeadMessage | None:
        if isinstance(effect, e.SendLaunch | e.SendPrepare):
            return self._launches.order(effect)
        return effect.message if isinstance(effect, e.Send) else None

    def _to_node(self, message: n.HeadMessage) -> None:
        """Send a message as the head does, and read it as gnode does."""

        def unreadable(aside: n.HeadMessage, reason: str) -> None:
            self.faults.append(f"{type(aside).__name__} to a node: {reason}")

        for frame in frames_from_head([message], unreadable):
            self.counts[f"to node: {type(message).__name__}"] += 1
            if n.decode_from_head(frame.payload) != [message]:
                self.faults.append(f"{type(message).__name__} to a node is another one there")
            if self.random.random() < 0.05:
                self._frames = [frame.payload, *self._frames[:50]]

    def _to_head(self, message: n.NodeMessage) -> None:
        """Send a message as gnode does, and read it as the head does."""

        def unreadable(aside: n.NodeMessage, reason: str) -> None:
            self.faults.append(f"{type(aside).__name__} to the head: {reason}")

        for frame in frames_from_node([message], unreadable):
            self.counts[f"to head: {type(message).__name__}"] += 1
            (said,) = n.decode_from_node(frame.payload)
            if said != message:
                self.faults.append(f"{type(message).__name__} to the head is another one there")
            if isinstance(
                said,
                n.Started | n.TrainingProgress | n.Checkpointed | n.CheckpointFailed | StepRequest,
            ):
                self._take(self.head.reported("n1", said, self.now_s))
            if self.random.random() < 0.001:
                self._frames = [frame.payload, *self._frames[:50]]

    # --- inside ---

    def _begin(self) -> None:
        """Start with a new head, so that its jobs do not become more and more."""
        config = settings()
        self.head = Head(state=State({"batch": 0}), settings=config, policy=fifo.plan)
        self._launches = Launches(
            state=self.head.state, blobs=BlobCache(self._blobs.__getitem__), server="head"
        )
        if len(self._blobs) > 1000:
            self._blobs.clear()
        self._frames = [n.encode([registration()])]
        has = inventory(
            cpus=1000,
            gpus=8,
            gpu_memory_bytes=80 * GIB,
            memory_bytes=2**50,
            features=("container", "container-podman"),
            generic={"licence": 2**50},
        )
        said = registration(inventory=has, sharing="interception", probes=True)
        self._take(self.head.registered("n1", said, self.now_s))

    def _running(self) -> tuple[int, int]:
        """Return a running job and its attempt; of none: the first."""
        running = list(self.head.state.running.values())
        if not running:
            return 1, 1
        job = self.random.choice(running)
        return job.id, job.attempts

    def _kept(self, text: str) -> str:
        if not text:
            return ""
        self._blobs[digest := f"{hash(text):x}"] = text.encode()
        return digest

    def _decoded(self, body: bytes, kind: Any) -> Any:
        try:
            return decoded("POST", body, kind)
        except GschedError:
            self.counts["refused: as it entered"] += 1
            return None

    def _changed(self, value: dict[str, Any], times: int) -> bytes:
        """Return JSON in which a few values are wild, whatever their place."""
        marks = {}
        for number in range(times):
            holder, key = self._place(value)
            is_number = isinstance(holder[key], float | int) and self.random.random() < 0.9
            holder[key] = mark = f"@{number}@"
            marks[f'"{mark}"'] = self.random.choice(WILD_NUMBERS if is_number else WILD)
        text = json.dumps(value)
        for old, wild in marks.items():
            text = text.replace(old, wild)
        return text.encode()

    def _place(self, value: Any) -> tuple[Any, Any]:
        """Return a value's holder and its key there, at any depth."""
        while True:
            if isinstance(value, dict):
                key: Any = self.random.choice(list(value))
            else:
                key = self.random.randrange(len(value))
            inner = value[key]
            if not isinstance(inner, dict | list) or not inner or self.random.random() < 0.1:
                return value, key
            value = inner

    def _number(self) -> int:
        most = token_wire.MAX_NUMBER
        return self.random.choice((0, 1, 2**31, 2**53, 2**53 + 1, 2**63, most, most // 3))


def _environment(asked: submissions.SubmitJob) -> str:
    return msgspec.json.encode(asked.environment).decode() if asked.environment else ""


def _message_of(said: wire.TrainingLine, job: int, attempt: int) -> n.NodeMessage | None:
    """Return what gnode makes of a line."""
    if said.progress is not None:
        return wire.progress(job, attempt, said.progress, said.progress.world_sizes)
    if said.checkpointed is not None:
        return wire.checkpointed(job, attempt, said.checkpointed)
    if said.hello is not None and said.hello.saved is not None:
        return wire.checkpointed(job, attempt, said.hello.saved, said.hello.world_sizes)
    if said.checkpoint_failed is not None:
        failed = said.checkpoint_failed
        return n.CheckpointFailed(
            job=job, attempt=attempt, request=failed.request, message=failed.message
        )
    if said.step is not None:
        call = said.step
        return StepRequest(
            job=job, attempt=attempt, step=1, nodes=call.nodes, port=call.port, secret=call.secret
        )
    if said.failed is not None:
        agent = said.failed
        return StepFailed(
            job=job, attempt=attempt, node="n1", origin=agent.origin, step=agent.step,
            message=agent.message,
        )  # fmt: skip
    return None


def _tokens() -> TokenDaemon:
    """Return a token daemon with one job of two processes; it opens no socket."""
    tokens = NodeTokens()
    admission = Admission(
        group="1.1", gpu="0", share_class=ShareClass.LOW, memory_bytes=GIB, secret_hash=""
    )
    tokens.admit(admission)
    for client in (1, 2):
        tokens.join(client, 100 + client, "1.1", 0.0)
    return TokenDaemon(Path(tempfile.gettempdir()), tokens)
