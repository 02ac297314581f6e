"""Changes of running training jobs: who may be changed, and a plan from the numbers of GPUs."""

import math
from collections.abc import Collection, Mapping

from msgspec import Struct, structs

from gsched.model.resources import Allocation
from gsched.model.units import format_gpus
from gschedd.allocation.placement import PlacementRequest, fits, settle
from gschedd.allocation.running import TrainingJobs, open_gpus_of, shared_until
from gschedd.allocation.shares import Levels, Timeline, levels_of
from gschedd.plan.forecast import Forecast
from gschedd.plan.layouts import layout_of, slowest_type
from gschedd.plan.snapshot import Move, RunningJob, Snapshot, Start, Wait
from gschedd.plan.space import Spaces
from gschedd.plan.training import Fabric, Layout, Speed, TrainingProfile, gpu_count
from gschedd.plan.words import NO_GPU, released_words


def timeline_for(snapshot: Snapshot, others: tuple[RunningJob, ...]) -> Timeline:
    """Return how many GPUs training jobs may have over time: all that others do not hold.

    Args:
        snapshot: its nodes that are open count.
        others: what runs and is no training; its GPUs come back when it is planned to end.
    """
    total = sum(space.total_gpus for space in snapshot.nodes.values() if space.open)
    timeline = Timeline(snapshot.now_s, total)
    for running in others:
        timeline.take(open_gpus_of(snapshot, running.allocation), until_s=running.end_s)
    for end_s in shared_until(snapshot, others).values():
        timeline.take(1, until_s=end_s)
    return timeline


class Speeds:
    """How fast training jobs are on numbers of GPUs that are as close together as they can be."""

    def __init__(self, snapshot: Snapshot) -> None:
        spaces = [space for space in snapshot.nodes.values() if space.open and space.total_gpus]
        spaces.sort(key=lambda space: (-space.total_gpus, space.name))
        self._sizes = [(space.name, space.total_gpus) for space in spaces]
        self._types = {
            space.name: slowest_type(space.all_gpus, snapshot.fabric) for space in spaces
        }
        self._spaces = Spaces(snapshot.nodes)
        self._fabric: Fabric = snapshot.fabric
        self._layouts: dict[int, Layout] = {}
        self._levels: dict[tuple[Speed, tuple[int, ...]], Levels] = {}
        self._levels_of: dict[int, Levels] = {}
        self._sizes_of: dict[tuple[Speed, tuple[int, ...]], Levels] = {}
        self._most: dict[tuple[Speed, tuple[int, ...]], int] = {}
        self.total = sum(size for _, size in self._sizes)

    def layout(self, gpus: int) -> Layout:
        """Return the layout of so many GPUs, one or more, on the largest nodes; at most all."""
        if gpus not in self._layouts:
            counts: dict[str, int] = {}
            left = gpus
            for name, size in self._sizes:
                if left:
                    counts[name] = min(size, left)
                    left -= counts[name]
            self._layouts[gpus] = self._fabric.layout(counts, self._types)
        return self._layouts[gpus]

    def run_time_s(self, profile: TrainingProfile, gpus: int) -> float:
        """Return how long the rest of a training takes, seconds; infinite without any GPU."""
        return profile.run_time_s(self.layout(gpus)) if gpus > 0 and self.total else math.inf

    def end_s(self, profile: TrainingProfile, gpus: int, now_s: float) -> float | None:
        """Return when a training ends that keeps so many GPUs; None: it never does."""
        end_s = now_s + self.run_time_s(profile, gpus)
        return end_s if end_s < math.inf else None

    def layout_of(self, allocation: Allocation) -> Layout:
        """Return the layout of an allocation, also on nodes that are closed."""
        return layout_of(allocation, self._spaces.gpus_of, self._fabric)

    def levels(self, profile: TrainingProfile) -> Levels:
        """Return the numbers that are worth having, of those that `sizes` gives."""
        found = self._levels_of.get(profile.job)
        if found is None:
            key = (profile.speed, profile.gpus)
            if key not in self._levels:
                sizes = self.sizes(profile)
                rates = dict(zip(sizes.gpus, sizes.rates, strict=True))
                self._levels[key] = levels_of(rates, rates.__getitem__)
            found = self._levels_of[profile.job] = self._levels[key]
        return found

    def sizes(self, profile: TrainingProfile) -> Levels:
        """Return the powers of two on which a training can run here, also where more is slower.

        If it may have no power of two, all numbers that it may have.
        """
        key = (profile.speed, profile.gpus)
        if key not in self._sizes_of:
            most = min(self.total, profile.gpus[-1]) if profile.gpus else 0
            powers = [1 << exponent for exponent in range(most.bit_length())]
            counts = [count for count in powers if count in profile.gpus]
            counts = counts or [count for count in profile.gpus if count <= self.total]
            rates = {count: profile.speed.rate(self.layout(count)) for count in counts}
            sizes = tuple(count for count, rate in rates.items() if rate > 0)
            self._sizes_of[key] = Levels(gpus=sizes, rates=tuple(rates[count] for count in sizes))
        return self._sizes_of[key]

    def most(self, profile: TrainingProfile) -> int:
        """Return the largest number of GPUs on which a training can run here; 0: it never can."""
        key = (profile.speed, profile.gpus)
        if key not in self._most:
            allowed = (count for count in reversed(profile.gpus) if count <= self.total)
            running = (count for count in allowed if profile.speed.rate(self.layout(count)) > 0)
            self._most[key] = next(running, 0)
        return self._most[key]


