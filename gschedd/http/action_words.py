"""What a command says of an action that was carried out, or would be."""

from collections.abc import Container, Iterable

from gsched.errors import GschedError
from gsched.model.ids import short_job_id
from gsched.model.units import format_duration
from gsched.model.wording import counted
from gsched.protocol import actions as a
from gsched.protocol import api
from gschedd.core.nodes.windows import longer_jobs
from gschedd.core.requests.migrate import leaving_node
from gschedd.core.state import facts as f
from gschedd.core.state.state import State
from gschedd.core.state.step import Step
from gschedd.core.views.reasons import describe_place
from gschedd.http.answers import error_body
from gschedd.plan.moments import moment


def action_result(
    text: str, error: GschedError | None, words: str, note: str = "", step: Step | None = None
) -> api.ActionResult:
    """Return what has become of one id, ``text``, by a step."""
    if error is not None:
        return api.ActionResult(id=text, error=error_body(error))
    moves = [fact for fact in step.facts if isinstance(fact, f.MigrationRequested)] if step else []
    migration = moves[0].request if moves else 0
    return api.ActionResult(id=text, text=words, note=note, migration=migration)


def ended_by(action: a.AnyJobAction, steps: Iterable[Step]) -> frozenset[int]:
    """Return the jobs that deletions have ended, also with a job on which they depend."""
    if not isinstance(action, a.DeleteJob):
        return frozenset()
    facts = (fact for step in steps for fact in step.facts)
    return frozenset(fact.job for fact in facts if isinstance(fact, f.JobEnded))


def action_words(
    action: a.AnyJobAction, step: Step, number: int, ended: Container[int], *, dry_run: bool = False
) -> str:
    """Return what has become of one job: ``cancelled``, ``would hold``.

    Args:
        action: on the job.
        step: of the action on this job.
        number: of the job.
        ended: by `ended_by`.
    """
    if number in ended:
        return action.done_words()
    if not step.facts:
        return "nothing to change"
    if isinstance(action, a.MigrateJob):
        where = _where(step)
        return f"would migrate to {where}" if dry_run else f"migration to {where} requested"
    if dry_run:
        return f"would {'cancel' if isinstance(action, a.DeleteJob) else action.action}"
    if isinstance(action, a.DeleteJob) and any(isinstance(x, f.StopRequested) for x in step.facts):
        return "ending"
    return action.done_words()


def _where(step: Step) -> str:
    """Return where a job goes to: ``n1 (GPUs 0,1), n2 (GPU 0)``."""
    moves = (fact for fact in step.facts if isinstance(fact, f.MigrationRequested))
    return ", ".join(describe_place(share) for move in moves for share in move.allocation)


def node_words(state: State, node: str, action: a.AnyNodeAction, now_s: float) -> str:
    """Return what has become of one node: ``drained``, ``maintenance 3``."""
    match action:
        case a.MaintainNode():
            return _maintenance(state, node, action)
        case a.DrainNode(migrate=True):
            return action.done + _leaving(state, node, now_s)
        case a.PowerNode():
            known = state.nodes.get(node)
            return known.power.state.words if known is not None else action.done
        case _:
            return action.done


def _maintenance(state: State, node: str, action: a.MaintainNode) -> str:
    """Return the number of a maintenance, when it is, and which jobs may still run then."""
    if action.cancel:
        return f"maintenance {action.cancel} cancelled"
    known = state.nodes.get(node)
    numbers = [
        window.number
        for window in (known.windows if known is not None else ())
        if (window.from_s, window.to_s) == (action.from_s, action.to_s)
    ]
    text = f"maintenance {numbers[0]}" if numbers else action.done
    length = format_duration(action.to_s - action.from_s)
    text += f" from {moment(action.from_s)} to {moment(action.to_s)} ({length})"
    jobs = longer_jobs(state, node, action.from_s)
    if not jobs:
        return text
    shown = ", ".join(map(short_job_id, jobs[:5])) + (", …" if len(jobs) > 5 else "")
    return f"{text}; may still run at its beginning: {counted(len(jobs), 'job')} ({shown})"


def _leaving(state: State, node: str, now_s: float) -> str:
    """Return what becomes of the jobs of a node that is drained for good, in words."""
    leaving = leaving_node(state, node, now_s)
    forms = (
        (leaving.now, "migrates to other nodes", "migrate to other nodes"),
        (leaving.later, "waits for room on other nodes", "wait for room on other nodes"),
        (leaving.never, "cannot migrate and runs on", "cannot migrate and run on"),
    )
    parts = [f"{count} {one if count == 1 else many}" for count, one, many in forms if count]
    if not parts:
        return ": no job runs there"
    number, _, rest = parts[0].partition(" ")
    parts[0] = f"{number} {'job' if number == '1' else 'jobs'} {rest}"
    return f": {', '.join(parts)}"
