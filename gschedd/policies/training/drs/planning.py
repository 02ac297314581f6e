"""One plan of DRS in the making: moves, the round, and what is said of everybody."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import structs

from gsched.config.policies import DrsConfig, WeightsConfig
from gsched.model.ids import short_job_id
from gschedd.allocation.configurations import (
    Paces,
    Preference,
    Waiting,
    waiting_training_jobs,
)
from gschedd.allocation.forecasts import Expected, Idle, Level, outlook
from gschedd.allocation.performance import ROUNDING_S
from gschedd.allocation.running import on_open_nodes
from gschedd.plan.layouts import layout_of
from gschedd.plan.snapshot import DeadlineForecast, Plan, RunningJob, Snapshot, Start, Wait
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.training import TrainingProfile
from gschedd.policies.kit.capacity import guaranteed, largest, value
from gschedd.policies.training.drs import migrate as m
from gschedd.policies.training.drs.room import Room, gained_by, keep_back
from gschedd.policies.training.drs.round import Decided, Round
from gschedd.policies.training.drs.words import late_words, start_words, wait_words

#: Until it is looked again at what starts and stands in the way, seconds: some take a minute.
LOOK_AGAIN_S: Final = 5.0

COMING_BACK: Final = "waits for GPUs that are being released; it then meets its deadline"


class Planning:
    """One plan in the making; it is asked for its plan once."""

    def __init__(self, snapshot: Snapshot, settings: DrsConfig) -> None:
        self._snapshot = snapshot
        self._settings = settings
        self._paces = Paces()
        self._idle = Idle(snapshot, self._paces)
        self._is_paper = settings.variant == "paper"
        self._preference = None if self._is_paper else most_capacity(snapshot)
        self._waiting = waiting_training_jobs(snapshot)
        #: Why some wait although there may be room for them.
        self._because: dict[int, str] = {}

    def plan(self) -> Plan:
        """Return it."""
        if not self._waiting:
            return Plan(verdicts=self._of_running())
        if self._is_paper:
            return self._paper()
        moved = self._worthwhile_moves() if self._settings.moves_max else []
        room = self._room(moved)
        because = "running training jobs make room for it" if moved else COMING_BACK
        self._because = dict.fromkeys(room.gained, because)
        first = self._overdue()
        ahead = room.gained.keys() | {each.profile.job for each in first}
        started = self._round(room.free).run(
            [each for each in self._waiting if each.profile.job not in ahead],
            self._postponed,
            first=first,
        )
        self._note_blocked(first, started)
        plan = self._answer(room.free, started, m.told(moved, room.gained), room.gained)
        return plan if moved else structs.replace(plan, again_s=self._again_s(plan))

    def _coming_back(self) -> list[RunningJob]:
        """Return what is leaving nodes that take work; others may not come back."""
        return [
            job
            for job in self._snapshot.running
            if job.leaving and on_open_nodes(self._snapshot, job.allocation)
        ]

    def _room(self, moved: Sequence[m.Moved]) -> Room:
        """Return what may be used now, and who waits for what is being left, or is to be."""
        snapshot = self._snapshot
        now, then = Spaces(snapshot.nodes), m.after(snapshot, moved)
        going = [each.running.job.allocation for each in moved]
        if not moved:
            going = [job.allocation for job in snapshot.running if job.leaving]
            for allocation in going:
                then.give(allocation)
        if not going or self._overdue():
            return Room(free=now, gained={})
        met = self._met(now.copy(), 0.0)
        gained = gained_by(self._met(then, _delay_s(moved)), met)
        coming = [each.move.allocation for each in moved]
        coming += [each.allocation for each in gained.values()]
        return Room(free=keep_back(snapshot, going, coming), gained=gained)

    def _again_s(self, plan: Plan) -> float | None:
        """Return when to look again whether moves would help: what starts cannot be moved yet."""
        snapshot = self._snapshot
        late = {each.job for each in plan.verdicts if not each.meets}
        if not self._settings.moves_max or not any(
            each.profile.job in late for each in self._waiting
        ):
            return None
        starts = any(job.starting and job.job in snapshot.profiles for job in snapshot.running)
        if not starts or not m.is_scattered(snapshot):
            return None
        return snapshot.now_s + LOOK_AGAIN_S

    def _overdue(self) -> list[Waiting]:
        """Return those that are late and have waited too long, the oldest first.

        One that no node could hold, whatever ends, is not among them: it would hold up all others.
        """
        now_s = self._snapshot.now_s
        found = [
            each
            for each in self._waiting
            if now_s - each.profile.arrived_s >= self._settings.patience_s
            and (each.profile.deadline_s is None or each.profile.deadline_s < now_s)
            and self._idle.levels_of(each)
        ]
        return sorted(found, key=lambda each: (each.profile.arrived_s, each.profile.job))

    def _note_blocked(self, first: Sequence[Waiting], started: Sequence[Decided]) -> None:
        """Say of all that could start, but for one that has waited longest, that it is so."""
        begun = {each.waiting.profile.job for each in started}
        oldest = next((each.profile.job for each in first if each.profile.job not in begun), None)
        if oldest is not None:
            why = f"job {short_job_id(oldest)} is late, has waited longest and goes first"
            self._because.update(
                (each.profile.job, why) for each in self._waiting if each.profile.job != oldest
            )

    def _paper(self) -> Plan:
        """Plan as published: everything stands still while training jobs are moved."""
        nodes = self._snapshot.nodes
        free = Spaces(nodes)
        going = (job.job in self._snapshot.profiles for job in self._coming_back())
        if self._settings.moves_max and any(going):
            return self._hold(free, [])
        if self._settings.moves_max and m.is_scattered(self._snapshot):
            moved = m.repack(self._snapshot, self._paces)
            if moved:
                return self._hold(free, moved)
        return self._answer(free, self._round(free).run(self._waiting), [])

    def _hold(self, free: Spaces, moved: Sequence[m.Moved]) -> Plan:
        for each in self._waiting:
            self._because[each.profile.job] = "running training jobs are being consolidated"
        return self._answer(free, [], moved)

    def _round(self, free: Spaces, delay_s: float = 0.0) -> Round:
        return Round(
            self._snapshot.now_s + delay_s,
            free,
            self._snapshot.fabric,
            self._paces,
            preference=self._preference,
            by_kind=not self._is_paper,
        )

    def _met(self, free: Spaces, delay_s: float) -> dict[int, Decided]:
        """Return the waiting training jobs that would start there and be in time, by job."""
        started = self._round(free, delay_s).run(self._waiting)
        return {each.waiting.profile.job: each for each in started if each.meets}

    def _worthwhile_moves(self) -> list[m.Moved]:
        """Return the fewest moves by which more of the waiting are in time; none if there are none.

        What waits counts as starting when those that move go on, which is later than it could.
        """
        if self._overdue() or self._coming_back():
            return []  # one thing after the other: these may be what moves
        if not m.is_scattered(self._snapshot):
            return []
        met = len(self._met(Spaces(self._snapshot.nodes), 0.0))
        if met == len(self._waiting):
            return []
        limit = self._settings.moves_max
        if self._snapshot.moves_max is not None:  # half of them would change nothing
            limit = min(limit, self._snapshot.moves_max)
        for moved in m.vacated(self._snapshot, self._paces, moves_max=limit):
            if len(self._met(m.after(self._snapshot, moved), _delay_s(moved))) > met:
                return moved
        return []

    def _postponed(self, waiting: Waiting) -> bool:
        """Return whether GPUs that are coming back would let a training be in time.

        Once its deadline is too near for that, it starts: it does not wait for ever.
        """
        coming = Spaces(self._snapshot.nodes)
        leaving = [job for job in self._snapshot.running if job.leaving]
        if not leaving:
            return False
        for job in leaving:
            coming.give(job.allocation)
        if not any(each.meets for each in self._round(coming).run([waiting])):
            return False
        self._because[waiting.profile.job] = COMING_BACK
        return True

    def _answer(
        self,
        free: Spaces,
        started: Sequence[Decided],
        moved: Sequence[m.Moved],
        gained: Mapping[int, Decided] | None = None,
    ) -> Plan:
        """Return the plan, with words for all that wait and an end for all that is known of."""
        now_s = self._snapshot.now_s
        starting = {each.waiting.profile.job for each in started}
        left = [each for each in self._waiting if each.profile.job not in starting]
        expected = {job: self._on_time(each, moved) for job, each in (gained or {}).items()}
        rest = [each for each in left if each.profile.job not in expected]
        expected |= outlook(self._snapshot, rest, free, self._idle) if rest else {}
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
            moves=tuple(each.move for each in moved),
            verdicts=(
                *(_verdict(each.waiting.profile, each.end_s, each.option.gpus) for each in started),
                *(self._of_waiting(each, expected[each.profile.job]) for each in left),
                *self._of_running({each.move.job: each for each in moved}),
            ),
        )

    def _on_time(self, decided: Decided, moved: Sequence[m.Moved]) -> Expected:
        """Return what is expected of one for which room is made."""
        start_s = self._snapshot.now_s + _delay_s(moved)
        return Expected(start_s=start_s, end_s=decided.end_s, gpus=decided.option.gpus)

    def _wait(self, waiting: Waiting, expected: Expected) -> Wait:
        profile = waiting.profile
        levels = self._idle.levels_of(waiting) if waiting.form is not None else None
        return Wait(
            job_class=waiting.job_class,
            first=profile.job,
            reason=wait_words(
                profile,
                levels,
                expected,
                now_s=self._snapshot.now_s,
                because=self._because.get(profile.job, "no GPUs are free that it can use"),
            ),
            predicted_start_s=expected.start_s,
        )

    def _of_waiting(self, waiting: Waiting, expected: Expected) -> DeadlineForecast:
        profile = waiting.profile
        end_s = expected.end_s
        out_of_reach = self._is_out_of_reach(waiting)
        unsure = end_s is None and not out_of_reach and profile.deadline_s is not None
        return DeadlineForecast(
            job=profile.job,
            meets=end_s is not None and _is_in_time(profile, end_s),
            end_s=end_s,
            gpus=expected.gpus,
            why="its start time cannot be predicted"
            if end_s is None
            else late_words(profile, end_s),
            firm=out_of_reach,
            unsure_until_s=self._latest_start_s(waiting) if unsure else None,
        )

    def _is_out_of_reach(self, waiting: Waiting) -> bool:
        """Return whether a waiting training would be late on an idle cluster, too."""
        profile, levels = waiting.profile, self._idle.levels_of(waiting)
        if profile.deadline_s is None or not levels:
            return False
        return not _is_in_time(profile, self._snapshot.now_s + _soonest_s(profile, levels))

    def _latest_start_s(self, waiting: Waiting) -> float | None:
        """Return when it must have begun to be in time, had it an idle cluster to itself."""
        profile, levels = waiting.profile, self._idle.levels_of(waiting)
        if profile.deadline_s is None or not levels:
            return profile.deadline_s
        return profile.deadline_s - _soonest_s(profile, levels) + ROUNDING_S

    def _of_running(
        self, moved: Mapping[int, m.Moved] | None = None
    ) -> tuple[DeadlineForecast, ...]:
        """Return when what runs will be done; of what is being stopped nothing new is said."""
        snapshot = self._snapshot
        spaces = Spaces(snapshot.nodes)
        found: list[DeadlineForecast] = []
        for job in sorted(snapshot.running, key=lambda each: each.job):
            profile = snapshot.profiles.get(job.job)
            if profile is None or job.leaving:
                continue
            move = (moved or {}).get(job.job)
            if move is None:
                layout = layout_of(job.allocation, spaces.gpus_of, snapshot.fabric)
                end_s = snapshot.now_s + profile.run_time_s(layout)
            else:
                layout = move.layout
                end_s = snapshot.now_s + profile.move_s + profile.work_time_s(layout)
            found.append(_verdict(profile, end_s, layout.gpus))
        return tuple(found)


def _verdict(profile: TrainingProfile, end_s: float, gpus: int) -> DeadlineForecast:
    if end_s == float("inf"):
        return DeadlineForecast(
            job=profile.job, meets=False, why="it makes no progress where it runs"
        )
    meets = _is_in_time(profile, end_s)
    return DeadlineForecast(
        job=profile.job,
        meets=meets,
        end_s=end_s,
        gpus=gpus,
        why="" if meets else late_words(profile, end_s),
    )


def _soonest_s(profile: TrainingProfile, levels: tuple[Level, ...]) -> float:
    """Return how long it runs on the best of some levels, seconds."""
    return profile.startup_s + profile.work * levels[-1][1]


def _is_in_time(profile: TrainingProfile, end_s: float) -> bool:
    return profile.deadline_s is None or end_s <= profile.deadline_s + ROUNDING_S


def _delay_s(moved: Sequence[m.Moved]) -> float:
    """Return how long it takes until what is moved has left and goes on, seconds."""
    return max((each.running.profile.move_s for each in moved), default=0.0)


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
