"""Of which kind a job is.

The site's key says so: the label that a user gave (``--kind``), or the owner and the digest of the
script. Arguments are left out: the same program on another input is the same kind.
"""

import posixpath
from functools import lru_cache
from typing import Final

from gsched.model.job import JobSpec
from gsched.model.resources import Request
from gsched.model.states import LaunchKind
from gschedd.plan.load import Kind

#: Kinds that are kept as they were told: the same few are requested again and again.
MAX_KEPT: Final = 4_096
#: Label, launch, digest of the script, first argument if there is one, name.
Named = tuple[str, LaunchKind, str, tuple[str, ...], str]


def kind_of(spec: JobSpec) -> Kind:
    """Return the kind of a job.

    Labels and scripts are the owner's own: two users' ``train`` need not cost the same. What was
    asked for is that of the largest place, as a prediction is about one node.
    """
    named = (spec.kind, spec.launch, spec.script_digest, spec.arguments[:1], spec.name)
    return _kind(spec.owner.uid, named, spec.request, spec.walltime_s or 0.0)


@lru_cache(MAX_KEPT)
def _kind(uid: int, named: Named, request: Request, walltime_s: float) -> Kind:
    chunks = request.chunks
    # What a job does beside others on a GPU says nothing of what it does with one of its own.
    where = "shared:" if request.gpu_share is not None else ""
    return Kind(
        key=f"{uid}:{where}{_label(named)}",
        program=f"{uid}:{where}{_program(named)}",
        owner_uid=uid,
        cpus=max(chunk.cpus for chunk in chunks),
        gpus=max(chunk.gpus for chunk in chunks),
        memory_bytes=max(chunk.memory_bytes for chunk in chunks),
        walltime_s=walltime_s,
    )


def _label(named: Named) -> str:
    """Return what tells a kind from others of the same owner; the prefixes never meet."""
    label, launch, digest, first, name = named
    if label:
        return f"kind:{label}"
    if launch is LaunchKind.SCRIPT and digest:
        return f"script:{digest}"
    return f"{launch.value}:{first[0] if first else name}"


def _program(named: Named) -> str:
    """Return the family: an edited script keeps its job name, a moved program its file name."""
    _, launch, _, first, name = named
    if launch is LaunchKind.SCRIPT or not first:
        return f"name:{name}"
    return f"file:{posixpath.basename(first[0])}"
