"""What the user of a running adaptive training should know, in words."""

from typing import Final

from gsched.model.states import JobState
from gsched.model.units import format_duration, format_gpus
from gschedd.core.state.records import Job, Reached
from gschedd.core.state.state import State
from gschedd.plan.training import gpu_count

#: A training that has not reported within this time from its start is most likely not adaptive.
SILENT_S: Final = 120.0


def advice(job: Job, state: State, now_s: float) -> str:
    """Return what keeps an adaptive training from adapting, and what to do; else nothing."""
    adaptive, attempt = job.spec.adaptive, job.attempt
    if adaptive is None or attempt is None or job.state is not JobState.RUNNING:
        return ""
    if not state.plans_adaptive or attempt.started_s is None:
        return ""
    reached = state.reached.get(job.id)
    if reached is not None and reached.attempt != attempt.number:
        reached = None
    runs_s = now_s - attempt.started_s
    if runs_s > SILENT_S and (reached is None or not reached.batch_per_gpu):
        stays = f"so the job keeps its {format_gpus(gpu_count(attempt.allocation))}"
        if reached is None:
            return (
                f"the script has not reported a step in the {format_duration(runs_s)} since its "
                f"start, {stays}: use gsched.elastic with elastic.Adaptive() in the script, or "
                "submit it without --adaptive"
            )
        if not reached.batch:
            return (
                f"the script reports steps without batch sizes, {stays}: pass "
                "adaptive=elastic.Adaptive() to elastic.start() and loop over training.steps()"
            )
    return _of_batches(job, reached) if reached is not None else ""


def _of_batches(job: Job, reached: Reached) -> str:
    """Return how the batches of a script differ from those of its submission."""
    adaptive = job.spec.adaptive
    assert adaptive is not None, "the caller has looked"
    if reached.batch and reached.batch != adaptive.batch:
        return (
            f"the script is tuned for a batch of {reached.batch}, not {adaptive.batch}: "
            f"{reached.batch} is used; submit it with --batch {reached.batch}"
        )
    if 0 < reached.batch_max < adaptive.batch_max:
        return (
            f"the script allows batches up to {reached.batch_max}, not {adaptive.batch_max}: raise "
            "batch_max in elastic.Adaptive() for larger ones"
        )
    return ""
