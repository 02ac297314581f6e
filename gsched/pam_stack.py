"""The lines of a service of PAM, with those of the files that it includes."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PAM = Path("/etc/pam.d")
_DEEPEST = 8  # includes of includes


class PamLine(NamedTuple):
    """One line of a service: when it is asked, what its answer means, and the module."""

    stage: str
    control: str
    module: str


def lines(pam: Path, service: str, depth: int = 0) -> Iterator[PamLine]:
    """Yield the lines of a service in the directory ``pam``; none if it cannot be read."""
    try:
        text = (pam / service).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for raw in text.replace("\\\n", " ").splitlines():
        stage, _, rest = " ".join(raw.partition("#")[0].split()).partition(" ")
        stage = stage.lstrip("-")
        if stage == "@include":
            if depth < _DEEPEST:
                yield from lines(pam, rest, depth + 1)
            continue
        control, _, module = (
            rest.partition(" ") if not rest.startswith("[") else rest.partition("]")
        )
        if control in {"include", "substack"}:
            if depth < _DEEPEST:
                found = lines(pam, module, depth + 1)
                yield from (line for line in found if line.stage == stage)
            continue
        yield PamLine(stage, control, module)


def takes_users_environment(found: Iterable[PamLine]) -> bool:
    """Return whether users set variables for the programs that PAM runs as root.

    pam_exec hands them on, LD_PRELOAD too; also at the end of a session, so the order of the lines
    does not matter.
    """
    words = (line.module.split() for line in found)
    return any("pam_env.so" in line[0] and any(map(_is_set, line[1:])) for line in words if line)


def _is_set(option: str) -> bool:
    name, _, value = option.partition("=")
    return name == "user_readenv" and value != "0"
