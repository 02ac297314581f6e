"""One plan of DRS in the making: migrations, the round, and the forecast of each job."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import structs

from gsched.config.policies import DrsConfig, WeightsConfig
from gsched.model.ids import short_job_id
from gschedd.allocation.running import TrainingJobs, is_scattered, on_open_nodes
from gschedd.plan.forecast import Forecast
from gschedd.plan.layouts import layout_of
from gschedd.plan.snapshot import Move, Plan, RunningJob, Snapshot, Start, Wait
from gschedd.plan.space import FreeNode, Spaces, kept_back
from gschedd.plan.training import Layout, TrainingProfile, gpu_count, gpus_by_node
from gschedd.policies.kit.capacity import guaranteed, largest, value
from gschedd.policies.training.drs.choice import ROUNDING_S
from gschedd.policies.training.drs.expected import IdleCluster, expected_of
from gschedd.policies.training.drs.moves import Migration, after, vacated
from gschedd.policies.training.drs.options import Paces, Preference, WaitingJob, waiting_jobs
from gschedd.policies.training.drs.round import ChosenStart, StartRound
from gschedd.policies.training.drs.words import late_words, start_words, wait_words

#: Until it is looked again at what starts and stands in the way, seconds: some take a minute.
LOOK_AGAIN_S: Final = 5.0

BEING_RELEASED: Final = "waits for GPUs that are being released; it then meets its deadline"
ROOM_IS_MADE: Final = "running training jobs make room for it"
NO_GPUS: Final = "no GPUs are free that it can use"


class Planning:
    """One plan in the making; lives only inside ``drs.plan``."""

    def __init__(self, snapshot: Snapshot, settings: DrsConfig) -> None:
        self._snapshot = snapshot
        self._settings = settings
        self._training_jobs = TrainingJobs.of(snapshot)
        self._waiting = waiting_jobs(snapshot, self._training_jobs)
        self._paces = Paces()
        self._idle = IdleCluster(snapshot, self._paces)
        self._preference = most_capacity(snapshot)
        self._overdue = self._late_too_long()
        self._leaving = [job for job in snapshot.running if job.leaving]
        #: Why some wait although there may be room for them.
        self._because: dict[int, str] = {}

    def plan(self) -> Plan:
        """Return it."""
        if not self._waiting:
            return Plan(verdicts=self._of_running({}))
        moved = self._worthwhile_moves()
        free, gained, postponed = self._room(moved)
        self._because = dict.fromkeys(postponed, BEING_RELEASED)
        self._because.update(dict.fromkeys(gained, ROOM_IS_MADE if moved else BEING_RELEASED))
        ahead = gained.keys() | {each.profile.job for each in self._overdue}
        started = self._round(free).run(
            [each for each in self._waiting if each.profile.job not in ahead],
            postponed,
            first=self._overdue,
        )
        self._note_blocked(started)
        plan = self._answer(free, started, moved, gained)
        return plan if moved else structs.replace(plan, again_s=self._again_s(plan))

    # --- room for those that wait ---

    def _room(
        self, moved: Sequence[Migration]
    ) -> tuple[Spaces, Mapping[int, ChosenStart], Collection[int]]:
        """Return what may be used now, who meets its deadline on what is being left, and who could.

        What the second need is kept for them; nobody has it if more would be in time without.
        """
        snapshot = self._snapshot
        now, then = Spaces(snapshot.nodes), after(snapshot, moved)
        leaving = [each.running for each in moved] if moved else self._leaving
        going = [job.allocation for job in leaving]
        for allocation in () if moved else going:
            then.give(allocation)
        if not going:
            return now, {}, ()
        later = self._met(then, _delay_s(moved))
        met = self._met(now.copy(), 0.0)
        postponed = () if moved else later.keys() - met.keys()
        if self._overdue or len(later) < len(met):
            return now, {}, postponed
        gained = {job: each for job, each in later.items() if job not in met}
        coming = [each.allocation for each in moved]
        coming += [each.allocation for each in gained.values()]
        for name in sorted({share.node for each in coming for share in each}):
            goes = [share for each in going for share in each if share.node == name]
            comes = [share for each in coming for share in each if share.node == name]
            now.put(kept_back(now[name], goes, comes))
        return now, gained, postponed

    def _worthwhile_moves(self) -> list[Migration]:
        """Return the fewest migrations by which more of the waiting meet their deadlines, if any.

        What waits counts as starting when those that migrate resume, which is later than it could.
        """
        snapshot = self._snapshot
        limit = self._settings.moves_max
        if snapshot.moves_max is not None:  # half of them would change nothing
            limit = min(limit, snapshot.moves_max)
        released = any(on_open_nodes(snapshot, job.allocation) for job in self._leaving)
        # one thing after the other: what is being released may be what migrates
        if not limit or self._overdue or released or not is_scattered(snapshot):
            return []
        met = len(self._met(Spaces(snapshot.nodes), 0.0))
        if met == len(self._waiting):
            return []
        for moved in vacated(snapshot, self._training_jobs.movable, moves_max=limit):
            if len(self._met(after(snapshot, moved), _delay_s(moved))) > met:
                return moved
        return []

    def _again_s(self, plan: Plan) -> float | None:
        """Return when to look again whether moves would help: what starts cannot migrate yet."""
        snapshot = self._snapshot
        late = {each.job for each in plan.verdicts if not each.meets}
        if not self._settings.moves_max or not any(
            each.profile.job in late for each in self._waiting
        ):
            return None
        starts = any(job.starting and job.job in snapshot.profiles for job in snapshot.running)
        return snapshot.now_s + LOOK_AGAIN_S if starts and is_scattered(snapshot) else None

    # --- who starts ---

    def _round(self, free: Spaces, delay_s: float = 0.0) -> StartRound:
        now_s, fabric = self._snapshot.now_s + delay_s, self._snapshot.fabric
        return StartRound(now_s, free, fabric, self._paces, self._preference)

    def _met(self, free: Spaces, delay_s: float) -> dict[int, ChosenStart]:
        """Return the waiting jobs that would start there and meet their deadlines, by job."""
        started = self._round(free, delay_s).run(self._waiting)
        return {each.waiting.profile.job: each for each in started if each.meets}

    def _late_too_long(self) -> list[WaitingJob]:
        """Return those that are late and have waited too long, the oldest first.

        One that no node could hold, whatever ends, is not among them: it would hold up all others.
        """
        now_s = self._snapshot.now_s
        found = [
            each
            for each in self._waiting
            if now_s - each.profile.arrived_s >= self._settings.patience_s
            and (each.profile.deadline_s is None or each.profile.deadline_s < now_s)
            and self._idle.levels_of(each).gpus
        ]
        return sorted(found, key=lambda each: (each.profile.arrived_s, each.profile.job))

    def _note_blocked(self, started: Sequence[ChosenStart]) -> None:
        """Give the reason to all that could start, but for one that has waited longest."""
        begun = {each.waiting.profile.job for each in started}
        overdue = (each.profile.job for each in self._overdue if each.profile.job not in begun)
        oldest = next(overdue, None)
        if oldest is not None:
            why = f"job {short_job_id(oldest)} is late, has waited longest and goes first"
            self._because.update(
                (each.profile.job, why) for each in self._waiting if each.profile.job != oldest
            )

    # --- the plan and its forecasts ---

    def _answer(
        self,
        free: Spaces,
        started: Sequence[ChosenStart],
        moved: Sequence[Migration],
        gained: Mapping[int, ChosenStart],
    ) -> Plan:
        now_s = self._snapshot.now_s
        starting = {each.waiting.profile.job for each in started}
        left = [each for each in self._waiting if each.profile.job not in starting]
        begin_s = now_s + _delay_s(moved)
        expected = {
            job: Forecast(start_s=begin_s, end_s=each.end_s, gpus=each.option.gpus)
            for job, each in gained.items()
        }
        rest = [each for each in left if each.profile.job not in expected]
        if rest:
            ends = [(self._end_s(job), gpu_count(job.allocation)) for job in self._snapshot.running]
            expected |= expected_of(self._snapshot, rest, free, ends, self._idle)
        jobs = ", ".join(map(str, sorted(gained)))
        return Plan(
            starts=tuple(
                Start(
                    job=each.waiting.profile.job,
                    job_class=each.waiting.job_class,
                    allocation=each.allocation,
                    why=start_words(each, now_s),
                )
                for each in started
            ),
            waits=tuple(self._wait(each, expected[each.profile.job]) for each in left),
            moves=tuple(
                Move(
                    job=each.running.job,
                    allocation=each.allocation,
                    why=f"from {', '.join(sorted(gpus_by_node(each.running.allocation)))}, "
                    f"to make room for job {jobs}",
                )
                for each in moved
            ),
            verdicts=(
                *(
                    _forecast(each.waiting.profile, each.end_s, each.option.gpus)
                    for each in started
                ),
                *(self._of_waiting(each, expected[each.profile.job]) for each in left),
                *self._of_running({each.running.job: each for each in moved}),
            ),
        )

    def _wait(self, waiting: WaitingJob, expected: Forecast) -> Wait:
        job = waiting.profile.job
        return Wait(
            job_class=waiting.job_class,
            first=job,
            reason=wait_words(
                waiting.profile,
                self._idle.levels_of(waiting),
                expected,
                now_s=self._snapshot.now_s,
                because=self._because.get(job, NO_GPUS),
            ),
            predicted_start_s=expected.start_s,
        )

    def _of_waiting(self, waiting: WaitingJob, expected: Forecast) -> Forecast:
        """Return the forecast of a waiting job; firm where even an idle cluster is too slow."""
        profile, end_s = waiting.profile, expected.end_s
        soonest_s = self._idle.soonest_s(waiting)
        is_bound = profile.deadline_s is not None and soonest_s < float("inf")
        firm = is_bound and not _is_in_time(profile, self._snapshot.now_s + soonest_s)
        unsure_until_s = None
        if end_s is None and not firm and profile.deadline_s is not None:
            # when it must have begun, had it an idle cluster to itself
            unsure_until_s = profile.deadline_s - (soonest_s - ROUNDING_S if is_bound else 0.0)
        if end_s is not None:
            return structs.replace(_forecast(profile, end_s, expected.gpus), firm=firm)
        return Forecast(
            job=profile.job,
            meets=False,
            why="its start time cannot be predicted",
            firm=firm,
            unsure_until_s=unsure_until_s,
        )

    def _of_running(self, moved: Mapping[int, Migration]) -> tuple[Forecast, ...]:
        """Return when running jobs end; a job that is being stopped has no new forecast."""
        now_s = self._snapshot.now_s
        found: list[Forecast] = []
        for job in sorted(self._snapshot.running, key=lambda each: each.job):
            profile = self._snapshot.profiles.get(job.job)
            if profile is None or job.leaving:
                continue
            move = moved.get(job.job)
            if move is None:
                end_s = self._end_s(job)
            else:
                end_s = now_s + profile.move_s + profile.work_time_s(move.layout)
            found.append(_forecast(profile, end_s, self._layout_of(job).gpus))
        return tuple(found)

    def _layout_of(self, job: RunningJob) -> Layout:
        gpus_of = Spaces(self._snapshot.nodes).gpus_of
        return layout_of(job.allocation, gpus_of, self._snapshot.fabric)

    def _end_s(self, job: RunningJob) -> float:
        """Return when a running job ends as planned, seconds since the epoch; infinite: never."""
        now_s, profile = self._snapshot.now_s, self._snapshot.profiles.get(job.job)
        if profile is not None:
            return now_s + profile.run_time_s(self._layout_of(job))
        return float("inf") if job.end_s is None else max(job.end_s, now_s)


def _forecast(profile: TrainingProfile, end_s: float, gpus: int) -> Forecast:
    if end_s == float("inf"):
        return Forecast(job=profile.job, meets=False, why="it makes no progress where it runs")
    meets = _is_in_time(profile, end_s)
    return Forecast(
        job=profile.job,
        meets=meets,
        end_s=end_s,
        gpus=gpus,
        why="" if meets else late_words(profile, end_s),
    )


def _is_in_time(profile: TrainingProfile, end_s: float) -> bool:
    return profile.deadline_s is None or end_s <= profile.deadline_s + ROUNDING_S


def _delay_s(moved: Sequence[Migration]) -> float:
    """Return how long it takes until what migrates has left and resumes, seconds."""
    return max((each.profile.move_s for each in moved), default=0.0)


def most_capacity(snapshot: Snapshot) -> Preference:
    """Return what prefers the node with the most capacity left, as ``balance`` tells it."""
    weights = WeightsConfig()
    loads = {
        name: snapshot.loads.get(name) or guaranteed(space)
        for name, space in snapshot.nodes.items()
        if space.total_gpus
    }
    most = largest({name: load.rates for name, load in loads.items()})

    def preference(space: FreeNode) -> float:
        load = snapshot.loads.get(space.name) or guaranteed(space)
        return -value(load.rates, load.used, most, weights, with_gpus=True)

    return preference
