"""The read model: what all that the monitor serves is made from."""

from typing import Final

from msgspec import Struct

from gsched.clock import Clock
from gsched.config.notify import NotifyConfig
from gsched.config.tables import HistoryConfig
from gsched.config.web import WebConfig
from gsched.errors import NotPermittedError
from gsched.protocol.samples import UseSamples
from gschedd.monitor.database import Database
from gschedd.monitor.link import HeadLink
from gschedd.monitor.pulse import HeadPulse
from gschedd.monitor.stories import Stories
from gschedd.monitor.unfinished import UnfinishedJobs
from gschedd.monitor.viewers import Viewer, Viewers
from gschedd.notify.scan import NotifierSettings

#: Of a head that sends none.
NO_MAIL: Final = NotifierSettings(config=NotifyConfig(), server="", sender="")


class MonitorBegin(Struct, frozen=True, kw_only=True):
    """What the head tells the process.

    Attributes:
        notify: as the notifier gets them.
        database: path of the head's.
        state_dir: where ``monitor.db`` and the key of sessions are.
        head_socket: where the head takes requests.
        socket: where the monitor takes them.
        operators: uids of operators.
        private: as ``[head] private``.
    """

    server: str
    config: WebConfig
    history: HistoryConfig
    notify: NotifierSettings = NO_MAIL
    database: str
    state_dir: str
    head_socket: str
    socket: str
    operators: tuple[int, ...]
    private: bool = False


class MonitorReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the monitor is: its address, events that are still to be read, and what does not work."""

    address: str = ""
    behind: int = 0
    trouble: str = ""


class ReadModel(Struct, kw_only=True):
    """What handlers of requests use.

    Attributes:
        server: name of the cluster's head.
        notify: by which reports are mailed.
        state_dir: of the head.
        operators: uids of operators, who may act on all jobs.
        private: other users see the jobs of others without names.
        pulse: whether the head answers and works.
        samples: the last that the head gave; None: none yet.
        trouble: why it gave none at last; empty: it did.
        behind: events that are still to be read.
        version: another one when events or samples have come.
    """

    server: str
    config: WebConfig
    database: Database
    unfinished: UnfinishedJobs
    stories: Stories
    head: HeadLink
    pulse: HeadPulse
    viewers: Viewers
    clock: Clock
    notify: NotifierSettings
    state_dir: str
    operators: frozenset[int] = frozenset()
    samples: UseSamples | None = None
    trouble: str = ""
    behind: int = 0
    version: int = 0
    private: bool = False

    def only(self, viewer: Viewer) -> str:
        """Return the one user of whom a viewer sees names and figures; empty: of all users."""
        return viewer.user if self.private and viewer.uid not in self.operators else ""

    def user_for(self, viewer: Viewer, wanted: str) -> str:
        """Return the user whose figures a viewer gets, where those of one, or of all, are wanted.

        Raises:
            NotPermittedError: they are not shown to this viewer.
        """
        only = self.only(viewer)
        if only and wanted not in {"", only}:
            raise NotPermittedError(
                f"this cluster shows users their own jobs only, not those of {wanted[:80]}",
                hint="leave the user out",
            )
        return only or wanted

    @property
    def sample_age_s(self) -> float | None:
        """Return how old the newest samples are, seconds; None: there are none."""
        return None if self.samples is None else self.clock.wall_s() - self.samples.now_s
