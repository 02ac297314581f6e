"""Words that are the same wherever they are shown: how a job or an attempt ended, and counts.

Head and commands use them: an outcome reads the same in gstat, ghist, gwait, in a job's events and
as the reason for which it was requeued.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from gsched.model.ids import short_job_id
from gsched.model.signals import SIGNAL_NAMES, describe_signal
from gsched.model.states import OutcomeKind, ShareClass
from gsched.model.units import format_duration, format_size

#: What the head writes as the message of a job that exceeded its walltime limit.
OVER_WALLTIME: Final = "exceeded its walltime limit"
#: The same, in rows of earlier versions. Neither says more than the kind of the outcome.
_SAYS_NOTHING: Final = frozenset({OVER_WALLTIME, "reached its walltime"})
_SIGKILL: Final = 9
#: Why jobs are not kept from GPUs of others, where that is no fault: it was configured so, or the
#: GPUs are declared and have no device files.
FENCE_OFF: Final = "none: gpu_fence in [node] is none"
FENCE_NO_FILES: Final = "none: no device files of the GPUs are known: see files of [[node.gpu]]"
#: What each way to bind jobs to CPUs means to a user.
_BINDINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cpuset": "each job runs only on its own CPUs",
        "affinity": "each job runs on its own CPUs unless its program changes its affinity",
        "none": "jobs run on all CPUs of the node, and a job that uses more CPUs than it requested "
        "slows the others down",
    }
)


def binding_words(binding: str) -> str:
    """Return in a sentence how a node binds jobs to CPUs, what that means, and why.

    Args:
        binding: by the node: a method, or ``none: `` and the reason.
    """
    method, _, reason = binding.partition(": ")
    meaning = _BINDINGS.get(method)
    if meaning is None:  # of a newer node
        return binding
    return f"{method}: {meaning}; reason: {reason}" if reason else f"{method}: {meaning}"


class Ended(Protocol):
    """How something ended: `gsched.model.job.Outcome` or `gsched.protocol.api.OutcomeRow`."""

    @property
    def kind(self) -> str:
        """Return a word of `OutcomeKind`, or of a newer head."""

    @property
    def exit_code(self) -> int | None:
        """Return the program's exit code, if it ended by itself."""

    @property
    def signal(self) -> int | None:
        """Return the signal that ended it."""

    @property
    def node(self) -> str:
        """Return where, or nothing."""

    @property
    def rank(self) -> int | None:
        """Return the first failing rank of a torchrun job."""

    @property
    def message(self) -> str:
        """Return what else there is to say."""


class Part(Protocol):
    """A part of one GPU, as a record or as a reply has it."""

    @property
    def percent(self) -> int:
        """Return how much of its time."""

    @property
    def memory_bytes(self) -> int:
        """Return how much of its memory; 0: that is not said."""

    @property
    def share_class(self) -> ShareClass:
        """Return how important it is there."""


def share_words(part: Part, index: int | None = None) -> str:
    """Return ``40 % of GPU 0 with 16gb (low)``; without the GPU's index ``40 % of a GPU``."""
    gpu = "a GPU" if index is None else f"GPU {index}"
    memory = f" with {format_size(part.memory_bytes)}" if part.memory_bytes else ""
    return f"{part.percent} % of {gpu}{memory} ({part.share_class})"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return ``1 job``, ``3 jobs``; ``plural`` where it is not the noun with an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def ahead_words(ahead: int, first: int) -> str:
    """Return how many jobs are ahead of a job with the same request, the job ``first`` first."""
    jobs = counted(ahead, "job")
    return f"{jobs} with the same request ahead in the queue (next: job {short_job_id(first)})"


def behind_words(first: int) -> str:
    """Return the same in a few words."""
    return f"behind job {short_job_id(first)}"


def outcome_words(
    ended: Ended, *, walltime_s: float | None = None, grace_s: float | None = None
) -> str:
    """Return how it ended: ``rank 0 on n1 failed with exit code 1``.

    Args:
        ended: how.
        walltime_s: the limit, where it is known.
        grace_s: from TERM to KILL, where it is known.
    """
    if ended.kind in _REQUESTED_ENDS:
        return ended.message or _REQUESTED_ENDS[ended.kind]
    words = _what_happened(ended, walltime_s=walltime_s, grace_s=grace_s)
    message = _news(ended)
    return f"{words}: {message}" if message else words


