"""What the doctor asks the head: does it answer, dispatch, see its nodes, and is it our version."""

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping

from gsched.cli.local.config_show import changed_since
from gsched.cli.local.findings import Finding, collected, fail, ok, warn
from gsched.cli.local.host_checks import check_hosts
from gsched.cli.local.machine_checks import check_space
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.errors import NO_ROOM, GschedError, HeadUnreachableError
from gsched.head_connection import LostConnectionError
from gsched.model.configuration import ConfigRow
from gsched.model.gpu_tokens import UNSHARED
from gsched.model.wording import FENCE_NO_FILES, FENCE_OFF, counted
from gsched.process_state import resume_words, state_words
from gsched.protocol.api import API_VERSION, DiskRow, NotifyRow, StatusReply
from gsched.protocol.node_rows import NodeRow
from gsched.protocol.tasks import TaskOutcome, TaskRow
from gsched.unix_address import listener_pid
from gsched.version import VERSION

SKEW_WARN_S = 2.0
ANSWER_S = 5.0  # a head that works answers within some hundred milliseconds
HEARTBEATS_LATE_S = 900.0  # three heartbeats
FEW_NODES = 5  # named in one line
#: Ways of notifications, in words.
WAYS = {"mail": "mail", "command": "the command", "url": "the URL", "user-url": "URLs of users"}
#: Of what the head counts, what is no late or repeated message, in words.
FAULTS = {
    "policy_failed": "the scheduling policy failed {} times",
    "planner_failed": "the planner was started again {} times",
    "plan_refused": "{} starts of its plans were refused",
    "moves_refused": "the migrations of {} plans were refused",
}


@collected
def check_head(address: str, *, patience_s: float = 1.0) -> Iterator[Finding]:
    """Ask the head at ``address`` (empty: the usual places) how it is."""
    try:
        head = HeadClient(address, patience_s=patience_s)
    except GschedError as error:
        yield fail("head address", error.message, error.hint or "unset GSCHED_HEAD")
        return
    path = head.transport.address.path
    if path and os.path.exists(path):
        yield check_socket(path)
    try:
        head.health(timeout_s=ANSWER_S)
        status = head.status()
        sent_s = SystemClock().wall_s()
        nodes = head.nodes().nodes
    except LostConnectionError as error:
        yield _silent(error, path)
        return
    except HeadUnreachableError as error:
        todo = "start it with `gschedd --config FILE` or `gsched up`, or set GSCHED_HEAD to another"
        yield fail("head", error.message, todo)
        return
    except GschedError as error:
        yield fail("head", error.message, error.hint or "see the head's log")
        return
    yield ok("head", f"answers at {head.transport.address.text} (process {status.pid})")
    yield from check_status(status, now_s=sent_s)
    with contextlib.suppress(GschedError):  # of a head of another version
        yield from check_tasks(head.tasks().tasks)
    if status.config is not None and path:
        yield from check_file(status.config, HeadClient(address, patience_s=0.0))
    yield from check_nodes(nodes, now_s=status.now_s)
    yield from check_settings(nodes, status.config)
    with contextlib.suppress(GschedError):  # as above
        yield from check_hosts(head.hosts(names=True).hosts)


def _silent(error: LostConnectionError, path: str) -> Finding:
    """Say what a head does that has a request and does not answer it."""
    restart = "see the head's log; if it stays so, restart gschedd: jobs keep running"
    try:
        pid = listener_pid(path) if path else 0
    except OSError:  # it has ended meanwhile
        pid = 0
    if not pid:  # of another host, or of another namespace
        return fail("head", error.message, f"run gsched doctor on its host, or {restart}")
    todo = resume_words(pid) or restart
    return fail("head", f"{error.message}; {state_words(pid)}", todo)


def check_file(row: ConfigRow, head: HeadClient) -> Iterator[Finding]:
    """Judge whether the head runs with its configuration file as it is."""
    if row.problem:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.problem_s))
        text = f"the reload of {at} was refused: {row.problem}"
        yield fail("reload", text, f"{row.hint}; then gsched reload")
    outdated = "" if row.problem else changed_since(row.path, head)
    if outdated:
        yield warn("reload", outdated, "gsched config show --diff shows the changes")
    if row.waits:
        yield warn(
            "reload",
            f"{counted(len(row.waits), 'key')} of {row.path} differ from the running head and need "
            f"a restart: {', '.join(row.waits)}",
            "systemctl restart gschedd; jobs keep running",
        )
    elif not row.problem and not outdated:
        yield ok("reload", f"the head runs with {row.path or 'the defaults'} as it is")


