"""What gsub tells of a job that was submitted, or would be: the head's plan for it."""

from collections.abc import Sequence

from gsched.cli.common import print_json, print_note
from gsched.clock import SystemClock
from gsched.protocol.api import SubmitJob, SubmitResult


def plan_of(result: SubmitResult) -> dict[str, object]:
    """Return what the head expects of a training, for JSON."""
    names = ("deadline_s", "planned_gpus", "predicted_end_s", "meets_deadline", "late_reason")
    return {name: getattr(result, name) for name in names}


def _has_plan(result: SubmitResult) -> bool:
    return result.deadline_s is not None or result.predicted_end_s is not None


def tell_plan(result: SubmitResult, *, command: str) -> None:
    """Print on stderr what the head expects of a training; stdout is for the id alone."""
    if not _has_plan(result):
        return
    from gsched.cli.submit.deadline import planned_words  # late: most jobs have no plan

    print_note(planned_words(result, now_s=SystemClock().wall_s()), command=command)


def report_dry_run(
    job: SubmitJob, result: SubmitResult, warnings: Sequence[str], *, as_json: bool
) -> int:
    """Print what would be submitted, and what would become of it; return the exit code."""
    if as_json:
        start_s = result.predicted_start_s
        print_json(
            {"dry_run": True, "job": job, "predicted_start_s": start_s, "warnings": warnings}
            | {"start": result.start}
            | plan_of(result)
        )
        return 0
    print(f"would submit: {job.name} ({job.launch}) in {job.workdir}")
    print(f"resources: {','.join(job.resources) or 'defaults'}")
    if result.start is not None or result.predicted_start_s is not None:
        from gsched.cli.times import basis_words, format_start

        now_s = SystemClock().wall_s()
        words = format_start(result.start, result.predicted_start_s, now_s=now_s)
        print(f"expected start: {words}")
        if result.start is not None and (basis := basis_words(result.start)):
            print(f"    {basis}")
    if _has_plan(result):
        from gsched.cli.submit.deadline import planned_words

        print(f"plan: {planned_words(result, now_s=SystemClock().wall_s())}")
    return 0
