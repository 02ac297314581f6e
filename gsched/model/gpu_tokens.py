"""How the jobs of a node take turns on its shared GPUs, as its token daemon counts it."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from gsched.model.numbers import Amount, Count, Number

#: Jobs and GPUs of one node that its reports name at most; further ones are left out.
MAX_TOKEN_ROWS: Final = 1024
#: Begins the words of a node whose GPUs cannot be shared, though its configuration wants that.
UNSHARED: Final = "none: "
MAX_WORDS: Final = 1000
_Words = Annotated[str, Meta(max_length=MAX_WORDS)]


class TokenGpu(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One shared GPU since the token daemon started.

    Attributes:
        index: of the GPU on its node.
        holder: the job whose launches pass, by number; 0: none's.
        switches: how often the token was given to a job.
        preemptions: how often a job of the class ``low`` has lost it to one of the class ``high``.
        drains: how often a job's unfinished work was waited for; ``drain_s_max`` and
            ``drain_s_sum``: how long that took, seconds.
        overlaps: how often it took too long, so that two jobs used the GPU at once.
    """

    index: Number
    holder: Count = 0
    switches: Count = 0
    preemptions: Count = 0
    drains: Count = 0
    drain_s_max: Amount = 0.0
    drain_s_sum: Amount = 0.0
    overlaps: Count = 0


class TokenUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt on a shared GPU.

    Attributes:
        index: of the GPU on its node.
        held_s: how long its launches could pass, seconds.
        launches: as far as its processes have told.
        overlaps: how often the next job has started before its work was done.
        memory_bytes: of the GPU, as its processes have asked for it.
        refused: allocations beyond its limit.
        demoted: it counts as a job of the class ``low``, and gets no turn beside one of the class
            ``high``, since it did not drain in time again and again.
    """

    job: Count
    attempt: Count
    index: Number
    held_s: Amount = 0.0
    launches: Count = 0
    overlaps: Count = 0
    memory_bytes: Count = 0
    refused: Count = 0
    demoted: bool = False


class GpuSharing(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How jobs share GPUs on a node.

    Attributes:
        words: the runtime, or why there is none; empty: nobody wants to share any.
        problem: what is wrong although jobs can share GPUs; empty: nothing.
        unhooked_symbols: functions of the CUDA driver that a program uses and the library does not
            know.
        restarts: how often gnode had to start the token daemon again.
    """

    words: _Words = ""
    problem: _Words = ""
    gpus: tuple[TokenGpu, ...] = ()
    jobs: tuple[TokenUse, ...] = ()
    unhooked_symbols: Count = 0
    restarts: Count = 0


def sharing_state(sharing: GpuSharing) -> tuple[object, ...]:
    """Return what people are to hear of at once when it changes."""
    demoted = tuple((each.job, each.attempt) for each in sharing.jobs if each.demoted)
    return sharing.words, sharing.problem, demoted, sharing.unhooked_symbols > 0
