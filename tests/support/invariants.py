"""What must hold of the head's state at every moment, whatever happened; raises AssertionError."""

from collections import Counter
from collections.abc import Collection

from msgspec import structs

from gsched.model.states import AttemptState, JobState, PartState
from gschedd.core.apply import apply
from gschedd.core.explain import waiting_reason
from gschedd.core.facts import AnyFact, AttemptAssigned, AttemptEnded, JobEnded, PartStarted
from gschedd.core.head import Head
from gschedd.core.owning import coming, leaving
from gschedd.core.state import Job, State
from gschedd.plan.space import emptied, kept_back, take

REST = {JobState.QUEUED, JobState.HELD, JobState.WAITING}


def check_head(head: Head, *, shrunk: Collection[str] = ()) -> None:
    """Check one state in itself; nodes of ``shrunk`` came back with less than was given away."""
    check_capacity(head.state, shrunk=shrunk)
    check_indices(head.state)
    for job in head.state.jobs.values():
        check_job(job)
        if job.state in REST:
            reason = waiting_reason(job, head.state, head.settings, head.waits, head.safe_mode)
            assert reason, f"job {job.id} waits silently"


def check_capacity(state: State, *, shrunk: Collection[str] = ()) -> None:
    """Nothing is promised twice, and what is owned and what is free make up the node (I6, I13)."""
    for name in state.nodes:
        space = state.spaces[name]
        owned = [
            job.attempt.parts[name].share
            for job in state.by_node.get(name, {}).values()
            if job.attempt is not None
        ]
        expected = emptied(space)
        for share in owned:
            expected = take(expected, share)
        to_come = coming(state, name)
        if to_come:
            expected = kept_back(expected, leaving(state, name), to_come)
            check_places_to_come(state, name)
        assert (space.cpus, space.memory_bytes, space.gpus, dict(space.generic)) == (
            expected.cpus,
            expected.memory_bytes,
            expected.gpus,
            dict(expected.generic),
        ), f"owned and free do not make up {name}"
        assert (space.owners, space.exclusive) == (len(owned) + len(to_come), expected.exclusive)
        gpus = Counter(index for share in owned for index in share.gpu_indices)
        assert all(count == 1 for count in gpus.values()), f"a GPU of {name} has two owners"
        assert not (space.exclusive and len(owned) > 1), f"{name} is shared although exclusive"
        if name not in shrunk:
            assert space.cpus >= 0, f"CPUs of {name} are promised twice"
            assert space.memory_bytes >= 0, f"memory of {name} is promised twice"
            assert all(count >= 0 for _, count in space.generic), f"{space.generic} of {name}"


def check_places_to_come(state: State, name: str) -> None:
    """Check that all who stay on a node and all who come there have room together (I6)."""
    gone = {job.id for job in state.jobs.values() if job.move is not None}
    space = emptied(state.spaces[name])
    for job in state.by_node.get(name, {}).values():
        if job.id not in gone and job.attempt is not None:
            space = take(space, job.attempt.parts[name].share)
    for share in coming(state, name):
        assert set(share.gpu_indices) <= {gpu.index for gpu in space.gpus}, f"GPUs of {name}"
        space = take(space, share)
    assert space.cpus >= 0, f"CPUs of {name} are promised twice"
    assert space.memory_bytes >= 0, f"memory of {name} is promised twice"


def check_job(job: Job) -> None:
    """Check that a job's state, holds and attempt tell the same story."""
    attempt = job.attempt
    if job.state in REST:
        assert attempt is None, f"job {job.id} is {job.state} and has an attempt"
        assert (job.state is JobState.HELD) == bool(job.holds)
        assert job.move is None, f"job {job.id} is {job.state} and moves"
        return
    assert (job.move is not None) == (job.state is JobState.MIGRATING)
    if job.state is JobState.MIGRATING and attempt is None:
        return  # it has left its place, and its new one is not free yet
    assert job.state in {JobState.RUNNING, JobState.MIGRATING, JobState.EXITING}
    assert attempt is not None, f"job {job.id} is {job.state} without an attempt"
    assert attempt.number == job.attempts
    assert attempt.state is not AttemptState.ENDED, "an ended attempt is followed at once"
    live = [p for p in attempt.parts.values() if p.state in {PartState.PENDING, PartState.RUNNING}]
    assert live, f"job {job.id} has an attempt of which no part is left"
    assert (attempt.stop is not None) <= (job.state is not JobState.RUNNING)


