"""A damaged database: each bad row is found and named, and costs nobody else anything."""

import contextlib
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from gsched.errors import BadStateError, GschedError, StorageError
from gsched.model.resources import Load
from gsched.model.states import JobState, PartState
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.step import Step
from gschedd.store.reader import HistoryFilter, Reader
from gschedd.store.scrub import Place
from gschedd.store.sqlite import PURGE_STEP_S
from tests.support.books import Books
from tests.support.invariants import content
from tests.support.orders import orders
from tests.support.world import ADMIN, ALICE, BEGIN_S, inventory

DAY_S = 86400.0


@pytest.fixture
def books(tmp_path: Path) -> Books:
    """Return a head with a store, a node, and a running, a waiting and a finished job."""
    made = Books(tmp_path)
    made.register(cpus=4, gpu_types=("a", "b"))
    done = made.submit(name="done")
    made.schedule()
    made.exit(done)
    made.submit("nodes=1:gpus=1", name="running")
    made.schedule()
    made.submit("nodes=1:ppn=4", name="waiting")
    return made


DONE, RUNNING, WAITING = 1, 2, 3


def spoil(books: Books, statement: str, *values: object) -> None:
    """Change rows behind the head's back, and start the head again."""
    books.store.close()
    database = sqlite3.connect(books.store.path)
    with database:
        database.execute(statement, values)
    database.close()
    books._open()


def says(books: Books, kind: str = "") -> list[str]:
    """Return what a check of all rows finds."""
    reader, found = Reader(books.store.path), list[str]()
    place: Place | None = Place()
    while place is not None:
        damaged, place = reader.check(place)
        found += [str(each) for each in damaged if not kind or each.kind == kind]
    reader.close()
    return found


def registered(books: Books, *reports: n.AttemptReport) -> Step:
    said = n.Register(
        boot_id="boot",
        incarnation="i",
        address="10.0.0.1",
        gnode_version="t",
        inventory=inventory(gpu_types=("a", "b")),
        attempts=reports,
        load=Load(),
    )
    return books.take(books.head.registered("n1", said, books.now_s))


# --- bad rows of jobs that are not done ---


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        ("UPDATE specs SET spec = ? WHERE job = 3", (b"{",)),
        ("UPDATE specs SET spec = replace(spec, 'waiting', 'weiting') WHERE job = 3", ()),
        ("DELETE FROM specs WHERE job = 3", ()),
        ("UPDATE jobs SET submitted_s = submitted_s + 1 WHERE id = 3", ()),
        ("UPDATE jobs SET state = 'quEued' WHERE id = 3", ()),
        ("UPDATE jobs SET holds = 'admin' WHERE id = 3", ()),
        ("UPDATE jobs SET uid = 0, user = 'root' WHERE id = 3", ()),
        ("UPDATE jobs SET seal = seal + 1 WHERE id = 3", ()),
    ],
)
def test_a_bad_row_of_a_job_sets_that_job_aside(
    books: Books, statement: str, values: tuple[object, ...]
) -> None:
    """The head starts, all others are there, and the job's id is neither lost nor used again."""
    others = {number: books.head.state.jobs[number].state for number in (RUNNING,)}

    spoil(books, statement, *values)

    state = books.head.state
    assert {number: job.state for number, job in state.jobs.items()} == others
    assert set(state.damaged) == {WAITING}
    assert books.submit() == WAITING + 1
    assert len(says(books, "job")) == 1
    assert f"job {WAITING}: " in says(books, "job")[0]


def test_what_runs_of_a_damaged_job_is_left_alone(books: Books) -> None:
    """Nothing is stopped or acknowledged, and nothing else is started on its node."""
    spoil(books, "UPDATE attempts SET data = ? WHERE job = 2", b"{}")
    running = n.AttemptReport(job=RUNNING, attempt=1, state=PartState.RUNNING)

    step = registered(books, running)

    assert not [each for each in orders(step) if isinstance(each, n.StopAttempt | n.ExitAck)]
    assert books.head.state.nodes["n1"].drained
    assert "job 2 runs here" in books.head.state.nodes["n1"].reason
    books.schedule()
    assert books.head.state.jobs[WAITING].state is JobState.QUEUED
    started = n.Started(job=RUNNING, attempt=1, pid=1, started_s=1.0)
    assert books.head.reported("n1", started, books.now_s).effects == ()


