"""The history of what jobs cost: every value is kept, scored, learned again, and purged."""

import sqlite3
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct, structs

from gsched.protocol import actions as a
from gschedd.core.requests import commands as c
from gschedd.core.state.learning import Kinds, Loads
from gschedd.core.state.settings import Caller
from gschedd.core.state.step import Run
from gschedd.http.predictions import prediction_row
from gschedd.models.robust import RobustModel
from gschedd.plan.load import Basis, Kind, NodeRates, Prediction, Use
from gschedd.store.history import COLUMNS, Scored, run_from_row, run_row, spreads
from gschedd.store.purge import DAY_S, SLICE, Keep, Kept, Purged, beyond, purge_blobs
from gschedd.store.reader import HistoryFilter, Reader
from gschedd.store.seals import seal
from gschedd.store.sqlite import Store
from tests.support import runs
from tests.support.books import Books, batch_of
from tests.support.world import ALICE, submission

FULL = Run(
    job=7,
    attempt=2,
    record=structs.replace(
        runs.run(
            Kind(
                key="1:kind:a",
                program="1:name:b",
                owner_uid=1,
                cpus=2,
                gpus=3,
                memory_bytes=4,
                walltime_s=5.5,
            ),
            succeeded=False,
        ),
        rates=NodeRates(
            cores=0.5,
            memory_bytes=7,
            core_rate=1.1,
            gpus=4,
            gpu_rate=0.3,
            gpu_memory_bytes=8,
        ),
        wall_s=1 / 3,
        used=Use(cpu_cores=0.1, memory_bytes=11, gpus=0.7, gpu_memory_bytes=13),
        cpu_peak_cores=2.2,
        memory_peak_bytes=14,
        gpu_memory_peak_bytes=15,
        read_bytes=16,
        write_bytes=17,
    ),
    prediction=Prediction(
        use=Use(cpu_cores=21, memory_bytes=22, gpus=23, gpu_memory_bytes=24),
        high=Use(cpu_cores=31, memory_bytes=32, gpus=33, gpu_memory_bytes=34),
        basis=Basis.OWNER,
        wall_s=25.0,
        wall_high_s=35.0,
        records=6,
    ),
)


def defaults_in(value: Struct) -> list[str]:
    """Return the fields, at any depth, that still have their default: they would prove nothing."""
    found: list[str] = []
    for field in structs.fields(value):
        inner = getattr(value, field.name)
        if isinstance(inner, Struct):
            found.extend(f"{field.name}.{name}" for name in defaults_in(inner))
        elif inner == field.default:
            found.append(field.name)
    return found


def table(path: str) -> list[tuple[object, ...]]:
    """Return what is in the history, by job."""
    db = sqlite3.connect(path)
    found = db.execute("SELECT job, attempt, node, basis FROM history ORDER BY id").fetchall()
    db.close()
    return found


@pytest.fixture
def books(tmp_path: Path) -> Books:
    """Return a head that learns, with a node of four CPUs."""
    made = Books(tmp_path, make_model=RobustModel)
    made.register(cpus=4)
    return made


def run_one(books: Books, wall_s: float = 10.0, **changes: object) -> int:
    """Run a job to its end."""
    job = books.submit("ncpus=1", **changes)
    books.schedule()
    books.exit(job, wall_s=wall_s)
    return job


# --- rows ---


def test_a_row_keeps_every_value(books: Books) -> None:
    """To the last bit, so that what is learned again is what was learned; none is left out."""
    assert defaults_in(FULL) == []
    books.store.commit(batch_of([], books.head.state, runs=[FULL]))

    assert books.store.newest_runs(1) == [FULL]


def test_a_run_without_a_prediction_is_kept_too() -> None:
    """Nothing was learned when it was assigned, say."""
    plain = structs.replace(FULL, prediction=None)

    assert run_from_row(run_row(plain)) == plain


def test_the_columns_are_those_of_the_table(books: Books) -> None:
    """All of them but the row's number and checksum, in one order or another."""
    db = sqlite3.connect(books.store.path)
    names = {row[1] for row in db.execute("PRAGMA table_info(history)")}
    db.close()

    assert names == {"id", "seal", *COLUMNS}


def test_rows_are_written_with_the_facts(books: Books) -> None:
    """One for each attempt and node that ended, beside what had been said of it."""
    first, second = run_one(books), run_one(books)

    assert table(books.store.path) == [(first, 1, "n1", "requested"), (second, 1, "n1", "kind")]
    (run,) = books.store.newest_runs(1)
    assert run.record.wall_s == 10
    assert run.prediction is not None
    assert run.prediction.wall_s == pytest.approx(10)


