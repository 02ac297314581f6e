"""The monitor's rows of usage: equal to the head's own tables, whatever became of the jobs."""

import sqlite3
from pathlib import Path

import pytest

from gsched.model.arrays import read_spans
from gsched.model.states import LaunchKind, StopReason
from gsched.protocol import actions as a
from gsched.protocol.samples import UseSamples
from gschedd.core.apply.jobs import apply
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from tests.support.books import batch_of
from tests.support.usage import Watched, wrong_reports
from tests.support.world import ALICE, BEGIN_S


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_sums_are_those_of_the_heads_tables(watched: Watched) -> None:
    books = watched.books
    watched.run("nodes=1:ppn=2:gpus=1,walltime=60", account="physics")
    watched.run("nodes=1:ppn=3", code=3)
    waits = books.submit(holds=("user",))
    books.take(
        books.head.command(c.ActOnJob(caller=ALICE, job=waits, action=a.DeleteJob()), books.now_s)
    )
    watched.read()

    assert watched.sums() == watched.sums_of_head() == (3, 20.0, 20.0, 10.0)
    assert watched.rows("attempt, jobs, account, cpus, gpus, gpu_type, cause") == [
        (1, 1, "physics", 2, 1.0, "a100", ""),
        (1, 1, "", 3, 0.0, "", "user program"),
        (0, 1, "", 1, 0.0, "", ""),
    ]


def test_all_events_read_again_give_the_same_rows(watched: Watched) -> None:
    watched.run("nodes=1:gpus=2")
    rerun = watched.books.submit()
    watched.books.schedule()
    watched.read()
    watched.books.exit(rerun)
    watched.read()
    before = watched.rows("*")

    watched.store.empty()
    assert watched.rows("*") == []
    watched.read()

    assert watched.rows("*") == before
    assert len(before) == 2


def test_elements_that_never_were_jobs_count_each(watched: Watched) -> None:
    books = watched.books
    array = books.submit("nodes=1:ppn=1", array="0-9999%6")
    books.schedule()
    drop = c.ActOnJob(caller=ALICE, job=array, action=a.DeleteJob(), elements=read_spans("50-9999"))
    books.take(books.head.command(drop, books.now_s))
    watched.read()

    assert watched.sums()[0] == 9950
    assert watched.rows("wall_s, cause, outcome")[0] == (0.0, "", "cancelled")


def test_a_deadline_is_met_by_a_job_that_succeeds_before_it(watched: Watched) -> None:
    watched.run(deadline_s=BEGIN_S + 1000)
    watched.run(deadline_s=BEGIN_S + 2000, code=1)
    watched.run()
    watched.read()

    assert watched.rows("met") == [(1,), (0,), (None,)]


def test_rows_go_with_the_history(tmp_path: Path) -> None:
    watched = Watched(tmp_path, keep_days=1.0)
    watched.run()
    watched.read()

    for days, left in ((0.5, 1), (2.0, 0)):
        samples = UseSamples(now_s=BEGIN_S + days * 86400, nodes=(), jobs=())
        watched.feed.sample(samples)
        assert len(watched.rows("job")) == left


def test_what_nodes_had_is_known_for_each_time(watched: Watched) -> None:
    books = watched.books
    books.now_s += 100
    books.take(books.head.disconnected("n1", "gone", books.now_s))
    books.now_s += 50
    books.register(cpus=8, gpu_types=("a100",))
    watched.read()

    query = "SELECT since_s, until_s, up, cpus, gpus FROM usage_nodes ORDER BY seq"
    assert watched.store.db.execute(query).fetchall() == [
        (BEGIN_S, BEGIN_S + 100, 1, 4, 2),
        (BEGIN_S + 100, BEGIN_S + 150, 0, 4, 2),
        (BEGIN_S + 150, None, 1, 8, 1),
    ]


def test_the_heads_tables_cannot_be_changed(watched: Watched) -> None:
    with (
        pytest.raises(sqlite3.OperationalError, match="readonly"),
        watched.store.transaction() as db,
    ):
        db.execute("DELETE FROM head.jobs")


def test_each_attempt_of_a_requeued_job_counts_and_the_job_once(watched: Watched) -> None:
    books = watched.books
    job = books.submit("nodes=1:gpus=1")
    books.schedule()
    rerun = c.ActOnJob(caller=ALICE, job=job, action=a.RerunJob())
    books.take(books.head.command(rerun, books.now_s))
    books.exit(job, stopped=StopReason.RERUN, wall_s=30.0)
    watched.read()  # between two attempts
    books.schedule()
    books.exit(job, wall_s=20.0)
    watched.read()

    assert watched.sums() == watched.sums_of_head() == (1, 50.0, 50.0, 50.0)
    assert watched.rows("attempt, jobs, wall_s") == [(1, 0, 30.0), (2, 1, 20.0)]


def test_idle_gpus_are_those_of_their_attempt(watched: Watched) -> None:
    job = watched.run("nodes=1:gpus=1")
    watched.read()
    idled = f.GpusIdled(at_s=BEGIN_S + 10, job=job, attempt=1, idle_s=8.0, returned_s=2.0)
    with watched.store.transaction() as db:
        watched.part.note_events(db, [(100, idled)])

    assert watched.rows("idle_gpu_s, returned_gpu_s") == [(8.0, 2.0)]


def differences(watched: Watched) -> list[str]:
    """Return where reports and bills differ."""
    watched.read()
    rows = watched.books.head.state.usage.rows.values()
    assert rows
    return wrong_reports(rows, Path(watched.books.store.path))


def test_reports_have_what_was_billed_of_a_job_whose_parts_end_at_other_times(
    watched: Watched,
) -> None:
    """The time of the whole allocation counts, as nobody else could have it."""
    books = watched.books
    books.register("n2", cpus=4)
    job = books.submit("nodes=2:ppn=2", account="physics", launch=LaunchKind.TORCHRUN.value)
    books.schedule()
    for node in ("n1", "n2"):
        books.start(job, node)
        books.now_s += 7
    books.exit(job, "n1", wall_s=10.0)
    books.now_s += 20
    books.exit(job, "n2", wall_s=5.0)

    assert differences(watched) == []
    (row,) = books.head.state.usage.rows.values()
    assert row.cpu_s == 4 * 49.0


def test_reports_have_what_was_billed_of_an_attempt_that_another_one_replaced(
    watched: Watched,
) -> None:
    """A head on an old copy finds a newer attempt on a node; the older one ends without a fact."""
    books = watched.books
    job = books.submit("nodes=1:ppn=2:gpus=1", account="physics")
    books.schedule()
    books.start(job)
    attempt = books.head.state.jobs[job].current_attempt
    recovered = f.AttemptRecovered(
        at_s=books.now_s + 100,
        job=job,
        attempt=3,
        allocation=attempt.allocation,
        active=("n1",),
        assigned_s=books.now_s + 60,
        token="t",
        started_s={"n1": books.now_s + 61},
    )
    apply(books.head.state, recovered)
    books.store.commit(batch_of([recovered], books.head.state))
    books.now_s += 200
    books.exit(job, wall_s=40.0)

    assert differences(watched) == []
    assert watched.rows("attempt, wall_s") == [(1, 60.0), (3, 179.0)]
