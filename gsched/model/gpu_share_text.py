"""A share of a GPU as users write it: ``40%``, ``40%:16gb`` or ``40%:16gb:high``."""

from typing import Final

from gsched.errors import BadResourceError
from gsched.model.limits import shown
from gsched.model.resources import WHOLE_PERCENT, GpuShareRequest
from gsched.model.states import ShareClass
from gsched.model.units import exact_size, parse_size_bytes

FORM: Final = "gpu_share=PERCENT%[:MEMORY][:high|low], as in gpu_share=40%:16gb:low"
_CLASSES: Final = {each.value: each for each in ShareClass}
_LEAST_MEMORY_BYTES: Final = 1024**2


def parse_gpu_share(text: str) -> GpuShareRequest:
    """Return what a text asks for of one GPU.

    Raises:
        BadResourceError: it cannot be read, or is no part of a GPU.
    """
    first, *rest = [word.strip() for word in text.split(":")]
    percent = _percent(first)
    memory_bytes, share_class = 0, None
    for word in rest:
        if word in _CLASSES and share_class is None:
            share_class = _CLASSES[word]
        elif not memory_bytes and word[:1].isdigit():
            memory_bytes = _memory_bytes(word)
        else:
            raise BadResourceError(
                f"gpu_share={shown(text)}: {shown(word)} is neither a size nor a class",
                hint=f"write {FORM}",
            )
    return GpuShareRequest(
        percent=percent, memory_bytes=memory_bytes, share_class=share_class or ShareClass.LOW
    )


def _percent(text: str) -> int:
    number = text.removesuffix("%").strip()
    if not (number.isascii() and number.isdigit() and len(number) <= 9):
        raise BadResourceError(
            f"gpu_share={shown(text)}: the share of the GPU is not a percentage",
            hint=f"write {FORM}",
        )
    percent = int(number)
    if percent > WHOLE_PERCENT:
        raise BadResourceError(
            f"gpu_share={text}: a GPU has {WHOLE_PERCENT} %",
            hint="a share is on one GPU; for whole GPUs write gpus=N",
        )
    if percent < 1:
        raise BadResourceError(f"gpu_share={text}: must be at least 1 %", hint=f"write {FORM}")
    return percent


def _memory_bytes(text: str) -> int:
    try:
        size_bytes = parse_size_bytes(text)
    except BadResourceError as error:
        raise BadResourceError(f"gpu_share: {error.message}", hint=error.hint) from None
    if size_bytes < _LEAST_MEMORY_BYTES:
        raise BadResourceError(
            f"gpu_share: {shown(text)} of memory is too little for any program",
            hint=f"did you mean {text}gb?" if text.strip("0").isdecimal() else f"write {FORM}",
        )
    return size_bytes


def format_gpu_share(share: GpuShareRequest) -> str:
    """Return the share in words that `parse_gpu_share` reads back."""
    memory = f":{exact_size(share.memory_bytes)}" if share.memory_bytes else ""
    return f"{share.percent}%{memory}:{share.share_class}"
