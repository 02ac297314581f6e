"""Lists of jobs on the head: in columns they are as in rows, and others get their turn."""

import asyncio
import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

import msgspec
import pytest
from msgspec import structs

from gsched.cli.show.joblist import plain_list, terminal_list
from gsched.config.shares import PriorityConfig
from gsched.errors import InvalidRequestError
from gsched.model.ids import array_of
from gsched.model.states import JobState
from gsched.protocol.columns import with_rows
from gsched.protocol.job_rows import JobColumns, JobList, JobRow
from gschedd.core.state.records import Job
from gschedd.core.views.jobs import JobViews
from gschedd.core.views.lines import KEEP_AFTER_S, JobLines
from gschedd.http import kept_slices, lists
from gschedd.http.filters import states_of
from gschedd.http.kept_slices import KeptSlices
from gschedd.http.lists import JOBS_PER_LOOK, ROWS_PER_SLICE, Choice, first_of
from gschedd.http.pace import PIECE_S, Pace
from gschedd.plan.snapshot import OrderKey
from tests.support.world import ALICE, BOB, World, node, settings

MANY = ROWS_PER_SLICE + 150
LOOKS = 5
OWNERS = {each.user: each for each in (ALICE, BOB)}


def chosen(
    world: World, kept: KeptSlices | None = None, /, **query: str
) -> tuple[list[Job], list[JobColumns]]:
    """Return the jobs and the columns of a list."""
    teller = JobViews(world.head, now_s=world.now_s)
    states = states_of(query.get("state", ""))
    jobs, columns = asyncio.run(
        Choice(query, states, world.head.state, ALICE, kept or KeptSlices()).jobs(teller)
    )
    return jobs, [msgspec.json.decode(each, type=JobColumns) for each in columns]


def reply(world: World, jobs: Sequence[Job], columns: Sequence[JobColumns] = ()) -> JobList:
    """Return the answer with these jobs."""
    teller = JobViews(world.head, now_s=world.now_s)
    rows = tuple(teller.row(job) for job in jobs)
    return JobList(server="vm", now_s=world.now_s, jobs=rows, columns=tuple(columns))


def busy() -> World:
    """Return a head whose jobs run, wait in two classes, are held, rerun, trainings and arrays."""
    world = World(node("n1", cpus=4), config=settings())
    for number in range(MANY):
        world.submit("nodes=1:ppn=2", name=f"a{number}", by=BOB if number % 3 else ALICE)
    for number in range(5):
        world.submit("walltime=1:00:00", name=f"b{number}", holds=("user",) * (number == 1))
    world.submit("nodes=1:ppn=3", name="array", array="0-9")
    world.submit("nodes=1:ppn=2", name="same", array="0-9")
    world.submit("nodes=1:ppn=2", name="late", deadline_after_s=60.0)
    world.rerun(1)
    world.run_for(1.0)
    return world


@pytest.fixture(scope="module")
def world() -> World:
    return busy()


def test_a_list_in_columns_shows_what_a_list_of_rows_shows(world: World) -> None:
    jobs, none = chosen(world)
    rest, columns = chosen(world, columns="1")
    rows, both = reply(world, jobs), reply(world, rest, columns)

    assert not none
    assert len(rest) < 20
    assert list(plain_list(both)) == list(plain_list(rows))
    assert list(map(tuple, terminal_list(both)[1])) == list(map(tuple, terminal_list(rows)[1]))


