"""From the configuration to what the head needs: settings, key, directories."""

import contextlib
import ctypes
import gc
import logging
import os
import pwd
import socket
import stat
import sys
import zlib
from collections.abc import Iterable
from types import MappingProxyType

import msgspec
from msgspec import structs

from gsched import trust
from gsched.config.nodes import SharingRules
from gsched.config.tables import Config, HeadConfig
from gsched.config.units import BadValueError
from gsched.config.words import monitor_socket_of
from gsched.errors import ConfigError
from gsched.model.ids import short_job_id
from gschedd.core.requests.queues import orphans
from gschedd.core.state.settings import Privileged, Settings
from gschedd.core.state.state import State
from gschedd.daemon.garbage import GC_THRESHOLDS
from gschedd.models.predict import Model
from gschedd.monitor.model import MonitorBegin
from gschedd.notify.scan import NotifierSettings
from gschedd.notify.worker import NotifierBegin
from gschedd.plan.training import fabric_of
from gschedd.policies.registry import Chosen
from gschedd.store.purge import Keep
from gschedd.store.sqlite import Store

log = logging.getLogger("gschedd")

#: How long one thread may keep the interpreter from others that want it, seconds. The thread that
#: writes to the database needs it again after each statement; with the usual 5 ms p99 of `gsub` was
#: 0.5 s beside lists of 100,000 jobs, instead of 0.1 s.
SWITCH_S = 0.0003
#: Larger pieces of memory go back to the system when they are freed. The C library raises its own
#: threshold beyond the buffer of a TLS connection, and the heap grew with each that was refused.
MMAP_BYTES = 128 * 1024
_M_MMAP_THRESHOLD = -3  # of mallopt(3)


def settings_from(config: Config) -> Settings:
    """Return the settings of the core on this machine.

    Raises:
        BadValueError: an operator that is no user here.
    """
    head = config.head
    notify = structs.replace(config.notify, mail_domain=mail_domain(config))
    administrators = _privileged("administrators", head.administrators)
    operators = _with(_privileged("operators", head.operators), administrators)
    return Settings(
        server=head.server_name or socket.gethostname().partition(".")[0],
        config=structs.replace(config, notify=notify),
        queues=MappingProxyType({queue.name: queue for queue in config.queue}),
        operators=operators,
        administrators=administrators if head.administrators else operators,
        projects=MappingProxyType({each.name: each for each in config.project}),
        qos=MappingProxyType({each.name: each for each in config.qos}),
        min_uid=head.min_uid or trust.uid_min(),
        only_uid=os.getuid() if head.single_user else None,
        fabric=fabric_of(config.fabric),
        master_port_begin=zlib.crc32(os.fsencode(os.path.realpath(head.state_dir))),
    )


def privileges(head: HeadConfig) -> tuple[object, ...]:
    """Return what decides who sees what, for the page."""
    return head.operators, head.administrators, head.private


def tune_interpreter() -> None:
    """Keep collections of garbage, and threads, from delaying the head, and its memory small."""
    # The state is large and lives long, and nearly all garbage dies by its reference count:
    # a full collection over 100,000 jobs would cost half a second and find nothing.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)


def empty_state(settings: Settings, chosen: Chosen) -> State:
    """Return a state for the policies that were chosen, without jobs and nodes."""
    return State(
        {name: queue.priority for name, queue in settings.queues.items()},
        plans_training=chosen.plans_training,
        plans_adaptive=chosen.plans_adaptive,
        sharing=msgspec.convert(settings.config.gpu_share, SharingRules, from_attributes=True),
        limits=settings.limit_rules(),
    )


def mail_domain(config: Config) -> str:
    """Return the domain of recipients who have none."""
    if config.notify.mail_domain or not config.notify.sends_mail:
        return config.notify.mail_domain
    return socket.getfqdn()


