"""What the doctor asks the head: does it answer, dispatch, see its nodes, and is it our version."""

import os
import stat
from collections.abc import Iterable

from gsched.cli.umbrella.findings import Finding, fail, ok, warn
from gsched.client import Head
from gsched.clock import SystemClock
from gsched.errors import GschedError, HeadUnreachableError
from gsched.protocol.api import API_VERSION, NodeRow, StatusReply
from gsched.version import VERSION

SKEW_WARN_S = 2.0
HEARTBEATS_LATE_S = 900.0  # three heartbeats


def check_head(address: str, *, patience_s: float = 1.0) -> list[Finding]:
    """Ask the head at ``address`` (empty: the usual places) how it is."""
    try:
        head = Head(address, patience_s=patience_s)
    except GschedError as error:
        return [fail("head address", error.message, error.hint or "unset GSCHED_HEAD")]
    findings = []
    path = head.transport.address.path
    if path and os.path.exists(path):
        findings.append(check_socket(path))
    try:
        status = head.status()
        asked_s = SystemClock().wall_s()
        nodes = head.nodes().nodes
    except HeadUnreachableError as error:
        todo = (
            "start it with `gschedd --config FILE` or `gsched up`, or name another in GSCHED_HEAD"
        )
        return [*findings, fail("head", error.message, todo)]
    except GschedError as error:
        return [*findings, fail("head", error.message, error.hint or "see its log")]
    findings.append(ok("head", f"answers at {head.transport.address.text} (process {status.pid})"))
    findings.extend(check_status(status, now_s=asked_s))
    findings.extend(check_nodes(nodes, now_s=status.now_s))
    return findings


def check_socket(path: str) -> Finding:
    """Say whether you, and others, may use the head's socket."""
    status = os.stat(path)
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISSOCK(status.st_mode):
        return fail("socket", f"{path} is no socket", "give the socket's path in GSCHED_HEAD")
    if not os.access(path, os.W_OK):
        return fail("socket", f"you may not use {path} (mode {mode:04o})", f"chmod 666 {path}")
    parent = os.stat(os.path.dirname(path))
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        return fail(
            "socket",
            f"everybody may replace {path}: its directory has mode "
            f"{stat.S_IMODE(parent.st_mode):04o}",
            f"chmod 755 {os.path.dirname(path)}",
        )
    return ok("socket", f"{path} may be used (mode {mode:04o})")


def check_status(status: StatusReply, *, now_s: float) -> list[Finding]:
    """Judge what the head says about itself; ``now_s`` is this machine's clock."""
    findings = [_check_version(status)]
    if status.safe_mode:
        findings.append(
            fail(
                "safe mode",
                f"no job is started: {safe_mode_reason(status)}",
                "see gsched-recover in gsched(1): `gsched recover` shows why, --accept ends it",
            )
        )
    findings.extend(
        fail(
            f"node {name}",
            f"is refused: {why}",
            f"if it is right the database is an old copy: gsched recover --believe {name}",
        )
        for name, why in sorted(status.quarantined.items())
    )
    skew_s = status.now_s - now_s
    if abs(skew_s) > SKEW_WARN_S:
        findings.append(
            warn(
                "clock",
                f"the head's is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}",
                "keep both clocks right with chrony or ntpd",
            )
        )
    else:
        findings.append(ok("clock", "this machine and the head agree"))
    if status.damaged:
        shown = "; ".join(status.damaged[:3])
        more = f" and {len(status.damaged) - 3} more" if len(status.damaged) > 3 else ""
        findings.append(
            fail(
                "database",
                f"rows of {status.database} are damaged: {shown}{more}",
                "restore a backup, or give the jobs up with gdel; see gsched(1), Damaged records",
            )
        )
    if status.dropped:
        shown = ", ".join(f"{name} {count}" for name, count in sorted(status.dropped.items()))
        findings.append(
            warn("messages", f"the head has dropped some: {shown}", "see the head's log")
        )
    return findings


def safe_mode_reason(status: StatusReply) -> str:
    """Return why the head is in safe mode, empty if it is not, without saying again that it is."""
    return status.safe_mode.removeprefix("safe mode, ").partition("; an operator ends it")[0]


def _check_version(status: StatusReply) -> Finding:
    if status.api_version != API_VERSION:
        return fail(
            "version",
            f"the head speaks API {status.api_version}, these commands {API_VERSION}",
            "install the same gsched on both sides",
        )
    if status.version != VERSION:
        return warn(
            "version",
            f"the head is {status.version}, these commands are {VERSION}",
            "restart the older side after the upgrade",
        )
    return ok("version", f"{status.version}, API {API_VERSION}")


def check_nodes(nodes: Iterable[NodeRow], *, now_s: float) -> list[Finding]:
    """Say which nodes take no jobs, and why."""
    rows = list(nodes)
    if not rows:
        return [fail("nodes", "none has ever registered", "start gnode: see gnode(8) and its log")]
    findings = []
    for row in rows:
        if row.refused:
            findings.append(
                warn(
                    f"node {row.name}",
                    f"another gnode wants its place, {row.refused}",
                    "see gnodes(1) about replace",
                )
            )
        reason = f": {row.reason}" if row.reason else ""
        if row.state != "up":
            findings.append(
                fail(
                    f"node {row.name}",
                    f"is {row.state}{reason}",
                    f"see gnode's log; if the machine is gone: gnodes confirm-dead {row.name}",
                )
            )
        elif row.drained:
            findings.append(
                warn(
                    f"node {row.name}",
                    f"takes no new jobs, it is drained{reason}",
                    f"gnodes resume {row.name}",
                )
            )
        elif row.problem:
            findings.append(
                warn(
                    f"node {row.name}",
                    f"takes no new jobs: {row.problem}",
                    "it takes jobs again by itself once that is over",
                )
            )
        elif row.heartbeat_s is not None and now_s - row.heartbeat_s > HEARTBEATS_LATE_S:
            findings.append(
                warn(
                    f"node {row.name}",
                    f"last told its load {now_s - row.heartbeat_s:.0f} s ago",
                    "see gnode's log there: it answers but does not sample",
                )
            )
    good = len(rows) - len(findings)
    if good:
        findings.append(ok("nodes", f"{good} of {len(rows)} take jobs"))
    return findings
