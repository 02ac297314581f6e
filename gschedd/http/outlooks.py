"""What a submission is answered about its deadline."""

import asyncio
from collections.abc import Iterable
from typing import Final

from msgspec import structs

from gsched.model.job import JobSpec
from gsched.model.states import JobState
from gsched.protocol import api
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.deadline import Outlook, is_planned, outlook_of
from gschedd.core.forecast.start import predict_start
from gschedd.core.head import Head
from gschedd.core.state import Job

#: Jobs of one request whose start is worked out where the policy does not say when they end; each
#: costs up to some hundred questions to the policy.
MAX_FORECASTS: Final = 8
#: Jobs that are looked at before other requests get their turn.
AT_ONCE: Final = 100


async def outlooks_of(head: Head, jobs: Iterable[int], now_s: float) -> dict[int, Outlook]:
    """Return what is expected of trainings that were just submitted, by job."""
    found: dict[int, Outlook] = {}
    forecasts = 0
    for count, number in enumerate(jobs, start=1):
        if count % AT_ONCE == 0:
            await asyncio.sleep(0)
        job = head.state.trainings.get(number)
        if job is None:
            continue  # it was deleted meanwhile
        start_s = None
        if job.state is JobState.QUEUED and number not in head.verdicts:
            forecasts += 1
            if forecasts <= MAX_FORECASTS:
                start_s = _start_s(head, job, now_s)
                await asyncio.sleep(0)
        found[number] = outlook_of(
            job,
            state=head.state,
            settings=head.settings,
            verdicts=head.verdicts,
            now_s=now_s,
            start_s=start_s,
        )
    return found


def _start_s(head: Head, job: Job, now_s: float) -> float | None:
    if head.safe_mode or is_planned(job.spec, head.state):
        return None
    try:
        return predict_start(
            snapshot(head.state, head.settings, now_s, head.model),
            head.policy,
            job=job.id,
            key=head.state.order_key(job),
        )
    except Exception:  # noqa: BLE001 # a policy's fault costs an answer; the job is queued already
        return None


def with_outlook(result: api.SubmitResult, spec: JobSpec, outlook: Outlook) -> api.SubmitResult:
    """Return an answer with what is expected of a training's end."""
    if result.error is not None or not spec.is_training:
        return result
    return structs.replace(
        result,
        deadline_s=spec.deadline_s or None,
        planned_gpus=outlook.gpus,
        predicted_end_s=outlook.end_s,
        meets_deadline=outlook.meets,
        late_reason=outlook.why,
    )