def begin_notifying(settings: Settings, *, newest: int, database: str) -> NotifierBegin | None:
    """Return what the process that tells of jobs is told; None where the site has none."""
    if not settings.config.notify.is_on:
        return None
    ledger = os.path.join(settings.config.head.state_dir, "notify.db")
    return NotifierBegin(
        settings=_notifier_settings(settings), newest=newest, database=database, ledger=ledger
    )


def _notifier_settings(settings: Settings) -> NotifierSettings:
    config = settings.config.notify
    sender = config.sender or pwd.getpwuid(os.getuid()).pw_name
    has_domain = "@" in sender or not config.mail_domain
    return NotifierSettings(
        config=config,
        server=settings.server,
        sender=sender if has_domain else f"{sender}@{config.mail_domain}",
    )


def begin_monitoring(settings: Settings, *, database: str) -> MonitorBegin | None:
    """Return what the process of the page and metrics is told; None where the site has none."""
    config = settings.config
    if not config.web.enabled:
        return None
    return MonitorBegin(
        server=settings.server,
        config=config.web,
        history=config.history,
        notify=_notifier_settings(settings),
        database=database,
        state_dir=config.head.state_dir,
        head_socket=config.head.socket,
        socket=monitor_socket_of(config.head.socket),
        operators=tuple(sorted(settings.operators.uids)),
        private=settings.config.head.private,
    )


def _privileged(key: str, names: Iterable[str]) -> Privileged:
    """Return the accounts of a key of ``[head]``, with root's and the head's own.

    Raises:
        BadValueError: one of them is no user here.
    """
    uids = {_uid(name, key): name for name in names}
    return Privileged(uids=frozenset({0, os.getuid(), *uids}), names=MappingProxyType(uids))


def _with(some: Privileged, others: Privileged) -> Privileged:
    names = MappingProxyType({**some.names, **others.names})
    return Privileged(uids=some.uids | others.uids, names=names)


def _uid(name: str, key: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise BadValueError(
            ("head", key), f": unknown user {name!r}", hint="name existing users"
        ) from None


def keep_from(config: Config) -> Keep:
    """Return what the configuration says of what is kept."""
    history = config.history
    return Keep(
        days=history.keep_days,
        rows=history.keep_rows,
        jobs_days=history.keep_jobs_days,
        jobs_per_user=history.keep_jobs_per_user,
        text_bytes_per_user=config.limits.texts_per_user_bytes // 2,  # there is room for a day
    )


def relearn(model: Model, store: Store, most: int) -> None:
    """Teach a new model the newest runs of the history.

    They come in the order in which the head learned of them, which is that of their ends but for
    what was reported late: so a head that was restarted predicts what it did before.
    """
    runs = store.newest_runs(most)
    for run in runs:
        model.learn(run.record)
    log.info("learned from %d past runs", len(runs))


def log_odd_jobs(state: State, settings: Settings) -> None:
    """Name the jobs whose records are damaged, and the projects and QOS that jobs miss."""
    for sentence in orphans(state, settings):
        log.warning("%s", sentence)
    for job in sorted(state.damaged):
        name = short_job_id(job)
        log.critical(
            "job %s is set aside: its record is damaged. What runs of it is left alone; an "
            "operator can give it up with gdel %s",
            name,
            name,
        )


def make_state_dir(path: str) -> None:
    """Make the state directory if it is not there.

    Raises:
        ConfigError: it cannot be made or written, or others can.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.stat(path)
    except OSError as error:
        raise ConfigError(f"state directory {path}: {error.strerror}") from error
    if status.st_uid not in {0, os.geteuid()}:
        raise ConfigError(
            f"state directory {path} belongs to uid {status.st_uid}, who could change the database",
            hint=f"chown it to the user of the head (uid {os.geteuid()})",
        )
    if status.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"state directory {path} is writable by all users", hint=f"chmod o-w {path}"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(
            f"state directory {path} is not writable by uid {os.getuid()}",
            hint="change its owner, or [head] state_dir",
        )
