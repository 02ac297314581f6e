"""Training jobs with deadlines: builders, random snapshots, a world that carries plans out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import strategies as st
from msgspec import structs

from gsched.model.resources import Allocation, Chunk, Request
from gsched.model.states import Placement
from gschedd.models.runtime import PaperSpeed, WalltimeSpeed
from gschedd.models.runtime_table import TableSpeed
from gschedd.plan.elastic import allocate, at_count, is_elastic
from gschedd.plan.fit import NoFit, place
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Group, JobClass, Plan, Policy, RunningJob, Snapshot
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.training import Fabric, Layout, Speed, TrainingProfile, gpus_by_node
from gschedd.plan.validate import Movable, validate
from tests.support.spaces import space

NOW_S = 1_000_000.0

ALEXNET = PaperSpeed(parameters=57.41e6, batch=16, step_time_s=0.0105)
VGG16 = PaperSpeed(parameters=134.67e6, batch=16, step_time_s=0.035)
RESNET50 = PaperSpeed(parameters=23.71e6, batch=16, step_time_s=0.061)


def elastic(least: int = 1, most: int = 8, *, gpus: int = 1, gpu_type: str = "") -> Request:
    """Return a request for ``least`` to ``most`` places of some GPUs, wherever they are."""
    return Request(
        chunks=(Chunk(count=least, cpus=1, gpus=gpus, gpu_type=gpu_type),),
        placement=Placement.FREE,
        places_max=most if most > least else 0,
    )


def counts_of(request: Request) -> tuple[int, ...]:
    """Return the numbers of GPUs that a request may be given."""
    if not is_elastic(request):
        return (request.gpus,)
    each = request.chunks[0].gpus
    return tuple(each * places for places in range(request.places, request.places_max + 1))


def profile(
    job: int,
    *,
    deadline_s: float | None = None,
    work: float = 1000.0,
    speed: Speed = RESNET50,
    request: Request | None = None,
    **changes: object,
) -> TrainingProfile:
    """Return a training that was just submitted; ``deadline_s`` is from now."""
    request = request or elastic()
    made = TrainingProfile(
        job=job,
        arrived_s=NOW_S,
        deadline_s=None if deadline_s is None else NOW_S + deadline_s,
        work=work,
        total_work=work,
        speed=speed,
        gpus=counts_of(request),
        request=request,
    )
    return structs.replace(made, **changes)


def class_of(each: TrainingProfile) -> JobClass:
    """Return the class of a waiting training."""
    assert each.request is not None
    return JobClass(queue="batch", request=each.request, walltime_s=None, training=each.job)


def group_of(each: TrainingProfile) -> Group:
    """Return the group of a waiting training."""
    return Group(job_class=class_of(each), order=[(0, each.job)])


def gpu_nodes(*gpus: int, cpus: int = 64) -> dict[str, FreeNode]:
    """Return idle nodes n1, n2, ... with so many GPUs."""
    names = [f"n{number}" for number in range(1, len(gpus) + 1)]
    return {
        name: space(name, cpus=cpus, gpu_types=("",) * count)
        for name, count in zip(names, gpus, strict=True)
    }


def snapshot_of(
    nodes: Mapping[str, FreeNode],
    waiting: Iterable[TrainingProfile] = (),
    running: Sequence[tuple[TrainingProfile, Allocation]] = (),
    *,
    fabric: Fabric | None = None,
) -> Snapshot:
    """Return a snapshot of idle nodes on which some training jobs run and for which some wait."""
    free = Spaces(nodes)
    for _, allocation in running:
        free.take(allocation)
    waiting = list(waiting)
    return Snapshot(
        now_s=NOW_S,
        nodes={each.name: each for each in free},
        groups=[group_of(each) for each in waiting],
        running=[
            RunningJob(job=each.job, allocation=allocation, started_s=NOW_S - 60, end_s=None)
            for each, allocation in running
        ],
        profiles={each.job: each for each in [*waiting, *(each for each, _ in running)]},
        fabric=fabric or Fabric(),
    )


# --- what every policy must do ---


def check(plan: Plan, snapshot: Snapshot) -> None:
    """Check all that a plan for training jobs must keep to, whatever the policy.

    Raises:
        AssertionError: it does not.
    """
    waiting = {group.job_class.training: group.job_class for group in snapshot.groups}
    checked = validate(plan, Spaces(snapshot.nodes), waiting.get, movable_in(snapshot))
    assert checked.refused == ()
    assert checked.objection == ""
    for start in plan.starts:
        assert start.job in snapshot.profiles, "a job without a profile is somebody else's business"
        _check_count(snapshot.profiles[start.job], start.allocation)
        assert start.why
    for move in plan.moves:
        if move.allocation:
            _check_count(snapshot.profiles[move.job], move.allocation)
        assert move.why
    _check_waits(plan, snapshot)
    _check_verdicts(plan.verdicts, snapshot)


def movable_in(snapshot: Snapshot):  # type: ignore[no-untyped-def]  # a closure, typed by validate
    """Return what says which running jobs may be moved."""
    running = {job.job: job for job in snapshot.running}

    def movable(number: int) -> Movable | None:
        job, known = running.get(number), snapshot.profiles.get(number)
        if job is None or known is None or known.request is None:
            return None
        if job.leaving or not known.movable:
            return None
        return Movable(request=known.request, allocation=job.allocation)

    return movable


def _check_count(known: TrainingProfile, allocation: Allocation) -> None:
    gpus = sum(gpus_by_node(allocation).values())
    assert gpus in known.gpus, f"{gpus} GPUs for {known.gpus}"


def _check_waits(plan: Plan, snapshot: Snapshot) -> None:
    """Every training that is left has one reason; no other job has any."""
    started = {start.job for start in plan.starts}
    left = {
        group.job_class.training
        for group in snapshot.groups
        if group.job_class.training in snapshot.profiles and group.job_class.training not in started
    }
    assert sorted(wait.first for wait in plan.waits) == sorted(left)
    assert all(str(wait.reason) for wait in plan.waits)


def _check_verdicts(verdicts: Sequence[Forecast], snapshot: Snapshot) -> None:
    assert len({verdict.job for verdict in verdicts}) == len(verdicts)
    for verdict in verdicts:
        known = snapshot.profiles[verdict.job]
        if verdict.end_s is not None:
            assert verdict.end_s >= snapshot.now_s - 1e-3
        if known.deadline_s is None or verdict.end_s is None:
            continue
        assert verdict.meets == (verdict.end_s <= known.deadline_s + 1e-2) or (
            not verdict.meets and verdict.why
        ), "whoever says late although the end is early says why"
        assert verdict.meets or verdict.why
    said = {verdict.job for verdict in verdicts}
    waiting = {
        job
        for group in snapshot.groups
        if (job := group.job_class.training) in snapshot.profiles
        and snapshot.profiles[job].adaptive is None
    }
    assert waiting <= said, "every waiting training is told what to expect"


# --- random ones ---

_speeds: st.SearchStrategy[Speed] = st.one_of(
    st.sampled_from([ALEXNET, VGG16, RESNET50]),
    st.builds(WalltimeSpeed, gpus=st.integers(1, 4)),
    st.just(
        TableSpeed(rates=tuple((gpus, 10 * gpus**0.8) for gpus in (1, 2, 3, 4, 5, 6, 7, 8, 16)))
    ),
)


@st.composite
def _requests(draw: st.DrawFn) -> Request:
    least = draw(st.integers(1, 2))
    return elastic(
        least,
        draw(st.integers(least, 6)),
        gpus=draw(st.sampled_from([1, 1, 1, 2])),
        gpu_type=draw(st.sampled_from(["", "", "", "a"])),
    )


@st.composite
def _profiles(draw: st.DrawFn, job: int, request: Request) -> TrainingProfile:
    speed = draw(_speeds)
    seconds = draw(st.floats(1, 1000))
    work = seconds * speed.rate(Layout(counts=(counts_of(request)[0],)))
    after_s = draw(st.sampled_from([None, -10.0, 0.3, 0.6, 1.0, 1.0, 1.5, 3.0]))
    arrived_s = NOW_S - draw(st.floats(0, 100))
    return profile(
        job,
        speed=speed,
        work=work,
        request=request,
        total_work=work * draw(st.sampled_from([1.0, 2.0])),
        arrived_s=arrived_s,
        deadline_s=None if after_s is None else after_s * seconds,
        movable=draw(st.sampled_from([True, True, True, False])),
        move_s=draw(st.sampled_from([0.0, 5.0, 60.0])),
        startup_s=(startup_s := draw(st.sampled_from([0.0, 0.0, 3.0, 40.0]))),
        whole_startup_s=startup_s,
        guaranteed=draw(st.sampled_from([None, None, True, False])),
    )


@st.composite
def training_snapshots(draw: st.DrawFn, *, can_end: bool = False) -> Snapshot:
    """Return nodes, training jobs that run and wait there, and perhaps jobs that are no training
    jobs.

    Args:
        draw: by Hypothesis.
        can_end: everything can run on some idle node, and nothing is being stopped.
    """
    kinds = draw(st.sampled_from([("",), ("", "a"), ("a", "b")]))
    nodes = {}
    for number in range(draw(st.integers(1, 4))):
        types = (draw(st.sampled_from(kinds)),) * draw(st.sampled_from([0, 1, 2, 4, 8, 8]))
        is_open = can_end or draw(st.sampled_from([True, True, True, False]))
        cpus = draw(st.sampled_from([4, 64]))
        nodes[f"n{number}"] = space(f"n{number}", cpus=cpus, gpu_types=types, open=is_open)
    idle, free = Spaces(nodes), Spaces(nodes)
    profiles: dict[int, TrainingProfile] = {}
    running: list[RunningJob] = []
    for job in range(1, draw(st.integers(0, 5)) + 1):
        request = draw(_requests())
        counts = range(request.places, max(request.places, request.places_max) + 1)
        # anywhere, or on one node: then it lies where best fit would not have put it
        names = draw(st.sampled_from([sorted(nodes), *([name] for name in sorted(nodes))]))
        among = Spaces({name: free[name] for name in names})
        allocation = allocate(request, among, draw(st.sampled_from(counts)))
        if allocation is None:
            continue
        free.take(allocation)
        leaving = not can_end and draw(st.sampled_from([False] * 7 + [True]))
        running.append(
            RunningJob(
                job=job, allocation=allocation, started_s=NOW_S - 50, end_s=None, leaving=leaving
            )
        )
        if can_end or draw(st.sampled_from([True] * 5 + [False])):
            profiles[job] = draw(_profiles(job, request))
    groups: list[Group] = []
    for job in range(100, 100 + draw(st.integers(0, 6))):
        request = draw(_requests())
        if can_end and isinstance(place(at_count(request, request.places), idle), NoFit):
            continue
        profiles[job] = draw(_profiles(job, request))
        groups.append(group_of(profiles[job]))
    if draw(st.booleans()) and not can_end:
        other = JobClass(queue="batch", request=elastic(1, 1), walltime_s=60.0)
        groups.append(Group(job_class=other, order=[(0, 900), (0, 901)]))
    return Snapshot(
        now_s=NOW_S,
        nodes={each.name: each for each in free},
        groups=groups,
        running=running,
        profiles=profiles,
        fabric=draw(_fabrics(sorted(nodes))),
    )


@st.composite
def scattered_snapshots(draw: st.DrawFn) -> Snapshot:
    """Return nodes on each of which a small training runs that can be moved, and some that wait.

    Those that wait gain much from GPUs of one node, which are not free together.
    """
    count, gpus = draw(st.integers(2, 4)), draw(st.sampled_from([2, 4, 8]))
    nodes = gpu_nodes(*[gpus] * count)
    free = Spaces(nodes)
    running: list[tuple[TrainingProfile, Allocation]] = []
    for job, name in enumerate(nodes, 1):
        request = elastic(least := draw(st.integers(1, gpus // 2)), least)
        found = allocate(request, Spaces({name: nodes[name]}), least)
        assert found is not None
        free.take(found)
        late_s = draw(st.sampled_from([1e6, 1e6, 1e6, 400.0]))
        move_s = draw(st.sampled_from([0.0, 5.0, 20.0]))
        work = 400.0 * RESNET50.rate(Layout(counts=(least,)))
        made = profile(
            job, request=request, work=work, deadline_s=late_s, movable=True, move_s=move_s
        )
        running.append((made, found))
    waiting = []
    for job in range(100, 100 + draw(st.integers(1, 3))):
        request = elastic(1, gpus)
        best_s = 100.0
        work = best_s * VGG16.rate(Layout(counts=(gpus,)))
        after_s = best_s * draw(st.sampled_from([1.0, 1.1, 1.5, 2.0]))
        waiting.append(profile(job, speed=VGG16, request=request, work=work, deadline_s=after_s))
    return snapshot_of(nodes, waiting, running, fabric=Fabric(between_bytes_s=1e9))


@st.composite
def _fabrics(draw: st.DrawFn, names: Sequence[str]) -> Fabric:
    pairs = list(pairwise(names))
    return Fabric(
        inside=draw(st.dictionaries(st.sampled_from(names), st.just(50e9), max_size=2)),
        between=draw(st.dictionaries(st.sampled_from(pairs), st.just(1e9), max_size=2))
        if pairs
        else {},
        devices=draw(st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([0.5, 2.0]))),
    )


# --- a world ---


@dataclass
class _Run:
    """A training that runs: what is left of it was so at a moment, from which it goes on."""

    profile: TrainingProfile
    allocation: Allocation
    since_s: float


@dataclass
class World:
    """Carries plans out at once and lets training jobs end when their work is done."""

    nodes: dict[str, FreeNode]
    fabric: Fabric
    now_s: float = NOW_S
    waiting: dict[int, TrainingProfile] = field(default_factory=dict)
    running: dict[int, _Run] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    moves: int = 0

    @classmethod
    def at(cls, snapshot: Snapshot) -> "World":
        """Return the world that a snapshot shows."""
        return cls(
            nodes=dict(snapshot.nodes),
            fabric=snapshot.fabric,
            waiting={
                group.job_class.training: snapshot.profiles[group.job_class.training]
                for group in snapshot.groups
            },
            running={
                job.job: _Run(
                    profile := snapshot.profiles[job.job],
                    job.allocation,
                    snapshot.now_s + profile.startup_s,
                )
                for job in snapshot.running
            },
        )

    def snapshot(self) -> Snapshot:
        """Return what a policy sees now."""
        profiles = dict(self.waiting)
        for job, run in self.running.items():
            profiles[job] = structs.replace(
                run.profile, work=self._left(run), startup_s=max(0.0, run.since_s - self.now_s)
            )
        return Snapshot(
            now_s=self.now_s,
            nodes=self.nodes,
            groups=[group_of(each) for each in self.waiting.values()],
            running=[
                RunningJob(job=job, allocation=run.allocation, started_s=run.since_s, end_s=None)
                for job, run in self.running.items()
            ],
            profiles=profiles,
            fabric=self.fabric,
        )

    def _rate(self, run: _Run) -> float:
        types = {
            share.node: next(iter(self.nodes[share.node].all_gpus)).type for share in run.allocation
        }
        return run.profile.speed.rate(self.fabric.layout(gpus_by_node(run.allocation), types))

    def _left(self, run: _Run) -> float:
        done = self._rate(run) * max(0.0, self.now_s - run.since_s)
        return max(0.0, run.profile.work - done)

    def act(self, policy: Policy) -> Plan:
        """Ask the policy, check its plan, and carry it out."""
        seen = self.snapshot()
        plan = policy(seen)
        check(plan, seen)
        spaces = Spaces(self.nodes)
        for move in plan.moves:
            spaces.give(self.running[move.job].allocation)
        for move in plan.moves:
            self._move(move.job, move.allocation, spaces)
        for start in plan.starts:
            spaces.take(start.allocation)
            profile = self.waiting.pop(start.job)
            # as the head has it: who resumes loads its state, too
            resumes = profile.work < profile.total_work
            delay_s = max(profile.startup_s, profile.move_s) if resumes else profile.startup_s
            self.running[start.job] = _Run(profile, start.allocation, self.now_s + delay_s)
        self.nodes = {each.name: each for each in spaces}
        return plan

    def _move(self, job: int, allocation: Allocation, spaces: Spaces) -> None:
        run = self.running.pop(job)
        left = structs.replace(run.profile, work=self._left(run))
        self.moves += 1
        if not allocation:
            self.waiting[job] = structs.replace(left, startup_s=left.whole_startup_s)
            return
        spaces.take(allocation)
        since_s = max(run.since_s, self.now_s) + run.profile.move_s
        self.running[job] = _Run(left, allocation, since_s)

    def next_end_s(self) -> float:
        """Return when the next training ends; infinite if none does."""
        return min(
            (
                max(self.now_s, run.since_s) + self._left(run) / rate
                for run in self.running.values()
                if (rate := self._rate(run)) > 0
            ),
            default=float("inf"),
        )

    def turn_to(self, at_s: float) -> None:
        """Let time pass, and whoever is done end."""
        self.now_s = at_s
        spaces = Spaces(self.nodes)
        for job, run in list(self.running.items()):
            if self._left(run) <= 1e-6 * run.profile.total_work:
                spaces.give(run.allocation)
                self.ended[job] = at_s
                del self.running[job]
        self.nodes = {each.name: each for each in spaces}
