"""What gsub's options say of an adaptive training: its batch sizes, and the GPUs it runs on."""

from msgspec import structs

from gsched.cli.submit.readers import whole_samples
from gsched.cli.submit.stated import StatedOptions
from gsched.errors import UsageError
from gsched.model.training import Adaptive, Inference, Scaling
from gsched.protocol.api import SubmitJob

_FOR_ADAPTIVE = (
    *("batch_max", "batch_per_gpu_max", "gpu_types", "scaling", "replica_gpus"),
    *("non_preemptible", "inference", "latency", "requests"),
)


def with_adaptive(job: SubmitJob, stated: StatedOptions) -> SubmitJob:
    """Return an adaptive training with what the options say of it; it is elastic, too.

    Raises:
        UsageError: an option is missing, contradicts another one, or has no such value.
    """
    if not stated["adaptive"]:
        stray = next(name for name in _FOR_ADAPTIVE if name in stated).replace("_", "-")
        raise UsageError(
            f"--{stray} is for adaptive training jobs", hint="add --adaptive --batch N --gpus 1..N"
        )
    if stated["checkpoint_signal"]:
        raise UsageError(
            "--adaptive and --checkpoint-signal are mutually exclusive: gsched.elastic sets the "
            "batch size of an adaptive job",
            hint="leave one of them out",
        )
    if "batch" not in stated:
        raise UsageError(
            "--adaptive needs the batch size for which the job was tuned",
            hint="add --batch N: the samples of a step on all GPUs together",
        )
    scaling = Scaling(stated["scaling"] or Scaling.ADAPTIVE)
    if scaling is not Scaling.RIGID and not stated.gpus_most:
        raise UsageError(
            f"--adaptive needs a range of GPUs, not --gpus {stated['gpus'] or 0}",
            hint="write --gpus 1..16, or add --scaling rigid for a fixed number of GPUs",
        )
    batch = whole_samples(stated["batch"], "--batch: ")
    batch_max = stated["batch_max"] or batch
    if batch_max < batch:
        raise UsageError(
            f"--batch-max {batch_max} is smaller than --batch {batch}",
            hint="--batch-max is the largest batch size that still trains well",
        )
    if scaling is not Scaling.ADAPTIVE and batch_max > batch:
        raise UsageError(
            f"--batch-max and --scaling {scaling} are mutually exclusive: the batch size stays",
            hint="leave one of them out",
        )
    inference = _inference(stated)
    if inference is not None and scaling is not Scaling.ADAPTIVE:
        raise UsageError(
            f"--inference and --scaling {scaling} are mutually exclusive", hint="leave one out"
        )
    return structs.replace(
        job,
        movable=True,
        adaptive=Adaptive(
            batch=batch,
            batch_max=batch_max,
            batch_per_gpu_max=stated["batch_per_gpu_max"] or 0,
            scaling=scaling,
            gpu_types=stated["gpu_types"] or (),
            replica_gpus=stated["replica_gpus"] or (),
            preemptible=not stated["non_preemptible"],
            inference=inference,
        ),
    )


def _inference(stated: StatedOptions) -> Inference | None:
    """Return what the answers of an inference job are worth; None: the job trains."""
    if not stated["inference"]:
        for name in ("latency", "requests"):
            if name in stated:
                raise UsageError(f"--{name} is for inference jobs", hint="add --inference")
        return None
    return Inference(latency_s=stated["latency"] or 0.0, requests_per_s=stated["requests"] or 0.0)
