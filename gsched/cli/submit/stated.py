"""What options state: on one command line, or in all directives of a script."""

from collections.abc import Iterable
from typing import Any

import msgspec

from gsched.errors import BadResourceError, UsageError
from gsched.model.limits import shown


class StatedOptions(dict[str, Any]):
    """What one command line, or all directives of a script, state: values by field, as read.

    A field that is not stated is None.
    """

    def __missing__(self, field: str) -> None:
        return None

    def any_of(self, *fields: str) -> bool:
        """Return whether one of these is stated."""
        return any(field in self for field in fields)

    @property
    def gpus_most(self) -> int:
        """Return how many GPUs an elastic training takes at most, each a place; 0: none is."""
        return gpu_range(self["gpus"] or "0")[1] or self["places_max"] or 0

    @property
    def resource_texts(self) -> tuple[str, ...]:
        """Return the texts for ``-l``, those of the sugar options last.

        Raises:
            GschedError: a share of a GPU that cannot be.
        """
        texts = self.layout_texts
        if not self.any_of("gpu_share", "share_class"):
            return texts
        return (*texts, _share_term(self["gpu_share"], self["share_class"], texts))

    @property
    def layout_texts(self) -> tuple[str, ...]:
        """Return these texts without the share of a GPU."""
        sugar: list[str] = []
        nodes, cpus, gpus = self["nodes"], self["cpus"], self["gpus"]
        least, most = gpu_range(gpus or "0")
        if most:
            sugar.append(f"select={least}" + (f":ncpus={cpus}" if cpus else "") + ":ngpus=1")
        elif nodes is not None:
            each = [f"ppn={cpus}"] if cpus is not None else []
            each += [f"gpus={gpus}"] if gpus is not None else []
            sugar.append(":".join((f"nodes={nodes}", *each)))
        else:
            sugar.extend([] if cpus is None else [f"ncpus={cpus}"])
            sugar.extend([] if gpus is None else [f"gpus={gpus}"])
        sugar.extend(f"{name}={self[name]}" for name in ("mem", "walltime") if name in self)
        return (self["resources"] or ()) + tuple(sugar)


def gpu_range(text: str) -> tuple[int, int]:
    """Return the least and the most of ``1..8``; of a plain number the most is 0.

    Raises:
        ValueError: it is neither.
    """
    least, dots, most = text.partition("..")
    if not all(
        word.isascii() and word.isdigit() and len(word) < 7 for word in (least, most or "0")
    ):
        raise ValueError(f"{text!r} is not a number of GPUs or a range")
    if not dots:
        return int(least), 0
    if not most or not 1 <= int(least) <= int(most):
        raise ValueError(f"{text!r} is not a valid range of GPUs")
    return int(least), int(most)


def _share_term(share: str | None, share_class: str | None, resources: Iterable[str]) -> str:
    """Return the term for ``-l`` of a job that shares a GPU.

    Args:
        share: ``40%,16gb`` or ``40%``; None: not given.
        share_class: ``high`` or ``low``; None: not given.
        resources: what ``-l`` says.

    Raises:
        BadResourceError: the share cannot be read, or is no part of a GPU.
        UsageError: a class without a share.
    """
    # Late: few jobs share a GPU.
    from gsched.model.gpu_share_text import format_gpu_share, parse_gpu_share
    from gsched.model.states import ShareClass

    if share is None:
        terms = [part.strip() for text in resources for part in text.split(",")]
        named = [term for term in terms if term.startswith("gpu_share=")]
        hint = "give the share: --gpu-share 40%"
        if named:  # the class that it has already gives way
            kept = [word for word in named[-1].split(":") if word.strip() not in set(ShareClass)]
            hint = f"write -l {':'.join((*kept, share_class or ''))}"
        raise UsageError(f"--share-class {share_class} without --gpu-share", hint=hint)
    try:
        share_request = parse_gpu_share(share.replace(",", ":"))
    except BadResourceError as error:
        read, stated = shown(share.replace(",", ":")), shown(share)
        message = error.message.replace(f"gpu_share={read}", f"--gpu-share {stated}", 1)
        message = message.replace("gpu_share=", "--gpu-share ", 1)
        hint = "write --gpu-share PERCENT%[,MEMORY], as in --gpu-share 40%,16gb"
        if error.hint and not error.hint.startswith("write gpu_share="):
            hint = error.hint
        raise BadResourceError(
            message.replace("gpu_share:", "--gpu-share:", 1), hint=hint
        ) from None
    if share_class is not None:
        share_request = msgspec.structs.replace(share_request, share_class=ShareClass(share_class))
    return f"gpu_share={format_gpu_share(share_request)}"