def test_an_operator_gives_a_damaged_job_up(books: Books) -> None:
    """Its owner is told what is so; after that what runs of it is stopped, and rows are gone."""
    spoil(books, "UPDATE attempts SET data = ? WHERE job = 2", b"{}")
    delete = c.ActOnJob(caller=ALICE, job=RUNNING, action=a.DeleteJob())

    refused = books.head.command(delete, books.now_s).error

    assert isinstance(refused, BadStateError)
    assert "is damaged" in refused.message
    books.take(
        books.head.command(c.ActOnJob(caller=ADMIN, job=RUNNING, action=a.DeleteJob()), books.now_s)
    )
    (fact,) = (fact for fact in books.facts if isinstance(fact, f.JobDiscarded))
    assert (fact.job, fact.by, fact.attempts) == (RUNNING, ADMIN.user, {"n1": 1})
    running = n.AttemptReport(job=RUNNING, attempt=1, state=PartState.RUNNING)
    stops = [each for each in orders(registered(books, running)) if isinstance(each, n.StopAttempt)]
    assert [each.job for each in stops] == [RUNNING], "also where it was away meanwhile"
    books.reopen()
    assert not books.head.state.damaged
    assert says(books) == []


def test_a_node_with_gpus_of_a_damaged_job_takes_no_work(books: Books) -> None:
    """Also where the attempt has ended, or the node knows nothing of it; and not after a resume."""
    spoil(books, "UPDATE attempts SET data = ? WHERE job = 2", b"{}")
    registered(books)
    books.schedule()

    assert books.head.state.nodes["n1"].drained
    assert "owns GPUs" in books.head.state.nodes["n1"].reason
    resume = c.ActOnNode(caller=ADMIN, node="n1", action=a.ResumeNode())
    refused = books.head.command(resume, books.now_s).error
    assert isinstance(refused, BadStateError)
    assert "give it up first: gdel 2" in refused.hint
    step = books.take(
        books.head.command(c.ActOnJob(caller=ADMIN, job=RUNNING, action=a.DeleteJob()), books.now_s)
    )
    assert [each.job for each in orders(step) if isinstance(each, n.StopAttempt)] == [RUNNING]
    books.take(books.head.command(resume, books.now_s))
    books.submit("nodes=1:gpus=2")
    books.take(
        books.head.command(c.ActOnJob(caller=ALICE, job=WAITING, action=a.DeleteJob()), books.now_s)
    )
    books.schedule()
    assert [job.state for job in books.head.state.jobs.values()] == [JobState.RUNNING]


def test_a_retried_submission_of_a_damaged_job_makes_no_second_one(books: Books) -> None:
    """Its client key still stands in its row."""
    job = books.submit(key="again")
    spoil(books, "UPDATE jobs SET queue = 'x' WHERE id = ?", job)

    assert books.submit(key="again") == job


def test_a_bad_row_of_a_node_is_made_anew_when_it_registers(books: Books) -> None:
    """Until then it is not known."""
    spoil(books, "UPDATE nodes SET data = ? WHERE name = 'n1'", b"[]")
    assert "n1" not in books.head.state.nodes

    registered(books, n.AttemptReport(job=RUNNING, attempt=1, state=PartState.RUNNING))

    assert books.head.state.nodes["n1"].inventory.cpus == 4
    assert "it is not known whether it was drained" in books.head.state.nodes["n1"].reason
    assert says(books) == []
    books.take(
        books.head.command(c.ActOnNode(caller=ADMIN, node="n1", action=a.ResumeNode()), books.now_s)
    )
    assert not books.head.state.nodes["n1"].drained


@pytest.mark.parametrize("column", ["name", "user", "queue", "requeue_reason"])
def test_bytes_that_are_no_text_set_only_their_job_aside(books: Books, column: str) -> None:
    """A flipped bit of a letter: the head starts, and lists are complete but for that job."""
    bad = f"UPDATE jobs SET {column} = CAST(x'ff41' AS TEXT) WHERE id = ?"
    spoil(books, bad, WAITING)
    assert set(books.head.state.damaged) == {WAITING}
    spoil(books, bad, DONE)

    _, totals = Reader(books.store.path).history(HistoryFilter())

    assert totals.damaged == (DONE,)
    assert len(says(books, "job")) == 2


