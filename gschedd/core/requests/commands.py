"""Requests; each may be refused. The kernel identifies the caller."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from msgspec import Struct

from gsched.model.arrays import Spans
from gsched.protocol.actions import AnyJobAction, AnyNodeAction
from gsched.protocol.reservations import ReservationChange
from gsched.protocol.submissions import SubmitJob
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller


class Command(Struct, frozen=True, kw_only=True):
    """What somebody wants."""

    caller: Caller


class AcceptedJob(Struct, frozen=True, kw_only=True):
    """A job that was just queued, and what its user is told."""

    job: int
    warnings: tuple[str, ...]


class Submit(Command, frozen=True, kw_only=True):
    """Queue a job.

    Attributes:
        digests: of its script and environment as the store keeps them.
        lines_digest: of the lines of an array's elements.
        past: of finished jobs that it depends on, whether they succeeded.
        same_as: a job of the same request which differs in its key only, and after which nothing
            but such jobs was queued: only what depends on the number of jobs is checked again.
    """

    submitted: SubmitJob
    digests: tuple[str, str]
    lines_digest: str = ""
    past: Mapping[int, bool] = MappingProxyType({})
    same_as: AcceptedJob | None = None


class Resubmit(Command, frozen=True, kw_only=True):
    """Queue a job again that has failed, or elements of an array, as a new job of its owner.

    Attributes:
        original: the job, or the array.
        elements: indices of those elements; empty: it is no array.
        key: the client's own id of this submission.
        anew: what its owner states anew, beside what is kept; None: what has failed runs again.
        script_digest: of the script in ``anew``, as the store keeps it.
        without: what need not be kept where that is impossible, by name.
        past: as in `Submit`.
    """

    original: Job
    elements: Spans = ()
    key: str = ""
    anew: SubmitJob | None = None
    script_digest: str = ""
    without: Collection[str] = ()
    past: Mapping[int, bool] = MappingProxyType({})


class ActOnJob(Command, frozen=True, kw_only=True):
    """Do to one job what was asked, of this and perhaps of others.

    Attributes:
        past: as in `Submit`.
        elements: of the array ``job`` that are meant; empty: the job, or all elements.
    """

    job: int
    action: AnyJobAction
    past: Mapping[int, bool] = MappingProxyType({})
    elements: Spans = ()


class ActOnNode(Command, frozen=True, kw_only=True):
    """Do to one node what was asked; for operators."""

    node: str
    action: AnyNodeAction


class ChangeReservation(Command, frozen=True, kw_only=True):
    """Create, alter or delete a reservation; for operators and administrators."""

    action: ReservationChange


AnyCommand = Submit | Resubmit | ActOnJob | ActOnNode | ChangeReservation
