"""The table ``[idle_gpus]`` of the configuration file: GPUs that jobs hold and do not use."""

from typing import Annotated, Literal

import msgspec
from msgspec import Struct, structs

from gsched.config.words import Seconds

IdleAction = Literal["report", "warn", "hold", "requeue", "cancel"]
_Part = Annotated[float, msgspec.Meta(gt=0, le=1)]


class IdleRule(Struct, frozen=True, kw_only=True):
    """What is done about the idle GPUs of a job.

    Attributes:
        action: ``report``: commands show them; ``warn``: the owner is told as well; ``hold``,
            ``requeue``, ``cancel``: so the job is ended ``act_s`` after that.
        warn_s: a GPU without a process of the job is idle for so long before the owner is told.
        warn_held_s: likewise a GPU on which the job holds memory.
        act_s: from the warning to the end of the job.
        act_part: a job is ended if this part of its GPUs is idle, 1: all of them.
        end_any: end also jobs that cannot save their state and must not be rerun.
    """

    action: IdleAction = "report"
    warn_s: Seconds = 3600.0
    warn_held_s: Seconds = 7200.0
    act_s: Seconds = 3600.0
    act_part: _Part = 1.0
    end_any: bool = False


class IdleOverride(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `IdleRule` for some jobs; None: as for all others."""

    action: IdleAction | None = None
    warn_s: Seconds | None = None
    warn_held_s: Seconds | None = None
    act_s: Seconds | None = None
    act_part: _Part | None = None
    end_any: bool | None = None

    def changed(self, rule: IdleRule) -> IdleRule:
        """Return a rule with the keys that are stated here."""
        names = (field.name for field in structs.fields(IdleRule))
        stated = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return structs.replace(rule, **stated)


class IdleQueueConfig(IdleOverride, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[idle_gpus.queue]]``: the jobs of the queue ``name``."""

    name: str


class IdleInteractiveConfig(IdleOverride, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[idle_gpus.interactive]``: interactive jobs, of all queues.

    Attributes:
        terminal_s: such a job is idle if its user has typed nothing for so long, too.
    """

    terminal_s: Seconds = 1800.0


class IdleGpusConfig(IdleRule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[idle_gpus]``: GPUs that jobs hold and do not use.

    gnode reads the first three keys and gschedd the others.

    Attributes:
        window_s: a GPU is idle if it was busy for less than ``busy_percent`` of the last so many
            seconds; 0: nobody looks.
        busy_percent: of the window.
        grace_s: time after the start of a job that does not count: imports, reading data.
        exempt_users, exempt_accounts, exempt_queues: whose jobs get no warning and are not ended.
        queue, interactive: other rules for some jobs; that of an interactive job counts.
    """

    window_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 1200.0
    busy_percent: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    grace_s: Seconds = 1800.0
    exempt_users: tuple[str, ...] = ()
    exempt_accounts: tuple[str, ...] = ()
    exempt_queues: tuple[str, ...] = ()
    queue: tuple[IdleQueueConfig, ...] = ()
    interactive: IdleInteractiveConfig = IdleInteractiveConfig()