def test_a_part_of_a_commit_that_fails_is_not_there(books: Books) -> None:
    """Facts and rows are one transaction."""
    job = books.submit("ncpus=1")
    books.schedule()
    books.store._db.execute("CREATE TRIGGER no BEFORE INSERT ON attempts BEGIN SELECT 1/0; END")
    books.store._db.execute("DROP TABLE usage")
    before = books.store._db.execute("SELECT count(*) FROM events").fetchone()

    with pytest.raises(Exception, match="usage"):
        books.exit(job)

    books.store._db.execute("ROLLBACK")
    assert table(books.store.path) == []
    assert books.store._db.execute("SELECT count(*) FROM events").fetchone() == before


def test_a_head_that_does_not_learn_writes_no_history(tmp_path: Path) -> None:
    """And keeps no prediction."""
    books = Books(tmp_path)
    books.register(cpus=4)
    job = books.submit("ncpus=1")
    books.schedule()
    attempt = books.head.state.jobs[job].attempt
    books.exit(job)

    assert table(books.store.path) == []
    assert attempt is not None
    assert attempt.parts["n1"].prediction is None


def test_a_job_that_was_stopped_says_nothing(books: Books) -> None:
    """Its run time is its user's doing."""
    job = books.submit("ncpus=1")
    books.schedule()
    books.take(
        books.head.command(c.ActOnJob(caller=ALICE, job=job, action=a.DeleteJob()), books.now_s)
    )

    assert table(books.store.path) == []


# --- learning again ---


def test_a_restarted_head_predicts_what_it_did_before(books: Books) -> None:
    """Exactly, also of kinds it has never seen: all that it knew it has learned again."""
    for number in range(40):
        run_one(books, wall_s=10.0 + number % 7, kind=f"kind{number % 3}")
    job = books.submit("ncpus=1", kind="kind1")
    other = books.submit("ncpus=2", kind="never")

    def said() -> list[Prediction]:
        state, model = books.head.state, books.head.model
        assert model is not None
        load = structs.replace(Loads(state)["n1"], running=0)
        return [model.predict(Kinds(state)[each], load, books.now_s) for each in (job, other)]

    before = said()
    books.reopen()

    assert said() == before
    assert before[0].records == 13
    assert before[1].basis is Basis.PROGRAM


def test_predictions_of_running_jobs_outlive_a_restart(books: Books) -> None:
    """They are part of the attempt; its row has them when it ends."""
    run_one(books, wall_s=30)
    job = books.submit("ncpus=1")
    books.schedule()
    books.reopen()
    attempt = books.head.state.jobs[job].attempt
    assert attempt is not None
    kept = attempt.parts["n1"].prediction
    books.exit(job)

    assert kept is not None
    assert kept.wall_s == pytest.approx(30)
    assert books.store.newest_runs(1)[0].prediction == kept


def test_only_the_newest_runs_are_learned_again(books: Books) -> None:
    """In the order in which they were learned."""
    jobs = [run_one(books) for _ in range(5)]

    assert [run.job for run in books.store.newest_runs(3)] == jobs[2:]


# --- scores ---


def test_a_prediction_is_scored_against_what_was_measured(books: Books) -> None:
    """(predicted - measured) / measured; nothing to compare where both are none."""
    run_one(books, wall_s=20)
    job = run_one(books, wall_s=40)

    found, total, totals = Reader(books.store.path).scored(HistoryFilter(limit=1))

    assert [each.run.job for each in found] == [job]
    cpu, memory, gpu, gpu_memory, wall = found[0].errors
    assert (found[0].user, found[0].name) == ("alice", "job")
    assert cpu == pytest.approx(0.0)
    assert (memory, gpu, gpu_memory) == (None, None, None)
    assert wall == pytest.approx(-0.5)
    assert total == 2
    assert totals[4] is not None
    assert totals[4].runs == 1, "nothing was known of the first one's run time"
    assert totals[4].median == pytest.approx(0.5)


def test_filters_choose_the_runs_of_jobs(books: Books) -> None:
    """As they choose jobs; a job that is named need not be done."""
    wanted = run_one(books, name="wanted")
    run_one(books, name="other")
    reader = Reader(books.store.path)

    found, total, _ = reader.scored(HistoryFilter(name="want*"))
    assert ([each.run.job for each in found], total) == ([wanted], 1)
    assert reader.scored(HistoryFilter(user="bob"))[1] == 0
    assert reader.scored(HistoryFilter(ids=(wanted, 99)))[1] == 1
    assert reader.scored(HistoryFilter(failed=True))[1] == 0


