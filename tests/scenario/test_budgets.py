"""Budgets: GPU-hours that users, projects, queues and QOS may use in a day, a week or a month."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from msgspec import convert

from gsched.config.shares import ProjectConfig, QosConfig, SharesConfig
from gsched.config.tables import LimitsConfig, QueueConfig
from gsched.errors import InvalidRequestError
from gsched.model.resources import percent_held
from gschedd.core.cycle.run import limit_room, snapshot
from gschedd.core.forecast.start import AskStart, answer_to
from gschedd.core.requests.queues import reconfigure
from gschedd.plan.budgets import DAY_MS, DAY_S, PERIODS
from gschedd.plan.limits import GPU_HOUR, KINDS, Party
from tests.support.world import BEGIN_S, BOB, World, node, settings

HOUR_S = 3600.0
Keys = Mapping[str, object]


def world(
    *,
    over_budget: str = "wait",
    projects: Keys | None = None,
    qos: tuple[str, ...] = (),
    **tables: object,
) -> World:
    """Return a node with 8 GPUs and budgets."""
    named = {name: {"name": name, **convert(keys, dict)} for name, keys in (projects or {}).items()}
    config = settings(
        limits=convert(tables, LimitsConfig),
        projects=convert(named, dict[str, ProjectConfig]),
        queues={name: QueueConfig(name=name) for name in ("batch", "gpu")},
        qos={name: QosConfig(name=name) for name in qos},
        shares=convert({"over_budget": over_budget}, SharesConfig),
    )
    return World(node("n1", cpus=16, gpus=8), config=config)


def gpus(count: int, hours: float) -> str:
    """Return a request."""
    return f"nodes=1:ppn=1:gpus={count},walltime={round(hours * HOUR_S)}"


def used(here: World, party: Party, key: str = "max_gpu_hours_per_day") -> float:
    """Return the GPU-hours that count of a budget."""
    room = limit_room(here.head.state, here.now_s)
    assert room is not None
    found = {room.used(each) for each in room.rules.bounds(party) if each.kind.key == key}
    assert len(found) == 1
    return found.pop() / GPU_HOUR


@pytest.mark.parametrize(
    ("period", "begins"),
    [
        ("per_day", "2023-11-15"),
        ("per_week", "2023-11-20"),
        ("per_month", "2023-12-01"),
        ("per_30_days", "2023-12-14"),
    ],
)
def test_a_job_that_waits_for_a_budget_is_predicted_to_start_with_its_next_period(
    period: str, begins: str
) -> None:
    """The reason names the day."""
    here = world(each_user={f"max_gpu_hours_{period}": 10})
    here.submit(gpus(8, 1), runs_s=HOUR_S)
    here.run_until(1.1 * HOUR_S)
    jobs = [here.submit(gpus(1, hours), runs_s=hours * HOUR_S) for hours in (3, 4, 5)]
    state = here.head.state
    asked = [
        AskStart(
            seen=snapshot(state, here.settings, here.now_s, None),
            job=job,
            key=state.order_key(state.jobs[job]),
        )
        for job in jobs
    ]
    starts_s = [answer_to(each, here.policy).starts[each.job].start_s for each in asked]
    named = "" if period == "per_30_days" else f"; the next {period[4:]} begins on {begins} (UTC)"

    assert here.why(jobs[0]).endswith(f"; this job needs 3{named}")
    here.run_until(70 * DAY_S)
    assert [here.started_s(job) for job in jobs] == [start - BEGIN_S for start in starts_s if start]
    first = datetime.fromtimestamp(starts_s[0] or 0.0, tz=UTC)
    assert first.isoformat() == f"{begins}T00:00:00+00:00"


def test_a_job_that_a_budget_has_no_time_for_waits_until_the_next_period() -> None:
    """It counts with its walltime while it runs, and with what it has used once it has ended."""
    here = world(each_user={"max_gpu_hours_per_week": 10})
    here.submit(gpus(4, 2), runs_s=HOUR_S)
    waits = here.submit(gpus(1, 3), runs_s=HOUR_S)
    others = here.submit(gpus(1, 3), runs_s=60, by=BOB)
    assert here.why(waits).startswith(
        "alice uses 8 of 10 GPU-hours per week, the limit of each user; this job needs 3"
    )
    assert here.started_s(others) == 0

    here.run_until(HOUR_S)  # 4 of 10 are used
    assert here.started_s(waits) == HOUR_S
    here.run_until(3 * HOUR_S)
    assert used(here, Party("batch", "alice"), "max_gpu_hours_per_week") == 5.0
    later = here.submit(gpus(2, 3), runs_s=HOUR_S)
    here.run_until(7 * DAY_S)

    begun_s = here.started_s(later)
    assert begun_s is not None
    begun = datetime.fromtimestamp(BEGIN_S + begun_s, tz=UTC)
    assert begun.strftime("%a %H:%M") == "Mon 00:00"


def test_a_budget_is_exact_after_a_restart_and_a_reload() -> None:
    """What was used counts at once, also where the budget is new, in each scope."""
    here = world(qos=("urgent",))
    here.submit(gpus(2, 2), runs_s=1234.5, account="ai", queue="gpu", qos="urgent")
    here.run_until(2000)
    here.submit(gpus(3, 2), runs_s=9999, account="ai")
    here.run_until(3000)
    table = {"max_gpu_hours_per_week": 100}
    config = world(
        total=table,
        each_user=table,
        projects={"ai": {"total": table, "users": ["alice"]}},
        qos=("urgent",),
    ).settings

    reconfigure(here.head.state, config, here.settings)
    here.settings = here.head.settings = config
    expected = (2 * 1234.5 + 3 * 7200) / HOUR_S
    for again in (False, True):
        if again:
            here.restart_head()
        found = used(here, Party("gpu", "alice", "ai", "urgent"), "max_gpu_hours_per_week")
        for bound in here.head.state.limits.rules.bounds(Party("batch", "alice", "ai")):
            room = limit_room(here.head.state, here.now_s)
            assert room is not None
            assert room.used(bound) / GPU_HOUR == pytest.approx(expected, abs=1e-9), bound
        assert found == pytest.approx(expected, abs=1e-9)


def test_a_budget_refuses_a_job_where_the_site_wants_it() -> None:
    """In a sentence with use, limit and whose it is; a job above the whole budget always."""
    here = world(over_budget="refuse", each_user={"max_gpu_hours_per_month": 10})
    here.submit(gpus(4, 2), runs_s=60)
    with pytest.raises(InvalidRequestError) as refused:
        here.submit(gpus(1, 3))
    assert refused.value.message == (
        "the job requests 3 GPU-hours per month; alice has used 8 of 10, the limit of each user"
    )
    here.run_until(60)
    here.submit(gpus(1, 3))
    for gentle in (here, world(each_user={"max_gpu_hours_per_month": 10})):
        with pytest.raises(InvalidRequestError, match="the limit of each user is 10"):
            gentle.submit(gpus(8, 2))
        with pytest.raises(InvalidRequestError, match="the job has no walltime"):
            gentle.submit("nodes=1:ppn=1:gpus=1")
        gentle.submit("nodes=1:ppn=1")


def test_a_job_beyond_its_walltime_and_one_without_count_what_they_use() -> None:
    """They started before there was a budget, or end late."""
    here = world()
    here.submit("nodes=1:ppn=1:gpus=2", runs_s=1e6)
    here.run_until(HOUR_S)
    config = world(total={"max_gpu_hours_per_day": 5}).settings
    reconfigure(here.head.state, config, here.settings)
    here.settings = here.head.settings = config

    assert used(here, Party("batch", "alice")) == pytest.approx(2.0)
    waits = here.submit(gpus(1, 4), runs_s=60)
    assert here.started_s(waits) is None
    here.run_until(1.5 * HOUR_S)
    assert used(here, Party("batch", "alice")) == pytest.approx(3.0)


@pytest.mark.parametrize("seed", range(8))
def test_use_is_that_of_all_attempts_in_the_period(seed: int) -> None:
    """Compared with the sum over all that ran, over weeks, for every period and restart."""
    rng = random.Random(seed)
    here = world(total={kind.key: 1e6 for kind in KINDS if kind.counter in PERIODS})
    jobs = []
    for _ in range(60):
        runs_s = rng.uniform(1, 2.5 * DAY_S)
        jobs.append(here.submit(gpus(rng.randint(1, 4), 60), runs_s=runs_s))
        here.run_for(rng.uniform(0, 1.3 * DAY_S))
        if rng.random() < 0.2:
            here.restart_head()
    here.run_for(rng.uniform(0, DAY_S))

    room = limit_room(here.head.state, here.now_s)
    assert room is not None
    for bound in room.rules.bounds(Party("batch", "alice")):
        begin_ms = PERIODS[bound.counter](int(here.now_s // DAY_S)) * DAY_MS
        total = 0
        for job in map(here.job, jobs):
            attempt = job.attempt if job.id in here.head.state.running else None
            if attempt is not None and attempt.started_s is not None:
                since_ms, end_ms = round(attempt.started_s * 1000), None
                end_ms = since_ms + round(60 * HOUR_S * 1000)
                percent = percent_held(attempt.allocation)
                total += percent * max(0, end_ms - max(since_ms, begin_ms))
        spent = sum(
            amount
            for row in here.head.state.usage.rows.values()
            for day, places in row.gpu_ms.items()
            if day * DAY_MS >= begin_ms
            for amount in places.values()
        )
        assert room.used(bound) == total + spent
    billed = sum(sum(row.gpu_s.values()) for row in here.head.state.usage.rows.values())
    kept = sum(
        amount
        for row in here.head.state.usage.rows.values()
        for places in row.gpu_ms.values()
        for amount in places.values()
    )
    if here.elapsed_s < 31 * DAY_S:
        assert kept / 100_000 == pytest.approx(billed, abs=0.01 * len(jobs))


@pytest.mark.parametrize(
    ("counter", "begin"),
    [
        ("gpu_time per day", "2026-11-26"),
        ("gpu_time per week", "2026-11-23"),
        ("gpu_time per month", "2026-11-01"),
        ("gpu_time per 30 days", "2026-10-28"),
    ],
)
def test_periods_begin_with_a_day_in_utc(counter: str, begin: str) -> None:
    """Of Thursday, 26 November 2026."""
    day = int(datetime(2026, 11, 26, 15, tzinfo=UTC).timestamp() // DAY_S)
    found = datetime.fromtimestamp(PERIODS[counter](day) * DAY_S, tz=UTC)
    assert found.strftime("%Y-%m-%d") == begin