def test_a_script_that_has_become_text_is_damaged(books: Books) -> None:
    """One bit of a record's header makes a blob a text."""
    spoil(books, "INSERT INTO blobs (digest, data) VALUES ('00', 'echo')")

    with pytest.raises(StorageError, match="is damaged"):
        Reader(books.store.path).blob("00")
    assert len(says(books, "script")) == 1


# --- bad rows of what is over ---


def test_a_bad_finished_row_costs_the_list_only_that_job(books: Books) -> None:
    """The list names it; asked for by its number, it is said to be damaged."""
    other = books.submit(name="deleted")
    books.take(
        books.head.command(c.ActOnJob(caller=ALICE, job=other, action=a.DeleteJob()), books.now_s)
    )
    spoil(books, "UPDATE jobs SET outcome_data = ? WHERE id = 1", b"{}")
    reader = Reader(books.store.path)

    found, totals = reader.history(HistoryFilter())

    assert [job.id for job in found if isinstance(job, Job)] == [other]
    assert totals.damaged == (DONE,)
    with pytest.raises(StorageError, match="record of job 1 in the head's database is damaged"):
        reader.jobs([DONE])


def test_a_bad_event_costs_a_story_only_that_event(books: Books) -> None:
    """The others are told."""
    before = len(Reader(books.store.path).events(DONE))
    spoil(books, "UPDATE events SET data = ? WHERE job = 1 AND kind = 'PartEnded'", b"{}")

    told = Reader(books.store.path).events(DONE)

    assert before - 1 == len(told)
    assert len(says(books, "event")) == 1


def test_a_script_that_was_changed_is_not_run(books: Books) -> None:
    """Its digest tells."""
    digest = "0" * 64
    spoil(books, "INSERT INTO blobs (digest, data) VALUES (?, ?)", digest, b"rm -rf /")

    with pytest.raises(StorageError, match="is damaged"):
        Reader(books.store.path).blob(digest)
    assert len(says(books, "script")) == 1


def test_a_whole_database_has_no_damage(books: Books) -> None:
    assert says(books) == []
    assert set(books.head.state.jobs) == {RUNNING, WAITING}


# --- damage of the file ---


def flip_bit(chance: random.Random, data: bytearray) -> None:
    """Change one bit."""
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def overwrite_sector(chance: random.Random, data: bytearray) -> None:
    """Overwrite 512 bytes."""
    begin = chance.randrange(len(data) // 512) * 512
    data[begin : begin + 512] = chance.randbytes(512)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("damage", [flip_bit, overwrite_sector])
def test_no_damage_of_the_file_goes_unnoticed(
    books: Books, damage: Callable[[random.Random, bytearray], None], seed: int
) -> None:
    """Refused, or found by row, or it hit what nothing reads: then all is as it was."""
    for number in range(20):
        books.submit(name=f"job-{number}", key=f"key-{number}")
    before = content(books.head.state)
    books.store.close()
    path = Path(books.store.path)
    data = bytearray(path.read_bytes())
    damage(random.Random(seed), data)
    path.write_bytes(data)

    with contextlib.suppress(GschedError):  # the head says what is wrong, and does not start
        books._open()
        found = says(books)
        assert found or content(books.head.state) == before


# --- a clock that is wrong ---


def test_a_clock_years_ahead_does_not_make_everything_old(books: Books) -> None:
    """Time goes on from the last event by two days at a time, however often it is asked."""
    books.reopen()
    ten_years_on_s = books.now_s + 3650 * DAY_S

    first_s = books.store.purge_time_s(ten_years_on_s)
    second_s = books.store.purge_time_s(ten_years_on_s)

    assert first_s == pytest.approx(BEGIN_S + PURGE_STEP_S, abs=60.0)
    assert second_s == pytest.approx(first_s + PURGE_STEP_S)


def test_a_clock_that_is_right_is_followed(books: Books) -> None:
    """Also where the head was away for three days: it catches up."""
    books.reopen()
    now_s = books.now_s + 3 * DAY_S

    assert books.store.purge_time_s(now_s) < now_s
    assert books.store.purge_time_s(now_s + DAY_S) == now_s + DAY_S
    assert books.store.purge_time_s(now_s) == now_s, "set back: nothing is older than it is"
