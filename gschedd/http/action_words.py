"""What a command says of an action that was carried out, or would be."""

from gsched.errors import GschedError
from gsched.protocol import actions as a
from gsched.protocol import api
from gschedd.core.state import facts as f
from gschedd.core.state.step import Step
from gschedd.core.views.reasons import describe_place
from gschedd.http.answers import error_body


def action_result(
    text: str, error: GschedError | None, words: str, note: str = "", step: Step | None = None
) -> api.ActionResult:
    """Return what has become of one id, ``text``, by a step."""
    if error is not None:
        return api.ActionResult(id=text, error=error_body(error))
    moves = [fact for fact in step.facts if isinstance(fact, f.MigrationRequested)] if step else []
    migration = moves[0].request if moves else 0
    return api.ActionResult(id=text, text=words, note=note, migration=migration)


def action_words(action: a.AnyJobAction, step: Step, *, dry_run: bool = False) -> str:
    """Return what has become of one job: ``cancelled``, ``would hold``."""
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
