"""A cache of accepted submissions: an equal submission gets the same job specification.

It holds what follows from the submission, the configuration and the nodes alone. A submission that
depends on the time, on other jobs or on reservations is not cached. Access and the limits on the
number of jobs are checked for each job.
"""

from collections.abc import Hashable
from operator import attrgetter
from typing import Final

from msgspec import Struct, structs

from gsched.model.job import JobSpec
from gsched.protocol.submissions import SubmitJob
from gschedd.core.requests.commands import Submit
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State

#: Entries of the cache at most; a full cache is emptied.
MAX_KEPT: Final = 512
#: Characters of the script, resources, arguments and environment of a cached submission at most,
#: with TEXT_OVERHEAD for each text.
MAX_TEXT: Final = 32 * 1024
TEXT_OVERHEAD: Final = 64
#: A submission with any of these fields is not cached.
_OF_ITS_OWN: Final = attrgetter(
    *("depends", "array", "lines", "holds", "reservation", "place", "interactive"),
    *("deadline_s", "deadline_after_s", "urgency", "reject_if_late", "places_max", "training"),
    *("adaptive", "profile", "container", "snapshot", "stage_in", "stage_out"),
)


class Alike(Struct, frozen=True, kw_only=True):
    """A submission that was accepted, and its job under some settings."""

    submitted: SubmitJob
    settings: Settings
    spec: JobSpec
    warnings: tuple[str, ...]


def name_of(command: Submit, state: State, settings: Settings) -> Hashable:
    """Return under which name a submission is kept; None: it is not.

    Where all users may have the same, the jobs of one tell what those of another come to.
    """
    submitted, caller = command.submitted, command.caller
    if (
        not state.nodes
        or any(_OF_ITS_OWN(submitted))
        or submitted.priority > settings.config.head.max_user_priority
    ):
        return None
    has_own_rules = settings.projects or settings.qos or state.limits.rules.is_on
    return (
        caller if has_own_rules else None,
        *(submitted.name, submitted.kind, submitted.resources, submitted.queue),
        *(submitted.priority, submitted.arguments[:2], command.digests),
    )


def alike(name: Hashable, submitted: SubmitJob, state: State, settings: Settings) -> Alike | None:
    """Return what is kept of a submission that differs in its key at most, or None."""
    found = state.caches.submissions.get(name)
    if not isinstance(found, Alike) or found.settings is not settings:
        return None
    kept = found.submitted
    if kept.key != submitted.key:
        kept = structs.replace(kept, key=submitted.key)
    return found if kept == submitted else None


def keep(name: Hashable, of: Alike, state: State) -> None:
    """Keep a submission, unless it is long."""
    submitted, kept = of.submitted, state.caches.submissions
    environment = submitted.environment
    texts = (
        submitted.script,
        *submitted.resources,
        *submitted.arguments,
        *environment,
        *environment.values(),
    )
    if sum(len(text) + TEXT_OVERHEAD for text in texts) > MAX_TEXT:
        return
    if len(kept) >= MAX_KEPT:
        kept.clear()
    kept[name] = of