def test_the_errors_on_each_node(books: Books) -> None:
    """Of its newest runs."""
    books.register("n2", cpus=4)
    for wall_s in (10.0, 10.0, 20.0):
        run_one(books, wall_s=wall_s)

    found = Reader(books.store.path).node_spreads(["n1", "n2", "n3"])

    used = [each for each in found.values() if each[4] is not None]
    assert sum(each[4].runs for each in used if each[4] is not None) == 2
    assert found["n3"] == (None,) * 5


def test_spreads_are_by_rank_and_without_sign() -> None:
    """The median and the value that nine in ten do not exceed."""
    rows = [((-1) ** n * n / 10, None, None, None, None) for n in range(1, 11)]

    (cpu, *rest) = spreads(rows)

    assert cpu is not None
    assert (cpu.runs, cpu.median, cpu.p90) == (10, 0.5, 0.9)
    assert rest == [None] * 4


def test_another_users_kind_is_nobodys_business() -> None:
    """It names programs; all else is told to everybody."""
    scored = Scored(run=FULL, user="alice", name="train", errors=(None,) * 5)
    uid = FULL.record.kind.owner_uid

    shown = [
        prediction_row(scored, Caller(user=user, uid=each, gid=each, operator=operator)).kind
        for user, each, operator in (
            ("alice", uid, False),
            ("bob", uid + 1, False),
            ("bob", uid + 1, True),
        )
    ]

    assert shown == [FULL.record.kind.key, "", FULL.record.kind.key]


# --- retention ---


def test_nothing_is_purged_without_being_told(books: Books) -> None:
    """0 keeps all."""
    run_one(books)

    assert books.store.purge(Keep(), books.now_s + 1e9) == Purged()
    assert len(table(books.store.path)) == 1


def test_the_history_is_kept_for_a_time_and_in_a_number(books: Books) -> None:
    """Whatever is less; jobs stay."""
    jobs = [run_one(books, wall_s=DAY_S) for _ in range(6)]

    assert books.store.purge(Keep(days=3.5), books.now_s).runs == 2
    assert [row[0] for row in table(books.store.path)] == jobs[2:]
    assert books.store.purge(Keep(rows=3), books.now_s).runs == 1
    assert [row[0] for row in table(books.store.path)] == jobs[3:]
    found, _ = Reader(books.store.path).history(HistoryFilter())
    assert len(found) == len(jobs)


def test_nothing_is_an_orphan_while_a_spec_is_damaged(books: Books) -> None:
    """Nobody knows which script and which code its job needs; the head is not to stop for it."""
    run_one(books)
    ended = run_one(books)
    db = sqlite3.connect(books.store.path)
    with db:
        db.execute("INSERT INTO blobs (digest, data) VALUES ('d', 'of nobody')")
        db.execute("UPDATE specs SET spec = 'x' WHERE job = ?", (ended,))

    assert books.store.code_in_use() is None
    assert purge_blobs(db) == 0
    with db:
        db.execute("DELETE FROM specs WHERE job = ?", (ended,))
    assert books.store.code_in_use() == set()
    assert purge_blobs(db) == 1
    db.close()


def test_a_purge_goes_slice_by_slice(books: Books) -> None:
    """So that no commit waits long."""
    many = [structs.replace(FULL, job=number) for number in range(SLICE + 5)]
    books.store.commit(batch_of([], books.head.state, runs=many))

    first = books.store.purge(Keep(days=1), FULL.record.ended_s + 2 * DAY_S)
    second = books.store.purge(Keep(days=1), FULL.record.ended_s + 2 * DAY_S)

    assert (first.runs, first.more) == (SLICE, True)
    assert (second.runs, second.more) == (5, False)


def test_purging_everything_touches_no_id_and_no_live_job(books: Books) -> None:
    """The next id is new, keys of live jobs give the same job, what runs goes on and ends."""
    for _ in range(3):
        run_one(books)
    ended = run_one(books, key="ended")
    running = books.submit("ncpus=1", key="running")
    books.schedule()
    waiting = books.submit("ncpus=4", key="waiting")
    far_s = books.now_s + 1000 * DAY_S

    purged = books.store.purge(Keep(days=1, rows=1, jobs_days=1), far_s)

    assert (purged.runs, purged.jobs) == (4, 4)
    assert purged.events == 1, "that the node registered"
    books.reopen()
    assert books.opened.behind == "", "the mark is not ahead of what is left"
    assert sorted(books.head.state.jobs) == [running, waiting]
    for key, job in (("running", running), ("waiting", waiting)):
        asked = submission(key=key)
        step = books.head.command(
            c.Submit(caller=ALICE, submitted=asked, digests=("", "")), books.now_s
        )
        assert (step.job, step.facts) == (job, ())
    assert books.submit("ncpus=1") == waiting + 1
    books.exit(running)
    reader = Reader(books.store.path)
    assert [job.id for job in reader.jobs([ended, running])] == [running]
    assert reader.jobs([running])[0].outcome is not None
    assert reader.events(running), "its story is whole"


