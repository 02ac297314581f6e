"""Who is calling: from the kernel (SO_PEERCRED), never from a request.

On the head's machine this is its own kernel, on other hosts that of the host, by the word of its
gnode (`gschedd.http.relays`). Over HTTPS it is the user of a token (`gschedd.http.https`).
"""

import contextlib
import grp
import logging
import os
import pwd
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError

from aiohttp import web
from msgspec import structs

from gsched.clock import Clock
from gsched.errors import InvalidRequestError, NotPermittedError
from gsched.model.limits import shown
from gschedd.core.requests.authorize import Verb, authorize
from gschedd.core.state.settings import Caller, Settings
from gschedd.http.audit import note_caller, note_verb
from gschedd.http.door import Source, Visitor

log = logging.getLogger("gschedd.http")

#: Uid and gid of the user for whom the monitor sends a request.
ON_BEHALF_OF = "Gsched-On-Behalf-Of"
MAX_NAMES = 10_000
#: For how long a name that a network directory gave is used for reading lists, and for acting on
#: jobs, seconds: a uid may be given to another user. A change of `ACCOUNTS` counts at once.
KEPT_S = 30.0
KEPT_TO_ACT_S = 1.0
ACCOUNTS = "/etc/passwd"
GROUPS = "/etc/group"
KEPT_UNKNOWN_S = 2.0  # a name service may say "not found" for a moment
PATIENCE_S = 2.0  # the head does nothing else while it waits for a name service


class UserNames:
    """The names of users, asked for again and again: a number may get another owner.

    Args:
        clock: for the age of names.
        look_up: asks the name service.
        accounts: returns what changes with the accounts of this machine; no name outlives a change.
    """

    def __init__(
        self,
        clock: Clock,
        look_up: Callable[[int], str] | None = None,
        accounts: Callable[[], object] | None = None,
    ) -> None:
        self._clock = clock
        self._look_up = look_up or user_name
        self._accounts = accounts or accounts_version
        self._version: object = None
        self._known: dict[int, tuple[float, str]] = {}
        self._asking: Future[str] | None = None

    def name(self, uid: int, *, acts: bool = False) -> str:
        """Return the name of a user, or the number as text if it has none.

        While the name service hangs, the last answer holds.

        Args:
            uid: of the user.
            acts: the user wants to change something or to enter a job, so that the name must be
                newer than for reading.
        """
        version = self._accounts()
        if version != self._version:
            self._version = version
            self._known = {each: (-KEPT_S, name) for each, (_, name) in self._known.items()}
        looked_up_s, name = self._known.get(uid, (-KEPT_S, str(uid)))
        now_s = self._clock.monotonic_s()
        kept_s = KEPT_UNKNOWN_S if name == str(uid) else KEPT_S
        if now_s < looked_up_s + (min(kept_s, KEPT_TO_ACT_S) if acts else kept_s):
            return name
        if self._asking is not None and not self._asking.done():
            return name  # it hangs
        self._asking = self._ask(uid)
        try:
            name = self._asking.result(PATIENCE_S)
        except NotYetError:
            return name
        if len(self._known) >= MAX_NAMES:
            self._known.clear()
        self._known[uid] = (now_s, name)
        return name

    def of_groups(self) -> "UserNames":
        """Return the same for the groups of users, with commas between."""
        return UserNames(self._clock, group_names, lambda: accounts_version(GROUPS))

    def _ask(self, uid: int) -> Future[str]:
        """Look a name up in a thread that keeps nobody from ending the head if it hangs."""
        answer: Future[str] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._look_up(uid))
            except Exception as error:  # noqa: BLE001 - or no name is looked up again
                log.warning("cannot look up the name of uid %d: %r", uid, error)
                answer.set_result(str(uid))

        threading.Thread(target=ask, name="names", daemon=True).start()
        return answer


