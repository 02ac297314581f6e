"""The check of histories of jobs, with histories that are known to be good and bad."""

import math
from itertools import pairwise

import pytest

from scripts.reproduce.failover_history import MODEL, Operation, is_linearizable, violations


def history(*rows: tuple[str, str, float, float]) -> list[Operation]:
    """Return operations of job 1: verb, result, call and answer."""
    return [
        Operation(job="1", verb=verb, result=result, begun_s=begun_s, ended_s=ended_s)
        for verb, result, begun_s, ended_s in rows
    ]


GOOD = {
    "nothing": history(),
    "a whole life": history(
        ("submit", "held", 0, 1),
        ("read", "held", 2, 3),
        ("release", "ok", 4, 5),
        ("start", "ok", 4, 6),
        ("read", "running", 7, 8),
        ("outcome", "ok", 9, 10),
        ("read", "done", 11, 12),
    ),
    "a start before the answer to the submission": history(
        ("start", "ok", 0, 1), ("submit", "queued", 0, 5)
    ),
    "a hold and a start at once, the start first": history(
        ("submit", "queued", 0, 1),
        ("hold", "ok", 2, 6),
        ("start", "ok", 2, 6),
        ("read", "running", 7, 8),
    ),
    "a submission without an answer that was done": history(
        ("submit", "", 0, math.inf), ("read", "queued", 5, 6)
    ),
    "a submission without an answer that was not done": history(
        ("submit", "", 0, math.inf), ("read", "absent", 5, 6)
    ),
    "a deletion without an answer that took effect late": history(
        ("submit", "held", 0, 1),
        ("delete", "", 2, math.inf),
        ("read", "held", 8, 9),
        ("read", "done", 10, 11),
    ),
    "a deletion of a running job": history(
        ("submit", "queued", 0, 1),
        ("start", "ok", 1, 2),
        ("delete", "ok", 3, 4),
        ("read", "running", 5, 6),
        ("outcome", "ok", 7, 8),
        ("hold", "refused", 9, 10),
    ),
    "reads at once that see both states": history(
        ("submit", "held", 0, 1),
        ("release", "ok", 2, 9),
        ("read", "queued", 3, 4),
        ("read", "queued", 5, 6),
        ("read", "held", 2, 8),
    ),
}
BAD = {
    "an acknowledged submission is lost": history(
        ("submit", "queued", 0, 1), ("read", "absent", 2, 3)
    ),
    "there twice": history(("submit", "queued", 0, 1), ("submit", "queued", 2, 3)),
    "started twice": history(
        ("submit", "queued", 0, 1), ("start", "ok", 2, 3), ("start", "ok", 4, 5)
    ),
    "started after it was deleted": history(
        ("submit", "queued", 0, 1), ("delete", "ok", 2, 3), ("start", "ok", 4, 5)
    ),
    "started while held": history(
        ("submit", "queued", 0, 1), ("hold", "ok", 2, 3), ("start", "ok", 4, 5)
    ),
    "an acknowledged hold is lost": history(
        ("submit", "queued", 0, 1), ("hold", "ok", 2, 3), ("read", "queued", 4, 5)
    ),
    "a read goes back in time": history(
        ("submit", "held", 0, 1),
        ("release", "ok", 2, 9),
        ("read", "queued", 3, 4),
        ("read", "held", 5, 6),
    ),
    "an outcome is lost": history(
        ("submit", "queued", 0, 1),
        ("start", "ok", 2, 3),
        ("outcome", "ok", 4, 5),
        ("read", "running", 6, 7),
    ),
    "ended before it was started": history(
        ("submit", "queued", 0, 1), ("outcome", "ok", 2, 3), ("start", "ok", 4, 5)
    ),
    "a deletion without an answer that came and went": history(
        ("submit", "held", 0, 1),
        ("delete", "", 2, math.inf),
        ("read", "done", 8, 9),
        ("read", "held", 10, 11),
    ),
    "known before it was submitted": history(("read", "queued", 0, 1), ("submit", "queued", 2, 3)),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_history_that_can_have_happened_is_linearizable(name: str) -> None:
    assert is_linearizable(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_a_history_that_cannot_have_happened_is_not(name: str) -> None:
    assert not is_linearizable(BAD[name])


def test_jobs_are_looked_at_one_by_one() -> None:
    bad = [
        Operation(job="2", verb=each.verb, result=each.result, begun_s=each.begun_s, ended_s=e)
        for each in BAD["started twice"]
        for e in (each.ended_s,)
    ]
    found = violations([*GOOD["a whole life"], *bad])
    assert list(found) == ["2"]
    assert [each.verb for each in found["2"]] == ["submit", "start", "start"]


def test_many_operations_at_once_do_not_take_for_ever() -> None:
    reads = [("read", "held", 2.0, 50.0)] * 40
    holds = [("hold", "ok", 2.0, 50.0)] * 20
    lost = [("hold", "", 2.0, math.inf)] * 10
    life = history(("submit", "held", 0.0, 1.0), *reads, *holds, *lost)
    assert is_linearizable(life)


def test_no_job_comes_back_from_its_end() -> None:
    after = {new for changes in MODEL.values() for old, new in changes.items() if old == "done"}
    assert after == {"done"}
    for first, second in pairwise(["absent", "queued", "running", "done"]):
        assert any(changes.get(first) == second for changes in MODEL.values())
