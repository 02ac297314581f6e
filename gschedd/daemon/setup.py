"""From the configuration to what the head needs: settings, key, directories."""

import os
import pwd
import socket
import stat
import zlib
from types import MappingProxyType

from gsched import trust
from gsched.config import Config
from gsched.errors import ConfigError
from gsched.model.training import Profiling
from gsched.model.units import parse_duration_s
from gschedd.core.state.settings import NotifySettings, QueueSettings, Settings
from gschedd.models.predict import Model
from gschedd.site import chosen_policy, fabric_from
from gschedd.store.purge import Keep
from gschedd.store.sqlite import Store


def settings_from(config: Config) -> Settings:
    """Return what the configuration says to the core.

    Raises:
        ConfigError: an operator that is no user here, or queues that do not agree on a policy.
    """
    head = config.head
    return Settings(
        server=head.server_name or socket.gethostname().partition(".")[0],
        queues=MappingProxyType(
            {
                queue.name: QueueSettings(
                    priority=queue.priority,
                    max_walltime_s=queue.max_walltime_s,
                    default_walltime_s=queue.default_walltime_s,
                    enabled=queue.enabled,
                    started=queue.started,
                    extension_s=extension[0],
                    extension_part=extension[1],
                    extensions_per_user=queue.walltime_extensions_per_user,
                    detach_timeout_s=queue.detach_timeout_s,
                    max_interactive_walltime_s=queue.max_interactive_walltime_s,
                    max_detach_timeout_s=queue.max_detach_timeout_s,
                    default_memory_per_cpu_bytes=queue.default_memory_per_cpu_bytes,
                    default_memory_per_gpu_bytes=queue.default_memory_per_gpu_bytes,
                )
                for queue in config.queue
                for extension in (read_extension(queue.walltime_extension),)
            }
        ),
        operator_uids=frozenset({0, os.getuid(), *(_uid(name) for name in head.operators)}),
        operator_names=MappingProxyType({_uid(name): name for name in head.operators}),
        min_uid=head.min_uid or trust.uid_min(),
        allow_root_jobs=head.allow_root_jobs,
        only_uid=os.getuid() if head.single_user else None,
        warn_unknown_resource=head.unknown_resource == "warn",
        node_timeout_s=head.node_timeout_s,
        default_walltime_s=head.default_walltime_s,
        predicted_times=config.balance.predicted_times and chosen_policy(config).predicts_run_times,
        max_queued_per_user=head.max_queued_per_user,
        max_array_elements=head.max_array_elements,
        max_user_priority=head.max_user_priority,
        fabric=fabric_from(config.fabric),
        move_s=config.training.move_s,
        refuse_impossible=config.training.refuse_impossible,
        profiling=Profiling(config.training.profile),
        checkpoint_timeout_s=config.moves.checkpoint_timeout_s,
        max_moves=config.moves.at_once,
        warm=config.moves.warm,
        prepare_timeout_s=config.moves.prepare_timeout_s,
        lease_s=head.lease_s,
        detach_timeout_s=head.detach_timeout_s,
        max_detach_timeout_s=config.limits.max_detach_timeout_s,
        max_interactive_walltime_s=config.limits.max_interactive_walltime_s,
        default_memory_per_cpu_bytes=config.limits.default_memory_per_cpu_bytes,
        default_memory_per_gpu_bytes=config.limits.default_memory_per_gpu_bytes,
        operators_enter_jobs=head.operators_enter_jobs,
        keep_unsatisfiable=head.unsatisfiable == "hold",
        master_port_first=head.master_port_first,
        master_port_last=head.master_port_last,
        master_port_begin=zlib.crc32(os.fsencode(os.path.realpath(head.state_dir))),
        images=config.containers.allowed,
        notify=NotifySettings(
            mail=config.notify.sends_mail,
            hook=config.notify.has_hook,
            recipient_domains=frozenset(map(str.lower, config.notify.recipient_domains)),
            mail_domain=mail_domain(config).lower(),
            urls=frozenset(config.notify.allow_urls),
        ),
    )


def read_extension(text: str) -> tuple[float | None, float | None]:
    """Return ``walltime_extension`` of a queue: seconds, or a part of the walltime."""
    if not text:
        return None, None
    if text.endswith("%"):
        return None, float(text[:-1]) / 100
    return parse_duration_s(text, zero=True), None


def mail_domain(config: Config) -> str:
    """Return the domain of recipients who have none."""
    if config.notify.mail_domain or not config.notify.sends_mail:
        return config.notify.mail_domain
    return socket.getfqdn()


def _uid(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(
            f"[head] operators: unknown user {name!r}", hint="name existing users"
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


def relearn(model: Model, store: Store, most: int) -> int:
    """Teach a new model the newest runs of the history, and return how many there were.

    They come in the order in which the head learned of them, which is that of their ends but for
    what was reported late: so a head that was restarted predicts what it did before.
    """
    runs = store.newest_runs(most)
    for run in runs:
        model.learn(run.record)
    return len(runs)


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