class Callers:
    """Turns connections into callers.

    Args:
        settings: returns what counts now.
        groups: like ``names``, the groups of each user, with commas between.
    """

    def __init__(
        self, *, settings: Callable[[], Settings], names: UserNames, groups: UserNames | None = None
    ) -> None:
        self._settings = settings
        self.names = names
        self._groups = groups or names.of_groups()

    def of(self, request: web.Request, *, acts: bool | None = None) -> Caller:
        """Return who is at the other end of a request's connection.

        The head's own account may speak for another user: its monitor does, for a user whom it has
        authenticated. That account could do all of it anyway.

        ``acts`` as for `UserNames.name`; None: any method other than GET changes something.

        Raises:
            NotPermittedError: no kernel says (not a user's connection), or another account speaks
                for somebody.
        """
        source = _source_of(request)
        uid, gid = source.uid, source.gid
        other = request.headers.get(ON_BEHALF_OF)
        if other is not None:
            self.check_own(request)
            uid, gid = _ids(other)
        acts = request.method != "GET" if acts is None else acts
        found = self.caller(uid, gid, acts=acts, host=source.host)
        if source.token:
            found = of_token(found, source)
        note_caller(request, found)
        return found

    def allowed(self, request: web.Request, verb: Verb) -> Caller:
        """Return who is at the other end, if this user is allowed to do that to the cluster.

        Raises:
            NotPermittedError: the user is not.
        """
        caller = self.of(request)
        note_verb(request, verb.value)
        authorize(caller, verb)
        return caller

    def check_own(self, request: web.Request) -> None:
        """Check that the head's own account, or root, is at the other end.

        Raises:
            NotPermittedError: it is another one.
        """
        source = _source_of(request)
        if source.host or source.token or source.uid not in {0, os.geteuid()}:
            raise NotPermittedError("only the head's own account may request this")

    def caller(self, uid: int, gid: int, *, acts: bool = False, host: str = "") -> Caller:
        """Return the caller with these ids, on this host."""
        name = self.names.name(uid, acts=acts)
        settings = self._settings()
        is_trusted = settings.has_operators(host)
        is_operator = is_trusted and settings.operators.has(uid, name)
        groups = self._group_names(uid) if acts and not is_operator else frozenset()
        return Caller(
            user=name,
            uid=uid,
            gid=gid,
            operator=is_operator,
            administrator=is_trusted and settings.administrators.has(uid, name),
            groups=groups,
            host=host,
            is_private=settings.config.head.private,
        )

    def _group_names(self, uid: int) -> frozenset[str]:
        """Return the groups of a user, where a queue asks for some."""
        if not any(queue.allow_groups for queue in self._settings().queues.values()):
            return frozenset()
        return frozenset(self._groups.name(uid, acts=True).split(","))


def _source_of(request: web.Request) -> Source:
    """Return who is at the other end of a connection, as a kernel knows it.

    Raises:
        NotPermittedError: it is no user's connection.
    """
    visitor = request.protocol
    if not isinstance(visitor, Visitor) or visitor.source.uid < 0:
        raise NotPermittedError("commands are taken on the Unix socket only")
    return visitor.source


def of_token(caller: Caller, source: Source) -> Caller:
    """Return a user as far as a token's scope reaches: that of operators is ``operate``."""
    operates = source.scope == "operate"
    return structs.replace(
        caller,
        token=source.token,
        scope=source.scope,
        operator=caller.operator and operates,
        administrator=caller.administrator and operates,
    )


def _ids(text: str) -> tuple[int, int]:
    uid, colon, gid = text.partition(":")
    if not (colon and uid.isdecimal() and gid.isdecimal() and max(len(uid), len(gid)) <= 10):
        raise InvalidRequestError(f"{ON_BEHALF_OF}: {shown(text)} is not UID:GID")
    return int(uid), int(gid)


def group_names(uid: int) -> str:
    """Return the names of all groups of a user, with commas between."""
    try:
        user = pwd.getpwuid(uid)
        gids = os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OSError):
        return ""
    names = []
    for gid in gids:
        with contextlib.suppress(KeyError):
            names.append(grp.getgrgid(gid).gr_name)
    return ",".join(names)


def accounts_version(path: str = ACCOUNTS) -> object:
    """Return what changes whenever the accounts of this machine do; a microsecond."""
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def user_name(uid: int) -> str:
    """Return the name of a user, or the number as text if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
