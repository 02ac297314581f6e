"""Lines of jobs as lists have them: of jobs that have run for some time they stay encoded."""

from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Raw, Struct, structs

from gsched.protocol.job_rows import JobRow
from gsched.protocol.uses import LiveRow
from gschedd.core.state.records import Job
from gschedd.core.state.state import State
from gschedd.core.views.details import used_so_far
from gschedd.core.views.jobs import JobViews
from gschedd.core.views.reasons import NO_WHY

#: After so long the line of a running job is kept for the next list: many end before.
KEEP_AFTER_S: Final = 60.0
_encoder = msgspec.json.Encoder()


class _LiveUses(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of the line of a running job what changes without a fact (`JobRow`)."""

    wall_s: float
    cpu_s: float = 0.0
    live: LiveRow | None = None
    memory_peak_bytes: int = 0
    memory_mean_bytes: int = 0


_UNUSED: Final = MappingProxyType(
    {"wall_s": 0.0, "cpu_s": 0.0, "live": None, "memory_peak_bytes": 0, "memory_mean_bytes": 0}
)


class JobLines:
    """The lines of one list.

    Args:
        views: tells of jobs.
        state: of the head; it keeps what only a fact changes of lines.
        keeps: lines are the same for all users.
    """

    def __init__(self, views: JobViews, state: State, *, keeps: bool) -> None:
        self._views = views
        self._state = state
        self._keeps = keeps

    def line(self, job: Job) -> JobRow | Raw:
        """Return the line of a job, done or not."""
        attempt, kept = job.attempt, self._state.caches.rows
        if attempt is None or not self._keeps or self._views.unanswered(job) is not NO_WHY:
            return self._views.row(job)
        same = kept.get(job.id)
        if same is None:
            row = self._views.row(job)
            if self._stays(job):
                kept[job.id] = _encoder.encode(structs.replace(row, **_UNUSED))[:-1]
            return row
        used, live = used_so_far(self._state, job.id, attempt)
        uses = _LiveUses(
            wall_s=job.wall_s + self._views.present_wall_s(attempt),
            cpu_s=job.cpu_s + used.cpu_s,
            live=live,
            memory_peak_bytes=used.memory_peak_bytes,
            memory_mean_bytes=used.memory_mean_bytes,
        )
        return Raw(b"%b,%b" % (same, _encoder.encode(uses)[1:]))

    def _stays(self, job: Job) -> bool:
        """Return whether a job has run for some time, so that its line is worth keeping."""
        return (
            self._views.present_wall_s(job.attempt) >= KEEP_AFTER_S
            and self._state.running.get(job.id) is job
            and job.sparse is None
            and not job.spec.states_training
        )
