"""A policy may want many moves at once: so many are made as are set, the others in turn (I16)."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gsched.model.resources import Allocation
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.plan.snapshot import Move, Plan, RunningJob, Snapshot
from gschedd.policies.queue import fifo
from tests.support.moves import gpus
from tests.support.world import ALICE, BOB, Program, World, node, settings

Place = Callable[[RunningJob], Allocation | None]


class Wish:
    """First come first served; who is not where it should be is to be moved, all at once."""

    def __init__(self) -> None:
        self.wanted: Place = lambda _: None

    def __call__(self, snapshot: Snapshot) -> Plan:
        moves = []
        for running in snapshot.running:
            to = None if running.leaving or running.starting else self.wanted(running)
            if to is not None and to != running.allocation:
                moves.append(Move(job=running.job, allocation=to, why="wish"))
        return structs.replace(fifo.plan(snapshot), moves=tuple(moves))


class Wishes(World):
    """Nodes n0, n1, … of two GPUs, and jobs of one."""

    def __init__(self, count: int, max_moves: int) -> None:
        self.wish = Wish()
        machines = [node(f"n{number}", cpus=8, gpus=2) for number in range(count)]
        config: Settings = settings(at_once=max_moves)
        super().__init__(*machines, policy=self.wish, config=config)
        self.order: list[int] = []

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)

    def training(self, by: Caller = ALICE) -> int:
        """Submit a job of one GPU that takes ten seconds to save its state."""
        return self.submit(
            "select=1:ncpus=1:ngpus=1",
            by=by,
            movable=True,
            deadline_after_s=1e6,
            program=Program(runs_s=1e5, saves_s=10.0),
        )

    def want(self, places: dict[int, Allocation]) -> None:
        """Let the policy want jobs to be there from now on."""
        self.wish.wanted = lambda running: places.get(running.job)
        self.head.state.dirty.mark_all()
        self.settle()

    def most_at_once(self, for_s: int) -> int:
        """Return how many jobs moved at once, at most, in the next seconds."""
        most = 0
        for _ in range(for_s):
            most = max(most, len(self.head.state.targets))
            for job in self.head.state.targets:
                if job not in self.order:
                    self.order.append(job)
            self.run_for(1.0)
        return most

    def places(self, jobs: list[int]) -> list[Allocation]:
        """Return what jobs own."""
        found = []
        for job in jobs:
            attempt = self.job(job).attempt
            found.append(attempt.allocation if attempt is not None else ())
        return found


def test_i16_no_more_than_so_many_move_at_once_and_all_come_to_their_places() -> None:
    """Users take turns: who has one job does not wait for who has seven."""
    world = Wishes(count=8, max_moves=2)
    jobs = [world.training() for _ in range(7)]
    one = world.training(by=BOB)
    world.run_for(5.0)
    here = world.places([*jobs, one])
    there = [gpus(f"n{int(share.node[1]) + 4}", *share.gpu_indices) for (share,) in here]

    world.want(dict(zip([*jobs, one], there, strict=True)))
    most = world.most_at_once(100)

    assert most == 2
    assert world.places([*jobs, one]) == there
    assert set(world.order[:2]) == {jobs[0], one}
    assert all(world.job(job).moves == 1 for job in (*jobs, one))
    world.check_history()


def test_i16_a_job_goes_after_the_one_in_its_place_has_left() -> None:
    """A row of jobs of which each wants the next one's place: the last one first, one at a time."""
    world = Wishes(count=3, max_moves=1)
    jobs = [world.training() for _ in range(4)]
    world.run_for(5.0)
    places = world.places(jobs)
    ends = [*places[1:], gpus("n2", 0)]

    world.want(dict(zip(jobs, ends, strict=True)))
    most = world.most_at_once(80)

    assert most == 1
    assert world.order == list(reversed(jobs))
    assert world.places(jobs) == ends


def test_i16_a_ring_that_is_larger_than_that_moves_when_nothing_else_does() -> None:
    """Else each of them would wait for the others for ever."""
    world = Wishes(count=4, max_moves=2)
    ring, other = [world.training() for _ in range(4)], world.training()
    world.run_for(5.0)
    places = world.places(ring)
    ends = [*places[1:], places[0]]

    world.want({**dict(zip(ring, ends, strict=True)), other: gpus("n3", 0)})
    assert set(world.head.state.targets) == {other}
    most = world.most_at_once(60)

    assert most == 4
    assert world.places(ring) == ends
    assert world.places([other]) == [gpus("n3", 0)]


def test_i16_two_that_change_places_move_together_or_later() -> None:
    """They count as two; the next pair follows when they are there."""
    world = Wishes(count=3, max_moves=2)
    jobs = [world.training() for _ in range(4)]
    world.run_for(5.0)
    first, second, third, fourth = world.places(jobs)

    ends = [third, fourth, first, second]  # those on n0 change places with those on n1
    world.want(dict(zip(jobs, ends, strict=True)))
    assert set(world.head.state.targets) == {jobs[0], jobs[2]}
    most = world.most_at_once(60)

    assert most == 2
    assert world.places(jobs) == ends


def longest_ring(places: list[int], ends: list[int]) -> int:
    """Return of how many jobs each wants the next one's place, and the last the first one's."""
    holder = {place: job for job, place in enumerate(places)}
    longest = 0
    for first in range(len(places)):
        job, length = first, 0
        while length <= len(places) and ends[job] != places[job]:
            length += 1
            following = holder.get(ends[job])
            if following is None:
                break
            if following == first:
                longest = max(longest, length)
                break
            job = following
    return longest


@given(ends=st.permutations(range(8)), max_moves=st.integers(1, 4))
def test_i16_whoever_wants_to_go_where_all_come_there_and_no_more_at_once(
    ends: list[int], max_moves: int
) -> None:
    """Six jobs on eight GPUs; only a ring of places may take more at once than is set."""
    world = Wishes(count=4, max_moves=max_moves)
    jobs = [world.training() for _ in range(6)]
    world.run_for(5.0)
    here = [2 * int(share.node[1]) + share.gpu_indices[0] for (share,) in world.places(jobs)]
    there = [gpus(f"n{place // 2}", place % 2) for place in ends[:6]]

    world.want(dict(zip(jobs, there, strict=True)))
    most = world.most_at_once(90)

    assert most <= max(max_moves, longest_ring(here, ends[:6]))
    assert world.places(jobs) == there
    moved = sum(start != end for start, end in zip(here, ends, strict=False))
    assert sum(world.job(job).moves for job in jobs) == moved
