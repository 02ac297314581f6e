"""Of which kind a job is.

The site's key says so: the label that a user gave (``--kind``), or the owner and the digest of the
script. Arguments are left out: the same program on another input is the same kind.
"""

import posixpath

from gsched.model.job import JobSpec
from gsched.model.states import LaunchKind
from gschedd.plan.load import Kind


def kind_of(spec: JobSpec) -> Kind:
    """Return the kind of a job.

    Labels and scripts are the owner's own: two users' ``train`` need not cost the same. What was
    asked for is that of the largest place, as a prediction is about one node.
    """
    uid = spec.owner.uid
    chunks = spec.request.chunks
    return Kind(
        key=f"{uid}:{_label(spec)}",
        program=f"{uid}:{_program(spec)}",
        owner_uid=uid,
        cpus=max(chunk.cpus for chunk in chunks),
        gpus=max(chunk.gpus for chunk in chunks),
        memory_bytes=max(chunk.memory_bytes for chunk in chunks),
        walltime_s=spec.walltime_s or 0.0,
    )


def _label(spec: JobSpec) -> str:
    """Return what tells a kind from others of the same owner; the prefixes never meet."""
    if spec.kind:
        return f"kind:{spec.kind}"
    if spec.launch is LaunchKind.SCRIPT and spec.script_digest:
        return f"script:{spec.script_digest}"
    first = spec.arguments[0] if spec.arguments else spec.name
    return f"{spec.launch.value}:{first}"


def _program(spec: JobSpec) -> str:
    """Return the family: an edited script keeps its job name, a moved program its file name."""
    if spec.launch is LaunchKind.SCRIPT or not spec.arguments:
        return f"name:{spec.name}"
    return f"file:{posixpath.basename(spec.arguments[0])}"