def check_tasks(rows: Iterable[TaskRow]) -> Iterator[Finding]:
    """Name periodic tasks of the head that failed, or that take longer than their periods."""
    for row in rows:
        todo = f"gsched tasks run {row.name} tries it again; see the head's log"
        if row.outcome is TaskOutcome.FAILED:
            yield warn(f"task {row.name}", f"failed: {row.text}", todo)
        elif row.overlaps:
            text = f"its time came {row.overlaps} times while it still ran"
            yield warn(f"task {row.name}", text, "give it a longer period in [tasks]")


def check_socket(path: str) -> Finding:
    """Say whether you, and others, may use the head's socket."""
    status = os.stat(path)
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISSOCK(status.st_mode):
        return fail(
            "socket", f"{path} is not a socket", "set GSCHED_HEAD to the path of the socket"
        )
    if not os.access(path, os.W_OK):
        return fail("socket", f"no permission to use {path} (mode {mode:04o})", f"chmod 666 {path}")
    parent = os.stat(os.path.dirname(path))
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        return fail(
            "socket",
            f"all users can replace {path}: its directory has mode "
            f"{stat.S_IMODE(parent.st_mode):04o}",
            f"chmod 755 {os.path.dirname(path)}",
        )
    return ok("socket", f"{path} is usable (mode {mode:04o})")


def _check_store(status: StatusReply) -> Iterator[Finding]:
    """Say whether the head rules, and whether it can write."""
    if status.ruler:
        yield ok("role", f"this head stands by: {status.ruler} rules")
    if status.stalled.startswith("PostgreSQL"):
        yield fail("store", status.stalled, "start the server of [store] url, or its replica")
    elif status.stalled:
        todo = "free space on the head's disk, or close the program that holds the database"
        yield fail("database", status.stalled, todo)


@collected
def check_status(status: StatusReply, *, now_s: float) -> Iterator[Finding]:
    """Judge what the head says about itself; ``now_s`` is this machine's clock."""
    yield _check_version(status)
    if status.safe_mode:
        yield fail(
            "safe mode",
            f"no job is started: {safe_mode_reason(status)}",
            "see gsched-recover in gsched(1): `gsched recover` shows why, --accept ends it",
        )
    for name, why in sorted(status.quarantined.items()):
        todo = f"if the node is right, the database is an old copy: gsched recover --believe {name}"
        yield fail(f"node {name}", f"is refused: {why}", todo)
    skew_s = status.now_s - now_s
    if abs(skew_s) > SKEW_WARN_S:
        yield warn(
            "clock",
            f"the head's clock is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}",
            "synchronize both clocks with chrony or ntpd",
        )
    else:
        yield ok("clock", "the clocks of this machine and the head agree")
    if status.disk is not None:
        yield _check_disk(status.disk)
    yield from _check_store(status)
    if status.damaged:
        shown = "; ".join(status.damaged[:3])
        more = f" and {len(status.damaged) - 3} more" if len(status.damaged) > 3 else ""
        yield fail(
            "database",
            f"rows of {status.database} are damaged: {shown}{more}",
            "restore a backup, or cancel the jobs with gdel; see gsched(1), Damaged records",
        )
    if status.planner:
        yield fail(
            "planner",
            f"training jobs are not planned: the planner {status.planner}",
            "see the head's log; gsched doctor --save-snapshot keeps the planner's input",
        )
    if status.forecaster:
        yield warn(
            "forecaster",
            f"the last forecast failed: the forecaster {status.forecaster}",
            "see the head's log; planning_limit_s in gsched.toml is its time limit, too",
        )
    if status.monitor:
        yield fail(
            "monitor",
            f"the page, metrics and reports do not work: {status.monitor}",
            "see the head's log, and [web] in gsched.toml(5)",
        )
    yield from check_notify(status.notify)
    yield from _check_oddities(status.dropped)


def _check_disk(row: DiskRow) -> Finding:
    """Say how much room the head has for its database."""
    return check_space(
        row.path,
        row.free_bytes,
        row.free_inodes if row.total_inodes else None,
        subject="head's disk",
        refuses=row.is_low,
    )