def test_the_newest_finished_jobs_of_each_user_are_kept(books: Books) -> None:
    """Others' jobs, and those that wait or run, do not count."""
    first, second, third = (run_one(books) for _ in range(3))
    db = sqlite3.connect(books.store.path)
    db.execute("UPDATE jobs SET uid = uid + 1, seal = NULL WHERE id = ?", (first,))
    db.commit()
    waiting = books.submit()

    kept = [books.store.next_user(uid) for uid in (-1, ALICE.uid, ALICE.uid + 1)]
    assert kept[0] is not None
    count = beyond(kept[0], Keep(jobs_per_user=1))
    removed = books.store.purge_user(ALICE.uid, count)

    left = [row[0] for row in db.execute("SELECT id FROM jobs ORDER BY id")]
    events = [row[0] for row in db.execute("SELECT count(*) FROM events WHERE job = ?", (second,))]
    db.close()
    assert [each and (each.uid, each.finished) for each in kept] == [
        *((ALICE.uid, 2), (ALICE.uid + 1, 1)),
        None,
    ]
    assert (count, removed) == (1, 1)
    assert left == [first, third, waiting]
    assert events == [0]


def test_texts_beyond_their_bytes_take_the_same_part_of_the_jobs_along() -> None:
    """A third too much: a third of the finished jobs goes, or what their number demands."""
    kept = Kept(uid=1, finished=90, text_bytes=600)

    assert beyond(kept, Keep(text_bytes_per_user=400)) == 30
    assert beyond(kept, Keep(text_bytes_per_user=400, jobs_per_user=50)) == 40
    assert beyond(kept, Keep(text_bytes_per_user=600, jobs_per_user=90)) == 0
    assert beyond(kept, Keep()) == 0


def test_the_database_counts_the_texts_of_each_user_once(books: Books) -> None:
    """By who brought them first."""
    for digests in (("s1", "e1"), ("s1", "e2")):
        command = c.Submit(caller=ALICE, submitted=submission(), digests=digests)
        texts = {digest: digest.encode() * 10 for digest in digests}
        books.take(books.head.command(command, books.now_s), texts)

    reader = Reader(books.store.path)

    assert (reader.text_bytes(ALICE.uid), reader.text_bytes(ALICE.uid + 1)) == (60, 0)


def test_an_empty_database_still_knows_its_numbers(books: Books) -> None:
    """With every job and event gone it is not behind its mark, and goes on where it was."""
    job = run_one(books)

    books.store.purge(Keep(days=1, jobs_days=1), books.now_s + 1000 * DAY_S)

    db = sqlite3.connect(books.store.path)
    for name in ("events", "jobs", "specs", "attempts", "history"):
        assert db.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,), name
    db.close()
    books.reopen()
    assert books.opened.behind == ""
    assert books.submit() == job + 1


def test_scripts_go_with_the_last_job_that_has_them(books: Books) -> None:
    """Not before, and not those of jobs that wait."""

    def submit(script: str, environment: str) -> int:
        command = c.Submit(caller=ALICE, submitted=submission(), digests=(script, environment))
        blobs = {script: script.encode(), environment: environment.encode()}
        return books.take(books.head.command(command, books.now_s), blobs).job

    for job in (submit("s1", "e1"), submit("s2", "e2")):
        books.schedule()
        books.exit(job)
    submit("s2", "e3")

    books.store.purge(Keep(jobs_days=1), books.now_s + 1000 * DAY_S)

    db = sqlite3.connect(books.store.path)
    left = {row[0] for row in db.execute("SELECT digest FROM blobs")}
    db.close()
    assert left == {"s2", "e3"}


def test_facts_of_before_predictions_read_as_they_did(books: Books) -> None:
    """An attempt without the field is one without a prediction."""
    job = books.submit("ncpus=1")
    books.schedule()
    store: Store = books.store
    *values, data = store._db.execute("SELECT job, attempt, state, data FROM attempts").fetchone()
    attempt = msgspec.json.decode(data)
    del attempt["parts"]["n1"]["prediction"]
    old = msgspec.json.encode(attempt)
    store._db.execute("UPDATE attempts SET data = ?, seal = ?", (old, seal((*values, old))))
    books.reopen()
    books.exit(job)

    assert books.store.newest_runs(1)[0].prediction is None
