"""What must hold of the head's state in itself at any moment, whatever has happened.

The simulator checks it at every step, and the tests of the core use the very same checks; the
numbers are those of `tests.fault_world.checks`.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import structs

from gsched.model.arrays import count, indices
from gsched.model.ids import array_of, index_of, submitted_number
from gsched.model.resources import Share
from gsched.model.states import AttemptState, JobState, PartState
from gschedd.core.head import Head
from gschedd.core.state.ledger import avoided_gpus, coming, kept_space
from gschedd.core.state.limit_use import held_by, load_budgets, submitted_by
from gschedd.core.state.records import Job
from gschedd.core.state.state import State, party_of
from gschedd.core.state.transient import WaitingGroup
from gschedd.core.views.reasons import Reasons
from gschedd.plan.budgets import DAY_S
from gschedd.plan.limits import LimitBook
from gschedd.plan.space import FreeNode, emptied, take

RESTING: Final = frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING})
LIVE_PARTS: Final = frozenset({PartState.PENDING, PartState.RUNNING})
#: Counters of time, which a job does not count beyond the end of its walltime.
TIMES: Final = frozenset({"rate", "ends", "still", "endless"})


class InvariantError(AssertionError):
    """A guarantee of gsched's is broken; ``number`` says which."""

    def __init__(self, number: str, message: str) -> None:
        super().__init__(f"{number}: {message}")
        self.number = number


def demand(condition: bool, number: str, message: str) -> None:  # noqa: FBT001 - as an assert
    """Raise unless a condition holds; what is checked most often makes its message only then.

    Raises:
        InvariantError: it does not.
    """
    if not condition:
        raise InvariantError(number, message)


def check_head(head: Head, *, shrunk: Collection[str] = ()) -> None:
    """Check all that must hold of the head's state at any moment.

    Args:
        shrunk: nodes that have come back with less than was given away before.
    """
    state = head.state
    for name in state.nodes:
        check_node(state, name, shrunk=name in shrunk)
    _check_groups(state)
    _check_running(state)
    _check_counts(state)
    _check_arrays(state)
    _check_limits(state)
    reasons = Reasons(state, head.settings, head.waits, head.safe_mode)
    for job in state.jobs.values():
        _check_job(job)
        if job.state in RESTING and not reasons.of(job):
            raise InvariantError("I11", f"job {job.id} waits without a reason")


# --- nodes ---


def check_node(state: State, name: str, *, shrunk: bool = False) -> None:
    """Check that what is owned and what is free make up a node, and nothing is owned twice."""
    space = state.spaces[name]
    owned = [
        job.attempt.parts[name].share
        for job in state.by_node.get(name, {}).values()
        if job.attempt is not None
    ]
    expected = emptied(space)
    for share in owned:
        expected = take(expected, share)
    avoided = avoided_gpus(state, name)
    left = tuple(gpu for gpu in expected.gpus if gpu.index not in avoided)
    expected = structs.replace(expected, gpus=left)
    to_come = coming(state, name)
    if to_come:
        expected = kept_space(state, name, expected)
        _check_places_to_come(state, name, to_come)
    if _amounts(space) != _amounts(expected):
        raise InvariantError("I13", f"owned and free do not make up {name}")
    check_gpus(name, owned, {gpu.index: gpu.memory_bytes for gpu in space.all_gpus})
    alone = not space.exclusive or len(owned) + len(to_come) == 1
    if not alone:
        raise InvariantError("I6", f"{name} is shared although a job has it for itself")
    if not shrunk:
        least = min([space.cpus, space.memory_bytes, *(count for _, count in space.generic)])
        if least < 0:
            raise InvariantError("I6", f"{name} has given more than it has: {_amounts(space)}")


def check_gpus(name: str, owned: Iterable[Share], memory_bytes: Mapping[int, int]) -> None:
    """Check that no GPU of a node has more owners than there is of its time and memory.

    Args:
        name: of the node.
        owned: there.
        memory_bytes: of each GPU, by index.
    """
    percent: dict[int, int] = defaultdict(int)
    used_bytes: dict[int, int] = defaultdict(int)
    high: dict[int, int] = defaultdict(int)
    for share in owned:
        for index in share.gpu_indices:
            percent[index] += 100
        for part in share.gpu_shares:
            percent[part.index] += part.percent
            used_bytes[part.index] += part.memory_bytes
            high[part.index] += part.share_class == "high"
    much = [index for index, count in percent.items() if count > 100]
    if much:
        raise InvariantError("I6", f"more than 100 % of GPU {much} of {name}: it has two owners")
    large = [index for index, size in used_bytes.items() if size > memory_bytes.get(index, size)]
    if large:
        raise InvariantError("I6", f"more than the memory of GPU {large} of {name} is given")
    if max(high.values(), default=0) > 1:
        raise InvariantError("I6", f"two jobs are high on one GPU of {name}")


