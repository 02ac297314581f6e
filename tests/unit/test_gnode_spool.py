"""The node's directory: what is written is found again, and removal never follows a link."""

import os
import stat
from pathlib import Path

import pytest

from gnode.core.effects import AcceptTask
from gnode.core.mark import HeadMark
from gnode.core.task import AcceptedTask, AttemptKey, StopCommand
from gnode.daemon import spool
from gnode.daemon.spool import NodeSpool
from gnode.daemon.trees import TreeRemoval
from gnode.supervisor import journal
from gsched.errors import CannotWriteError, ConfigError, TryAgainError
from gsched.model.states import StopReason
from tests.support.agent_driver import Driver, only, order, record

KEY = AttemptKey(1, 1)


@pytest.fixture
def place(tmp_path: Path) -> NodeSpool:
    made = NodeSpool(str(tmp_path / "state"), str(tmp_path))
    made.prepare()
    return made


def a_task() -> AcceptedTask:
    return only(Driver().launch(order()), AcceptTask)[0].task


def test_a_task_is_found_as_it_was_written(place: NodeSpool) -> None:
    task = a_task()
    place.write_task(task)

    found = place.look(KEY)

    assert place.attempts() == [KEY]
    assert (found.task, found.info, found.record) == (task, None, None)
    assert Path(place.directory(KEY)).stat().st_mode & 0o777 == 0o700


def test_an_exit_record_is_found_as_it_was_written(place: NodeSpool) -> None:
    place.write_task(a_task())
    place.write_exit(record(code=7))

    assert place.read_exit(KEY) == record(code=7)
    assert sorted(os.listdir(place.directory(KEY))) == ["journal", "task.json"]


def test_a_half_written_record_counts_as_none(place: NodeSpool) -> None:
    place.write_task(a_task())
    with Path(place.directory(KEY), "journal").open("ab") as file:
        file.write(b'\nstarted {"pid":')
        file.write(b'\nended 00000000 {"job":1')

    found = place.look(KEY)

    assert (found.info, found.record) == (None, None)


def test_a_half_written_task_counts_as_none(place: NodeSpool) -> None:
    """gnode was killed while it accepted the attempt."""
    place.write_task(a_task())
    path = Path(place.directory(KEY), "task.json")
    content = path.read_bytes()
    for length in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert place.look(KEY).task is None


def test_only_an_exit_record_that_is_not_there_counts_as_absent(place: NodeSpool) -> None:
    place.write_task(a_task())
    assert (place.look(KEY).record, place.look(KEY).doubt) == (None, "")
    place.write_exit(record(code=7))
    exit_file = Path(place.directory(KEY), "journal")
    second = Path(place.state_dir, "backup")
    os.link(exit_file, second)

    found = place.look(KEY)
    assert found.record is None
    assert "hard link" in found.doubt
    with pytest.raises(OSError, match="hard link"):
        place.read_exit(KEY)

    second.unlink()
    found = place.look(KEY)
    assert (found.record, found.doubt) == (record(code=7), "")


def test_a_record_that_the_system_cannot_read_is_no_fault_of_the_others(place: NodeSpool) -> None:
    place.write_task(a_task())
    path = os.path.join(place.directory(KEY), "journal")
    os.unlink(path)
    os.mknod(path, stat.S_IFSOCK | 0o600)  # opening it fails: ENXIO

    found = place.look(KEY)

    assert (found.task, found.info, found.record) == (a_task(), None, None)
    assert "No such device" in found.doubt


def test_marks_that_others_could_have_written_are_refused_in_words(place: NodeSpool) -> None:
    place.write_mark(HeadMark(cluster="c", epoch=4))
    os.link(Path(place.state_dir, "head.json"), Path(place.state_dir, "backup"))

    with pytest.raises(ConfigError, match=r"head\.json cannot be used.*hard link"):
        place.read_mark()


def test_commands_are_lines_in_the_supervisors_words(place: NodeSpool) -> None:
    place.write_task(a_task())
    place.append_command(KEY, StopCommand(reason=StopReason.DELETE, grace_s=3.0))
    place.append_command(KEY, StopCommand(reason=StopReason.FENCED, grace_s=0.0))

    orders = journal.open_journal(place.directory(KEY)).orders()

    assert list(orders) == [
        b'{"do":"stop","reason":"delete","grace_s":3.0}',
        b'{"do":"stop","reason":"fenced","grace_s":0.0}',
    ]


def test_the_mark_is_kept_and_a_broken_one_starts_anew(place: NodeSpool) -> None:
    assert place.read_mark() == HeadMark()
    place.write_mark(HeadMark(cluster="c", epoch=4, highest_job=9))
    assert place.read_mark() == HeadMark(cluster="c", epoch=4, highest_job=9)
    Path(place.state_dir, "head.json").write_bytes(b"{")
    assert place.read_mark() == HeadMark()


def test_an_attempt_with_unknown_files_is_removed_whole(place: NodeSpool) -> None:
    place.write_task(a_task())
    Path(place.directory(KEY), "task.json.tmp").touch()

    left = place.remove(KEY)

    assert left == place.directory(KEY)
    TreeRemoval(left).work(100)
    assert place.attempts() == []


def test_set_aside_keeps_what_was_set_aside_before(place: NodeSpool) -> None:
    for _ in range(2):
        Path(place.attempts_dir, "odd").mkdir()
        assert place.attempts() == []

    assert sorted(os.listdir(Path(place.state_dir, "lost+found"))) == ["odd", "odd~1"]


def test_c19_the_lock_has_one_owner_and_names_it(place: NodeSpool) -> None:
    held = spool.lock(place.state_dir)
    try:
        with pytest.raises(TryAgainError, match=f"process {os.getpid()}"):
            spool.lock(place.state_dir)
    finally:
        os.close(held)
    os.close(spool.lock(place.state_dir))


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(CannotWriteError, match="file/state"):
        NodeSpool(str(tmp_path / "file" / "state")).prepare()


def test_the_space_of_the_exit_record_and_of_orders_is_reserved_before_the_job_starts(
    place: NodeSpool,
) -> None:
    place.write_task(a_task())

    status = os.stat(os.path.join(place.directory(KEY), "journal"))

    assert status.st_size == 0
    assert status.st_blocks * 512 >= 3 * 4096
