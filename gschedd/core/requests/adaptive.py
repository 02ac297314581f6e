"""What the head checks of an adaptive training job that is submitted."""

from gsched.errors import InvalidRequestError
from gsched.model.resources import Request
from gsched.model.training import Scaling
from gsched.protocol.submissions import SubmitJob
from gschedd.core.state.state import State
from gschedd.plan.elastic import is_elastic
from gschedd.plan.layouts import has_alike_gpus

MAX_GPU_TYPES = 64


def adaptive_notes(submitted: SubmitJob, request: Request, state: State) -> list[str]:
    """Return what the user of an adaptive training should know; nothing of other jobs.

    Raises:
        InvalidRequestError: it contradicts itself, or no node has GPUs of its types.
    """
    adaptive = submitted.adaptive
    if adaptive is None:
        return []
    if adaptive.batch < 1:
        raise InvalidRequestError(
            f"a batch of {adaptive.batch} samples", hint="--batch N: a whole number from 1"
        )
    if adaptive.batch_max < adaptive.batch:
        raise InvalidRequestError(
            f"the largest batch, {adaptive.batch_max}, is smaller than the batch, {adaptive.batch}",
            hint="raise --batch-max, or leave it out",
        )
    if max(len(adaptive.gpu_types), len(adaptive.replica_gpus)) > MAX_GPU_TYPES:
        raise InvalidRequestError(
            f"the job names more than {MAX_GPU_TYPES} GPU types",
            hint="name fewer, or write --gpu-types any",
        )
    if any(gpus < 1 for _, gpus in adaptive.replica_gpus):
        raise InvalidRequestError(
            "a replica of the model has no GPU",
            hint="--replica-gpus TYPE=N: a whole number from 1 for each type",
        )
    if adaptive.inference is not None and adaptive.scaling is not Scaling.ADAPTIVE:
        raise InvalidRequestError(
            f"an inference job has no gradients to share, so its scaling is not {adaptive.scaling}",
            hint="leave --scaling out",
        )
    if not submitted.movable or submitted.checkpoint_signal:
        raise InvalidRequestError(
            "an adaptive job is restarted with other batch sizes, so it must be elastic",
            hint="submit it with --adaptive, and use gsched.elastic in its script",
        )
    if not has_alike_gpus(request):
        raise InvalidRequestError(
            "an adaptive job requests GPUs, each with the same CPUs and memory",
            hint="submit it with --gpus 1..16",
        )
    if not is_elastic(request) and adaptive.scaling is not Scaling.RIGID:
        raise InvalidRequestError(
            "an adaptive job requests a range of GPUs",
            hint="write --gpus 1..16, or add --scaling rigid for a fixed number of GPUs",
        )
    return _notes(submitted, state)


def _notes(submitted: SubmitJob, state: State) -> list[str]:
    assert submitted.adaptive is not None, "the caller has looked"
    known = sorted({gpu.type for node in state.nodes.values() for gpu in node.inventory.gpus})
    unknown = [name for name in submitted.adaptive.gpu_types if name not in known]
    if known and len(unknown) == len(submitted.adaptive.gpu_types) > 0:
        raise InvalidRequestError(
            f"no node has GPUs of type {' or '.join(unknown)}",
            hint=f"GPU types here: {', '.join(name or 'without a type' for name in known)}",
        )
    notes = [f"no node has GPUs of type {name} now" for name in unknown if known]
    if not state.plans_adaptive:
        notes.append(
            "the policy of this site does not choose batch sizes: the job runs with its own batch; "
            "goodput and sia do: policy in [training], or gsched up --policy goodput"
        )
    return notes