def _amounts(space: FreeNode) -> tuple[object, ...]:
    owners = (space.owners, space.exclusive)
    shared = tuple(structs.replace(each, utilisation=0.0) for each in space.shared)
    return (space.cpus, space.memory_bytes, space.gpus, shared, dict(space.generic), *owners)


def _check_places_to_come(state: State, name: str, to_come: Collection[Share]) -> None:
    """Check that all who stay on a node and all who come there have room together."""
    space = emptied(state.spaces[name])
    for job in state.by_node.get(name, {}).values():
        if job.move is None and job.attempt is not None and job.attempt.stop is None:
            space = take(space, job.attempt.parts[name].share)
    for share in to_come:
        free = {gpu.index for gpu in space.gpus}
        demand(free.issuperset(share.gpu_indices), "I6", f"GPUs of {name} are guaranteed twice")
        space = take(space, share)
    demand(space.cpus >= 0, "I6", f"CPUs of {name} are guaranteed twice")
    demand(space.memory_bytes >= 0, "I6", f"memory of {name} is guaranteed twice")


# --- jobs ---


def _check_job(job: Job) -> None:
    """Check that a job's state, holds, move and attempt tell the same story."""
    attempt = job.attempt
    moving = job.state is JobState.MIGRATING
    if moving != (job.move is not None):
        raise InvariantError("I9", f"job {job.id} is {job.state}, {job.move}")
    if job.state in RESTING:
        if attempt is not None:
            raise InvariantError("I9", f"job {job.id} is {job.state} and has an attempt")
        held = (job.state is JobState.HELD) == bool(job.holds)
        if not held:
            raise InvariantError("I9", f"job {job.id} is {job.state} with holds {job.holds}")
        return
    if moving and attempt is None:
        return  # it has left its place, and its new one is not free yet
    running = moving or job.state in {JobState.RUNNING, JobState.EXITING}
    if attempt is None or not running:
        raise InvariantError("I9", f"job {job.id} is {job.state}, no attempt")
    if attempt.number != job.attempts:
        raise InvariantError("I9", f"job {job.id}: attempt {attempt.number}")
    live = any(part.state in LIVE_PARTS for part in attempt.parts.values())
    if not live:
        raise InvariantError("I5", f"job {job.id} has an attempt of which no part is left")
    over = attempt.state is AttemptState.ENDED
    demand(not over, "I5", f"job {job.id} has an ended attempt")
    stopped = attempt.stop is None or job.state is not JobState.RUNNING
    if not stopped:
        raise InvariantError("I9", f"job {job.id} is {job.state} and is being stopped")


# --- indices ---


def _check_groups(state: State) -> None:
    """Check the indices of jobs that wait."""
    queued = {
        job.id
        for job in state.jobs.values()
        if job.state is JobState.QUEUED and job.spec.array is None and job.claim is None
    }
    claims = {job.id for job in state.jobs.values() if job.claim is not None}
    demand(set(state.claims) == claims, "I9", "the index of claims is wrong")
    kept = {job for jobs in state.claims_on.values() for job in jobs}
    demand(kept == claims, "I9", "the index of claims by node is wrong")
    grouped = [key[1] for group in state.groups.values() for key in state.ordered(group)]
    demand(sorted(grouped) == sorted(queued), "I9", "the groups are not the queued jobs")
    apart = set(state.jobs) - queued
    demand(set(state.apart) == apart, "I9", f"in no group: {sorted(state.apart)}, not {apart}")
    for job_class, group in state.groups.items():
        for lane, order in group.lanes.items():
            ordered = bool(order) and order == sorted(order)
            demand(ordered, "I9", f"a group is out of order: {order}")
            for _, number in order:
                job = state.jobs[number]
                alike = (state.class_of(job), state.lane_of(job)) == (job_class, lane)
                demand(alike, "I9", f"job {number} is in a group of another job_class")
        if state.priorities is not None:
            fresh = WaitingGroup(job_class)
            fresh.lanes, fresh.count = group.lanes, group.count
            merged = list(fresh.merged(lambda place: state.order_key(state.jobs[place[1]])))
            demand(list(state.ordered(group)) == merged, "I9", "lanes are not merged by their keys")
    waiting = sorted(
        (job.start_after_s, job.id) for job in state.jobs.values() if job.state is JobState.WAITING
    )
    demand(state.delayed == waiting, "I9", "the index of delayed jobs is wrong")


