"""What the doctor looks at where PAM lets users with a job log in: the lines for gnode.pam."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gsched.cli.local.findings import Finding, fail, ok, warn

PAM = Path("/etc/pam.d")
SSHD = Path("/etc/ssh/sshd_config")
_SUBJECT = "ssh logins"
_MODULE = "gnode.pam"
_BINDING = frozenset({"required", "requisite"})
_DEEPEST = 8  # includes of includes
_STAGES = {
    "account": "users without a job on this node can log in",
    "session": "sessions are in no job: no limits, no GPU fence, and they stay when the job ends",
}


class _Line(NamedTuple):
    """One line of a service: when it is asked, what its answer means, and the module."""

    stage: str
    control: str
    module: str


def check_login(pam: Path = PAM, sshd: Path = SSHD) -> list[Finding]:
    """Say whether sshd's lines for gnode.pam do what they are for; nothing without such lines."""
    lines = list(_lines(pam, "sshd"))
    ours = [line for line in lines if _MODULE in line.module]
    if not ours:
        return []
    page = "see gnode-pam(8)"
    found = [
        fail(_SUBJECT, f"{pam}/sshd has no line `{stage} required ... {_MODULE}`: {what}", page)
        for stage, what in _STAGES.items()
        if not any(line.stage == stage and line.control in _BINDING for line in ours)
    ]
    if not all(" -I " in line.module for line in ours):
        found.append(
            fail(_SUBJECT, f"{pam}/sshd runs {_MODULE} without -I: it refuses everybody", page)
        )
    if any(line.stage == "session" and "pam_systemd.so" in line.module for line in lines):
        found.append(
            warn(
                _SUBJECT,
                f"{pam}/sshd uses pam_systemd.so: users can run processes outside of their jobs",
                f"remove it from the session lines of sshd; {page}",
            )
        )
    if not _uses_pam(sshd):
        found.append(
            fail(_SUBJECT, f"{sshd} does not have UsePAM yes: the lines have no effect", "set it")
        )
    return found or [ok(_SUBJECT, "users with a job on this node, and their sessions are in it")]


def _lines(pam: Path, service: str, depth: int = 0) -> Iterator[_Line]:
    """Yield the lines of a service, with those of the files that it includes."""
    try:
        text = (pam / service).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for raw in text.replace("\\\n", " ").splitlines():
        stage, _, rest = " ".join(raw.partition("#")[0].split()).partition(" ")
        stage = stage.lstrip("-")
        if stage == "@include":
            if depth < _DEEPEST:
                yield from _lines(pam, rest, depth + 1)
            continue
        control, _, module = (
            rest.partition(" ") if not rest.startswith("[") else rest.partition("]")
        )
        if control in {"include", "substack"}:
            if depth < _DEEPEST:
                found = _lines(pam, module, depth + 1)
                yield from (line for line in found if line.stage == stage)
            continue
        yield _Line(stage, control, module)


def _uses_pam(sshd: Path) -> bool:
    """Return whether sshd is told to use PAM; the first word on it counts."""
    try:
        places = [*sorted(Path(f"{sshd}.d").glob("*.conf")), sshd]
        text = "\n".join(place.read_text(encoding="utf-8", errors="replace") for place in places)
    except OSError:
        return True  # that cannot be told
    for line in text.splitlines():
        words = line.replace("=", " ").lower().split()
        if words[:1] == ["usepam"]:
            return words[1:2] == ["yes"]
    return False
