"""What a configuration must fulfil beyond the types and ranges of its keys.

`gsched.config.parse_config` applies all of it, so that gschedd, gnode, gsim, the commands and
``gsched config check`` refuse the same files. What depends on the machine, as whether a directory
can be written, is not looked at here.
"""

import os
import re
from collections.abc import Container, Iterable, Sequence
from typing import Final

from msgspec import UNSET, structs

from gsched.config import (
    CPU_BINDINGS,
    DRS_VARIANTS,
    POLICIES,
    PROFILING,
    TRAINING_POLICIES,
    AnyTrainingConfig,
    BalanceConfig,
    Config,
    DeadlinePolicyConfig,
    DrsConfig,
    FabricConfig,
    HeadConfig,
    NodeConfig,
    SiaConfig,
    TrainingConfig,
)
from gsched.config_gpu_share import (
    SHARE_ACTIONS,
    SHARE_FAILURES,
    SHARE_RUNTIMES,
    GpuShareConfig,
    share_runtimes,
)
from gsched.config_gpus import GPU_FENCES, OUTSIDE_ACTIONS, expanded
from gsched.config_login import WHEN_UNKNOWN
from gsched.config_queues import QueueConfig
from gsched.errors import BadResourceError, ConfigError
from gsched.model.container import MOUNT_RULE, RUNTIMES, mount_problem
from gsched.model.limits import MIN_LEASE_S
from gsched.model.node_name import NODE_NAME_RULE, is_node_name
from gsched.model.units import parse_bandwidth_bytes_s, parse_duration_s, parse_size_bytes

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_SOCKET_BYTES: Final = 107  # sun_path of unix(7), less its closing zero
#: What the simulator calls policies, and how a site says the same.
_SIMULATED: Final = {"drs-paper": 'variant = "paper"', "drs-still": "moves_max = 0"}
#: Keys of the deprecated ``[deadline]`` that are keys of ``[training.drs]``.
_OF_DRS: Final = DrsConfig.__struct_fields__
_WORD: Final = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
_MIG_PROFILE: Final = re.compile(r"[1-8]g\.[0-9]{1,3}gb(?:[+-][a-z.]{1,16})?")
_MIG_MAX: Final = 7  # instances of a GPU
_PERCENT: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,3})?%")
_SERVER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")


