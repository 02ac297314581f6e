"""The audit log: requests that change something, and what was refused, with who sent them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.protocol.actions import HoldJob
from gschedd.http.audit import OBJECTS_MAX, REFUSED_MAX
from tests.support.counter import OTHER_USER, Counter, open_counter

Record = dict[str, object]


@pytest.fixture(scope="module")
def counter() -> Iterator[Counter]:
    with open_counter() as made:
        yield made


def records(counter: Counter, verb: str) -> list[Record]:
    text = path_of(counter).read_text(encoding="utf-8")
    found: list[Record] = [json.loads(line) for line in text.splitlines()]
    return [each for each in found if each.get("verb", "") == verb]


def path_of(counter: Counter) -> Path:
    return counter.cluster.state_dir / "audit.log"


def test_changes_have_records_with_their_objects(counter: Counter) -> None:
    job = counter.submit("-h", "--", "true")
    counter.run("gdel", job, "999999")

    (submitted,) = records(counter, "submit")
    (deleted,) = records(counter, "delete")
    assert submitted["done"] == [job]
    assert (submitted["user"], submitted["uid"]) == ("root", os.getuid())
    assert (submitted["request"], submitted["status"]) == ("POST /v1/jobs", 200)
    assert deleted["done"] == [job]
    assert deleted["refused"] == {"999999": "unknown_job"}


def test_what_was_not_permitted_has_a_record_of_who_tried(counter: Counter) -> None:
    job = counter.submit("-h", "--", "true")
    counter.run_as_other("grls", job)
    counter.run_as_other("gsched", "reload")
    counter.run_as_other("gpeek", job)

    (released,) = records(counter, "release")
    (reloaded,) = records(counter, "reload the configuration")
    (read,) = records(counter, "read the output of a job")
    assert released["refused"] == {job: "not_permitted"}
    assert "done" not in released
    assert [each["status"] for each in (released, reloaded, read)] == [200, 403, 403]
    assert {each["user"] for each in (released, reloaded, read)} == {OTHER_USER}


def test_lists_and_ones_own_output_have_none(counter: Counter) -> None:
    before = path_of(counter).read_bytes()
    counter.run("gstat")
    counter.run("gnodes")

    assert path_of(counter).read_bytes() == before


def test_a_flood_of_refusals_is_counted(counter: Counter) -> None:
    job = counter.submit("-h", "--", "true")
    before = len(records(counter, "hold"))
    for _ in range(REFUSED_MAX + 5):
        counter.cluster.head.act(HoldJob(ids=("999999",)))

    assert 0 < len(records(counter, "hold")) - before <= REFUSED_MAX
    counter.run("ghold", job)
    assert records(counter, "hold")[-1]["done"] == [job], "what changes something has a record"


def test_a_record_has_a_bounded_number_of_objects(counter: Counter) -> None:
    jobs = [counter.submit("-h", "--", "true") for _ in range(3)]
    unknown = [str(number) for number in range(900_000, 900_000 + OBJECTS_MAX)]
    counter.run("gdel", *jobs, *unknown)

    record = records(counter, "delete")[-1]
    assert record["done"] == jobs
    refused = record["refused"]
    assert isinstance(refused, dict)
    assert len(refused) == OBJECTS_MAX - 3
    assert record["more"] == 3


def test_a_rotated_file_is_opened_again(counter: Counter) -> None:
    path = path_of(counter)
    os.rename(path, f"{path}.1")
    counter.submit("-h", "--", "true")

    assert len(records(counter, "submit")) == 1
    assert path.stat().st_mode & 0o777 == 0o600
