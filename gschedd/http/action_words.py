"""What a command says of an action that was carried out, or would be."""

from gsched.protocol import actions as a
from gschedd.core import facts as f
from gschedd.core.step import Step
from gschedd.core.views.reasons import describe_place


def action_words(asked: a.AnyJobAction, step: Step, *, dry_run: bool = False) -> str:
    """Return what has become of one job: ``deleted``, ``would hold``."""
    if not step.facts:
        return "nothing to change"
    if isinstance(asked, a.MigrateJob):
        where = _where(step)
        return f"would migrate to {where}" if dry_run else f"migration to {where} requested"
    if dry_run:
        return f"would {asked.action}"
    if isinstance(asked, a.DeleteJob) and any(isinstance(x, f.StopRequested) for x in step.facts):
        return "ending"
    return asked.done_words()


def _where(step: Step) -> str:
    """Return where a job goes to: ``n1 (GPUs 0,1), n2 (GPU 0)``."""
    moves = (fact for fact in step.facts if isinstance(fact, f.MoveRequested))
    return ", ".join(describe_place(share) for move in moves for share in move.allocation)
