"""Limits of what users and queues may have: the keys of a table, and where tables may stand."""

from typing import Annotated

import msgspec
from msgspec import Struct

Most = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
MostGpus = Annotated[float, msgspec.Meta(ge=-1, le=1e9)]
MostHours = Annotated[float, msgspec.Meta(ge=-1, le=1e12)]
MostSeconds = Annotated[float, msgspec.Meta(ge=-1, le=1e9)]


class ResourceLimits(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One table of limits. In each key: -1: no limit; 0: none at all; not stated: as elsewhere.

    Attributes:
        max_running: jobs that run at once.
        max_queued: unfinished jobs: those that wait or run; each element of an array is one.
        max_cpus, max_gpus, max_memory_bytes: of all running jobs; a share of a GPU counts as its
            part of one, and a job with nodes for itself as these nodes.
        max_gpus_of: GPUs by type, as ``{ h100 = 8 }``.
        max_running_gpu_hours: the GPUs of all running jobs, each times the walltime that its job
            has left, hours. Jobs need a walltime.
        max_gpu_hours_per_day, max_gpu_hours_per_week, max_gpu_hours_per_month,
            max_gpu_hours_per_30_days: budgets: the GPU time of all jobs since the day, the week
            (Monday) or the month began, or today and the 29 days before, in UTC; running jobs count
            with all of their walltime. Jobs need a walltime.
        max_walltime_s: of a job.
    """

    max_running: Most | None = None
    max_queued: Most | None = None
    max_cpus: Most | None = None
    max_gpus: MostGpus | None = None
    max_gpus_of: dict[str, MostGpus] | None = None
    max_memory_bytes: Most | None = None
    max_running_gpu_hours: MostHours | None = None
    max_gpu_hours_per_day: MostHours | None = None
    max_gpu_hours_per_week: MostHours | None = None
    max_gpu_hours_per_month: MostHours | None = None
    max_gpu_hours_per_30_days: MostHours | None = None
    max_walltime_s: MostSeconds | None = None


class LimitTables(Struct, frozen=True, kw_only=True):
    """The tables of limits of a queue, a QOS, a project, or of the site.

    Attributes:
        total: of all jobs together.
        each_user: of the jobs of each user.
        user: of those of single users, by name; what these state counts instead of ``each_user``.
    """

    total: ResourceLimits = ResourceLimits()
    each_user: ResourceLimits = ResourceLimits()
    user: dict[str, ResourceLimits] = {}


class SharedLimitTables(LimitTables, frozen=True, kw_only=True):
    """The same with those of projects.

    Attributes:
        each_project: of the jobs of each project, with those of the projects below it.
    """

    each_project: ResourceLimits = ResourceLimits()