def check_notify(row: NotifyRow | None) -> list[Finding]:
    """Judge how mail and hooks work: ways that are down, and what was dropped."""
    if row is None:
        return []
    see = "see the head's log, and [notify] in gsched.toml(5)"
    if row.trouble:
        return [fail("notify", f"nobody is told of jobs: the notifier {row.trouble}", see)]
    findings = []
    for way, why in sorted(row.down.items()):
        waiting = counted(row.waiting.get(way, 0), "notification")
        text = f"{WAYS.get(way, way)}: {waiting} waiting; the last try failed: {why}"
        findings.append(warn("notify", text, see))
    for way, count in sorted(row.dropped.items()):
        was = "was" if count == 1 else "were"
        text = f"{WAYS.get(way, way)}: {counted(count, 'notification')} {was} dropped; the last: "
        findings.append(warn("notify", text + row.reasons.get(way, "unknown"), see))
    if not findings:
        findings.append(ok("notify", f"{counted(sum(row.sent.values()), 'notification')} sent"))
    return findings


@collected
def _check_oddities(counts: Mapping[str, int]) -> Iterator[Finding]:
    """Judge what the head has counted: faults need a look, late and repeated messages do not."""
    faults = {name: counts[name] for name in FAULTS if counts.get(name)}
    if faults:
        shown = ", ".join(FAULTS[name].format(count) for name, count in faults.items())
        todo = "the reasons are in the head's log; jobs start once the next plan is accepted"
        yield warn("policy", f"since the head started {shown}", todo)
    others = sorted((name, count) for name, count in counts.items() if name not in faults)
    if others:
        shown = ", ".join(f"{name} {count}" for name, count in others)
        text = f"the head ignored some, such as late or repeated ones ({shown}): nothing to do"
        yield ok("messages", text)


def safe_mode_reason(status: StatusReply) -> str:
    """Return why the head is in safe mode, empty if it is not, without saying again that it is."""
    return status.safe_mode.removeprefix("safe mode (").partition("); an operator ends it")[0]


def _check_version(status: StatusReply) -> Finding:
    if status.api_version != API_VERSION:
        return fail(
            "version",
            f"the head uses API {status.api_version}, these commands use API {API_VERSION}",
            "install the same version of gsched on both sides",
        )
    if status.version != VERSION:
        return warn(
            "version",
            f"the head is {status.version}, these commands are {VERSION}",
            "restart the older side after the upgrade",
        )
    return ok("version", f"{status.version}, API {API_VERSION}")


@collected
def _check_node(row: NodeRow, now_s: float) -> Iterator[Finding]:
    """Say why a node accepts no jobs, or does not report."""
    subject = f"node {row.name}"
    if row.refused:
        yield warn(
            subject, f"another gnode claims its name, {row.refused}", "see gnodes(1) about replace"
        )
    reason = f": {row.reason}" if row.reason else ""
    if row.state != "up":
        yield fail(
            subject,
            f"is {row.state}{reason}",
            f"see gnode's log; if the machine is gone: gnodes confirm-dead {row.name}",
        )
    elif row.drained:
        yield warn(subject, f"is drained and accepts no new jobs{reason}", _todo_of_drained(row))
    elif row.problem:
        yield warn(
            subject,
            f"accepts no new jobs: {row.problem}",
            "it accepts jobs again when the cause is gone",
        )
    elif row.heartbeat_s is not None and now_s - row.heartbeat_s > HEARTBEATS_LATE_S:
        yield warn(
            subject,
            f"last reported its load {now_s - row.heartbeat_s:.0f} s ago",
            "see the log of its gnode: it answers but does not sample",
        )


def check_nodes(nodes: Iterable[NodeRow], *, now_s: float) -> list[Finding]:
    """Say which nodes accept no jobs, and why."""
    rows = list(nodes)
    if not rows:
        return [
            fail("nodes", "no node has registered yet", "start gnode: see gnode(8) and its log")
        ]
    of_nodes = [_check_node(row, now_s) for row in rows]
    findings = [each for found in of_nodes for each in found]
    good = sum(not found for found in of_nodes)
    if good:
        findings.append(ok("nodes", f"{good} of {len(rows)} accept jobs"))
    return [
        *(*findings, *_check_sharing(rows), *_check_fences(rows)),
        *(*_check_versions(rows), *_check_starts(rows)),
    ]


