"""Sections of a job that few jobs have; imported only where an option of one is given."""

import os
import stat
from typing import Final

from msgspec import structs

from gsched.cli.submit.extras import Extras
from gsched.cli.submit.place import SubmitContext, absolute
from gsched.cli.submit.stated import StatedOptions
from gsched.errors import InvalidRequestError, UsageError
from gsched.model.arrays import read_array
from gsched.model.container import MOUNT_RULE, Container, image_problem, mount_problem
from gsched.model.ids import INDICES
from gsched.model.limits import MAX_LINES_BYTES
from gsched.model.training import Adaptive, Inference, Scaling
from gsched.protocol.submissions import SubmitJob

_CONTAINER: Final = ("container", "container_mounts", "container_workdir", "container_runtime")
_FOR_ADAPTIVE: Final = (
    *("batch_max", "batch_per_gpu_max", "gpu_types", "scaling", "replica_gpus"),
    *("non_preemptible", "inference", "latency", "requests"),
)
_WORKLOAD: Final = ("training", "params", "samples", "batch", "epochs", "step_time")
#: More samples in a step than this are a typing error.
_MAX_BATCH: Final = 2**31


def with_sections(job: SubmitJob, stated: StatedOptions, extras: Extras) -> SubmitJob:
    """Return a job with the sections that the options state.

    Raises:
        UsageError: an option is missing, contradicts another one, or has no such value.
    """
    if extras.stage_in or extras.stage_out or stated.any_of("stage_in", "stage_out"):
        from gsched.cli.submit.staged import with_staged  # late: few stage files

        job = with_staged(job, stated, extras)
    if stated.any_of(*_CONTAINER):
        job = structs.replace(job, container=_container(stated))
    if stated.any_of("array", "each_line"):
        job = structs.replace(job, array=_indices(stated))
    if stated.any_of("adaptive", *_FOR_ADAPTIVE):
        job = structs.replace(job, movable=True, adaptive=_adaptive(stated))
    if stated.any_of(*_WORKLOAD):
        from gsched.cli.submit.deadline import training_of  # late: few have a known workload

        job = structs.replace(job, training=training_of(stated))
    return job


def _indices(stated: StatedOptions) -> str:
    """Return the indices of an array; without any in ``-t`` there is one for each line.

    Raises:
        UsageError: they cannot be.
    """
    text: str = stated["array"] or ""
    if "each_line" in stated and (not text or text.startswith("%")):
        text = f"0-{stated['each_line'].count(chr(10)) - 1}{text}"
    return checked_array(text)


def checked_array(text: str) -> str:
    """Return the indices of an array as the head takes them.

    Raises:
        UsageError: they cannot be.
    """
    try:
        return str(read_array(text, most=INDICES))
    except InvalidRequestError as error:
        raise UsageError(f"-t: {error.message}", hint=error.hint) from None


def read_lines(path: str, place: SubmitContext) -> str:
    """Return the lines of a file, each with its end.

    Raises:
        UsageError: it cannot be read, is too large, has no line, or is not text.
    """
    full = absolute(path, place)
    try:
        with open(full, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"--each-line: {path} is not a file", hint="name a text file")
            data = file.read(MAX_LINES_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--each-line: {path}: {error.strerror}", hint="name a file") from None
    if len(data) > MAX_LINES_BYTES:
        raise UsageError(
            f"--each-line: {path} has more than {MAX_LINES_BYTES} bytes",
            hint="submit it in parts, or pass names of files in the lines",
        )
    if not data:
        raise UsageError(f"--each-line: {path} is empty", hint="write a line for each element")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"--each-line: {path} is not UTF-8 text", hint="convert it") from None
    if "\0" in text:
        raise UsageError(f"--each-line: {path} holds a NUL byte", hint="name a text file")
    return text if text.endswith("\n") else f"{text}\n"


def image_of(text: str, place: SubmitContext) -> str:
    """Return an image, that of a file with its full path.

    Raises:
        UsageError: it is no image.
    """
    image = text
    if image.startswith(("./", "../", "~/")) or image.endswith((".sif", ".sqsh")):
        image = absolute(os.path.expanduser(image), place)
    if image and (wrong := image_problem(image)):
        raise UsageError(
            f"--container: {image!r} {wrong}", hint="write HOST/NAME:TAG or the path of a file"
        )
    return image


def mounts_of(text: str) -> tuple[str, ...]:
    """Return the mounts of ``SRC:DST,SRC:DST:ro``.

    Raises:
        UsageError: one is none.
    """
    mounts = tuple(filter(None, text.split(",")))
    for mount in mounts:
        if wrong := mount_problem(mount):
            raise UsageError(f"--container-mount: {mount!r} {wrong}", hint=MOUNT_RULE)
    return mounts


def _container(stated: StatedOptions) -> Container:
    """Return the container that the options state together.

    Raises:
        UsageError: the image is missing.
    """
    if not stated["container"]:
        raise UsageError(
            "--container-mount, --container-workdir and --container-runtime need --container",
            hint="give the image: --container IMAGE",
        )
    return Container(
        image=stated["container"],
        mounts=tuple(each for mounts in stated["container_mounts"] or () for each in mounts),
        workdir=stated["container_workdir"] or "",
        runtime=stated["container_runtime"] or "",
    )


def _adaptive(stated: StatedOptions) -> Adaptive:
    """Return what the options state of an adaptive training job.

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
    return Adaptive(
        batch=batch,
        batch_max=batch_max,
        batch_per_gpu_max=stated["batch_per_gpu_max"] or 0,
        scaling=scaling,
        gpu_types=stated["gpu_types"] or (),
        replica_gpus=stated["replica_gpus"] or (),
        preemptible=not stated["non_preemptible"],
        inference=inference,
    )


def whole_samples(number: float, where: str = "") -> int:
    """Return a number of samples; ``where`` is put before the message.

    Raises:
        UsageError: no whole number, or too many.
    """
    if number != int(number) or not 1 <= number <= _MAX_BATCH:
        raise UsageError(
            f"{where}{number:g} is not a number of samples", hint="write a whole number from 1"
        )
    return int(number)


def _inference(stated: StatedOptions) -> Inference | None:
    """Return what the answers of an inference job are worth; None: the job trains."""
    if not stated["inference"]:
        for name in ("latency", "requests"):
            if name in stated:
                raise UsageError(f"--{name} is for inference jobs", hint="add --inference")
        return None
    return Inference(latency_s=stated["latency"] or 0.0, requests_per_s=stated["requests"] or 0.0)