@pytest.fixture(params=[lists.OWN_SHARE, 0], ids=["all places", "own places"])
def places(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a list of one user look at all places of waiting jobs, or at its own."""
    monkeypatch.setattr(lists, "OWN_SHARE", request.param)


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("query", [{}, {"user": "bob"}, {"state": "queued"}])
def test_rows_that_come_in_columns_are_those_of_a_list_of_rows(
    world: World, query: Mapping[str, str]
) -> None:
    jobs, _ = chosen(world, **query)
    rest, columns = chosen(world, columns="all", **query)
    whole = with_rows(reply(world, rest, columns))

    assert len(rest) < 20
    assert whole.columns is msgspec.UNSET
    assert whole.jobs == reply(world, jobs).jobs


def test_columns_have_priorities_their_terms_and_labels() -> None:
    world = World(node("n1", cpus=1), config=settings(priority=PriorityConfig(age=1.0, own=1.0)))
    for number in range(MANY):
        world.submit("nodes=1:ppn=1", by=BOB, priority=number % 3, comment=f"c{number % 2}")
        world.now_s += 1.0
    world.run_for(1.0)
    jobs, _ = chosen(world)
    rest, columns = chosen(world, columns="all")
    rows = with_rows(reply(world, rest, columns)).jobs

    assert len(rest) < 5
    assert rows == tuple(sorted(reply(world, jobs).jobs, key=lambda row: row.id))
    assert {(row.priority, row.comment, row.terms is None) for row in rows[5:]} == {
        (priority, comment, False) for priority in range(3) for comment in ("c0", "c1")
    }


class Untouched(list[OrderKey]):
    """Places that nobody goes through."""

    def __iter__(self) -> Iterator[OrderKey]:
        raise AssertionError("all places are looked at")


def test_a_list_of_one_user_does_not_go_through_the_jobs_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(node("n1", cpus=2), config=settings())
    for number in range(2 * MANY):  # the first one runs
        world.submit("nodes=1:ppn=2", by=BOB if number % 2 else ALICE)
    state = world.head.state
    monkeypatch.setattr(lists, "OWN_SHARE", 2)
    for group in state.groups.values():
        group.lanes = {lane: Untouched(order) for lane, order in group.lanes.items()}
    monkeypatch.setattr(state, "jobs", Unlisted(state.jobs))
    jobs, columns = chosen(world, columns="1", user="bob")

    assert not jobs
    assert [number for each in columns for number in each.ids] == list(state.jobs_of["bob"])
    assert [ahead for each in columns for ahead in each.ahead] == list(range(0, 2 * MANY, 2))


class Unlisted(dict[int, Job]):
    """Jobs that nobody goes through."""

    def values(self) -> NoReturn:
        raise AssertionError("all jobs are looked at")


def test_a_list_of_jobs_that_run_does_not_go_through_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(node("n1", cpus=40), config=settings())
    for _ in range(MANY):
        world.submit("nodes=1:ppn=1")
    world.run_for(1.0)
    for _ in range(ROWS_PER_SLICE):
        world.submit("nodes=1:ppn=1")
    state = world.head.state
    running = [job.id for job in state.jobs.values() if job.state is JobState.RUNNING]
    state.apart = dict(reversed(state.apart.items()))
    monkeypatch.setattr(state, "jobs", Unlisted(state.jobs))
    jobs, columns = chosen(world, state="running")

    assert running
    assert [job.id for job in jobs] == running
    assert not columns


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("query", [{"user": "bob"}, {"user": "nobody"}, {"elements": "1"}])
def test_filters_choose_the_same_jobs_in_columns(world: World, query: Mapping[str, str]) -> None:
    jobs, _ = chosen(world, **query)
    rest, columns = chosen(world, columns="1", **query)
    listed = [job.id for job in rest] + [number for each in columns for number in each.ids]

    assert sorted(listed) == sorted(job.id for job in jobs)


def test_all_wait_for_one_reason_where_nothing_is_started(world: World) -> None:
    world.head.safe_mode = "the database is old"
    try:
        rows = reply(world, chosen(world)[0])
        both = reply(world, *chosen(world, columns="1"))
    finally:
        world.head.safe_mode = ""

    assert list(plain_list(both)) == list(plain_list(rows))
    assert not any(each.ahead for each in both.columns or ())


def test_rows_alone_are_in_the_order_of_their_ids() -> None:
    world = World(node("n1", cpus=1))
    numbers = [world.submit(by=ALICE) for _ in range(MANY)]
    for number in numbers[:0:-1]:
        world.hold(number, by=ALICE)
    jobs, columns = chosen(world, columns="1")

    assert not columns
    assert [job.id for job in jobs] == list(world.head.state.jobs)


def test_a_short_list_has_rows_alone() -> None:
    world = World(node("n1", cpus=1))
    for _ in range(20):
        world.submit()

    jobs, columns = chosen(world, columns="1")

    assert len(jobs) == 20
    assert not columns


def test_a_filter_over_many_jobs_leaves_the_loop_to_others(world: World) -> None:
    turns = 0  # of others
    seen: set[int] = set()

    class Slow(Choice):
        def holds(self, job: Job) -> bool:
            """Take as long as a thousandth of a piece, or a little longer."""
            seen.add(turns)
            end_s = time.perf_counter() + PIECE_S / JOBS_PER_LOOK
            while time.perf_counter() < end_s:
                pass
            return job.id % 2 == 0

    async def run() -> None:
        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        await choice.jobs(JobViews(world.head, now_s=world.now_s))
        task.cancel()

    state = World().head.state
    one = next(iter(world.head.state.jobs.values()))
    for number in range(LOOKS * JOBS_PER_LOOK):
        state.jobs[number] = copy.copy(one)
        state.jobs[number].id = number
    choice = Slow({}, set(), state, ALICE, KeptSlices())
    asyncio.run(run())

    assert len(seen) == LOOKS


def test_t69_a_long_list_of_a_private_site_has_rows_of_others_without_names() -> None:
    world = World(node("n1", cpus=2))
    for number in range(MANY):
        world.submit("nodes=1:ppn=2", name=f"a{number}", by=ALICE)
    viewer = structs.replace(BOB, is_private=True)
    jobs, columns = asyncio.run(
        Choice({"columns": "1"}, set(), world.head.state, viewer, KeptSlices()).jobs(
            JobViews(world.head, now_s=world.now_s, viewer=viewer)
        )
    )
    rows = [JobViews(world.head, now_s=world.now_s, viewer=viewer).row(job) for job in jobs]
    named, _ = asyncio.run(
        Choice({"user": ALICE.user}, set(), world.head.state, viewer, KeptSlices()).jobs(
            JobViews(world.head, now_s=world.now_s, viewer=viewer)
        )
    )

    assert (len(rows), columns, named) == (MANY, [], [])
    assert {(row.name, row.user, row.cpus) for row in rows} == {("-", "-", 2)}


@pytest.mark.usefixtures("places")
def test_jobs_that_start_or_are_held_while_a_list_is_made_are_in_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def one_turn(_: Pace) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(Pace, "keep", one_turn)
    monkeypatch.setattr(lists, "JOBS_PER_LOOK", 20)
    world = busy()
    state = world.head.state
    before = {number for number in state.jobs if not array_of(number)}
    queued = [job.id for job in state.jobs.values() if job.state is JobState.QUEUED]
    held = [*queued[:-13:-1], *queued[:12]]

    async def change() -> None:
        for number in held:
            if number in state.jobs:  # else it has ended meanwhile
                world.hold(number, by=OWNERS[state.jobs[number].spec.owner.user])
            await asyncio.sleep(0)

    async def run() -> tuple[list[Job], list[bytes]]:
        changes = asyncio.create_task(change())
        found = await Choice({"columns": "1"}, set(), state, ALICE, KeptSlices()).jobs(
            JobViews(world.head, now_s=world.now_s)
        )
        await changes
        return found

    rows, columns = asyncio.run(run())
    parts = [msgspec.json.decode(each, type=JobColumns) for each in columns]
    listed = [job.id for job in rows] + [number for part in parts for number in part.ids]
    assert {*held} & {job.id for job in rows}, "held before its turn came"
    assert {*held} & {number for part in parts for number in part.ids}, "held after it"
    assert len(set(listed)) == len(listed)
    assert before & set(state.jobs) <= set(listed)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_jobs_that_are_deleted_while_a_list_is_made_do_not_end_it(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    async def one_turn(_: Pace) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(Pace, "keep", one_turn)
    monkeypatch.setattr(lists, "JOBS_PER_LOOK", 20)
    world = busy()
    state = world.head.state
    queued = [job for job in state.jobs.values() if job.state is JobState.QUEUED]

    async def delete() -> None:
        for job in reversed(queued):
            if job.id in state.jobs:
                world.delete(job.id, by=OWNERS[job.spec.owner.user])
            for _ in range(turns):
                await asyncio.sleep(0)

    async def run() -> tuple[list[Job], list[bytes]]:
        deleting = asyncio.create_task(delete())
        teller = JobViews(world.head, now_s=world.now_s)
        found = await Choice({"columns": "1"}, set(), state, ALICE, KeptSlices()).jobs(teller)
        deleting.cancel()
        return found

    rows, columns = asyncio.run(run())
    parts = [msgspec.json.decode(each, type=JobColumns) for each in columns]
    listed = [job.id for job in rows] + [number for part in parts for number in part.ids]
    assert len(set(listed)) == len(listed)
    assert {number for number in state.jobs if not array_of(number)} <= set(listed)


def test_texts_that_break_a_line_are_shown_in_columns_as_in_rows() -> None:
    def row(number: int, name: str) -> JobRow:
        return JobRow(
            id=number,
            name=name,
            user="ann",
            queue="batch",
            state="queued",
            letter="Q",
            submitted_s=0.0,
            cpus=1,
            places=1,
            reason="100% in use",
        )

    names = ["a\tb", "", "c\nd", "plain", "%s"]
    rows = [row(number, name) for number, name in enumerate(names, start=1)]
    group = JobColumns(row=rows[0], ids=[each.id for each in rows], names=names)
    in_rows = JobList(server="vm", now_s=0.0, jobs=tuple(rows))
    in_columns = JobList(server="vm", now_s=0.0, jobs=(), columns=(group,))

    assert list(plain_list(in_columns)) == list(plain_list(in_rows))
    assert [line.split("\t")[1] for line in plain_list(in_columns)] == [
        *("Name", r"a\tb", "-", r"c\nd", "plain", "%s")
    ]


def as_rows(world: World, kept: KeptSlices, **query: str) -> list[JobRow]:
    """Return the rows of a list, by id."""
    jobs, columns = chosen(world, kept, **query)
    return sorted(with_rows(reply(world, jobs, columns)).jobs, key=lambda row: row.id)


def waiting_world() -> World:
    """Return a head with jobs that wait in two classes, those of one class in several slices."""
    world = World(node("n1", cpus=2), config=settings())
    for number in range(900):
        world.submit("nodes=1:ppn=2", name=f"a{number}", by=BOB if number % 3 else ALICE)
    for number in range(300):
        world.submit("nodes=1:ppn=2,walltime=1:0:0", name=f"b{number}")
    return world


def kept_data(kept: KeptSlices, world: World) -> list[bytes]:
    """Return the slices of all classes, encoded."""
    found: list[bytes] = []
    for job_class, group in world.head.state.groups.items():
        for lane, order in group.lanes.items():
            for whole in (False, True):
                parts = kept.parts((job_class, lane, whole), list(order))
                found += [each.data for _, each in parts if each is not None]
    return found


@pytest.mark.parametrize("columns", ["1", "all"])
def test_a_list_with_kept_slices_is_the_list_without_them(columns: str) -> None:
    world, kept = waiting_world(), KeptSlices()
    waiting = [job.id for job in world.head.state.jobs.values() if job.state is JobState.QUEUED]
    by = {number: OWNERS[world.job(number).spec.owner.user] for number in waiting}

    def running() -> int:
        return next(iter(world.head.state.running))

    renamed, lowered, held, gone = (waiting[place] for place in (5, 700, 300, 350))
    changes = (
        lambda: None,
        lambda: world.alter(renamed, name="renamed", by=by[renamed]),
        lambda: world.alter(lowered, priority=-5, by=by[lowered]),
        lambda: world.hold(held, by=by[held]),
        lambda: world.release(held, by=by[held]),
        lambda: world.delete(gone, by=by[gone]),
        lambda: [world.submit("nodes=1:ppn=2", name=f"new{number}") for number in range(40)],
        lambda: world.run_for(4000.0),
        lambda: world.rerun(running(), by=by[running()]),
        lambda: world.run_for(1.0),
        lambda: setattr(world.head, "safe_mode", "the database is old"),
    )
    for change in changes:
        change()
        assert as_rows(world, kept, columns=columns) == as_rows(
            world, KeptSlices(), columns=columns
        )
        assert kept_data(kept, world)


def test_slices_of_jobs_that_stay_are_not_encoded_again() -> None:
    world, kept = waiting_world(), KeptSlices()
    chosen(world, kept, columns="all")
    before = {id(each) for each in kept_data(kept, world)}
    waiting = [job.id for job in world.head.state.jobs.values() if job.state is JobState.QUEUED]
    world.alter(waiting[5], name="renamed", by=ALICE)
    world.submit("nodes=1:ppn=2,walltime=1:0:0", name="new")
    chosen(world, kept, columns="all")
    after = kept_data(kept, world)

    assert len(before) == 3  # 500 and 399 jobs of one class, 300 of the other
    assert len([each for each in after if id(each) in before]) == 2


def test_small_slices_become_large_ones_again_and_none_are_kept_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, kept = World(node("n1", cpus=2), config=settings()), KeptSlices()
    for _ in range(ROWS_PER_SLICE + 20):
        world.submit("nodes=1:ppn=2")
    for _ in range(60):
        chosen(world, kept, columns="1")
        for _ in range(10):
            world.submit("nodes=1:ppn=2")
    chosen(world, kept, columns="1")
    assert len(kept_data(kept, world)) <= 4
    monkeypatch.setattr(kept_slices, "MAX_KEPT_BYTES", 1000)
    chosen(world, kept, columns="1")

    assert not kept_data(kept, world)


def test_the_lines_of_running_jobs_stay_encoded_and_are_those_of_rows() -> None:
    world = World(node("n1", cpus=4, gpus=1), node("n2", cpus=4), config=settings())
    one = world.submit("nodes=1:ppn=2,walltime=9:0:0", name="one", by=ALICE, runs_s=1e6)
    world.submit("nodes=1:ppn=1:gpus=1,walltime=9:0:0", name="gpu", by=BOB, runs_s=1e6)
    world.submit("nodes=2:ppn=1,walltime=9:0:0", name="two", by=BOB, runs_s=1e6)
    world.run_for(KEEP_AFTER_S)
    changes = (
        lambda: None,
        lambda: world.run_for(5.0),
        lambda: world.alter(one, resources=("walltime=8:00:00",), by=ALICE),
        lambda: world.disconnect("n2"),
        lambda: world.run_for(300.0),
        lambda: world.connect("n2"),
        lambda: world.rerun(one, by=ALICE),
        lambda: world.run_for(30.0),
        lambda: world.run_for(90.0),
        lambda: world.run_for(1.0),
    )
    raw = 0
    for change in changes:
        change()
        teller = JobViews(world.head, now_s=world.now_s)
        for job in world.head.state.jobs.values():
            listed = JobLines(teller, world.head.state, keeps=True).line(job)
            raw += isinstance(listed, msgspec.Raw)
            line = msgspec.json.decode(msgspec.json.encode(listed), type=JobRow)
            assert line == msgspec.json.decode(msgspec.json.encode(teller.row(job)), type=JobRow)
        assert set(world.head.state.caches.rows) <= set(world.head.state.running)

    assert raw >= 2 * len(world.head.state.running)


def test_the_first_page_of_a_long_list_can_be_had_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = waiting_world()
    state = world.head.state
    query = {"columns": "1", "first": "10"}

    def first_page(**more: str) -> tuple[list[int], bool]:
        states = states_of(more.get("state", ""))
        choice = Choice(query | more, states, state, ALICE, KeptSlices())
        teller = JobViews(world.head, now_s=world.now_s)
        jobs, columns = asyncio.run(choice.jobs(teller))
        listed = [job.id for job in jobs]
        for part in columns:
            listed += msgspec.json.decode(part, type=JobColumns).ids
        return listed, choice.is_cut

    assert not first_page()[1]
    assert len(first_page()[0]) == len(state.jobs)
    monkeypatch.setattr(lists, "LONG_LIST", 250)
    assert first_page() == (list(state.jobs)[:10], True)
    assert first_page(user="bob") == (list(state.jobs_of["bob"])[:10], True)
    assert first_page(state="running") == ([1], False)
    assert len(first_page(first="250")[0]) == 250
    assert len(first_page(first="")[0]) == len(state.jobs)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"first": "251"}, "first='251' is not a whole number from 1 to 250"),
        ({"first": "0"}, "first='0' is not a whole number from 1 to 250"),
        ({"first": "1.5"}, "first='1.5' is not a whole number from 1 to 250"),
        ({"first": "many"}, "first='many' is not a number"),
        ({"all": "1"}, "first goes with neither ids, elements, all nor forecast"),
        ({"ids": "1"}, "first goes with neither ids, elements, all nor forecast"),
    ],
)
def test_a_first_page_that_there_cannot_be_is_refused(more: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        first_of({"first": "10"} | more)

    assert caught.value.message == words
