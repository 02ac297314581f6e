"""Torque's accounting records: what usual tools read, each once, whatever is killed."""

import re
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from gsched.model.states import StopReason
from gsched.protocol import actions as a
from gsched.protocol.samples import UseSamples
from gschedd.core.requests import commands as c
from tests.support.usage import Watched
from tests.support.world import ALICE, BEGIN_S

DAY_S = 86400.0
_LINE = re.compile(r"(\d\d/\d\d/\d{4} \d\d:\d\d:\d\d);([QSEDAR]);(\d+(?:\[\d*\])?\.\S+);(.*)")


class Record(NamedTuple):
    """A line as pbsacct takes it apart: at ``;``, then at blanks and the first ``=``."""

    at: str
    kind: str
    job: str
    values: dict[str, str]


def read(directory: Path) -> list[Record]:
    found = []
    for path in sorted((directory / "accounting").iterdir()):
        for line in path.read_text().splitlines():
            match = _LINE.fullmatch(line)
            assert match is not None, line
            at, kind, job, text = match.groups()
            pairs = (word.partition("=")[::2] for word in text.split())
            found.append(Record(at, kind, job, dict(pairs)))
    return found


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path, accounting=True)


def write(watched: Watched) -> None:
    watched.read()
    watched.feed.sample(UseSamples(now_s=watched.books.now_s, nodes=(), jobs=()))


def delete(watched: Watched, job: int) -> None:
    command = c.ActOnJob(caller=ALICE, job=job, action=a.DeleteJob())
    watched.books.take(watched.books.head.command(command, watched.books.now_s))


def test_a_job_is_queued_started_and_ended(watched: Watched, tmp_path: Path) -> None:
    books = watched.books
    job = books.submit("nodes=1:ppn=2:gpus=1,walltime=1:00:00", account="my project", name="train")
    books.now_s += 30
    books.schedule()
    books.start(job)
    books.exit(job, code=3, wall_s=3661.0)
    write(watched)
    queued, started, ended = read(tmp_path)

    assert [each.kind for each in (queued, started, ended)] == ["Q", "S", "E"]
    assert queued.job == "1.test"
    assert queued.values == {"queue": "batch"}
    assert ended.values["user"] == "alice"
    assert ended.values["account"] == "my_project"
    assert ended.values["jobname"] == "train"
    assert ended.values["exec_host"] == "n1/0+n1/1"
    assert ended.values["exec_gpus"] == "n1-gpu/0"
    assert ended.values["Resource_List.walltime"] == "01:00:00"
    assert ended.values["Resource_List.nodes"].startswith("1:ppn=2")
    assert ended.values["Exit_status"] == "3"
    assert ended.values["resources_used.walltime"] == "01:01:01"
    assert ended.values["resources_used.cput"] == "01:01:01"
    assert int(ended.values["start"]) == BEGIN_S + 30
    assert int(ended.values["end"]) == BEGIN_S + 30 + 3661
    assert set(started.values) < set(ended.values)
    moment = time.strptime(ended.at, "%m/%d/%Y %H:%M:%S")
    assert time.mktime(moment) == BEGIN_S + 30 + 3661


def test_deleted_requeued_and_short_jobs(watched: Watched, tmp_path: Path) -> None:
    """One that waited, one that ran, one that was requeued, and one whose start nobody saw."""
    books = watched.books
    delete(watched, books.submit(holds=("user",)))
    runs = books.submit()
    books.schedule()
    books.start(runs)
    delete(watched, runs)
    books.exit(runs, stopped=StopReason.DELETE)
    again = books.submit()
    books.schedule()
    books.start(again)
    rerun = c.ActOnJob(caller=ALICE, job=again, action=a.RerunJob())
    books.take(books.head.command(rerun, books.now_s))
    books.exit(again, stopped=StopReason.RERUN, wall_s=7.0)
    books.schedule()
    books.exit(again, wall_s=5.0)
    write(watched)
    kinds = {job: "".join(r.kind for r in read(tmp_path) if r.job == job) for job in
             ("1.test", "2.test", "3.test")}  # fmt: skip

    assert kinds == {"1.test": "QD", "2.test": "QSDE", "3.test": "QSRSE"}
    used = [r.values["resources_used.walltime"] for r in read(tmp_path) if r.kind in "ER"]
    assert used == ["00:00:10", "00:00:07", "00:00:05"]


