"""The figures of reports against those that a person counts."""

import re
from pathlib import Path

import pytest
from msgspec import structs

from gsched.cli.show.columns import Column
from gsched.cli.show.report_sections import aligned, csv_lines, text_of
from gsched.cli.show.usage import csv_cell, csv_rows
from gsched.errors import InvalidRequestError
from gsched.protocol import actions as a
from gsched.protocol.reports import PeriodReport
from gsched.protocol.reservations import ReservationChange, ReservationTerms
from gschedd.core.requests import commands as c
from gschedd.monitor.report_page import page_of
from gschedd.monitor.reports import quantile, report_of
from gschedd.monitor.swf import write_swf
from gschedd.monitor.usage_queries import GROUPS, Wanted, held, usage_of
from gschedd.sim.traces import read_trace
from tests.support.usage import Watched
from tests.support.world import ADMIN, ALICE, BEGIN_S

DAY_S = 86400.0


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def whole_day(**changes: str) -> Wanted:
    return Wanted(since_s=BEGIN_S, until_s=BEGIN_S + DAY_S, **changes)


def report(watched: Watched, **changes: str) -> PeriodReport:
    watched.read()
    return report_of(
        watched.store.db,
        whole_day(**changes),
        form="daily",
        server="test",
        now_s=BEGIN_S + 2 * DAY_S,
        behind=0,
    )


def several(watched: Watched) -> None:
    watched.run("nodes=1:ppn=2:gpus=1", account="physics", name="train")
    watched.run("nodes=1:ppn=4", code=3)
    books = watched.books
    waits = books.submit(holds=("user",))
    books.now_s += 5
    delete = c.ActOnJob(caller=ALICE, job=waits, action=a.DeleteJob())
    books.take(books.head.command(delete, books.now_s))


def test_jobs_hours_and_causes_by_group(watched: Watched) -> None:
    several(watched)
    watched.read()
    physics, none, total = usage_of(watched.store.db, whole_day(), "account")

    assert (physics.group, physics.jobs, physics.succeeded) == ("physics", 1, 1)
    assert (none.group, none.jobs, none.failed, none.cancelled) == ("-", 2, 1, 1)
    assert none.causes == {"exit code": 1}
    assert total.cpu_hours == pytest.approx(60 / 3600, abs=1e-4)
    assert total.gpu_hours == pytest.approx(10 / 3600, abs=1e-4)
    assert total.cpu_efficiency == pytest.approx(20 / 60, abs=1e-4)


def test_runs_too_short_to_be_measured_have_no_efficiency(watched: Watched) -> None:
    """Their CPU time has the start of their processes; a longer one counts alone."""
    books = watched.books
    short = books.submit("nodes=1:ppn=1", name="short")
    books.schedule()
    books.exit(short, wall_s=0.0005)
    watched.run("nodes=1:ppn=2", name="long")
    watched.read()
    long, tiny, total = usage_of(watched.store.db, whole_day(), "name")

    assert (long.group, tiny.group, tiny.cpu_efficiency) == ("long", "short", None)
    assert tiny.cpu_hours == pytest.approx(0.0005 / 3600, rel=0.01)
    assert tiny.cpu_hours_used > 0
    assert total.cpu_efficiency == long.cpu_efficiency
    _, line, *_ = csv_rows([tiny])
    assert float(line[5]) == tiny.cpu_hours > 0
    assert report(watched).used[0].cpu == long.cpu_efficiency


@pytest.mark.parametrize("by", list(GROUPS))
def test_each_group_has_all_jobs_once(watched: Watched, by: str) -> None:
    several(watched)
    watched.read()
    *groups, total = usage_of(watched.store.db, whole_day(), by)

    assert sum(each.jobs for each in groups) == total.jobs == 3


def test_an_unknown_group_is_refused(watched: Watched) -> None:
    with pytest.raises(InvalidRequestError, match="unknown group 'x'"):
        usage_of(watched.store.db, whole_day(), "x")


