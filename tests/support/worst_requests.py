"""The requests that cost the head most for their size: shared by tests, benchmark and chaos run.

Each is what one connection sends. None may cost more than work linear in its bytes; those that are
beyond a limit are refused, with a reason, before any work is done for them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gsched.model import limits

WORKDIR: Final = "/tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """One of them.

    Attributes:
        name: what is large in it.
        method, target: of the request.
        make: returns its body; called anew each time, as bodies are large.
        taken: whether a head without nodes takes it; else it refuses it, or each of its jobs.
    """

    name: str
    method: str
    target: str
    make: Callable[[], bytes]
    taken: bool = False


def job(**changes: object) -> dict[str, object]:
    """Return a submission as JSON has it."""
    usual = {"key": "", "name": "worst", "workdir": WORKDIR, "launch": "command"}
    return {**usual, "arguments": ["true"], **changes}


def submission(*jobs: Mapping[str, object], dry_run: bool = True) -> bytes:
    """Return the body of a submission; a dry run by default, so that nothing is queued."""
    return json.dumps({"jobs": jobs, "dry_run": dry_run}, separators=(",", ":")).encode()


def _submit(name: str, make: Callable[[], bytes], *, taken: bool = False) -> Worst:
    return Worst(name=name, method="POST", target="/v1/jobs", make=make, taken=taken)


def _asks(name: str, *texts: Callable[[], str], taken: bool = False) -> Worst:
    def make() -> bytes:
        return submission(job(resources=[text() for text in texts]))

    return _submit(name, make, taken=taken)


def _says(name: str, changes: Callable[[], Mapping[str, object]], *, taken: bool = False) -> Worst:
    return _submit(name, lambda: submission(job(**changes())), taken=taken)


def _act(name: str, request: Callable[[], Mapping[str, object]]) -> Worst:
    return Worst(
        name=name,
        method="POST",
        target="/v1/jobs/actions",
        make=lambda: json.dumps(request()).encode(),
    )


def _query(name: str, target: str, *, taken: bool = False) -> Worst:
    return Worst(name=name, method="GET", target=target, make=bytes, taken=taken)


def distinct_chunks(count: int) -> str:
    """Return a select= of chunks that all differ, so that none can be placed like another."""
    return "select=" + "+".join(f"1:ncpus={1 + i % 4}:mem={1 + i}mb" for i in range(count))


#: Resource lists, as after ``-l``.
RESOURCES: Final = (
    _asks("chunks of nodes=", lambda: "nodes=" + "+".join(["1"] * 10_000) + ",mem=1gb"),
    _asks("two million chunks", lambda: "nodes=" + "+".join(["1"] * 2_000_000)),
    _asks("unknown resource", lambda: "x" * 10_000_000 + "=1"),
    _asks("unknown resources", lambda: ",".join(["gpu=1"] * 2000)),
    _asks("words of a chunk", lambda: "nodes=1:" + ":".join(["a"] * 8000)),
    _asks("value without end", lambda: "mem=" + "9" * 10_000_000),
    _asks("walltime without end", lambda: "walltime=" + "9" * 16_000),
    _asks("walltime of many units", lambda: "walltime=" + "1h" * 8000, taken=True),
    _asks("texts", *[lambda: "mem=1gb"] * 100_000),
    _asks("places", lambda: f"nodes={limits.MAX_PLACES}", taken=True),
    _asks("chunks that all differ", lambda: distinct_chunks(limits.MAX_CHUNKS), taken=True),
    _asks(
        "large chunks that all differ",
        lambda: "+".join(["select=1", *(f"100:ncpus={i}" for i in range(1, 200))]),
        taken=True,
    ),
)

#: What else a submission says.
SUBMISSIONS: Final = (
    _says("job name", lambda: {"name": "x" * 10_000_000}),
    _says("path", lambda: {"stdout_path": "/x" * 5_000_000}),
    _says("argument", lambda: {"arguments": ["x" * 10_000_000]}),
    _says("arguments", lambda: {"arguments": ["x"] * 3_000_000}),
    _says("script", lambda: {"launch": "script", "script": "#" * 15_000_000}),
    _says("escaped script", lambda: {"launch": "script", "script": "\x01" * 2_500_000}, taken=True),
    _says("variables", lambda: {"environment": {f"{i:x}": "" for i in range(1_000_000)}}),
    _says("value of a variable", lambda: {"environment": {"A": "x" * 10_000_000}}),
    _says("holds", lambda: {"holds": ["user"] * 1_000_000}),
    _says("rates", lambda: {"training": {"rates": [[1, 1.5]] * 1_000_000}}),
    _submit("many jobs tried", lambda: submission(*[job()] * limits.MAX_JOBS_PER_REQUEST)),
    _submit("jobs beyond the limit", lambda: submission(*[job()] * 200_000)),
    _submit("nested lists", lambda: b"[" * 1_000_000),
    _submit("a number without end", lambda: b'{"jobs":[' + b"1" * 10_000_000 + b"]}"),
    _submit("a body beyond the limit", lambda: b" " * (limits.MAX_SUBMIT_BYTES + 1)),
)

ACTIONS: Final = (
    _act("ids", lambda: {"action": "delete", "ids": ["1"] * limits.MAX_JOBS_PER_REQUEST}),
    _act("ids beyond the limit", lambda: {"action": "delete", "ids": ["1"] * 150_000}),
    _act("an id", lambda: {"action": "delete", "ids": ["1." + "x" * 500_000]}),
    _act("a message", lambda: {"action": "delete", "ids": ["1"], "message": "x" * 500_000}),
    _act(
        "nodes of a migration", lambda: {"action": "migrate", "ids": ["1"], "nodes": ["n"] * 99_999}
    ),
    _act(
        "a changed resource list",
        lambda: {
            "action": "alter",
            "ids": ["1"],
            "alteration": {"resources": ["nodes=" + "+".join(["1"] * 100_000)]},
        },
    ),
    _act("a body", lambda: {"action": "x" * 2 * limits.MAX_REQUEST_BYTES, "ids": []}),
    Worst(
        name="nodes of an action",
        method="POST",
        target="/v1/nodes/actions",
        make=lambda: json.dumps({"action": "resume", "nodes": ["n"] * 100_000}).encode(),
    ),
)

QUERIES: Final = (
    _query("ids of a query", "/v1/jobs?ids=" + ",".join(["1"] * 3500), taken=True),
    _query(
        "different ids of a query", "/v1/jobs?ids=" + ",".join(map(str, range(1, 1500))), taken=True
    ),
    _query("states of a query", "/v1/jobs?state=" + ",".join(["Q"] * 3500), taken=True),
    _query("a pattern", "/v1/history?name=" + "*a" * 2000),
    _query("ids of the history", "/v1/history?ids=" + ",".join(["1"] * 3500), taken=True),
    _query("all past jobs", "/v1/history?limit=100000", taken=True),
    _query("a number of a query", "/v1/history?limit=" + "9" * 7000),
)

WORST: Final = (*RESOURCES, *SUBMISSIONS, *ACTIONS, *QUERIES)
