"""What the policy of a shared GPU is told and decides: settings, jobs, effects, counters."""

from dataclasses import dataclass
from enum import StrEnum

from gsched.model.states import ShareClass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """Durations of the policy, seconds.

    Attributes:
        slice_beside_high_s: slice of a low job while a high job is attached.
        slice_first_s, slice_max_s: slices of low jobs among themselves: the first, doubled with
            each further grant up to the longest.
        drain_max_s: a job that has not drained by then is overtaken.
        overlaps_max: a job that was overtaken so often in a row is demoted; 0: none is.
        demotion_s: a demotion ends after this time, doubled with each further one of the job.
        loading_max_s: drains that wait for code are not held against a job for so long in all.
        opportunistic_fraction: part of the time for which low jobs launch beside a high one that
            is never idle.
        opportunistic_period_s: between two such slices; a low job waits as long before its first.
        half_life_s: after this time half of a job's usage is forgotten.
        window_first, window_max: unfinished launches of a process of a low job beside a high one.
        window_fixed: instead of an adapted window; None: adapted; 0: no window.
        drain_target_s: windows are halved above this drain, and doubled below half of it.
    """

    slice_beside_high_s: float = 0.05
    slice_first_s: float = 0.1
    slice_max_s: float = 2.0
    drain_max_s: float = 0.5
    overlaps_max: int = 0
    demotion_s: float = 60.0
    loading_max_s: float = 120.0
    opportunistic_fraction: float = 0.02
    opportunistic_period_s: float = 1.0
    half_life_s: float = 10.0
    window_first: int = 4
    window_max: int = 64
    window_fixed: int | None = None
    drain_target_s: float = 0.001


class ClosedReason(StrEnum):
    """Why a gate was closed."""

    PREEMPTED = "preempted"
    SLICE_END = "slice_end"
    IDLE = "idle"
    LEFT = "left"
    OPPORTUNISTIC = "opportunistic"
    ATTENDED = "attended"


@dataclass(frozen=True, slots=True)
class OpenGate:
    """The group holds the token with this epoch; one process is told what others know, or all."""

    group: str
    epoch: int
    client: int = 0  # 0: all processes of the group


@dataclass(frozen=True, slots=True)
class CloseGate:
    """The group must stop launching, drain, and tell so."""

    group: str
    epoch: int
    why: ClosedReason


@dataclass(frozen=True, slots=True)
class AskIdle:
    """The group is to tell when it is idle: another one waits. One process is asked, or all."""

    group: str
    client: int = 0


@dataclass(frozen=True, slots=True)
class SetWindow:
    """Maximum number of unfinished launches of each process of the group; 0: no limit."""

    group: str
    window: int


Effect = OpenGate | CloseGate | AskIdle | SetWindow


@dataclass(slots=True)
class Counters:
    """What has happened on one GPU since the daemon started."""

    grants: int = 0
    revokes: int = 0
    preemptions: int = 0
    overlaps: int = 0
    demotions: int = 0
    opportunistic_slices: int = 0
    loads: int = 0
    drains: int = 0
    drain_s_max: float = 0.0
    drain_s_sum: float = 0.0


@dataclass(slots=True)
class TokenGroup:
    """One job on the GPU.

    Attributes:
        overlaps_in_row: times that it was overtaken since it has drained in time.
        demoted_until_s: until then it counts as a low job, and gets no token while a high job is
            attached; None: it is not demoted.
        demotions: how often it was demoted.
        loading_s: for how long its drains have waited for code.
        attended_until_s: its launches pass until then.
    """

    name: str
    share_class: ShareClass
    arrived: int
    wants_since_s: float | None = None
    idle: bool = False
    usage_s: float = 0.0
    usage_at_s: float = 0.0
    held_s: float = 0.0
    window: int = 0
    overlaps: int = 0
    overlaps_in_row: int = 0
    demoted_until_s: float | None = None
    demotions: int = 0
    loading_s: float = 0.0
    attended_until_s: float = 0.0

    @property
    def demoted(self) -> bool:
        """Return whether this job has been overtaken too often lately."""
        return self.demoted_until_s is not None

    @property
    def high(self) -> bool:
        """Return whether this is a high job that has not been demoted."""
        return self.share_class is ShareClass.HIGH and not self.demoted
