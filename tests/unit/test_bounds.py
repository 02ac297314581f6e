"""The worst requests cost work that is bounded, whatever is large in them.

Work is counted in calls of Python functions, as `sys.setprofile` sees them, so that no test depends
on how fast a machine is.
"""

import sys
from collections.abc import Callable
from types import FrameType

import msgspec
import pytest

from gsched.errors import BadResourceError, GschedError
from gsched.model import limits
from gsched.model.request import parse_resources
from gsched.protocol import actions as a
from gsched.protocol import submissions
from gschedd.core.requests import commands as c
from tests.support.world import ALICE, BEGIN_S, World, node
from tests.support.worst_requests import RESOURCES, SUBMISSIONS, Worst

#: What reading and refusing the worst of them may take; an ordinary one takes some hundred.
MOST_CALLS = 100_000
MOST_ANSWER = 2_000


class _TooMuchError(Exception):
    pass


def calls_of(work: Callable[[], object], most: int = MOST_CALLS) -> int:
    """Return how many functions ``work`` calls; raise as soon as it is more than ``most``."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        if event in {"call", "c_call"}:
            count += 1
            if count > most:
                raise _TooMuchError(f"more than {most} calls")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def by_name(worst: Worst) -> str:
    return worst.name.replace(" ", "-")


def try_out(world: World, request: submissions.SubmitRequest) -> list[str]:
    """Try to submit the first jobs of a request; return the refusals."""
    refusals: list[str] = []
    for job in request.jobs[: limits.MAX_DRY_RUN_JOBS]:
        command = c.Submit(caller=ALICE, submitted=job, digests=("", ""))
        error = world.head.command(command, BEGIN_S).error
        if error is not None:
            refusals.append(f"{error.message} {error.hint}")
    return refusals


@pytest.mark.parametrize("worst", [*RESOURCES, *SUBMISSIONS], ids=by_name)
def test_the_worst_submissions_cost_bounded_work(worst: Worst) -> None:
    """It was 13 s for 20 KB: the sum of all chunks anew for each chunk."""
    world = World(*(node(f"n{number}", cpus=8, gpus=1) for number in range(16)))
    body = worst.make()
    try:
        request = msgspec.json.decode(body, type=submissions.SubmitRequest)
    except (msgspec.DecodeError, RecursionError):
        return
    refusals: list[str] = []

    calls = calls_of(lambda: refusals.extend(try_out(world, request)))

    assert calls < MOST_CALLS
    assert all(len(text) < MOST_ANSWER for text in refusals)


def test_many_unknown_resources_of_which_a_site_only_warns_cost_bounded_work() -> None:
    """Each is compared with all known names."""
    text = ",".join(f"gpu{i}=1" for i in range(limits.MAX_RESOURCE_TERMS))

    def read() -> None:
        parse_resources((text,), generic_names=(), warn_unknown=True)

    assert calls_of(read, most=20 * MOST_CALLS) < 20 * MOST_CALLS


def test_reading_a_resource_list_costs_work_linear_in_its_chunks() -> None:
    """Twice the chunks are at most a little more than twice the work."""

    def read(chunks: int) -> int:
        text = "nodes=" + "+".join(["1"] * chunks) + ",mem=1gb"
        return calls_of(lambda: parse_resources((text,), generic_names=()))

    few, many = read(limits.MAX_CHUNKS // 2), read(limits.MAX_CHUNKS)

    assert many < 2.2 * few


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes=" + "+".join(["1"] * (limits.MAX_CHUNKS + 1)), "257 chunks; the limit is 256"),
        (
            "nodes=1:" + ":".join(["a"] * limits.MAX_CHUNK_WORDS),
            "65 words in one chunk; the limit is 64",
        ),
        ("x" * (limits.MAX_RESOURCE_TEXT + 1), "the limit is 16384 characters in 64 texts"),
        ("mem=1gb," * 256, "257 terms; the limit is 256"),
        ("x" * 10_000 + "=1", "(10000 characters)"),
        ("nodes=1:" + "f" * 256, "invalid node count, host or feature"),
        ("select=1:host=" + "h" * 256, "has 256 characters; the limit is 255"),
    ],
)
def test_a_resource_list_beyond_a_limit_is_refused_with_that(text: str, words: str) -> None:
    with pytest.raises(BadResourceError) as refused:
        parse_resources((text,), generic_names=())

    assert words in refused.value.message
    assert len(refused.value.message) < MOST_ANSWER


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workdir": "/" * 4097}, "workdir has 4097 characters; the limit is 4096"),
        ({"account": "x" * 256}, "account has 256 characters"),
        ({"key": "k" * 256}, "key has 256 characters"),
        ({"arguments": ("x",) * 10_001}, "10001 arguments; the limit is 10000"),
        ({"arguments": ("\u00e4" * 600_000,)}, "the arguments have 1200000 bytes"),
        ({"environment": {str(i): "" for i in range(10_001)}}, "10001 variables"),
        ({"environment": {"A": "\u00e4" * 600_000}}, "the environment has 1200001 bytes"),
        ({"script": "\u00e4" * 4_200_000, "launch": "script"}, "more than 8388608 bytes"),
        ({"holds": ("user",) * 4}, "4 holds; the limit is 3"),
    ],
)
def test_a_submission_beyond_a_limit_is_refused_with_that(
    changes: dict[str, object], words: str
) -> None:
    world = World()
    fields = {"key": "", "name": "x", "workdir": "/", "launch": "command", "arguments": ("true",)}
    job = msgspec.convert({**fields, **changes}, submissions.SubmitJob)
    error = world.head.command(
        c.Submit(caller=ALICE, submitted=job, digests=("", "")), BEGIN_S
    ).error

    assert isinstance(error, GschedError)
    assert words in error.message


def test_a_refusal_holds_no_frames() -> None:
    """Those of 10,000 refusals in one request kept the garbage collector busy for 90 ms."""
    head = World().head
    command = c.ActOnJob(caller=ALICE, job=1, action=a.DeleteJob(message="", grace_s=None))

    for step in (head.command(command, BEGIN_S), head.preview(command, BEGIN_S)):
        assert step.error is not None
        assert step.error.__traceback__ is None
