"""An attempt's journal: half lines and broken ones, space, and what an older version has left."""

import json
import resource
from pathlib import Path

import pytest

from gnode.core.task import AttemptKey
from gnode.daemon.spool import NodeSpool
from gnode.supervisor import journal
from gnode.task import SupervisorInfo, decode
from tests.support import records
from tests.support.agent_driver import record
from tests.unit.test_gnode_spool import a_task

KEY = AttemptKey(1, 1)
STARTED = SupervisorInfo(
    pid=5,
    start_ticks=6,
    job_pid=7,
    job_start_ticks=8,
    started_s=1.0,
    started_boottime_s=2.0,
    stdout_path="/o\udcff",
)
ENDED: dict[str, object] = {"job": 1, "attempt": 1, "kind": "exited", "exit_code": 7}


def made(directory: Path) -> journal.Journal:
    return journal.make_journal(str(directory))


def story(directory: Path) -> journal.Story:
    return journal.read_story(str(directory))


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    lines = made(tmp_path)
    assert (story(tmp_path).begun, story(tmp_path).ended) == (False, None)
    lines.announce_start()
    assert (story(tmp_path).begun, story(tmp_path).may_have_run) == (True, False)
    lines.announce_run()
    assert (story(tmp_path).may_have_run, story(tmp_path).started) == (True, None)
    lines.write_started(STARTED)
    written = lines.write_ended(ENDED)

    found = story(tmp_path)
    assert decode(SupervisorInfo, found.started or b"") == STARTED
    assert found.ended == written
    assert json.loads(written) == ENDED
    assert lines.story().ended == written


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_exit_record_counts_as_none_and_spoils_no_later_one(
    tmp_path: Path, cut: int
) -> None:
    lines = made(tmp_path)
    lines.write_started(STARTED)
    before = (tmp_path / "journal").stat().st_size
    lines.write_ended(ENDED)
    content = (tmp_path / "journal").read_bytes()
    torn = content[: max(before, len(content) - cut)]
    # A machine that lost power may also have the length, but not the content.
    for left in (torn, torn.ljust(len(content), b"\0"), torn.ljust(len(content), b"\0") + b"\n"):
        if left == content:
            continue
        (tmp_path / "journal").write_bytes(left)
        whole = cut == 1 and left == torn  # only the newline is missing
        assert story(tmp_path).ended is None, (cut, left)
        assert story(tmp_path).started is not None
        made(tmp_path).write_ended(ENDED | {"exit_code": 9})
        again = json.loads(story(tmp_path).ended or b"")
        assert again["exit_code"] == (7 if whole else 9)


def test_one_changed_digit_is_noticed(tmp_path: Path) -> None:
    made(tmp_path).write_ended(ENDED)
    content = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(content.replace(b'"exit_code": 7', b'"exit_code": 0'))

    assert story(tmp_path).ended is None


def test_the_first_exit_record_counts(tmp_path: Path) -> None:
    lines = made(tmp_path)
    lines.write_ended(ENDED)
    lines.write_ended(ENDED | {"exit_code": 0})

    assert json.loads(story(tmp_path).ended or b"") == ENDED


def test_orders_are_read_once_whole_and_apart_from_the_other_lines(tmp_path: Path) -> None:
    writer, reader = made(tmp_path), made(tmp_path)
    writer.write_order(b'{"a":1}')
    writer.announce_start()
    assert list(reader.orders()) == [b'{"a":1}']
    writer.write_started(STARTED)
    writer.write_order(b'{"b":2}')
    with (tmp_path / "journal").open("ab") as file:
        file.write(b'\n{"c"')
    assert list(reader.orders()) == [b'{"b":2}']
    writer.write_order(b'{"d":4}')
    writer.write_ended(ENDED)
    assert list(reader.orders()) == [b'{"c"', b'{"d":4}']  # the half one is no JSON: it is logged


def test_orders_before_the_last_signal_sent_are_read_apart(tmp_path: Path) -> None:
    writer, supervisor = made(tmp_path), made(tmp_path)
    writer.write_order(b'{"a":1}')
    writer.write_order(b'{"b":2}')
    list(supervisor.orders())
    writer.write_order(b'{"c":3}')
    supervisor.announce_sent()
    writer.write_order(b'{"d":4}')

    successor = made(tmp_path)
    sent_bytes = story(tmp_path).sent_bytes

    assert list(successor.orders(sent_bytes)) == [b'{"a":1}', b'{"b":2}']
    assert list(successor.orders()) == [b'{"c":3}', b'{"d":4}']


def test_a_line_that_does_not_fit_is_an_error_and_is_written_again(tmp_path: Path) -> None:
    lines = made(tmp_path)
    lines.write_started(STARTED)
    size = (tmp_path / "journal").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
    try:
        with pytest.raises(OSError, match="No space left"):
            lines.write_ended(ENDED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert story(tmp_path).ended is None

    lines.write_ended(ENDED)

    assert json.loads(story(tmp_path).ended or b"") == ENDED


@pytest.fixture
def place(tmp_path: Path) -> NodeSpool:
    node = NodeSpool(str(tmp_path / "state"), str(tmp_path))
    node.prepare()
    return node


def test_a_record_that_the_supervisor_has_told_is_not_read_again(place: NodeSpool) -> None:
    place.write_task(a_task())
    told = place.decoded_exit(KEY, b'{"job":1,"attempt":1,"kind":"exited","exit_code":7}')

    assert told is not None
    assert told.exit_code == 7
    assert place.read_exit(KEY) is None
    place.write_exit(record(code=3))
    assert records.ended(Path(place.directory(KEY))) is not None
