"""Descriptions of clusters: a TOML file, or a short text like ``4xcpus=32,gpus=4,memory=128gb``."""

import re
import tomllib
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from gsched.errors import BadResourceError, UsageError
from gsched.model.resources import Gpu, Inventory
from gsched.model.units import parse_size_bytes

GIB: Final = 1024**3
#: Memory of a node that states none, for each of its CPUs: what bought servers have, bytes.
MEMORY_PER_CPU_BYTES: Final = 4 * GIB
MAX_NODES: Final = 100_000
MAX_CPUS: Final = 100_000
MAX_GPUS: Final = 1_024
EXAMPLE: Final = "write 1000xcpus=32,gpus=4,memory=128gb, or name a TOML file with [[node]] tables"


class NodeKind(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[node]]``: nodes that are alike.

    Attributes:
        name: what their names begin with; a number follows.
        gpu_memory: of each GPU, as ``80gb``; where it is named, jobs can share GPUs.
        speed: how fast their CPUs are; a job of 10 s takes 20 s where it is 0.5.
        idle_watts: what each uses without jobs, for the energy that power saving gives back.
    """

    count: int = 1
    name: str = ""
    cpus: int = 1
    gpus: int = 0
    gpu_type: str = ""
    gpu_memory: str = ""
    memory: str = ""
    speed: float = 1.0
    idle_watts: float = 0.0
    features: tuple[str, ...] = ()
    resources: dict[str, int] = {}


class ClusterNode(Struct, frozen=True, kw_only=True):
    """One node to be modelled."""

    name: str
    inventory: Inventory
    speed: float
    idle_watts: float = 0.0


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node: tuple[NodeKind, ...] = ()


def read_cluster(text: str) -> tuple[ClusterNode, ...]:
    """Return the nodes that a file or a short text describes.

    Args:
        text: the path of a TOML file, or kinds of nodes with ``+`` between them.

    Raises:
        UsageError: it describes no cluster that could be; the message says what is wrong.
    """
    if text.endswith(".toml") or Path(text).is_file():
        kinds = _from_file(text)
    else:
        kinds = tuple(_from_text(part) for part in text.split("+"))
    for kind in kinds:
        _check(kind, text)
    total = sum(kind.count for kind in kinds)
    if not 1 <= total <= MAX_NODES:
        raise UsageError(
            f"cluster {text!r} has {total} nodes: 1 to {MAX_NODES} are possible", hint=EXAMPLE
        )
    return _nodes(kinds, width=len(str(total)), text=text)


def _from_file(path: str) -> tuple[NodeKind, ...]:
    try:
        found = msgspec.convert(tomllib.loads(Path(path).read_text(encoding="utf-8")), _File)
    except FileNotFoundError:
        raise UsageError(f"cluster file {path}: no such file", hint=EXAMPLE) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cluster file {path}: {error}", hint=EXAMPLE) from error
    except msgspec.ValidationError as error:
        known = ", ".join(NodeKind.__struct_fields__)
        raise UsageError(f"cluster file {path}: {error}", hint=f"keys: {known}") from error
    return found.node


def _from_text(part: str) -> NodeKind:
    match = re.fullmatch(r"(?:(?P<count>[0-9]{1,9})x)?(?P<terms>[^x].*)", part.strip())
    if match is None:
        raise UsageError(f"{part!r} describes no nodes", hint=EXAMPLE)
    values: dict[str, object] = {"count": int(match["count"] or 1)}
    known = [name for name in NodeKind.__struct_fields__ if name not in {"count", "resources"}]
    for term in match["terms"].split(","):
        name, equals, value = (word.strip() for word in term.partition("="))
        if name not in known or not equals or not value:
            raise UsageError(
                f"{term.strip()!r} in cluster {part!r} is not known",
                hint=f"terms are NAME=VALUE of: {', '.join(known)}",
            )
        values[name] = tuple(value.split("/")) if name == "features" else value
    try:
        return msgspec.convert(values, NodeKind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"cluster {part!r}: {error}", hint=EXAMPLE) from error


def _check(kind: NodeKind, text: str) -> None:
    limits = (
        ("count", kind.count, 1, MAX_NODES),
        ("cpus", kind.cpus, 1, MAX_CPUS),
        ("gpus", kind.gpus, 0, MAX_GPUS),
        ("speed", kind.speed, 1e-3, 1e3),
        ("idle_watts", kind.idle_watts, 0, 1e5),
    )
    for name, value, least, most in limits:
        if not least <= value <= most:
            raise UsageError(
                f"cluster {text!r}: {name} is {value}, it can be {least} to {most}", hint=EXAMPLE
            )
    for name, count in kind.resources.items():
        if count < 1:
            raise UsageError(f"cluster {text!r}: {count} of resource {name!r}", hint=EXAMPLE)


def _nodes(kinds: tuple[NodeKind, ...], *, width: int, text: str) -> tuple[ClusterNode, ...]:
    nodes: list[ClusterNode] = []
    for kind in kinds:
        inventory = _inventory(kind, text)
        first = len(nodes) + 1
        nodes.extend(
            ClusterNode(
                name=f"{kind.name or 'n'}{number:0{width}d}",
                inventory=inventory,
                speed=kind.speed,
                idle_watts=kind.idle_watts,
            )
            for number in range(first, first + kind.count)
        )
    return tuple(nodes)


def _inventory(kind: NodeKind, text: str) -> Inventory:
    try:
        memory_bytes = (
            parse_size_bytes(kind.memory) if kind.memory else kind.cpus * MEMORY_PER_CPU_BYTES
        )
        gpu_bytes = parse_size_bytes(kind.gpu_memory) if kind.gpu_memory else 0
    except BadResourceError as error:
        raise UsageError(f"cluster {text!r}: {error.message}", hint=error.hint) from None
    gpu = Gpu(index=0, type=kind.gpu_type, memory_bytes=gpu_bytes)
    return Inventory(
        cpus=kind.cpus,
        memory_bytes=memory_bytes,
        gpus=tuple(structs.replace(gpu, index=index) for index in range(kind.gpus)),
        features=kind.features,
        generic=tuple(sorted(kind.resources.items())),
    )
