"""UseSamples of nodes and running jobs for the monitor: figures only, no words."""

from gsched.model.resources import WHOLE_PERCENT, percent_held
from gsched.model.states import PowerState
from gsched.protocol.samples import GpuUseSample, JobUseSample, NodeUseSample
from gschedd.core.nodes.live import newest_load, total_of, uses_of
from gschedd.core.state.records import Job, Node
from gschedd.core.state.state import State
from gschedd.core.views.details import idle_gpus


def node_sample(state: State, node: Node) -> NodeUseSample:
    """Return the sample of a node."""
    load, load_s = newest_load(state, node)
    space = state.spaces[node.name]
    return NodeUseSample(
        name=node.name,
        state=node.state.value,
        drained=node.drained,
        cpus=node.inventory.cpus,
        cpus_free=max(0, space.cpus),
        memory_bytes=node.inventory.memory_bytes,
        memory_free_bytes=max(0, space.memory_bytes),
        gpus=_gpu_samples(state, node),
        load=load,
        load_s=load_s,
        power="" if node.power.state is PowerState.ON else node.power.state.value,
    )


def _gpu_samples(state: State, node: Node) -> tuple[GpuUseSample, ...]:
    if not node.inventory.gpus:
        return ()
    jobs: dict[int, list[int]] = {}
    for number, job in state.by_node.get(node.name, {}).items():
        part = job.attempt.parts.get(node.name) if job.attempt is not None else None
        for held in part.share.gpus_held if part is not None else ():
            jobs.setdefault(held.index, []).append(number)
    use = state.volatile.gpu_use.get(node.name)
    idle = {each.index: each for each in idle_gpus(state, node.name)}
    outside = {each.index for each in use.outside} if use is not None else set()
    return tuple(
        GpuUseSample(
            index=gpu.index,
            type=gpu.type,
            memory_bytes=gpu.memory_bytes,
            jobs=tuple(jobs.get(gpu.index, ())),
            idle=gpu.index in idle,
            unused=gpu.index in idle and not idle[gpu.index].held,
            outside=gpu.index in outside,
        )
        for gpu in node.inventory.gpus
    )


def job_sample(state: State, job: Job) -> JobUseSample:
    """Return the sample of a job with an attempt."""
    attempt = job.attempt
    shares = attempt.allocation if attempt is not None else ()
    total = total_of(uses_of(state, job.id, attempt).values())
    return JobUseSample(
        id=job.id,
        user=job.spec.owner.user,
        queue=job.spec.queue,
        cpus=sum(share.cpus for share in shares),
        gpus=-(-percent_held(shares) // WHOLE_PERCENT),
        use=total.use if total is not None else None,
    )