class Changes(Struct, frozen=True, kw_only=True):
    """The parts of a plan, and how many GPUs each training has once it is carried out."""

    starts: tuple[Start, ...]
    moves: tuple[Move, ...]
    waits: tuple[Wait, ...]
    gpus: Mapping[int, int]


def carry_out(
    snapshot: Snapshot,
    training_jobs: TrainingJobs,
    numbers: Mapping[int, int],
    reasons: Mapping[int, str],
    pinned: Collection[int] = (),
) -> Changes:
    """Return what has to be done so that training jobs have so many GPUs.

    Where there is no room for a number although as many are free, the training gets less: half as
    many, and so on. One that would get none is tried again beside the others' places, so that this
    plan starts it and not the next one.

    Args:
        snapshot: what there is.
        training jobs: of the snapshot.
        numbers: of GPUs, by job; who is missing gets none.
        reasons: why those that wait do so, by job.
        pinned: jobs that run and do not migrate while their number stays the same.
    """
    places = _places(snapshot, training_jobs, numbers, pinned)
    free = Spaces(snapshot.nodes)
    starts: list[Start] = []
    waits: list[Wait] = []
    for job, job_class in training_jobs.waiting.items():
        place = places.get(job, ())
        gpus = gpu_count(place)
        if gpus and fits(place, free):
            free.take(place)
            starts.append(
                Start(job=job, job_class=job_class, allocation=place, why=f"on {format_gpus(gpus)}")
            )
            continue
        reason = reasons.get(job, NO_GPU)
        if gpus:
            reason = released_words(gpus)
        waits.append(Wait(job_class=job_class, first=job, reason=reason))
    moves = [
        Move(job=job, allocation=places.get(job, ()), why=_why(running, places.get(job, ())))
        for job, running in training_jobs.movable.items()
        if places.get(job, ()) != running.allocation
    ]
    return Changes(
        starts=tuple(starts),
        moves=tuple(moves),
        waits=tuple(waits),
        gpus={job: gpu_count(place) for job, place in places.items() if place},
    )


def _places(
    snapshot: Snapshot,
    training_jobs: TrainingJobs,
    numbers: Mapping[int, int],
    pinned: Collection[int],
) -> dict[int, Allocation]:
    wanted: dict[int, PlacementRequest] = {}
    for job, running in training_jobs.movable.items():
        request = snapshot.profiles[job].request
        assert request is not None, "what cannot be moved is fixed"
        wanted[job] = PlacementRequest(
            job=job,
            gpus=(gpus := numbers.get(job, 0)),
            request=request,
            allocation=running.allocation,
            pinned=job in pinned and gpus == gpu_count(running.allocation),
        )
    for job, job_class in training_jobs.waiting.items():
        if gpus := numbers.get(job, 0):
            wanted[job] = PlacementRequest(job=job, gpus=gpus, request=job_class.request)
    spaces, places = Spaces(snapshot.nodes), dict[int, Allocation]()
    while wanted:
        found = _places_or_fewer(spaces, wanted, snapshot.profiles)
        places |= found
        # who found no room may find it beside the places that the others have got in the end
        for each in wanted.values():
            spaces.give(each.allocation)
        for place in found.values():
            spaces.take(place)
        left = {job: each for job, each in wanted.items() if each.gpus and not found[job]}
        if len(left) == len(wanted):
            break
        wanted = {job: structs.replace(each, allocation=()) for job, each in left.items()}
    return places


def _places_or_fewer(
    spaces: Spaces, wanted: Mapping[int, PlacementRequest], profiles: Mapping[int, TrainingProfile]
) -> dict[int, Allocation]:
    """Return places; who finds no room for its number gets half as many GPUs, and so on."""
    requests = dict(wanted)
    places = settle(spaces, requests.values())
    while len(places) < len(requests):
        for job in requests.keys() - places.keys():
            half = requests[job].gpus // 2
            fewer = max((count for count in profiles[job].gpus if count <= half), default=0)
            requests[job] = structs.replace(requests[job], gpus=fewer)
        places = settle(spaces, requests.values())
    return places


def _why(running: RunningJob, place: Allocation) -> str:
    before, after = gpu_count(running.allocation), gpu_count(place)
    if not after:
        return f"other jobs need its {format_gpus(before)}"
    if before == after:
        return "migrated to defragment GPUs"
    return f"{format_gpus(after)} instead of {before}"


def stays(snapshot: Snapshot, speeds: Speeds, running: RunningJob) -> Forecast:
    """Return when a training ends that runs and stays as it is, and whether in time."""
    profile, gpus = snapshot.profiles[running.job], gpu_count(running.allocation)
    end_s = speeds.end_s(profile, gpus, snapshot.now_s)
    meets = profile.deadline_s is None or (end_s is not None and end_s <= profile.deadline_s)
    return Forecast(
        job=profile.job,
        meets=meets,
        end_s=end_s,
        gpus=gpus,
        why="" if meets else "it takes longer than planned",
    )
