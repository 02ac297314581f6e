"""What every change of a job's state goes through: the table of moves, the indices, what to store.

For `gschedd.core.apply` and its parts alone: nobody else writes the state.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Final

from gsched.model.ids import ELEMENT_BASE, array_of, short_job_id
from gsched.model.states import JobState
from gschedd.core.state import facts as f
from gschedd.core.state.ledger import end_claim, keep_claim, release
from gschedd.core.state.limit_use import count_submitted, load_budgets, recount
from gschedd.core.state.priority import Priorities
from gschedd.core.state.records import ArrayIndex, Attempt, Job, RoomClaim
from gschedd.core.state.state import State
from gschedd.core.state.transient import WaitingGroup
from gschedd.core.state.transitions import next_job_state
from gschedd.plan.limits import LimitBook, LimitRules

RESTING: Final = frozenset({JobState.QUEUED, JobState.WAITING, JobState.HELD})
#: More elements of an array become jobs when so many or fewer wait: half of what may wait.
MORE_BELOW: Final = 128


def enter(state: State, job: Job) -> None:
    """Index a job by the state it is in; an array is never among the jobs that may start."""
    _count(state, job, 1)
    count_element(state, job, 1)
    is_array = job.spec.array is not None
    if job.state is JobState.QUEUED and is_array:
        state.dirty.mark_array(job.id)
    if job.state is JobState.QUEUED and not is_array and (job.sparse is None or job.claim is None):
        job_class = state.class_of(job)
        group = state.groups.get(job_class)
        if group is None:
            group = state.groups[job_class] = WaitingGroup(job_class)
            state.classes_of.setdefault(job_class.request, {})[job_class] = None
        group.add(state.lane_of(job), state.place_of(job))
        state.dirty.mark_class(job_class)
    elif job.state is not JobState.DONE:
        state.apart[job.id] = job
    if job.state is JobState.WAITING:
        insort(state.delayed, (job.start_after_s, job.id))


def leave(state: State, job: Job) -> None:
    """Take a job out of the index of the state it is in."""
    _count(state, job, -1)
    count_element(state, job, -1)
    state.apart.pop(job.id, None)
    if job.state is JobState.QUEUED and (job.spec.array is not None or job.claim is not None):
        return
    if job.state is JobState.QUEUED:
        job_class = state.class_of(job)
        group = state.groups[job_class]
        group.remove(state.lane_of(job), state.place_of(job))
        if not group.count:
            del state.groups[job_class]
            alike = state.classes_of[job_class.request]
            del alike[job_class]
            if not alike:
                del state.classes_of[job_class.request]
    elif job.state is JobState.WAITING:
        entry = (job.start_after_s, job.id)
        index = bisect_left(state.delayed, entry)
        assert state.delayed[index] == entry, f"job {short_job_id(job.id)} is not among the delayed"
        del state.delayed[index]


def reprioritize(state: State, queue_priorities: Mapping[str, int]) -> None:
    """Give queues other priorities; their waiting jobs get other places in the order."""
    before = state.queue_priorities
    known = {*before, *queue_priorities}
    changed = {name for name in known if before.get(name, 0) != queue_priorities.get(name, 0)}
    waiting = [
        job
        for job in state.jobs.values()
        if job.state is JobState.QUEUED and job.spec.queue in changed
    ]
    for job in waiting:
        leave(state, job)
    state.queue_priorities = dict(queue_priorities)
    for job in waiting:
        enter(state, job)


def order_by(state: State, priorities: Priorities | None) -> None:
    """Order waiting jobs by other priorities; their lanes change where there were none before."""
    if (priorities is None) is (state.priorities is None):
        state.priorities = priorities
        return
    waiting = [job for job in state.jobs.values() if job.state is JobState.QUEUED]
    for job in waiting:
        leave(state, job)
    state.priorities = priorities
    for job in waiting:
        enter(state, job)


def _count(state: State, job: Job, change: int) -> None:
    """Count a job among the unfinished ones of its queue and state."""
    if job.state is JobState.DONE:
        return
    key = (job.spec.queue, job.state)
    count = state.counts.get(key, 0) + change
    if count:
        state.counts[key] = count
    else:
        del state.counts[key]


def relimit(state: State, rules: LimitRules) -> None:
    """Count all jobs under other limits; those that wait get other classes."""
    if rules == state.limits.rules:
        return
    waiting = [job for job in state.jobs.values() if job.state is JobState.QUEUED]
    for job in waiting:
        leave(state, job)
    state.limits = LimitBook(rules)
    load_budgets(state, state.limits)
    for job in waiting:
        enter(state, job)
    for job in state.jobs.values():
        count_submitted(state, job)
        recount(state, job)


def count_element(state: State, job: Job, change: int) -> None:
    """Count an element of an array among those that wait, where it does."""
    index = state.arrays.get(array_of(job.id)) if job.id >= ELEMENT_BASE else None
    if index is None or job.state not in RESTING:
        return
    index.waiting += change
    elements = index.job.elements
    if change < 0 and elements is not None and elements.left and index.waiting <= MORE_BELOW:
        state.dirty.mark_array(index.job.id)


def move(state: State, job: Job, fact: f.JobFact, wanted: JobState) -> None:
    """Let a job go to another state, as the table allows, with all indices."""
    following = next_job_state(job.state, fact, wanted)
    if job.state is JobState.QUEUED and following not in {JobState.QUEUED, JobState.RUNNING}:
        state.dirty.mark_all()  # others may have waited for its sake
    if following is not JobState.QUEUED and job.sparse is not None:
        set_claim(state, job, None)
    if following is not job.state or following in RESTING:  # else all indices have it already
        leave(state, job)
        job.state = following
        enter(state, job)
    touch(state, job)


def set_claim(state: State, job: Job, claim: RoomClaim | None) -> None:
    """Keep an allocation for a waiting job, or keep it no more; with one it is in no group."""
    if claim is job.claim:
        return
    leave(state, job)
    if job.claim is not None:
        end_claim(state, job)
    job.claim = claim
    if claim is not None:
        keep_claim(state, job)
    enter(state, job)


def note_array(state: State, job: Job) -> None:
    """Index an array, or an element of one."""
    if job.spec.array is not None:
        state.arrays[job.id] = ArrayIndex(job)
    elif (index := state.arrays.get(array_of(job.id))) is not None:
        index.made.add(job.id)


def note_dependencies(state: State, job: Job) -> None:
    """Index a job by the jobs that it depends on."""
    for dependency in job.spec.depends:
        for on in dependency.jobs:
            state.dependants.setdefault(on, set()).add(job.id)


def forget_dependencies(state: State, job: Job) -> None:
    """Take a job out of that index."""
    for dependency in job.spec.depends:
        for on in dependency.jobs:
            waiting = state.dependants.get(on, set())
            waiting.discard(job.id)
            if not waiting:
                state.dependants.pop(on, None)


def touch(state: State, job: Job) -> None:
    """Note that a job is to be stored."""
    state.unstored.jobs[job.id] = job
    state.caches.rows.pop(job.id, None)


def touch_attempt(state: State, job: Job) -> Attempt:
    """Note that a job's attempt is to be stored, and return it."""
    attempt = job.current_attempt
    state.unstored.attempts[job.id, attempt.number] = attempt
    state.caches.rows.pop(job.id, None)
    return attempt


def resting_state(job: Job, at_s: float) -> JobState:
    """Return where a job that is neither running nor done belongs at ``at_s``."""
    if job.holds:
        return JobState.HELD
    return JobState.WAITING if job.start_after_s > at_s else JobState.QUEUED


def give_up_move(state: State, job: Job) -> None:
    """Forget where a job was to go on: it is there, or will not go."""
    release(state, job)