def check_settings(rows: Iterable[NodeRow], head: ConfigRow | None) -> Iterator[Finding]:
    """Say which nodes refuse the head's settings, do not have them yet, or state others."""
    present = head.settings.digest if head is not None and head.settings is not None else ""
    late: list[str] = []
    for row in rows:
        settings = row.config.settings if row.config is not None else None
        if settings is None or not present:
            continue
        subject = f"settings of {row.name}"
        if settings.problem:
            todo = f"{settings.hint}; then gsched reload"
            yield fail(subject, f"refused: {settings.problem}", todo)
        elif settings.digest != present:
            late.append(row.name)
        if settings.own:
            text = f"its own file states other values than the head: {', '.join(settings.own)}"
            yield warn(
                subject, text, f"gnodes settings {row.name} shows them; remove the keys there"
            )
    if late:
        text = f"{_counted(late)} {'has' if len(late) == 1 else 'have'} not got the head's settings"
        yield warn("settings of nodes", text, "nodes that are away get them when they come back")


def _check_versions(rows: Iterable[NodeRow]) -> list[Finding]:
    """Say which nodes run another version of gsched than these commands."""
    by_version: dict[str, list[str]] = {}
    for row in rows:
        if row.version and row.version != VERSION:
            by_version.setdefault(row.version, []).append(row.name)
    return [
        warn(
            "versions of nodes",
            f"{_counted(names)} "
            f"{'runs' if len(names) == 1 else 'run'} {version}, these commands are {VERSION}",
            "upgrade them and restart their gnode; running jobs are left alone",
        )
        for version, names in sorted(by_version.items())
    ]


def _check_starts(rows: Iterable[NodeRow]) -> list[Finding]:
    """Say on which nodes the last starts of jobs have failed by the node's own fault."""
    return [
        warn(
            f"node {row.name}",
            f"the last {row.faults} starts of jobs failed, and the node is the cause"
            if row.faults > 1
            else "the last start of a job failed, and the node is the cause",
            f"see the log of its gnode; run gsched doctor on {row.name}",
        )
        for row in rows
        if row.faults and not row.drained
    ]


def _counted(names: list[str]) -> str:
    return f"{counted(len(names), 'node')} ({_few(names)})"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - FEW_NODES} more" if len(names) > FEW_NODES else ""
    return ", ".join(names[:FEW_NODES]) + more


def _todo_of_drained(row: NodeRow) -> str:
    """Return how a drained node comes back: one with a full disk not before there is space."""
    numbers = [window.number for window in row.windows if window.begun and window.number]
    if numbers and not row.reason_by:
        return f"it ends by itself; at once: gnodes maintenance --cancel {numbers[0]}"
    resume = f"gnodes resume {row.name}"
    if not any(os.strerror(number) in row.reason for number in NO_ROOM):
        return resume
    todo = "free space in the directory above (gnode removes only directories of ended jobs)"
    if not row.probe_due_s:
        return f"{todo}, then: {resume}"
    return f"{todo}; then gsched resumes the node at its next probe, or at once: {resume}"


@collected
def _check_sharing(rows: Iterable[NodeRow]) -> Iterator[Finding]:
    """Say which nodes share their GPUs, by what, and which cannot, though they are to, and why."""
    by_runtime: dict[str, list[str]] = {}
    for row in rows:
        sharing = row.gpu_tokens
        words = sharing.words if sharing is not None else ""
        if sharing is not None and sharing.problem:
            hint = "see gpu_sharing in gnodes NODE, and [gpu_share] in gsched.toml(5)"
            yield warn(f"node {row.name}", f"shares GPUs: {sharing.problem}", hint)
        if words.startswith(UNSHARED):
            reason = words.removeprefix(UNSHARED)
            yield warn(
                f"node {row.name}",
                f"cannot share its GPUs: {reason}",
                "mend that and restart gnode, or set another runtime in [gpu_share]",
            )
        elif row.sharing:
            by_runtime.setdefault(row.sharing, []).append(row.name)
    yield from [
        ok("shared GPUs", f"{_counted(names)}: {runtime}")
        for runtime, names in sorted(by_runtime.items())
    ]


def _check_fences(rows: Iterable[NodeRow]) -> list[Finding]:
    """Say by which means nodes keep their jobs from GPUs of others, or why they do not."""
    by_words: dict[str, list[str]] = {}
    for row in rows:
        if row.gpus and row.gpu_fence:
            by_words.setdefault(row.gpu_fence, []).append(row.name)
    return [
        warn("fences of GPUs", f"{_counted(names)}: {words}", "see gpu_fence in gsched.toml(5)")
        if words.startswith("none:") and words not in {FENCE_OFF, FENCE_NO_FILES}
        else ok("fences of GPUs", f"{_counted(names)}: {words}")
        for words, names in sorted(by_words.items())
    ]
