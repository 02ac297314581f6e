"""What options state: on one command line, or in all directives of a script."""

from typing import Any


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
        from gsched.cli.submit.sharing import share_term  # late: few jobs share a GPU

        return texts + share_term(self["gpu_share"], self["share_class"], texts)

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