def check_indices(state: State) -> None:
    """Check every index of the state against the jobs themselves."""
    queued = {job.id for job in state.jobs.values() if job.state is JobState.QUEUED}
    grouped = [key[1] for group in state.groups.values() for key in group.order]
    assert sorted(grouped) == sorted(queued)
    for shape, group in state.groups.items():
        assert group.order, "a group is never empty"
        assert group.order == sorted(group.order)
        for _, number in group.order:
            assert state.shape_of(state.jobs[number]) == shape
    delayed = sorted(
        (job.start_after_s, job.id) for job in state.jobs.values() if job.state is JobState.WAITING
    )
    assert state.delayed == delayed
    moving = {job.id for job in state.jobs.values() if job.move is not None}
    assert set(state.targets) == moving
    assert {job for jobs in state.targets_on.values() for job in jobs} <= moving
    running = {job.id for job in state.jobs.values() if job.attempt is not None}
    assert set(state.running) == running
    pairs = {
        (node, job.id)
        for job in state.jobs.values()
        if job.attempt is not None
        for node in job.attempt.parts
    }
    assert {(node, job) for node, jobs in state.by_node.items() for job in jobs} == pairs
    ports = [job.attempt.master_port for job in state.running.values() if job.attempt is not None]
    used = [port for port in ports if port]
    assert len(used) == len(set(used)), "two attempts have one master port"
    assert state.ports == set(used)
    users = Counter(job.spec.owner.uid for job in state.jobs.values())
    assert state.jobs_by_user == dict(users)
    assert all(job < state.next_job for job in (*state.jobs, *state.finished))


def check_history(facts: list[AnyFact]) -> None:
    """Check that every attempt ended once, one job never had two at a time, and done is done."""
    live: dict[int, int] = {}
    ended: set[tuple[int, int]] = set()
    done: set[int] = set()
    for fact in facts:
        job = getattr(fact, "job", None)
        assert job is None or job not in done, f"job {job} was done: {type(fact).__name__}"
        match fact:
            case AttemptAssigned():
                assert fact.job not in live, f"job {fact.job} has two live attempts"
                assert (fact.job, fact.attempt) not in ended
                live[fact.job] = fact.attempt
            case PartStarted():
                assert live.get(fact.job) == fact.attempt
            case AttemptEnded():
                assert live.pop(fact.job) == fact.attempt
                ended.add((fact.job, fact.attempt))
            case JobEnded():
                assert fact.job not in live
                done.add(fact.job)
            case _:
                pass


def content(state: State) -> dict[str, object]:
    """Return all of a state that must survive a restart, as comparable values."""
    return {
        "jobs": dict(state.jobs),
        "nodes": {
            name: structs.replace(node, load=None, heartbeat_s=None)  # not durable
            for name, node in state.nodes.items()
        },
        "spaces": dict(state.spaces),
        "groups": {shape: group.order for shape, group in state.groups.items()},
        "delayed": state.delayed,
        "running": sorted(state.running),
        "by_node": {name: sorted(jobs) for name, jobs in state.by_node.items() if jobs},
        "ports": state.ports,
        "users": state.jobs_by_user,
        "keys": state.keys,
        "next_job": state.next_job,
    }


def replayed(facts: list[AnyFact], like: State) -> State:
    """Return a fresh state to which all facts were applied, and nothing else."""
    state = State(like.queue_priorities)
    for fact in facts:
        apply(state, fact)
    return state
