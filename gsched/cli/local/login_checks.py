"""What the doctor looks at where PAM lets users with a job log in: the lines for gnode.pam."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from gsched import pam_stack
from gsched.cli.local.findings import Finding, collected, fail, ok, warn
from gsched.pam_stack import PAM

SSHD = Path("/etc/ssh/sshd_config")
_SUBJECT = "ssh logins"
_MODULE = "gnode.pam"
_BINDING = frozenset({"required", "requisite"})
_STAGES = {
    "account": "users without a job on this node can log in",
    "session": "sessions are in no job: no limits, no GPU fence, and they stay when the job ends",
}


def check_login(pam: Path = PAM, sshd: Path = SSHD, *, private_tmp: bool = False) -> list[Finding]:
    """Say whether sshd's lines for gnode.pam do what they are for; nothing without such lines.

    Args:
        private_tmp: whether each job of the node has a /tmp of its own.
    """
    lines = list(pam_stack.lines(pam, "sshd"))
    if not any(_MODULE in line.module for line in lines):
        return []
    found = _problems(lines, pam, sshd, private_tmp=private_tmp)
    return found or [ok(_SUBJECT, "users with a job on this node, and their sessions are in it")]


@collected
def _problems(
    lines: Sequence[pam_stack.PamLine], pam: Path, sshd: Path, *, private_tmp: bool
) -> Iterator[Finding]:
    ours = [line for line in lines if _MODULE in line.module]
    page = "see gnode-pam(8)"
    yield from [
        fail(_SUBJECT, f"{pam}/sshd has no line `{stage} required ... {_MODULE}`: {what}", page)
        for stage, what in _STAGES.items()
        if not any(line.stage == stage and line.control in _BINDING for line in ours)
    ]
    if not all(" -I " in line.module for line in ours):
        yield fail(_SUBJECT, f"{pam}/sshd runs {_MODULE} without -I: it refuses everybody", page)
    if pam_stack.takes_users_environment(lines):
        yield fail(
            _SUBJECT,
            f"{pam}/sshd has user_readenv=1 of pam_env.so: users could set variables for "
            f"{_MODULE}, which runs as root, so it lets only root in",
            f"remove user_readenv=1 there and in the files that it includes; {page}",
        )
    if any(line.stage == "session" and "pam_systemd.so" in line.module for line in lines):
        yield warn(
            _SUBJECT,
            f"{pam}/sshd uses pam_systemd.so: users can run processes outside of their jobs",
            f"remove it from the session lines of sshd; {page}",
        )
    if private_tmp and not _has_namespace(lines):
        yield warn(
            _SUBJECT,
            f"private_tmp in [node] is true, and {pam}/sshd has no line `session required "
            f"pam_namespace.so` before {_MODULE}: sessions do not see the /tmp of their job",
            f"add the line; {page}",
        )
    if not _uses_pam(sshd):
        yield fail(_SUBJECT, f"{sshd} does not have UsePAM yes: the lines have no effect", "set it")


def _has_namespace(lines: Sequence[pam_stack.PamLine]) -> bool:
    """Return whether a session has a mount namespace of its own before gnode.pam runs."""
    session = [line for line in lines if line.stage == "session"]
    before = itertools.takewhile(lambda line: _MODULE not in line.module, session)
    return any("pam_namespace.so" in line.module for line in before)


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