def _check_running(state: State) -> None:
    """Check the indices of jobs that run, and of those that move."""
    active = {job.id: job.attempt for job in state.jobs.values() if job.attempt is not None}
    demand(set(state.running) == set(active), "I9", "the index of running jobs is wrong")
    pairs = {(node, job) for job, attempt in active.items() for node in attempt.parts}
    indexed = {(node, job) for node, jobs in state.by_node.items() for job in jobs}
    demand(indexed == pairs, "I9", "the index of jobs by node is wrong")
    moving = {job.id for job in state.jobs.values() if job.move is not None}
    demand(set(state.targets) == moving, "I9", "the index of moving jobs is wrong")
    targets = {job for jobs in state.targets_on.values() for job in jobs}
    demand(targets <= moving, "I9", "the index of moving jobs by node is wrong")
    used = [attempt.master_port for attempt in active.values() if attempt.master_port]
    demand(len(used) == len(set(used)), "I6", "two attempts have one master port")
    demand(state.ports == set(used), "I9", "the index of master ports is wrong")


def _check_arrays(state: State) -> None:
    """Check that each element of an array is one job at most, or is to be, or never will be."""
    arrays = {job.id: job for job in state.jobs.values() if job.spec.array is not None}
    demand(set(state.arrays) == set(arrays), "I9", f"the index of arrays is {set(state.arrays)}")
    for number, array in arrays.items():
        elements, stated, index = array.elements, array.spec.array, state.arrays[number]
        assert elements is not None, "an array has elements"
        assert stated is not None, "it is an array"
        made = {job.id for job in state.jobs.values() if array_of(job.id) == number}
        demand(index.made == made, "I9", f"elements of array {number}: {index.made}, not {made}")
        waiting = sum(state.jobs[each].state in RESTING for each in made)
        demand(index.waiting == waiting, "I9", f"{waiting} elements of array {number} wait")
        unmade = [*indices(elements.left), *indices(elements.held), *indices(elements.cancelled)]
        ended = elements.succeeded + elements.failed + elements.deleted
        total = len(unmade) + len(made) + ended
        demand(total == count(stated.spans), "I1", f"array {number} has {total} elements")
        every = {*unmade, *(index_of(each) for each in made)}
        demand(len(every) == len(unmade) + len(made), "I3", f"an element of {number} is twice")
        live = len(made) <= stated.at_once or not stated.at_once
        demand(live, "I14", f"{len(made)} elements of array {number} at once")
        demand(bool(unmade) or bool(made), "I11", f"array {number} has no element left")


def _check_limits(state: State) -> None:
    """Check that what counts under limits is what jobs have, and what is kept for them."""
    book = LimitBook(state.limits.rules)
    if state.limits.budgets.day is not None:
        book.begin_day(state.limits.budgets.day * DAY_S)
    for job in state.jobs.values():
        held = held_by(state, job)
        book.count(job.id, held)
        jobs = submitted_by(job)
        book.count_queued(job.id, party_of(job.spec), jobs)
    for scope in {*book.counts, *state.limits.counts}:
        counted, expected = (
            {name: count for name, count in each.counts.get(scope, {}).items() if name not in TIMES}
            for each in (state.limits, book)
        )
        if counted != expected:
            raise InvariantError("I14", f"{scope} counts {counted}, and has {expected}")
    load_budgets(state, book)
    for counter in book.rules.budgets:
        for scope in book.counts.keys() | state.limits.counts:
            spent, found = (
                each.budgets.used(scope, counter, Counter(), 0) for each in (book, state.limits)
            )
            if spent != found:
                raise InvariantError("I14", f"{scope} has used {found} of {counter}, not {spent}")


def _check_counts(state: State) -> None:
    """Check what is counted."""
    users = Counter(job.spec.owner.uid for job in state.jobs.values())
    demand(state.jobs_by_user == dict(users), "I14", f"jobs of users: {state.jobs_by_user}")
    of_users: dict[str, set[int]] = defaultdict(set)
    for job in state.jobs.values():
        of_users[job.spec.owner.user].add(job.id)
    found = {user: set(jobs) for user, jobs in state.jobs_of.items()}
    demand(found == of_users, "I14", f"jobs by user: {found}")
    counts = Counter((job.spec.queue, job.state) for job in state.jobs.values())
    demand(state.counts == dict(counts), "I9", f"jobs by queue and state: {state.counts}")
    known = (*state.jobs, *state.unstored.finished)
    numbers = max(map(submitted_number, known), default=0)
    demand(numbers < state.next_job, "I2", f"job {numbers} exists, {state.next_job} is next")
