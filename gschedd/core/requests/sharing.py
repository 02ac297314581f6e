"""Jobs that share a GPU: what such a job cannot be."""

from gsched.errors import InvalidRequestError
from gsched.model.gpu_tokens import UNSHARED
from gsched.model.job import JobSpec
from gsched.model.states import LaunchKind
from gschedd.core.state.state import State


def with_node_words(hint: str, state: State) -> str:
    """Return a hint for a share that no node can give, with why nodes that were to share do not."""
    if any(node.sharing for node in state.nodes.values()):
        return hint
    reasons = (
        f"{name} cannot share its GPUs ({sharing.words.removeprefix(UNSHARED)})"
        for name, sharing in sorted(state.volatile.gpu_sharing.items())
        if sharing.words.startswith(UNSHARED)
    )
    return "; ".join(filter(None, (next(reasons, ""), hint)))


def check_sharing(spec: JobSpec) -> None:
    """Check that a job which shares a GPU needs nothing that only whole GPUs offer.

    Raises:
        InvalidRequestError: it does.
    """
    if spec.request.gpu_share is None:
        return
    if spec.launch is LaunchKind.TORCHRUN:
        raise InvalidRequestError(
            "torchrun starts one process for each GPU, and a share is a part of one GPU",
            hint="start the script with python, or request whole GPUs with gpus=N",
        )
    if spec.is_training:
        raise InvalidRequestError(
            "a training job with a deadline, a workload or a range of GPUs gets whole GPUs",
            hint="omit the share, or the options of training jobs",
        )
    if spec.movable:
        raise InvalidRequestError(
            "a job that shares a GPU cannot migrate",
            hint="omit the share, or --elastic and --checkpoint-signal",
        )
