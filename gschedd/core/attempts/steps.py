"""Job steps over several nodes: step agents are started where a program of the job wants them.

A script runs on the first node of its job. The other nodes are only reserved (`PartState.PASSIVE`)
until a program of the job, as pbsdsh or mpirun, wants to start tasks there. Then the part of such a
node becomes a *step agent*: an ordinary part of the attempt, under a supervisor, in the attempt's
control group and with its limits. It ends with the script.
"""

from gsched.model.resources import Allocation
from gsched.model.states import JobState, NodeState, OutcomeKind, PartState, StopReason
from gsched.protocol.job_steps import (
    LoginAnswer,
    LoginRequest,
    StepFailed,
    StepOrder,
    StepRefused,
    StepRequest,
)
from gschedd.core.attempts.reports import Consequences
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Job
from gschedd.core.state.state import State


def is_step_agent(job: Job, allocation: Allocation, node: str) -> bool:
    """Return whether the part on a node is a step agent, and not the job's program."""
    return not job.spec.runs_everywhere and allocation[0].node != node


def on_step(
    state: State, node: str, report: StepRequest | StepFailed | LoginRequest, now_s: float
) -> Consequences:
    """Take in what a node says of a job step."""
    if isinstance(report, LoginRequest):
        return on_login(state, node, report, now_s)
    if isinstance(report, StepFailed):
        return on_step_failed(state, node, report)
    return on_step_request(state, node, report, now_s)


def on_step_request(state: State, node: str, request: StepRequest, now_s: float) -> Consequences:
    """A program of a job wants the step agents of some nodes to connect to it."""
    job = state.jobs.get(request.job)
    attempt = job.attempt if job is not None else None
    if job is None or attempt is None or attempt.number != request.attempt:
        yield "step_of_no_attempt"
        return
    here = attempt.parts.get(node)
    if here is None or here.state is not PartState.RUNNING:
        yield "step_of_no_attempt"
        return
    for name in dict.fromkeys(request.nodes):
        refused = _refusal(state, job, attempt, name)
        if refused:
            answer = StepRefused(
                job=job.id, attempt=attempt.number, node=name, step=request.step, message=refused
            )
            yield e.Send(node=node, message=answer)
            continue
        if attempt.parts[name].state is PartState.PASSIVE:
            yield f.PartOpened(
                at_s=now_s,
                job=job.id,
                attempt=attempt.number,
                node=name,
                boot_id=state.nodes[name].boot_id,
            )
        order = StepOrder(
            job=job.id,
            attempt=attempt.number,
            node=node,
            step=request.step,
            address=state.nodes[node].address,
            port=request.port,
            secret=request.secret,
        )
        yield e.Send(node=name, message=order)


def on_login(state: State, node: str, request: LoginRequest, now_s: float) -> Consequences:
    """A user logs in to a node: a job that has only reserved it gets its step agent there.

    Of several the one that the login comes from, else the newest.
    """
    found: list[tuple[bool, float, Job, Attempt]] = []
    for job in state.by_node.get(node, {}).values():
        attempt = job.attempt
        if job.spec.owner.uid != request.uid or attempt is None:
            continue
        if not _refusal(state, job, attempt, node):
            first = state.nodes.get(attempt.allocation[0].node)
            comes_from = (
                bool(request.address) and first is not None and first.address == request.address
            )
            found.append((comes_from, attempt.assigned_s, job, attempt))
    if not found:
        yield e.Send(node=node, message=LoginAnswer(login=request.login))
        return
    _, _, job, attempt = max(found, key=lambda each: (*each[:2], each[2].id))
    if attempt.parts[node].state is PartState.PASSIVE:
        yield f.PartOpened(
            at_s=now_s,
            job=job.id,
            attempt=attempt.number,
            node=node,
            boot_id=state.nodes[node].boot_id,
        )
    answer = LoginAnswer(login=request.login, job=job.id, attempt=attempt.number)
    yield e.Send(node=node, message=answer)


def _refusal(state: State, job: Job, attempt: Attempt, name: str) -> str:
    """Return why no step agent of an attempt on a node can be asked; empty: one can."""
    part, node = attempt.parts.get(name), state.nodes.get(name)
    if part is None or node is None:
        return f"{name} is not a node of the job"
    if not is_step_agent(job, attempt.allocation, name):
        if job.spec.runs_everywhere:
            return "the job's program runs on each of its nodes, so no step agent runs there"
        return f"{name} is the first node of the job: it runs the script and has no step agent"
    if job.state is not JobState.RUNNING or attempt.stop is not None:
        return f"the job is {job.state}: it can start no more tasks"
    if part.state is PartState.ENDED:
        why = f": {part.record.message}" if part.record and part.record.message else ""
        return f"the step agent on {name} has ended{why}"
    if node.state is not NodeState.UP:
        return f"node {name} is not connected to the head"
    return ""


def on_step_failed(state: State, node: str, report: StepFailed) -> Consequences:
    """A step agent could not be reached, or could not connect."""
    job = state.jobs.get(report.job)
    attempt = job.attempt if job is not None else None
    if attempt is None or attempt.number != report.attempt or report.origin not in attempt.parts:
        yield "step_of_no_attempt"
        return
    answer = StepRefused(
        job=report.job, attempt=report.attempt, node=node, step=report.step, message=report.message
    )
    yield e.Send(node=report.origin, message=answer)


def part_opened(state: State, fact: f.PartOpened) -> bool:
    """Return whether a step agent may still be opened: its attempt may have ended meanwhile."""
    job = state.jobs.get(fact.job)
    attempt = job.attempt if job is not None else None
    if job is None or attempt is None or attempt.number != fact.attempt:
        return False
    part = attempt.parts.get(fact.node)
    return job.state is JobState.RUNNING and part is not None and part.state is PartState.PASSIVE


def is_script_over(job: Job, attempt: Attempt) -> bool:
    """Return whether only step agents are left of an attempt: its script has ended."""
    if job.spec.runs_everywhere:
        return False
    first = next(iter(attempt.parts.values()))
    return first.state is PartState.ENDED


def counts_for_outcome(job: Job, attempt: Attempt, node: str) -> bool:
    """Return whether the end of a part says how the attempt has ended.

    A step agent that was stopped as the script had ended, or had left for a migration, or that
    could not be started, does not: the program that requested it has been told.
    """
    part = attempt.parts[node]
    record = part.record
    if record is None or not is_step_agent(job, attempt.allocation, node):
        return True
    if record.kind is OutcomeKind.LAUNCH_FAILED or record.stop_reason is StopReason.PEER_FAILED:
        return False
    script = next(iter(attempt.parts.values())).record
    left = script is not None and script.stop_reason is None
    return not (record.stop_reason is StopReason.MOVE and left)
