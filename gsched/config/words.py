"""What keys of the configuration file may hold, and the usual paths.

Each key that is a number has a range: a site's slip must not become a daemon that polls a thousand
times a second, or waits for a port that there is not.
"""

from typing import Annotated, Final, Literal, get_args

import msgspec

#: Not negative, and finite: a node that claims more than this would drown all others.
Quantity = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
RendezvousPort = Annotated[int, msgspec.Meta(ge=1024, le=65535)]
Days = Annotated[float, msgspec.Meta(ge=0, le=36500)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Period = Annotated[float, msgspec.Meta(ge=0.05, le=86400)]
#: The largest weight in ``[balance]``: any sum of them is a finite number.
MAX_WEIGHT: Final = 1e6
Weight = Annotated[float, msgspec.Meta(ge=0, le=MAX_WEIGHT)]

#: What a queue's ``policy`` may name.
QueuePolicy = Literal["balance", "fifo"]
POLICIES: Final[tuple[QueuePolicy, ...]] = get_args(QueuePolicy)
#: What ``[training] policy`` may name.
TrainingPolicy = Literal["deadline", "drs", "elasticflow", "goodput", "sia"]
TRAINING_POLICIES: Final[tuple[TrainingPolicy, ...]] = get_args(TrainingPolicy)
#: Those of them that choose batch sizes of adaptive training jobs, and need NumPy and highspy.
ADAPTIVE_POLICIES: Final = ("goodput", "sia")
#: Policies to compare with: a checkout of gsched has them, for gsim; no configuration names them.
BASELINES: Final = (
    "drs-paper",
    "drs-still",
    "edf",
    "fewest",
    "fifowhole",
    "gavel",
    "paper",
    "pollux",
    "roundrobin",
    "themis",
    "torque",
)


def form(pattern: str, problem: str, hint: str) -> msgspec.Meta:
    """Return the form of a text: a pattern, what is wrong with another one, and what to write."""
    return msgspec.Meta(pattern=pattern, extra={"problem": problem, "hint": hint})


AbsolutePath = Annotated[str, form(r"\A/", ": relative path {!r}", "give an absolute path")]
#: An empty one stands for the default.
OptionalPath = Annotated[str, form(r"\A(/|\Z)", ": relative path {!r}", "give an absolute path")]
CommandSocketPath = Annotated[
    str, form(r"\A(\Z|none\Z|/)", ": invalid path {!r}", 'give an absolute path or "none"')
]
Directory = Annotated[str, form(r"\A(?s:.)", "is empty", "give a directory")]
ServerName = Annotated[
    str,
    form(
        r"\A([A-Za-z0-9][A-Za-z0-9._-]{0,254})?\Z",
        ": invalid name {!r}",
        "use letters, digits, '.', '_' and '-': it is part of every job id",
    ),
]
Feature = Annotated[
    str,
    form(
        r"\A[A-Za-z][A-Za-z0-9_.-]*\Z",
        ": invalid feature {!r}: no request could name it",
        "start with a letter; use letters, digits, '.', '_' and '-'",
    ),
]
MetricsPlace = Annotated[
    str,
    form(
        r"\A(\Z|/|127\.0\.0\.1:[0-9]{1,5}\Z|\[::1\]:[0-9]{1,5}\Z)",
        ": invalid place {!r}",
        'use an absolute path, or a loopback address: "127.0.0.1:15081"',
    ),
]
CgroupPlace = Annotated[
    str, form(r"\A(auto\Z|none\Z|/)", ": invalid value {!r}", 'use "auto", "none" or a full path')
]
MigProfile = Annotated[
    str,
    form(
        r"\A[1-8]g\.[0-9]{1,3}gb([+-][a-z.]{1,16})?\Z",
        ": {!r} is no MIG profile",
        "write it as 1g.10gb: see `nvidia-smi mig -lgip`",
    ),
]
Origin = Annotated[
    str,
    form(
        r"\Ahttps?://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?\Z",
        ": invalid origin {!r}",
        "write scheme, host and port, in lower case: https://hooks.example.com",
    ),
]
Domain = Annotated[
    str,
    form(
        r"\A([A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)?\Z",
        ": invalid domain {!r}",
        "write example.com",
    ),
]


def node_socket_of(head_socket: str) -> str:
    """Return where nodes of the same machine find the head whose commands come to ``head_socket``.

    Two heads never share that one, so they do not share this one.
    """
    return f"{head_socket.removesuffix('.sock')}-node.sock"


def monitor_socket_of(head_socket: str) -> str:
    """Return where the monitor of the head whose commands come to ``head_socket`` listens."""
    return f"{head_socket.removesuffix('.sock')}-monitor.sock"
