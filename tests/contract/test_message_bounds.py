"""No number from a user or a job is larger where it enters than where a message carries it.

All of it follows from the types, so that a new field is covered by itself.
"""

from collections.abc import Iterator
from typing import get_args

import msgspec
import msgspec.inspect as mi
import pytest
from msgspec import Struct

from gnode.gpushare.memory_book import MemoryBook
from gnode.gpushare.node_tokens import Admission, NodeTokens
from gnode.gpushare.tokens import Tokens
from gsched.errors import InvalidRequestError
from gsched.model.job import JobSpec
from gsched.model.limits import MAX_CHECKPOINT_INTERVAL_S
from gsched.model.numbers import MAX_NUMBER
from gsched.model.resources import Load
from gsched.model.states import ShareClass
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gsched.protocol import submissions
from gsched.protocol.training import TrainingLine
from tests.support.world import World, node

#: What users and jobs send: submissions, actions, and lines on the sockets of nodes.
ENTRIES: tuple[type[Struct], ...] = (
    submissions.SubmitJob,
    a.Alteration,
    *a.JOB_ACTIONS,
    *get_args(a.AnyNodeAction),
    TrainingLine,
)
MESSAGES: tuple[type[Struct], ...] = (*get_args(n.HeadMessage), *get_args(n.NodeMessage))
#: Structs of messages that hold what their user stated, field by field under the same name.
CARRIERS: tuple[type[Struct], ...] = (
    *(n.Launch, JobSpec, n.StopAttempt, n.Signal, n.Retime, n.TakeCheckpoint, n.TuneTraining),
)
Bound = tuple[float, float]


def bound_of(found: mi.Type) -> Bound | None:
    """Return the least and the largest number of a type; None: it is not bounded."""
    assert isinstance(found, mi.IntType | mi.FloatType)
    least = found.ge if found.ge is not None else found.gt
    most = found.le if found.le is not None else found.lt
    return None if least is None or most is None else (least, most)


def numbers(found: mi.Type, path: str, outer: frozenset[type]) -> Iterator[tuple[str, mi.Type]]:
    """Yield all numbers in a type with their paths."""
    if isinstance(found, mi.IntType | mi.FloatType):
        yield path, found
    elif isinstance(found, mi.StructType):
        if found.cls not in outer:
            for field in found.fields:
                yield from numbers(field.type, f"{path}.{field.name}", outer | {found.cls})
    else:
        for each in inside(found):
            yield from numbers(each, f"{path}[]", outer)


def inside(found: mi.Type) -> tuple[mi.Type, ...]:
    """Return the types of which one is made, other than a struct."""
    match found:
        case mi.UnionType():
            return found.types
        case mi.TupleType():
            return found.item_types
        case mi.VarTupleType() | mi.ListType():
            return (found.item_type,)
        case mi.DictType():
            return (found.key_type, found.value_type)
        case mi.Metadata():
            return (found.type,)
        case _:
            return ()


def plain_numbers(kind: type[Struct]) -> dict[str, Bound | None]:
    """Return the fields of a struct that are one number, perhaps None, with their bounds."""
    found = mi.type_info(kind)
    assert isinstance(found, mi.StructType)
    fields: dict[str, Bound | None] = {}
    for field in found.fields:
        types = field.type.types if isinstance(field.type, mi.UnionType) else (field.type,)
        for each in types:
            if isinstance(each, mi.IntType | mi.FloatType):
                fields[field.name] = bound_of(each)
    return fields


@pytest.mark.parametrize("kind", [*ENTRIES, *MESSAGES], ids=lambda kind: kind.__name__)
def test_each_number_of_a_request_and_of_a_message_has_a_bound(kind: type[Struct]) -> None:
    """Beyond 2**53 and 1e300 JSON readers differ, and infinity becomes null."""
    without = [
        path
        for path, found in numbers(mi.type_info(kind), kind.__name__, frozenset())
        if bound_of(found) is None
    ]
    assert not without


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda kind: kind.__name__)
def test_no_bound_of_entry_is_wider_than_that_of_the_message(entry: type[Struct]) -> None:
    entering = plain_numbers(entry)
    wider = {
        f"{carrier.__name__}.{name}": (entering[name], bound)
        for carrier in CARRIERS
        for name, bound in plain_numbers(carrier).items()
        if name in entering and not _within(entering[name], bound)
    }
    assert not wider


def _within(inner: Bound | None, outer: Bound | None) -> bool:
    if outer is None:
        return True
    return inner is not None and outer[0] <= inner[0] and inner[1] <= outer[1]


def test_the_comparison_finds_the_fields_that_reach_a_launch() -> None:
    """Else the test above would compare nothing."""
    entering, carried = plain_numbers(submissions.SubmitJob), plain_numbers(JobSpec)
    assert {"checkpoint_interval_s", "grace_s", "umask"} <= entering.keys() & carried.keys()
    assert not _within((0.0, 1e301), carried["checkpoint_interval_s"])


@pytest.mark.parametrize("interval_s", [1e301, 1e300, 1.7e308, MAX_CHECKPOINT_INTERVAL_S + 1, 0.5])
def test_an_interval_of_checkpoints_beyond_a_year_is_refused(interval_s: float) -> None:
    world = World(node("n1"))
    with pytest.raises(InvalidRequestError, match="is not possible"):
        world.submit(movable=True, checkpoint_interval_s=interval_s)


@pytest.mark.parametrize("number", [1e301, -1e301, "1e400", 2**2000])
def test_a_number_beyond_all_bounds_is_refused_as_it_enters(number: float | str) -> None:
    text = f'{{"key":"","name":"x","workdir":"/","checkpoint_interval_s":{number}}}'
    with pytest.raises(msgspec.ValidationError, match="checkpoint_interval_s"):
        msgspec.json.decode(text, type=submissions.SubmitJob)


def test_what_a_job_says_on_the_token_socket_stays_within_what_the_head_reads() -> None:
    """Each number on that socket has 64 bits, and sums of them stay for the daemon's life."""
    tokens = NodeTokens(memory=MemoryBook(context_bytes=2**30))
    group = "1.1"
    tokens.admit(
        Admission(
            group=group,
            gpu="0",
            share_class=ShareClass.LOW,
            memory_bytes=2**30,
            secret_hash="",
        )
    )
    for client in (1, 2):
        tokens.join(client, 100 + client, group, 0.0)
        for _ in range(3):
            tokens.stat(client, 2**64 - 1, 2**64 - 1)
            tokens.memory.reserve(group, client, 2**64 - 1, forced=True)
    assert tokens.launches[group] == tokens.unhooked_symbols == MAX_NUMBER
    assert tokens.memory.used_bytes(group) == MAX_NUMBER


def test_what_an_older_token_daemon_counts_is_reported_within_what_the_head_reads() -> None:
    row = {"gpu": "0", "held_s": 1.0, "launches": 2**60, "overlaps": 2**60, "used_bytes": 2**70}
    row |= {"refused_allocations": 2**60, "demoted": False, "pids": []}
    gpu = {"holder": "", "grants": 2**60, "preemptions": 2**60, "drains": 2**60}
    gpu |= {"drain_s_max": 1.0, "drain_s_sum": 1.0, "overlaps": 2**60}
    metrics = {"groups": {"1.1": row}, "gpus": {"0": gpu}, "unhooked_symbols": 2**60}

    report = Tokens(metrics, restarts=0).report("w", {"0": 0})

    said = n.Heartbeat(load=Load(), usage=(), gpu_sharing=report)
    assert n.decode_from_node(n.encode([said])) == [said]
    assert report.jobs[0].launches == report.unhooked_symbols == MAX_NUMBER