def test_hours_within_a_period_are_those_of_the_time_in_it(watched: Watched) -> None:
    """Of a job that began before, one that ended after, and one that runs."""
    books = watched.books
    long = books.submit("nodes=1:ppn=2:gpus=1")
    books.schedule()
    started_s = books.now_s
    books.exit(long, wall_s=100.0)
    watched.read()
    part = Wanted(since_s=started_s + 20, until_s=started_s + 50)
    (row,) = held(watched.store.db, part, books.now_s).rows

    assert (row.cpu_s, row.gpu_s, row.gpu_type) == (60.0, 30.0, "a100")
    halves = held(watched.store.db, part, books.now_s, steps=2).busy
    assert [(point.cpus, point.gpus) for point in halves] == [(0.5, 0.5), (0.5, 0.5)]
    assert held(watched.store.db, part, books.now_s).offered.cpu_s == 4 * 30


def test_running_jobs_count_until_now(watched: Watched) -> None:
    books = watched.books
    job = books.submit("nodes=1:ppn=2:gpus=2", account="physics")
    books.schedule()
    books.start(job)
    watched.read()
    (row,) = held(watched.store.db, whole_day(), books.now_s + 60).rows

    assert (row.account, row.cpu_s, row.gpu_s) == ("physics", 120.0, 120.0)
    assert row.gpu_type == "a100:1+h100:1"


def test_the_report_of_a_day(watched: Watched) -> None:
    several(watched)
    watched.run("nodes=1:ppn=1", deadline_s=BEGIN_S + 1000)
    found = report(watched)

    assert found.total.jobs == 4
    assert found.offered.cpus == 4
    assert [share.group for share in found.gpu_types] == ["a100"]
    assert found.deadlines is not None
    assert (found.deadlines.met, found.deadlines.missed) == (1, 0)
    assert [(row.cause, row.attempts) for row in found.failures] == [("user program", 1)]
    (wait,) = found.waits
    assert (wait.queue, wait.jobs) == ("batch", 3)
    assert found.used[0].cpu == pytest.approx(30 / 70, abs=1e-4)
    text = text_of(found)
    assert "4 jobs ended: 2 succeeded, 1 failed, 1 cancelled." in text
    assert "Left out: no run had a prediction, no job was migrated" in text
    lines = list(csv_lines(found))
    assert ["failures", "user program", "attempts", "1"] in lines
    for row in found.users:  # whole, and not as they are shown
        assert ["users", row.group, "cpu_hours", str(row.cpu_hours)] in lines
    assert ["waits", "batch", "median_s", str(found.waits[-1].median_s)] in lines
    assert ["offered", "", "cpu_s", str(found.offered.cpu_s)] in lines
    assert {len(line) for line in lines} == {4}


def test_the_report_says_what_preemption_has_cost(watched: Watched) -> None:
    """A job of two GPUs is requeued after a minute, as a reservation begins."""
    books = watched.books
    job = books.submit("nodes=1:ppn=2:gpus=2", account="physics")
    books.schedule()
    books.start(job)
    books.now_s += 60
    terms = ReservationTerms(
        from_s=books.now_s, to_s=books.now_s + 60, node_names=("n1",), users=("bob",)
    )
    change = ReservationChange(verb="create", name="r", terms=terms)
    books.take(books.head.command(c.ChangeReservation(caller=ADMIN, action=change), books.now_s))
    books.take(books.head.tick(books.now_s))
    cost = report(watched).preemptions

    assert cost is not None
    assert (cost.attempts, cost.saved, cost.jobs, cost.users) == (1, 0, 1, 1)
    assert cost.gpu_hours == pytest.approx(2 * 60 / 3600, abs=1e-4)
    assert report(watched, user="nobody").preemptions is None
    assert ["preemptions", "", "gpu_hours", str(cost.gpu_hours)] in list(csv_lines(report(watched)))
    assert books.head.state.jobs[job].preempted_gpu_s == pytest.approx(120)


def test_a_report_of_nothing_says_so(watched: Watched) -> None:
    text = text_of(report(watched, user="nobody"))

    assert "0 jobs ended" in text
    assert "Nodes: 1, with 4 CPUs and 2 GPUs." in text
    assert "no attempt failed." in text


