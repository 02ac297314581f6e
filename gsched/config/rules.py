"""What a configuration must fulfil beyond the types and ranges of its keys.

`gsched.config.load.parse_config` applies all of it, so that gschedd, gnode, gsim, the commands and
``gsched config check`` refuse the same files. What depends on the machine, as whether a directory
can be written, is not looked at here.
"""

import os
import re
from collections.abc import Sequence
from typing import Final

from gsched.config.nodes import (
    GPU_CHECK,
    SHARE_RUNTIMES,
    GpuShareConfig,
    NodeConfig,
    expanded,
    share_runtimes,
)
from gsched.config.notify import NotifyConfig
from gsched.config.policies import BalanceConfig, FabricConfig, TrainingConfig
from gsched.config.shares import check_shares
from gsched.config.tables import Config, HeadConfig, PowerConfig, QueueConfig
from gsched.config.tasks import HINT, NEVER, TasksConfig, cron_fields, period_s
from gsched.config.tls import HttpsConfig, TlsConfig
from gsched.config.units import BadValueError
from gsched.config.web import WebConfig
from gsched.errors import BadResourceError, ConfigError, InvalidRequestError, UsageError
from gsched.model.container import MOUNT_RULE, mount_problem
from gsched.model.limits import MIN_LEASE_S
from gsched.model.machine import NODE_NAME_RULE, is_node_name, is_on_loopback
from gsched.model.units import parse_bandwidth_bytes_s, parse_duration_s, parse_size_bytes

_SOCKET_BYTES: Final = 107  # sun_path of unix(7), less its closing zero
_WORD: Final = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
_MIG_MAX: Final = 7  # instances of a GPU
_PERCENT: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,3})?%")
_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")


def check(config: Config) -> None:
    """Check the whole configuration.

    Raises:
        BadValueError: the first rule that is broken.
    """
    _check_head(config.head)
    check_queues(config.queue)
    _check_node(config.node)
    _check_training(config.training)
    _check_balance(config.balance)
    _check_fabric(config.fabric)
    _check_gpu_share(config.gpu_share)
    _check_idle_gpus(config)
    for at, mount in enumerate(config.containers.mounts):
        if mount_problem(mount):
            keys = ("containers", "mounts", at)
            raise BadValueError(keys, f": {mount!r} {mount_problem(mount)}", hint=MOUNT_RULE)
    if config.tasks != TasksConfig():
        _check_tasks(config.tasks)
    if config.notify != NotifyConfig():
        _check_notify(config.notify)
    _check_web(config.web)
    _check_tls(config.tls)
    _check_https(config.https, config.tls)
    _check_power(config.power)
    check_shares(config.project, config.qos, config.shares)


def _check_tls(tls: TlsConfig) -> None:
    named = {name: bool(getattr(tls, name)) for name in ("ca", "certificate", "key")}
    if any(named.values()) and not all(named.values()):
        missing = next(name for name, given in named.items() if not given)
        raise BadValueError(
            ("tls", missing),
            "is missing",
            hint="give ca, certificate and key, or none: then hosts join with gsched join",
        )


def _check_https(https: HttpsConfig, tls: TlsConfig) -> None:
    _check_address(("https", "listen"), https.listen, example="0.0.0.0:6820")
    if bool(https.certificate) is not bool(https.key):
        missing = "key" if https.certificate else "certificate"
        raise BadValueError(("https", missing), "is missing", hint="give certificate and key")
    if https.listen and tls.certificate and not https.certificate:
        raise BadValueError(
            ("https", "certificate"),
            "is missing: this site has certificates of its own in [tls]",
            hint="issue one for the names of this host, and name its files here",
        )


def _check_address(keys: tuple[str, str], text: str, *, example: str) -> None:
    found = _ADDRESS.fullmatch(text)
    if text and (found is None or int(found["port"]) > 65535):
        raise BadValueError(
            keys,
            f": invalid address {text!r}",
            hint=f"write HOST:PORT, as {example}; port 0 is any free one",
        )