def outcome_word(ended: Ended) -> str:
    """Return the same for a narrow column: ``ok``, ``exit 3``, ``signal KILL``, ``walltime``."""
    if ended.kind == OutcomeKind.EXITED:
        word = f"exit {ended.exit_code}" if ended.exit_code else "ok"
    elif ended.kind == OutcomeKind.SIGNALLED and ended.signal is not None:
        word = f"signal {_signal_name(ended.signal)}"
    else:
        word = ended.kind.replace("_", " ")
    return word if word == "ok" or ended.rank is None else f"{word}, {_rank(ended)}"


#: What somebody asked for; the message says who and why.
_REQUESTED_ENDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        OutcomeKind.CANCELLED: "cancelled",
        OutcomeKind.RERUN: "requeued",
        OutcomeKind.MOVED: "migrated",
    }
)


def _what_happened(ended: Ended, *, walltime_s: float | None, grace_s: float | None) -> str:
    match ended.kind:
        case OutcomeKind.EXITED if not ended.exit_code:
            return "finished with exit code 0"
        case OutcomeKind.EXITED:
            return _who_and_where(ended, f"failed with exit code {ended.exit_code}")
        case OutcomeKind.SIGNALLED:
            return _who_and_where(ended, f"killed by signal {describe_signal(ended.signal or 0)}")
        case OutcomeKind.OOM:
            return _who_and_where(ended, "killed: out of memory")
        case OutcomeKind.WALLTIME:
            return _over_walltime(ended, walltime_s, grace_s)
        case OutcomeKind.NODE_LOST:
            return f"node {ended.node} was lost" if ended.node else "its node was lost"
        case _:  # also one of a head that knows more
            where = f" on {ended.node}" if ended.node else ""
            words = _OF_THE_SYSTEM.get(ended.kind, ended.kind.replace("_", " ") + "{}")
            return words.format(where)


#: What the system did to the job, with the place of the node.
_OF_THE_SYSTEM: Final[Mapping[str, str]] = MappingProxyType(
    {
        OutcomeKind.LAUNCH_FAILED: "could not be started{}",
        OutcomeKind.SUPERVISOR_LOST: "its supervisor{} was lost",
    }
)


def _who_and_where(ended: Ended, what: str) -> str:
    if ended.rank is None:
        return f"{what} on {ended.node}" if ended.node else what
    return f"{_rank(ended)} {'was ' if what.startswith('killed') else ''}{what}"


def _over_walltime(ended: Ended, walltime_s: float | None, grace_s: float | None) -> str:
    limit = f" of {format_duration(walltime_s)}" if walltime_s is not None else ""
    by = ""
    if ended.signal is not None:
        by = f"SIG{_signal_name(ended.signal)}"
        if ended.signal == _SIGKILL and grace_s:
            by += f" after the {grace_s:g} s grace period"
    return f"terminated: {OVER_WALLTIME}{limit}" + (f" ({by})" if by else "")


def _rank(ended: Ended) -> str:
    return f"rank {ended.rank} on {ended.node}" if ended.node else f"rank {ended.rank}"


def _signal_name(number: int) -> str:
    return SIGNAL_NAMES.get(number, str(number))


def _news(ended: Ended) -> str:
    """Return what a message says beyond the rest of the outcome, which torchrun says again."""
    message = ended.message
    if ended.rank is not None:
        message = message.removeprefix(f"rank {ended.rank}: ")
    if message in _SAYS_NOTHING or message == f"exited with code {ended.exit_code}":
        return ""
    return message


def batching_words(per_gpu: int, accumulation: int) -> str:
    """Return ``64 samples per GPU, accumulated over 4 passes``."""
    passes = f", accumulated over {accumulation + 1} passes" if accumulation else ""
    return f"{per_gpu} samples per GPU{passes}"
