"""What gsub's options say of an adaptive training: its batch sizes, and the GPUs it runs on."""

from msgspec import structs

from gsched.cli.submit.options import SubmitOptions
from gsched.errors import UsageError
from gsched.model.training import Adaptive, Inference, Scaling
from gsched.model.units import parse_count, parse_interval_s
from gsched.protocol.api import SubmitJob

#: A model and its optimiser that take more samples on a GPU than this are a typing error.
MAX_BATCH = 2**31


def with_adaptive(job: SubmitJob, options: SubmitOptions) -> SubmitJob:
    """Return an adaptive training with what the options say of it; it is elastic, too.

    Raises:
        UsageError: an option is missing, contradicts another one, or has no such value.
    """
    if not options.adaptive:
        stray = next(name for name, value in _adaptive_values(options) if value is not None)
        raise UsageError(
            f"{stray} is for adaptive training jobs", hint="add --adaptive --batch N --gpus 1..N"
        )
    if options.checkpoint_signal is not None:
        raise UsageError(
            "--adaptive and --checkpoint-signal are mutually exclusive: gsched.elastic sets the "
            "batch size of an adaptive job",
            hint="leave one of them out",
        )
    if options.batch is None:
        raise UsageError(
            "--adaptive needs the batch size for which the job was tuned",
            hint="add --batch N: the samples of a step on all GPUs together",
        )
    scaling = Scaling(options.scaling or Scaling.ADAPTIVE)
    if scaling is not Scaling.RIGID and not options.gpus_most:
        raise UsageError(
            f"--adaptive needs a range of GPUs, not --gpus {options.gpus or 0}",
            hint="write --gpus 1..16, or add --scaling rigid for a fixed number of GPUs",
        )
    batch = _samples("--batch", options.batch)
    batch_max = batch if options.batch_max is None else _samples("--batch-max", options.batch_max)
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
    inference = _inference(options)
    if inference is not None and scaling is not Scaling.ADAPTIVE:
        raise UsageError(
            f"--inference and --scaling {scaling} are mutually exclusive", hint="leave one out"
        )
    per_gpu = options.batch_per_gpu_max
    return structs.replace(
        job,
        movable=True,
        adaptive=Adaptive(
            batch=batch,
            batch_max=batch_max,
            batch_per_gpu_max=0 if per_gpu is None else _samples("--batch-per-gpu-max", per_gpu),
            scaling=scaling,
            gpu_types=_types(options.gpu_types),
            replica_gpus=_replicas(options.replica_gpus),
            preemptible=not options.non_preemptible,
            inference=inference,
        ),
    )


def _adaptive_values(options: SubmitOptions) -> list[tuple[str, str | None]]:
    return [
        ("--batch-max", options.batch_max),
        ("--batch-per-gpu-max", options.batch_per_gpu_max),
        ("--gpu-types", options.gpu_types),
        ("--scaling", options.scaling),
        ("--replica-gpus", options.replica_gpus),
        ("--non-preemptible", "" if options.non_preemptible else None),
        ("--inference", "" if options.inference else None),
        ("--latency", options.latency),
        ("--requests", options.requests),
    ]


def _inference(options: SubmitOptions) -> Inference | None:
    """Return what the answers of an inference job are worth; None: the job trains."""
    if not options.inference:
        for option, value in (("--latency", options.latency), ("--requests", options.requests)):
            if value is not None:
                raise UsageError(f"{option} is for inference jobs", hint="add --inference")
        return None
    return Inference(
        latency_s=0.0 if options.latency is None else parse_interval_s(options.latency),
        requests_per_s=0.0 if options.requests is None else parse_count(options.requests),
    )


def _samples(option: str, text: str) -> int:
    """Return a number of samples such as ``4096`` or ``4k``."""
    count = parse_count(text)
    if count != int(count) or not 1 <= count <= MAX_BATCH:
        raise UsageError(
            f"{option}: {text!r} is not a number of samples", hint="write a whole number from 1"
        )
    return int(count)


def _types(text: str | None) -> tuple[str, ...]:
    """Return the GPU types of ``a100,t4``; none for ``any``."""
    if text is None or text.strip() == "any":
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names) or "any" in names:
        raise UsageError(
            f"--gpu-types: {text!r} is not a list of GPU types",
            hint="write any, or names such as a100,t4: gnodes -v shows the types of this cluster",
        )
    return names


def _replicas(text: str | None) -> tuple[tuple[str, int], ...]:
    """Return the pairs of ``a100=2,t4=8``."""
    found: dict[str, int] = {}
    for part in [] if text is None else text.split(","):
        name, equals, count = part.strip().partition("=")
        if not name or not equals or not count.isascii() or not count.isdigit() or int(count) < 1:
            raise UsageError(
                f"--replica-gpus: {part!r} is not a GPU type with a number of GPUs",
                hint="write a100=2,t4=8 for a model that is split over 2 or 8 GPUs",
            )
        found[name] = int(count)
    return tuple(sorted(found.items()))