def _check_power(power: PowerConfig) -> None:
    if bool(power.suspend_program) is not bool(power.resume_program):
        given, missing = "suspend_program", "resume_program"
        if power.resume_program:
            given, missing = missing, given
        raise BadValueError(
            ("power", given), f"needs {missing}", hint="give both, or none: nodes stay on"
        )
    try:
        assert power.excluded is not None
    except UsageError as error:
        raise BadValueError(
            ("power", "exclude_nodes"), f": {error.message}", hint=error.hint
        ) from None


def _check_web(web: WebConfig) -> None:
    _check_address(("web", "listen"), web.listen, example="127.0.0.1:15080")
    if web.listen and not is_on_loopback(web.listen):
        raise BadValueError(
            ("web", "listen"),
            f": {web.listen} is reached from other machines, and the page is not encrypted",
            hint="write 127.0.0.1:15080, with a reverse proxy with TLS on this machine (origin); "
            "one on another machine comes by a tunnel (ssh -L)",
        )
    if web.base_path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", web.base_path):
        raise BadValueError(
            ("web", "base_path"),
            f": invalid path {web.base_path!r}",
            hint="write it as /gsched: with a leading and no trailing slash",
        )
    if web.origin and not re.fullmatch(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?", web.origin):
        raise BadValueError(
            ("web", "origin"),
            f": invalid origin {web.origin!r}",
            hint="write scheme and name in small letters, as https://cluster.example.org",
        )


def _check_size(keys: Sequence[str | int], text: str) -> None:
    try:
        parse_size_bytes(text)
    except BadResourceError as error:
        raise BadValueError(keys, f": {error.message}", hint=error.hint) from None


def _check_bandwidth(keys: Sequence[str | int], text: str) -> None:
    try:
        parse_bandwidth_bytes_s(text)
    except BadResourceError as error:
        raise BadValueError(keys, f": {error.message}", hint=error.hint) from None


def _check_gpu_share(share: GpuShareConfig) -> None:
    if share.runtime not in SHARE_RUNTIMES:
        _check_other_runtime(share.runtime)
    elif share.options:
        raise BadValueError(
            ("gpu_share", "options"),
            f": the runtime {share.runtime!r} has no options",
            hint="remove them; they are settings of a runtime of another package",
        )
    if share.runtime == "hami-core" and not share.hami_library:
        raise BadValueError(
            ("gpu_share", "hami_library"),
            "is missing: the runtime hami-core needs its library",
            hint="give the absolute path of libvgpu.so",
        )
    _check_size(("gpu_share", "context_memory"), share.context_memory)
    _check_size(("gpu_share", "context_reserve"), share.context_reserve)
    _check_mig(share)


def _check_mig(share: GpuShareConfig) -> None:
    if share.mig and share.runtime != "mig":
        raise BadValueError(
            ("gpu_share", "mig"),
            f": the runtime is {share.runtime!r}, which uses no MIG instances",
            hint='set runtime = "mig", or remove [[gpu_share.mig]]',
        )
    seen: set[int] = set()
    has_others = False
    for at, table in enumerate(share.mig):
        if len(table.instances) > _MIG_MAX:
            raise BadValueError(
                ("gpu_share", "mig", at, "instances"),
                f": {len(table.instances)} instances, and a GPU has at most {_MIG_MAX}",
                hint=f"name {_MIG_MAX} at most: see `nvidia-smi mig -lgip`",
            )
        if table.gpus == ():
            raise BadValueError(
                ("gpu_share", "mig", at, "gpus"),
                " is empty, so that the table is for no GPU",
                hint="name GPUs, or leave the key out for all GPUs that no other table names",
            )
        if table.gpus is None and has_others:
            raise BadValueError(
                ("gpu_share", "mig", at, "gpus"),
                ": two tables have no gpus, and each would be for all other GPUs",
                hint="name the GPUs of one of them",
            )
        has_others = has_others or table.gpus is None
        for index in table.gpus or ():
            if index in seen:
                raise BadValueError(
                    ("gpu_share", "mig", at, "gpus"),
                    f": GPU {index} is named twice",
                    hint="name each GPU once, in one table; a table without gpus is for all others",
                )
            seen.add(index)


def _check_other_runtime(name: str) -> None:
    """Refuse a runtime that no package has."""
    from gsched.config.errors import closest  # late: few files have a mistake

    known = share_runtimes()
    if name not in known:
        near = closest(name, known)
        raise BadValueError(
            ("gpu_share", "runtime"),
            f": unknown runtime {name!r}",
            hint=f"{near + ' ' if near else ''}valid: {', '.join(known)}",
        )


def _check_head(head: HeadConfig) -> None:
    for at, host in enumerate(head.operator_hosts):
        if not is_node_name(host):
            raise BadValueError(
                ("head", "operator_hosts", at),
                f": no host can have the name {host!r}",
                hint=f"give the name of a node or login host, as gnodes shows it: {NODE_NAME_RULE}",
            )
    if not head.socket or len(os.fsencode(head.socket)) > _SOCKET_BYTES:
        raise BadValueError(
            ("head", "socket"),
            f"has {len(os.fsencode(head.socket))} bytes",
            hint=f"the path of a Unix socket has 1 to {_SOCKET_BYTES} bytes",
        )
    if len(os.fsencode(head.node_socket)) > _SOCKET_BYTES:
        raise BadValueError(
            ("head", "node_socket"),
            f"has {len(os.fsencode(head.node_socket))} bytes",
            hint=f"the path of a Unix socket has 1 to {_SOCKET_BYTES} bytes",
        )
    for at, each in enumerate(head.addresses):
        if not _is_address(each):
            raise BadValueError(
                ("head", "addresses", at),
                f": invalid address {each!r}",
                hint="write HOST:PORT, where nodes connect to one of the heads",
            )
    if 0 < head.lease_s < MIN_LEASE_S:
        raise BadValueError(
            ("head", "lease_s"),
            f"is {head.lease_s:g}, too short for a node to renew it",
            hint=f"set {MIN_LEASE_S} or more seconds, or 0 for no lease",
        )
    if head.master_port_first > head.master_port_last:
        raise BadValueError(
            ("head", "master_port_first"),
            f"= {head.master_port_first} exceeds master_port_last = {head.master_port_last}",
            hint="give master_port_first <= master_port_last, both 1024 to 65535",
        )


def _check_extension(at: int, text: str) -> None:
    """Check by how much running jobs of a queue can be extended."""
    if text == "" or _PERCENT.fullmatch(text):
        return
    try:
        parse_duration_s(text, zero=True)
    except BadResourceError:
        raise BadValueError(
            ("queue", at, "walltime_extension"),
            f": invalid value {text!r}",
            hint='write a time such as "4h" or "4:00:00", a part such as "50%", or "0"',
        ) from None


def check_queues(queues: Sequence[QueueConfig]) -> None:
    """Check that the queues are a set of queues, and that the keys of each agree."""
    if not queues:
        raise BadValueError(
            ("queue",), "is empty: a head needs a queue", hint="omit queue for the default"
        )
    seen: set[str] = set()
    for at, queue in enumerate(queues):
        if not queue.name or not queue.name.isprintable() or set(queue.name) & set(" @,"):
            raise BadValueError(
                ("queue", at, "name"),
                f": invalid queue name {queue.name!r}",
                hint="use one word without blanks, '@' or ','",
            )
        if queue.name in seen:
            raise BadValueError(("queue", at, "name"), f": duplicate queue name {queue.name!r}")
        seen.add(queue.name)
        if queue.policy != queues[0].policy:
            raise BadValueError(
                ("queue", at, "policy"),
                f"{queue.policy!r} of queue {queue.name!r} differs from {queues[0].policy!r} of "
                f"queue {queues[0].name!r}: all queues must use the same policy",
                hint="use the same policy in every [[queue]]; priorities and limits can differ",
            )
        _check_extension(at, queue.walltime_extension)
        if 0 < queue.max_walltime_s < queue.default_walltime_s:
            raise BadValueError(
                ("queue", at, "default_walltime_s"),
                f"= {queue.default_walltime_s:g} exceeds max_walltime_s = "
                f"{queue.max_walltime_s:g}: jobs without a walltime would be refused",
                hint="lower default_walltime_s",
            )
        _check_interactive(at, queue)


def _check_interactive(at: int, queue: QueueConfig) -> None:
    """Check that the limits of a queue for interactive jobs agree with its other limits."""
    if 0 < queue.max_walltime_s < queue.max_interactive_walltime_s:
        raise BadValueError(
            ("queue", at, "max_interactive_walltime_s"),
            f"= {queue.max_interactive_walltime_s:g} exceeds max_walltime_s = "
            f"{queue.max_walltime_s:g}, which limits interactive jobs, too",
            hint="lower max_interactive_walltime_s, or set it to 0 for no limit of its own",
        )
    if 0 < queue.max_detach_timeout_s < queue.detach_timeout_s:
        raise BadValueError(
            ("queue", at, "detach_timeout_s"),
            f"= {queue.detach_timeout_s:g} exceeds max_detach_timeout_s = "
            f"{queue.max_detach_timeout_s:g}",
            hint="lower detach_timeout_s",
        )


def _is_node_channel(text: str) -> bool:
    """Return whether gnode can dial this."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        return path.startswith("/") and len(os.fsencode(path)) <= _SOCKET_BYTES
    return _is_address(text)


def _is_address(text: str) -> bool:
    address = _ADDRESS.fullmatch(text)
    return address is not None and 0 < int(address["port"]) < 65536


def _check_node(node: NodeConfig) -> None:
    if node.name and not is_node_name(node.name):
        raise BadValueError(
            ("node", "name"), f": invalid node name {node.name!r}", hint=NODE_NAME_RULE
        )
    heads = [part.strip() for part in node.head.split(",")]
    is_path = node.head.startswith("unix:")
    if not _is_node_channel(node.head) and (is_path or not all(map(_is_address, heads))):
        raise BadValueError(
            ("node", "head"),
            f": invalid address {node.head!r}",
            hint=f"write HOST:PORT, or unix:/PATH of at most {_SOCKET_BYTES} bytes; of several "
            "heads HOST:PORT,HOST:PORT",
        )
    if node.memory:
        _check_size(("node", "memory"), node.memory)
    _check_size(("node", "least_spool"), node.least_spool)
    for at, gpu in enumerate(node.gpu):
        _check_size(("node", "gpu", at, "memory"), gpu.memory)
        try:
            expanded(gpu)
        except ConfigError as error:
            where = ("node", "gpu", at, "files")
            raise BadValueError(where, f": {error.message}", hint=error.hint) from None
    names = [check.name for check in node.health_check]
    for at, name in enumerate(names):
        if name == GPU_CHECK or name in names[:at]:
            raise BadValueError(
                ("node", "health_check", at, "name"),
                f": the name {name!r} is taken",
                hint=f"give each check a name of its own; {GPU_CHECK} is gnode's check of the GPUs",
            )
    _check_counted(node)


def _check_counted(node: NodeConfig) -> None:
    from gsched.model.request import SINGLE_TERMS, UNENFORCED_TERMS  # late: few sites have any

    for name in node.resources:
        if not _WORD.fullmatch(name) or name in SINGLE_TERMS | UNENFORCED_TERMS:
            raise BadValueError(
                ("node", "resources"),
                f": invalid name {name!r} of a consumable resource",
                hint="start with a letter; names of -l are reserved: see gsub(1)",
            )


def _check_training(training: TrainingConfig) -> None:
    deadline, sia = training.deadline, training.sia
    if deadline.steps_min > deadline.steps_max:
        raise BadValueError(
            ("training", "deadline", "steps_min"),
            f"= {deadline.steps_min} exceeds steps_max = {deadline.steps_max}",
            hint="give steps_min <= steps_max",
        )
    if sia.p == 0:
        raise BadValueError(
            ("training", "sia", "p"),
            "= 0 makes all configurations cost the same",
            hint="choose a number below 0, such as -0.5, or above 0",
        )


def _check_balance(balance: BalanceConfig) -> None:
    if balance.weights.cpu + balance.weights.memory == 0:
        raise BadValueError(
            ("balance", "weights"),
            "must have cpu or memory greater than 0",
            hint="no other weight counts for a job without GPUs",
        )


def _check_fabric(fabric: FabricConfig) -> None:
    _check_bandwidth(("fabric", "inside"), fabric.inside)
    _check_bandwidth(("fabric", "between"), fabric.between)
    for node, text in fabric.inside_of.items():
        _check_bandwidth(("fabric", "inside_of", node), text)
    seen: set[frozenset[str]] = set()
    for at, link in enumerate(fabric.link):
        pair = frozenset(link.nodes)
        if len(pair) == 1:
            raise BadValueError(
                ("fabric", "link", at, "nodes"),
                f"must be two different nodes, got {link.nodes[0]!r} twice",
                hint="bandwidth within a node belongs in [fabric] inside_of",
            )
        if pair in seen:
            raise BadValueError(
                ("fabric", "link", at, "nodes"),
                f": duplicate link between {link.nodes[0]!r} and {link.nodes[1]!r}",
                hint="remove one of them",
            )
        seen.add(pair)
        _check_bandwidth(("fabric", "link", at, "bandwidth"), link.bandwidth)


def _check_idle_gpus(config: Config) -> None:
    names = [queue.name for queue in config.queue]
    seen: set[str] = set()
    for at, rule in enumerate(config.idle_gpus.queue):
        if rule.name not in names or rule.name in seen:
            what = "duplicate" if rule.name in seen else "unknown"
            raise BadValueError(
                ("idle_gpus", "queue", at, "name"),
                f": {what} queue {rule.name!r}",
                hint=f"queues of this file: {', '.join(names)}",
            )
        seen.add(rule.name)


def _check_tasks(tasks: TasksConfig) -> None:
    """Check the times of tasks; each cron expression must have some time at which it is due."""
    from apscheduler.triggers.cron import CronTrigger  # late: few files have the table

    for name in TasksConfig.__struct_fields__:
        schedule = getattr(tasks, name)
        try:
            if schedule != NEVER and period_s(schedule) is None:
                CronTrigger(**cron_fields(schedule))
        except (BadResourceError, ValueError) as error:
            raise BadValueError(("tasks", name), f": {error}", hint=HINT) from None


def _check_notify(notify: NotifyConfig) -> None:
    if notify.sendmail and notify.smtp_host:
        raise BadValueError(
            ("notify", "smtp_host"),
            "and sendmail are mutually exclusive",
            hint="keep one way for mail",
        )
    if bool(notify.smtp_user) != bool(notify.smtp_password_file):
        raise BadValueError(
            ("notify", "smtp_user"),
            "and smtp_password_file belong together",
            hint="give both, or neither for a server without login",
        )
    if notify.smtp_user and notify.smtp_tls == "none":
        raise BadValueError(
            ("notify", "smtp_user"),
            "needs an encrypted connection: the password would be readable on the network",
            hint='set smtp_tls = "starttls" or "tls"',
        )
    _check_url(notify.url)
    _check_mail(notify)


def _check_url(url: str) -> None:
    if not url:
        return
    from urllib.parse import urlsplit  # late: few files have the table

    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or not url.isprintable() or " " in url:
        raise BadValueError(
            ("notify", "url"), f": invalid URL {url!r}", hint="write https://HOST/PATH"
        )


def _check_mail(notify: NotifyConfig) -> None:
    from gsched.model.mail import checked_points, checked_recipients  # late: as above

    for key in ("default_points", "hook_points"):
        try:
            checked_points(getattr(notify, key))
        except InvalidRequestError as error:
            message = f": {error.message.removeprefix('-m: ')}"
            raise BadValueError(("notify", key), message, hint=error.hint) from None
    try:
        senders = checked_recipients(notify.sender)
    except InvalidRequestError as error:
        raise BadValueError(("notify", "sender"), f": {notify.sender!r}", hint=error.hint) from None
    if len(senders) > 1:
        raise BadValueError(("notify", "sender"), "names several", hint="give one address")