def test_each_element_of_an_array_has_records(watched: Watched, tmp_path: Path) -> None:
    books = watched.books
    books.submit("nodes=1:ppn=1", array="0-1")
    books.schedule()
    for number in sorted(books.head.state.running):
        books.start(number)
        books.exit(number)
    write(watched)
    found = [(record.kind, record.job) for record in read(tmp_path)]

    assert [job for kind, job in found if kind == "Q"] == ["1[].test", "1[0].test", "1[1].test"]
    assert [job for kind, job in found if kind == "E"] == ["1[0].test", "1[1].test"]


def test_a_kill_while_a_file_is_written_repeats_nothing(watched: Watched, tmp_path: Path) -> None:
    """The transaction is lost, and the file holds all of the records, or a part of one."""
    for _ in range(3):
        watched.run()
    watched.read()
    with watched.store.transaction() as db:
        watched.accounting.write(db)
        (path,) = (tmp_path / "accounting").iterdir()
        whole = path.read_bytes()
        db.execute("ROLLBACK")
        db.execute("BEGIN")

    for kept in (len(whole), len(whole) - 10, 5, 0):
        path.write_bytes(whole[:kept])
        with watched.store.transaction() as db:
            watched.accounting.write(db)
            db.execute("ROLLBACK")
            db.execute("BEGIN")
        assert path.read_bytes() == whole, kept
    write(watched)
    assert path.read_bytes() == whole
    write(watched)
    assert path.read_bytes() == whole


def test_events_that_are_read_again_are_recorded_once(watched: Watched, tmp_path: Path) -> None:
    watched.run()
    write(watched)
    before = read(tmp_path)
    watched.store.empty()
    watched.books.now_s += 5
    watched.run()
    write(watched)

    assert read(tmp_path)[: len(before)] == before
    assert [record.job for record in read(tmp_path)[len(before) :]] == ["2.test"] * 3


def test_a_new_database_goes_on_after_the_last_record(watched: Watched, tmp_path: Path) -> None:
    watched.run()
    write(watched)
    before = read(tmp_path)
    watched.store.empty()
    for table in ("accounting", "accounting_last", "accounting_files", "accounting_begun"):
        watched.store.db.execute(f"DELETE FROM {table}")
    watched.books.now_s += 5
    watched.run()
    write(watched)

    assert [record.job for record in read(tmp_path)[len(before) :]] == ["2.test"] * 3


def test_each_day_has_a_file(watched: Watched, tmp_path: Path) -> None:
    watched.run()
    watched.books.now_s += DAY_S
    watched.run()
    write(watched)

    names = [path.name for path in sorted((tmp_path / "accounting").iterdir())]
    days = (time.localtime(BEGIN_S), time.localtime(BEGIN_S + DAY_S))
    assert names == [time.strftime("%Y%m%d", day) for day in days]


def test_records_wait_while_files_cannot_be_written(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "accounting").write_text("no directory")
    watched.run()
    write(watched)
    (tmp_path / "accounting").unlink()
    write(watched)

    assert len(read(tmp_path)) == 3


def test_names_cannot_forge_records(watched: Watched, tmp_path: Path) -> None:
    watched.run(account="x user=bob;E;9.test")
    write(watched)

    assert {record.job for record in read(tmp_path)} == {"1.test"}
    assert {r.values["user"] for r in read(tmp_path) if r.kind == "E"} == {"alice"}


def test_separators_of_a_record_are_replaced_in_values(watched: Watched, tmp_path: Path) -> None:
    """Readers split a line at each semicolon, and its values at blanks."""
    watched.run(account="a;b c")
    write(watched)

    assert {r.values["account"] for r in read(tmp_path) if r.kind in "SE"} == {"a_b_c"}