class BrokenRuleError(Exception):
    """A rule that a configuration breaks; `gsched.config` adds the place in the file.

    Attributes:
        keys: the way to the key, ``("queue", 1, "policy")``.
        message: what is wrong; begins with a verb or a colon, as the key is put before it.
        hint: what to do.
    """

    def __init__(self, keys: Sequence[str | int], message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.keys = tuple(keys)
        self.message = message
        self.hint = hint


def check(config: Config, tables: Container[str]) -> None:
    """Check the whole configuration.

    Args:
        config: as the file states it.
        tables: the names of the file's tables.

    Raises:
        BrokenRuleError: the first rule that is broken.
    """
    _check_head(config.head)
    _check_queues(config.queue)
    _check_node(config.node)
    _check_training(config, tables)
    _check_balance(config.balance)
    _check_fabric(config.fabric)
    _check_gpu_share(config.gpu_share)
    check_word(("outside_gpu_use", "action"), config.outside_gpu_use.action, OUTSIDE_ACTIONS)
    check_word(("login", "when_unknown"), config.login.when_unknown, WHEN_UNKNOWN)
    for at, mount in enumerate(config.containers.mounts):
        if mount_problem(mount):
            keys = ("containers", "mounts", at)
            raise BrokenRuleError(keys, f": {mount!r} {mount_problem(mount)}", hint=MOUNT_RULE)
    if "notify" in tables:
        from gsched.config_rules_notify import check_notify  # late: few files have the table

        check_notify(config.notify)


def closest(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?``, or the empty string if nothing known is like the word."""
    import difflib  # late: commands read the configuration, too, and few files have a mistake

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def check_word(keys: Sequence[str | int], word: str, known: Sequence[str]) -> None:
    """Refuse an unknown value.

    Raises:
        BrokenRuleError: it is not.
    """
    if word not in known:
        hint = closest(word, known) or f"valid: {', '.join(known)}"
        raise BrokenRuleError(keys, f": invalid value {word!r}", hint=hint)


def _check_size(keys: Sequence[str | int], text: str) -> None:
    try:
        parse_size_bytes(text)
    except BadResourceError as error:
        raise BrokenRuleError(keys, f": {error.message}", hint=error.hint) from None


def _check_absolute(keys: Sequence[str | int], path: str) -> None:
    """Refuse a relative path; an empty one stands for the default."""
    if path and not os.path.isabs(path):
        raise BrokenRuleError(keys, f": relative path {path!r}", hint="give an absolute path")


def _check_bandwidth(keys: Sequence[str | int], text: str) -> None:
    try:
        parse_bandwidth_bytes_s(text)
    except BadResourceError as error:
        raise BrokenRuleError(keys, f": {error.message}", hint=error.hint) from None


def _check_gpu_share(share: GpuShareConfig) -> None:
    if share.runtime not in SHARE_RUNTIMES:
        _check_other_runtime(share.runtime)
    elif share.options:
        raise BrokenRuleError(
            ("gpu_share", "options"),
            f": the runtime {share.runtime!r} has no options",
            hint="remove them; they are settings of a runtime of another package",
        )
    if share.runtime == "hami-core" and not share.hami_library:
        raise BrokenRuleError(
            ("gpu_share", "hami_library"),
            "is missing: the runtime hami-core needs its library",
            hint="give the absolute path of libvgpu.so",
        )
    check_word(("gpu_share", "fail"), share.fail, SHARE_FAILURES)
    check_word(("gpu_share", "overlap_action"), share.overlap_action, SHARE_ACTIONS)
    _check_size(("gpu_share", "context_memory"), share.context_memory)
    _check_size(("gpu_share", "context_reserve"), share.context_reserve)
    if not share.mps_pipe_dir:
        raise BrokenRuleError(("gpu_share", "mps_pipe_dir"), "is empty", hint="give a directory")
    _check_mig(share)
    for key in ("mps_pipe_dir", "driver", "hami_library"):
        _check_absolute(("gpu_share", key), getattr(share, key))


def _check_mig(share: GpuShareConfig) -> None:
    if share.mig and share.runtime != "mig":
        raise BrokenRuleError(
            ("gpu_share", "mig"),
            f": the runtime is {share.runtime!r}, which uses no MIG instances",
            hint='set runtime = "mig", or remove [[gpu_share.mig]]',
        )
    seen: set[int] = set()
    has_others = False
    for at, table in enumerate(share.mig):
        for name in table.instances:
            if not _MIG_PROFILE.fullmatch(name):
                raise BrokenRuleError(
                    ("gpu_share", "mig", at, "instances"),
                    f": {name!r} is no MIG profile",
                    hint="write it as 1g.10gb: see `nvidia-smi mig -lgip`",
                )
        if len(table.instances) > _MIG_MAX:
            raise BrokenRuleError(
                ("gpu_share", "mig", at, "instances"),
                f": {len(table.instances)} instances, and a GPU has at most {_MIG_MAX}",
                hint=f"name {_MIG_MAX} at most: see `nvidia-smi mig -lgip`",
            )
        if table.gpus == ():
            raise BrokenRuleError(
                ("gpu_share", "mig", at, "gpus"),
                " is empty, so that the table is for no GPU",
                hint="name GPUs, or leave the key out for all GPUs that no other table names",
            )
        if table.gpus is None and has_others:
            raise BrokenRuleError(
                ("gpu_share", "mig", at, "gpus"),
                ": two tables have no gpus, and each would be for all other GPUs",
                hint="name the GPUs of one of them",
            )
        has_others = has_others or table.gpus is None
        for index in table.gpus or ():
            if index in seen:
                raise BrokenRuleError(
                    ("gpu_share", "mig", at, "gpus"),
                    f": GPU {index} is named twice",
                    hint="name each GPU once, in one table; a table without gpus is for all others",
                )
            seen.add(index)


def _check_other_runtime(name: str) -> None:
    """Refuse a runtime that no package has."""
    known = share_runtimes()
    if name not in known:
        near = closest(name, known)
        raise BrokenRuleError(
            ("gpu_share", "runtime"),
            f": unknown runtime {name!r}",
            hint=f"{near + ' ' if near else ''}valid: {', '.join(known)}",
        )


def _check_head(head: HeadConfig) -> None:
    if head.server_name and not _SERVER.fullmatch(head.server_name):
        raise BrokenRuleError(
            ("head", "server_name"),
            f": invalid name {head.server_name!r}",
            hint="use letters, digits, '.', '_' and '-': it is part of every job id",
        )
    if not head.socket or len(os.fsencode(head.socket)) > _SOCKET_BYTES:
        raise BrokenRuleError(
            ("head", "socket"),
            f"has {len(os.fsencode(head.socket))} bytes",
            hint=f"the path of a Unix socket has 1 to {_SOCKET_BYTES} bytes",
        )
    if len(os.fsencode(head.node_socket)) > _SOCKET_BYTES:
        raise BrokenRuleError(
            ("head", "node_socket"),
            f"has {len(os.fsencode(head.node_socket))} bytes",
            hint=f"the path of a Unix socket has 1 to {_SOCKET_BYTES} bytes",
        )
    if not head.state_dir:
        raise BrokenRuleError(("head", "state_dir"), "is empty", hint="give a directory")
    if head.node_host not in LOOPBACK and not head.plaintext_node_channel:
        raise BrokenRuleError(
            ("head", "node_host"),
            f"is {head.node_host}, but the node channel is not encrypted",
            hint="use 127.0.0.1, or plaintext_node_channel = true on a network that you trust",
        )
    check_word(("head", "unknown_resource"), head.unknown_resource, ("refuse", "warn"))
    check_word(("head", "unsatisfiable"), head.unsatisfiable, ("cancel", "hold"))
    if 0 < head.lease_s < MIN_LEASE_S:
        raise BrokenRuleError(
            ("head", "lease_s"),
            f"is {head.lease_s:g}, too short for a node to renew it",
            hint=f"set {MIN_LEASE_S} or more seconds, or 0 for no lease",
        )
    if head.master_port_first > head.master_port_last:
        raise BrokenRuleError(
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
        raise BrokenRuleError(
            ("queue", at, "walltime_extension"),
            f": invalid value {text!r}",
            hint='write a time such as "4h" or "4:00:00", a part such as "50%", or "0"',
        ) from None


def _check_queues(queues: Sequence[QueueConfig]) -> None:
    if not queues:
        raise BrokenRuleError(
            ("queue",), "is empty: a head needs a queue", hint="omit queue for the default"
        )
    seen: set[str] = set()
    for at, queue in enumerate(queues):
        if not queue.name or not queue.name.isprintable() or set(queue.name) & set(" @,"):
            raise BrokenRuleError(
                ("queue", at, "name"),
                f": invalid queue name {queue.name!r}",
                hint="use one word without blanks, '@' or ','",
            )
        if queue.name in seen:
            raise BrokenRuleError(("queue", at, "name"), f": duplicate queue name {queue.name!r}")
        seen.add(queue.name)
        if queue.policy not in POLICIES:
            raise BrokenRuleError(
                ("queue", at, "policy"),
                f": unknown policy {queue.policy!r} of queue {queue.name!r}",
                hint=_hint_for_queue(queue.policy),
            )
        if queue.policy != queues[0].policy:
            raise BrokenRuleError(
                ("queue", at, "policy"),
                f"{queue.policy!r} of queue {queue.name!r} differs from {queues[0].policy!r} of "
                f"queue {queues[0].name!r}: all queues must use the same policy",
                hint="use the same policy in every [[queue]]; priorities and limits can differ",
            )
        _check_extension(at, queue.walltime_extension)
        if 0 < queue.max_walltime_s < queue.default_walltime_s:
            raise BrokenRuleError(
                ("queue", at, "default_walltime_s"),
                f"= {queue.default_walltime_s:g} exceeds max_walltime_s = "
                f"{queue.max_walltime_s:g}: jobs without a walltime would be refused",
                hint="lower default_walltime_s",
            )
        _check_interactive(at, queue)


def _check_interactive(at: int, queue: QueueConfig) -> None:
    """Check that the limits of a queue for interactive jobs agree with its other limits."""
    if 0 < queue.max_walltime_s < queue.max_interactive_walltime_s:
        raise BrokenRuleError(
            ("queue", at, "max_interactive_walltime_s"),
            f"= {queue.max_interactive_walltime_s:g} exceeds max_walltime_s = "
            f"{queue.max_walltime_s:g}, which limits interactive jobs, too",
            hint="lower max_interactive_walltime_s, or set it to 0 for no limit of its own",
        )
    if 0 < queue.max_detach_timeout_s < queue.detach_timeout_s:
        raise BrokenRuleError(
            ("queue", at, "detach_timeout_s"),
            f"= {queue.detach_timeout_s:g} exceeds max_detach_timeout_s = "
            f"{queue.max_detach_timeout_s:g}",
            hint="lower detach_timeout_s",
        )


def _hint_for_queue(policy: str) -> str:
    if policy in TRAINING_POLICIES:
        return f'for training jobs write policy = "{policy}" in [training]'
    return closest(policy, POLICIES) or f"valid: {', '.join(POLICIES)}"


def _is_node_channel(text: str) -> bool:
    """Return whether gnode can dial this."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        return path.startswith("/") and len(os.fsencode(path)) <= _SOCKET_BYTES
    address = _ADDRESS.fullmatch(text)
    return address is not None and 0 < int(address["port"]) < 65536


def _check_node(node: NodeConfig) -> None:
    if node.name and not is_node_name(node.name):
        raise BrokenRuleError(
            ("node", "name"), f": invalid node name {node.name!r}", hint=NODE_NAME_RULE
        )
    if not _is_node_channel(node.head):
        raise BrokenRuleError(
            ("node", "head"),
            f": invalid address {node.head!r}",
            hint=f"write HOST:PORT, or unix:/PATH of at most {_SOCKET_BYTES} bytes",
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
            raise BrokenRuleError(where, f": {error.message}", hint=error.hint) from None
    if node.cgroup not in {"auto", "none"} and not node.cgroup.startswith("/"):
        raise BrokenRuleError(
            ("node", "cgroup"),
            f": invalid value {node.cgroup!r}",
            hint='use "auto", "none" or a full path',
        )
    check_word(("node", "cpu_binding"), node.cpu_binding, CPU_BINDINGS)
    check_word(("node", "gpu_fence"), node.gpu_fence, GPU_FENCES)
    for at, runtime in enumerate(node.container_runtimes):
        check_word(("node", "container_runtimes", at), runtime, RUNTIMES)
    _check_absolute(("node", "tmp_dir"), node.tmp_dir)
    for feature in node.features:
        if not _WORD.fullmatch(feature):
            raise BrokenRuleError(
                ("node", "features"),
                f": invalid feature {feature!r}: no request could name it",
                hint="start with a letter; use letters, digits, '.', '_' and '-'",
            )
    _check_counted(node)


def _check_counted(node: NodeConfig) -> None:
    from gsched.model.request import SINGLE_TERMS, UNENFORCED_TERMS  # late: few sites have any

    for name in node.resources:
        if not _WORD.fullmatch(name) or name in SINGLE_TERMS | UNENFORCED_TERMS:
            raise BrokenRuleError(
                ("node", "resources"),
                f": invalid name {name!r} of a consumable resource",
                hint="start with a letter; names of -l are reserved: see gsub(1)",
            )


def _check_training(config: Config, tables: Container[str]) -> None:
    training, alias = config.training, config.deadline
    if alias is UNSET:
        _check_any_training("training", training)
        check_word(("training", "drs", "variant"), training.drs.variant, DRS_VARIANTS)
        _check_steps(training.deadline)
        _check_power(training.sia)
        return
    if "training" in tables:
        raise BrokenRuleError(
            ("deadline",),
            "is the deprecated name of [training], and the file has both tables",
            hint="move the keys of [deadline] to [training], and remove [deadline]",
        )
    _check_any_training("deadline", alias)
    check_word(("deadline", "variant"), alias.variant, DRS_VARIANTS)


def _check_any_training(table: str, training: AnyTrainingConfig) -> None:
    check_word((table, "profile"), training.profile, PROFILING)
    name = training.policy
    if name in _SIMULATED:
        raise BrokenRuleError(
            (table, "policy"),
            f": {name!r} is a policy of gsim only",
            hint=f'write policy = "drs", and {_SIMULATED[name]} in [training.drs]',
        )
    if name not in TRAINING_POLICIES:
        raise BrokenRuleError(
            (table, "policy"),
            f": {name!r} does not plan training jobs",
            hint=closest(name, TRAINING_POLICIES) or f"valid: {', '.join(TRAINING_POLICIES)}",
        )


def _check_power(policy: SiaConfig) -> None:
    if policy.p == 0:
        raise BrokenRuleError(
            ("training", "sia", "p"),
            "= 0 makes all configurations cost the same",
            hint="choose a number below 0, such as -0.5, or above 0",
        )


def _check_steps(policy: DeadlinePolicyConfig) -> None:
    if policy.steps_min > policy.steps_max:
        raise BrokenRuleError(
            ("training", "deadline", "steps_min"),
            f"= {policy.steps_min} exceeds steps_max = {policy.steps_max}",
            hint="give steps_min <= steps_max",
        )


def without_aliases(config: Config) -> Config:
    """Return the configuration with the keys of deprecated tables in the tables of today."""
    alias = config.deadline
    if alias is UNSET:
        return config
    values = structs.asdict(alias)
    drs = DrsConfig(**{key: values.pop(key) for key in _OF_DRS})
    return structs.replace(config, training=TrainingConfig(**values, drs=drs))


def deprecations(config: Config) -> tuple[str, ...]:
    """Return a sentence for each deprecated table of the file; it says what to write instead."""
    alias = config.deadline
    if alias is UNSET:
        return ()
    default = type(alias)()
    moved = [key for key in _OF_DRS if getattr(alias, key) != getattr(default, key)]
    more = f", and move {', '.join(moved)} to [training.drs]" if moved else ""
    return (f"[deadline] is deprecated: rename it to [training]{more}; see gsched.toml(5)",)


def _check_balance(balance: BalanceConfig) -> None:
    check_word(("balance", "rule"), balance.rule, ("gsched", "paper"))
    check_word(("balance", "predictor"), balance.predictor, ("robust", "paper"))
    if balance.weights.cpu + balance.weights.memory == 0:
        raise BrokenRuleError(
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
            raise BrokenRuleError(
                ("fabric", "link", at, "nodes"),
                f"must be two different nodes, got {link.nodes[0]!r} twice",
                hint="bandwidth within a node belongs in [fabric] inside_of",
            )
        if pair in seen:
            raise BrokenRuleError(
                ("fabric", "link", at, "nodes"),
                f": duplicate link between {link.nodes[0]!r} and {link.nodes[1]!r}",
                hint="remove one of them",
            )
        seen.add(pair)
        _check_bandwidth(("fabric", "link", at, "bandwidth"), link.bandwidth)
