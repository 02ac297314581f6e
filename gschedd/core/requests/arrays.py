"""What an action means for an array, or for some of its elements: one command, one commit."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import structs

from gsched.errors import BadStateError, GschedError, InvalidRequestError, UnknownJobError
from gsched.model.arrays import Span, Spans, common, count, format_spans, holds, indices, without
from gsched.model.ids import array_of, format_job_id, index_of
from gsched.model.limits import MAX_ARRAY_SPANS
from gsched.model.states import HoldKind, PartState
from gsched.protocol import actions as a
from gschedd.core.requests import commands as c
from gschedd.core.requests.access import authorize_action
from gschedd.core.requests.alter import alter_job
from gschedd.core.requests.jobs import delete_job, hold_job, release_job
from gschedd.core.state import facts as f
from gschedd.core.state.elements import WAITING_MOST, element_spec, free_slots, new_element
from gschedd.core.state.indexing import RESTING
from gschedd.core.state.records import ArrayIndex
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State

#: What an ordinary job is done to.
ActOnOne = Callable[[State, Settings, c.ActOnJob, float], list[f.AnyFact]]

_SHOWN: Final = 60  # characters of a list of indices in a message


def _array_meant(state: State, command: c.ActOnJob) -> tuple[ArrayIndex, Spans] | None:
    """Return an unfinished array and which of its elements are meant; None: an ordinary job is.

    An element that is a job now is an ordinary one.
    """
    index = state.arrays.get(command.job)
    if index is not None:
        return index, command.elements
    index = state.arrays.get(array_of(command.job))
    if index is None or command.job in state.jobs:
        return None
    here = index_of(command.job)
    return index, (Span(here, here),)


def act_on_array(
    state: State,
    settings: Settings,
    command: c.ActOnJob,
    now_s: float,
    act_on_one: ActOnOne,
) -> list[f.AnyFact] | None:
    """Return what an action comes to for an array or some of its elements; None: it is for a job.

    Raises:
        GschedError: it is refused, for all of them; nothing is changed then.
    """
    meant = _array_meant(state, command)
    if meant is None:
        return None
    index, spans = meant
    authorize_action(command, index.job, settings)
    return _Action(state, settings, command, index, now_s, act_on_one).facts(spans)


class _Action:
    """One action on one array."""

    def __init__(
        self,
        state: State,
        settings: Settings,
        command: c.ActOnJob,
        index: ArrayIndex,
        now_s: float,
        act_on_one: ActOnOne,
    ) -> None:
        self.state = state
        self.settings = settings
        self.command = command
        self.by = command.caller.user
        self.index = index
        self.array = index.job
        self.now_s = now_s
        self.act_on_one = act_on_one

    def facts(self, spans: Spans) -> list[f.AnyFact]:
        """Return what follows for the elements in ``spans``; empty: for all."""
        elements = self.array.array_elements
        left, held, made = elements.left, elements.held, sorted(self.index.made)
        if spans:
            left, held = common(left, spans), common(held, spans)
            made = [number for number in made if holds(spans, index_of(number))]
            if not (left or held or made):
                raise self._nothing(spans)
        match self.command.action:
            case a.DeleteJob():
                return self._delete(left, held, made)
            case a.HoldJob() as action if spans:
                return self._hold_some(action, left, made)
            case a.HoldJob() as action:
                waiting = [n for n in made if self.state.jobs[n].state in RESTING]
                here = hold_job(self.state, self.settings, self.command, action, self.now_s)
                return [*here, *self._each(waiting)]
            case a.ReleaseJob() as action:
                return self._release(action, held, made, whole=not spans)
            case a.AlterJob() as action:
                return self._alter(action, (*left, *held), made, whole=not spans)
            case _:
                return self._to_running(made)

    def _nothing(self, spans: Spans) -> GschedError:
        """Return why no element is left that the action is about."""
        shown = format_spans(spans)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        name = f"{self.array.id}[{shown}].{self.settings.server}"
        stated = self.array.spec.array
        assert stated is not None, "it is an array"
        if not common(stated.spans, spans):
            return UnknownJobError(
                f"Unknown Job Id {name}", hint=f"the indices of the array are {stated}"[:200]
            )
        one = count(spans) == 1
        words = "has already finished" if one else "have already finished"
        return BadStateError(f"job {name} {words}", hint=f"see ghist {self.array.id}[]")

    def _on(self, number: int) -> c.ActOnJob:
        return structs.replace(self.command, job=number, elements=())

    def _each(self, made: Sequence[int]) -> list[f.AnyFact]:
        """Return what the action comes to for elements that are jobs; some may refuse it.

        Raises:
            GschedError: all refuse it.
        """
        facts: list[f.AnyFact] = []
        refusals: list[GschedError] = []
        for number in made:
            try:
                facts.extend(
                    self.act_on_one(self.state, self.settings, self._on(number), self.now_s)
                )
            except GschedError as error:
                refusals.append(error)
        if refusals and len(refusals) == len(made):
            raise refusals[0].with_traceback(None)
        return facts

    def _delete(self, left: Spans, held: Spans, made: Sequence[int]) -> list[f.AnyFact]:
        action = self.command.action
        assert isinstance(action, a.DeleteJob), "it was matched"
        facts: list[f.AnyFact] = []
        if left or held:
            dropped = (*left, *held)
            self._check_parts(dropped)
            facts.append(
                f.ElementsDropped(
                    at_s=self.now_s,
                    job=self.array.id,
                    elements=dropped,
                    by=self.by,
                    message=action.message,
                )
            )
        for number in made:
            facts.extend(
                delete_job(self.state, self.settings, self._on(number), action, self.now_s)
            )
        return facts

    def _check_parts(self, gone: Spans) -> None:
        """Check that what is left can be kept in one record.

        Raises:
            InvalidRequestError: single elements leave too many ranges.
        """
        elements = self.array.array_elements
        parts = len(without(elements.left, gone)) + len(without(elements.held, gone))
        if parts > MAX_ARRAY_SPANS and parts > len(elements.left) + len(elements.held):
            raise InvalidRequestError(
                f"{parts} ranges of elements would be left of job {self.array.id}[]; "
                f"the limit is {MAX_ARRAY_SPANS}",
                hint="name ranges of adjacent indices",
            )

    def _hold_some(self, action: a.HoldJob, left: Spans, made: Sequence[int]) -> list[f.AnyFact]:
        """Return the hold of some elements; those that are no jobs yet just do not become any."""
        facts: list[f.AnyFact] = []
        if left:
            if set(action.holds) != {HoldKind.USER.value}:
                raise InvalidRequestError(
                    f"some of these elements of job {self.array.id}[] are no jobs yet: they can "
                    "only get a user hold",
                    hint=f"hold the whole array: ghold {self.array.id}[]",
                )
            self._check_parts(left)
            facts.append(
                f.ElementsHeld(at_s=self.now_s, job=self.array.id, elements=left, by=self.by)
            )
        return [*facts, *self._each(made)]

    def _release(
        self, action: a.ReleaseJob, held: Spans, made: Sequence[int], *, whole: bool
    ) -> list[f.AnyFact]:
        facts: list[f.AnyFact] = []
        if held and HoldKind.USER.value in action.holds:
            facts.append(
                f.ElementsReleased(at_s=self.now_s, job=self.array.id, elements=held, by=self.by)
            )
        on_hold = [number for number in made if self.state.jobs[number].holds]
        if whole and (self.array.holds or not (facts or on_hold)):
            facts.extend(release_job(self.state, self.settings, self.command, action, self.now_s))
        if not whole and not (facts or on_hold):
            name = format_job_id(self.array.id, self.settings.server)
            raise BadStateError(
                f"none of these elements of job {name} is held by itself",
                hint=f"release the whole array: grls {self.array.id}[]",
            )
        if facts:
            return [*facts, *self._each_or_nothing(on_hold)]
        return self._each(on_hold)

    def _each_or_nothing(self, made: Sequence[int]) -> list[f.AnyFact]:
        try:
            return self._each(made)
        except GschedError:
            return []

    def _alter(
        self, action: a.AlterJob, unmade: Spans, made: Sequence[int], *, whole: bool
    ) -> list[f.AnyFact]:
        """Return the change of what is no job yet and of what waits.

        Of some elements, those that are no jobs yet become jobs for it.
        """
        waiting = [number for number in made if self.state.jobs[number].state in RESTING]
        if whole:
            own = alter_job(self.state, self.settings, self.command, action, self.now_s)
            return [*own, *self._each_or_nothing(waiting)]
        facts: list[f.AnyFact] = []
        new = count(unmade)
        if new > min(WAITING_MOST - self.index.waiting, free_slots(self.index)):
            raise BadStateError(
                f"{new} of these elements of job {self.array.id}[] are no jobs yet, and so many "
                "cannot become jobs now",
                hint=f"alter fewer of them, or all that wait: galter {self.array.id}[]",
            )
        if unmade:
            facts.append(f.ElementsMade(at_s=self.now_s, job=self.array.id, elements=unmade))
            spec = element_spec(self.array.spec)
            for index in indices(unmade):
                job = new_element(self.array, index, spec, self.now_s)
                command = self._on(job.id)
                facts.extend(
                    alter_job(self.state, self.settings, command, action, self.now_s, job=job)
                )
        return [*facts, *self._each(made)]

    def _to_running(self, made: Sequence[int]) -> list[f.AnyFact]:
        """Return what is done to the elements that run: signals, reruns, migrations."""
        running = [
            number
            for number in made
            if (attempt := self.state.jobs[number].attempt) is not None
            and any(part.state is PartState.RUNNING for part in attempt.parts.values())
        ]
        if not running:
            raise BadStateError(
                f"no element of job {self.array.id}[] runs", hint=f"see gstat -t {self.array.id}[]"
            )
        return self._each(running)