def test_names_cannot_become_formulas(watched: Watched) -> None:
    """In a spreadsheet that opens comma-separated values; numbers stay numbers."""
    for name in ("=1+1", "+1", "-1", "@SUM(A1)", "plain"):
        watched.run(name=name, account=name)
    watched.read()
    lines = csv_rows(usage_of(watched.store.db, whole_day(), "name"))
    assert {line[0] for line in lines[1:]} >= {"'=1+1", "'+1", "'-1", "'@SUM(A1)", "plain"}
    assert lines[0][-1] == "failed_jobs_by_cause"
    accounts = {line[1] for line in csv_lines(report(watched)) if line[0] == "accounts"}
    assert accounts >= {"'=1+1", "'-1", "plain"}
    assert [csv_cell(value) for value in (-0.25, -1, 1e-05, None, "-", "\ta", "a=b", "")] == [
        *("-0.25", "-1", "1e-05", "", "-", "'\ta", "a=b", ""),
    ]


def test_names_cannot_become_markup(watched: Watched) -> None:
    watched.run(account="<script>alert(1)</script>")
    page = page_of(report(watched))

    assert "<script" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("form", ["daily", "weekly"])
def test_the_figure_of_a_day_has_hours_below_it(watched: Watched, form: str) -> None:
    """Or one day would stand there several times."""
    found = structs.replace(report(watched), form=form)
    figure = page_of(found).partition("</svg>")[0]
    labels = re.findall(r">(\d\d:\d\d|[A-Z][a-z]{2} \d\d)</text>", figure)

    assert len(labels) > 3
    assert len(set(labels)) == len(labels)
    assert all(":" in label for label in labels)


def test_quantiles_of_few_values() -> None:
    assert [quantile([1.0], part) for part in (0.5, 0.9)] == [1.0, 1.0]
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0


def test_the_simulator_reads_the_workload_back(watched: Watched, tmp_path: Path) -> None:
    several(watched)
    books = watched.books
    books.now_s += 20
    watched.run("nodes=1:ppn=3,mem=3gb,walltime=600", name="train")
    books.submit("nodes=1", array="0-99")
    watched.read()
    path = tmp_path / "past.swf"
    with path.open("wb") as file:
        write_swf(watched.store.db, whole_day(), "test", file)
    trace = read_trace(str(path))

    text = path.read_text()
    assert text.startswith("; Version: 2.2\n; Computer: test\n")
    assert "; MaxJobs: 4\n" in text
    assert "; Queue: 1 batch\n" in text
    assert trace.malformed == 0
    assert sum(trace.skipped.values()) == 1  # deleted before it started
    assert [(job.cpus, job.duration_s) for job in trace.jobs] == [(2, 10.0), (4, 10.0), (3, 10.0)]
    first, _, last = trace.jobs
    assert last.walltime_s == 600
    assert last.memory_bytes == 3 << 30
    assert (first.kind, first.user) == (last.kind, last.user)
    assert last.submit_s == 45.0


def test_nodes_whose_registration_is_not_known_any_more_count(watched: Watched) -> None:
    watched.run()
    watched.read()
    watched.store.db.execute("DELETE FROM usage_nodes")

    assert report_offered(watched) == (4, 2, 4 * 30.0)


def report_offered(watched: Watched) -> tuple[int, int, float]:
    wanted = Wanted(since_s=BEGIN_S, until_s=BEGIN_S + 30)
    offered = held(watched.store.db, wanted, BEGIN_S + 60).offered
    return offered.cpus, offered.gpus, offered.cpu_s


def test_the_use_of_gpus_counts_where_it_is_measured(watched: Watched) -> None:
    """A node that only declares its GPUs measures nothing: that is not 0 %."""
    watched.run("nodes=1:gpus=1")
    watched.read()

    assert watched.rows("gpu_used_s, gpus") == [(None, 1.0)]
    assert report(watched).used[0].gpu is None


def test_control_characters_of_users_do_not_reach_the_terminal() -> None:
    assert aligned((Column("Account"),), [["a\x1b[31mb"]]) == ["  Account", "  a\\x1b[31mb"]
