"""How ``gnodes`` shows nodes."""

from collections.abc import Iterable, Iterator, Sequence

from gsched.cli.common import printable
from gsched.cli.show.columns import Column
from gsched.cli.show.render import print_fields, print_table
from gsched.cli.times import format_time, local_times
from gsched.model.configuration import ConfigRow
from gsched.model.gpu_tokens import GpuSharing, TokenGpu
from gsched.model.health import HealthResult
from gsched.model.ids import short_job_id
from gsched.model.states import NodeState, PowerState
from gsched.model.units import format_size
from gsched.model.wording import binding_words, counted
from gsched.protocol.hosts import HostRow
from gsched.protocol.node_rows import NodeRow, SharedGpuRow

COLUMNS = (
    Column("Node", style="bold"),
    Column("State"),
    Column("Jobs", right=True),
    Column("CPUs", right=True),
    Column("GPUs", right=True),
    Column("GPU use", least=8),
    Column("GPU type", least=8, drop=2, once=True),
    Column("Mem alloc", right=True),
    Column("Mem used", right=True, drop=3),
    Column("Load", right=True, drop=4),
    Column("Features", least=8, drop=1, once=True),
    Column("Reason", wraps=True, least=20),
)


def shown_state(row: NodeRow) -> str:
    """Return ``up``, ``draining`` (jobs still run), ``drained`` or ``unreachable``.

    A node that takes no jobs by its own word is ``up, closed``, and one that is powered down, or on
    its way there or back, ``powered down``, ``powering down``, ``powering up``.
    """
    if row.power:
        words = PowerState(row.power).words
        return f"{words}, drained" if row.drained else words
    if row.state != NodeState.UP:
        return f"{row.state}, drained" if row.drained else row.state
    if row.drained:
        return "draining" if row.jobs else "drained"
    return f"{row.state}, closed" if row.problem else row.state


_HOST_COLUMNS = (
    Column("Login host", style="bold"),
    Column("State"),
    Column("Since"),
    Column("Address"),
    Column("Version"),
    Column("Time zone"),
)


def print_hosts(rows: Iterable[HostRow], *, color: str) -> None:
    """Print one line for each login host."""
    lines = [
        (
            row.name,
            NodeState.UP if row.connected else NodeState.UNREACHABLE,
            format_time(row.since_s),
            row.address,
            row.version,
            row.zone,
        )
        for row in rows
    ]
    print_table(_HOST_COLUMNS, lines, color=color)


def print_nodes(rows: Iterable[NodeRow], *, color: str) -> None:
    """Print one line for each node; what jobs were allocated stands before what there is."""
    print_table(COLUMNS, [_line(row) for row in rows], color=color)


def _line(row: NodeRow) -> Sequence[str]:
    return (
        row.name,
        shown_state(row),
        str(len(row.jobs)),
        f"{row.cpus - row.cpus_free}/{row.cpus}",
        f"{row.gpus - row.gpus_free}/{row.gpus}",
        _gpu_use(row),
        ",".join(row.gpu_types),
        f"{_used_memory(row)}/{format_size(row.memory_bytes)}",
        format_size(row.load.memory_used_bytes) if row.load else "",
        f"{row.load.load1:.2f}" if row.load else "",
        ",".join(row.features),
        shown_reason(row),
    )


def shown_reason(row: NodeRow) -> str:
    """Return why a node takes no jobs, and who is on it beside its jobs."""
    return "; ".join(filter(None, (_reason(row), row.refused, *_outside(row))))


def _gpu_use(row: NodeRow) -> str:
    """Return the shares in use of each shared GPU, and GPUs that no job uses, or others.

    ``1:40% 2:outside 3:idle 4:empty``: the shares of GPU 1 are 40 % of it, GPU 2 counts as in use,
    jobs hold GPUs 3 and 4 and do not use them, and no process is on the latter.
    """
    use = row.gpu_use
    indices = sorted({each.index for each in use.outside}) if use is not None else []
    shared = [f"{each.index}:{each.percent}%" for each in row.shared_gpus]
    idle = [f"{each.index}:{'idle' if each.held else 'empty'}" for each in row.gpus_idle]
    return " ".join([*shared, *(f"{index}:outside" for index in indices), *idle])


def _outside(row: NodeRow) -> list[str]:
    """Return who uses GPUs outside of all jobs, a text for each process."""
    outside = row.gpu_use.outside if row.gpu_use is not None else ()
    return [
        f"GPU {each.index}: {each.program} of {each.user} (pid {each.pid}) is in no job"
        for each in outside
    ]


def _gpu_use_fields(row: NodeRow) -> list[tuple[str, str]]:
    """Return the processes on GPUs that belong to no job, and GPUs that their jobs do not use."""
    fields = []
    for each in row.gpu_use.outside if row.gpu_use is not None else ():
        memory = f", {format_size(each.memory_bytes)}" if each.memory_bytes else ""
        text = f"{each.program} of {each.user}, pid {each.pid}{memory}"
        text += f", since {format_time(each.since_s)}"
        if each.ends_s:
            text += f"; it is ended at {format_time(each.ends_s)}"
        fields.append((f"gpu_{each.index}_outside", text))
    for gpu in row.gpus_idle:
        what = "holds memory, idle" if gpu.held else "no process"
        text = f"job {short_job_id(gpu.job)}, {what} since {format_time(gpu.since_s)}"
        fields.append((f"gpu_{gpu.index}_idle", text))
    return fields


def _shared(shared: SharedGpuRow) -> str:
    """Return ``40 % of 100 %, 16gb of 80gb, jobs 1 2``."""
    memory = f"{format_size(shared.memory_bytes)} of {format_size(shared.gpu_memory_bytes)}"
    jobs = " ".join(map(str, shared.jobs))
    return f"{shared.percent} % of 100 %, {memory}, job{'s' * (len(shared.jobs) != 1)} {jobs}"


def _token_fields(sharing: GpuSharing | None) -> list[tuple[str, str]]:
    """Return how jobs take turns on each shared GPU, and what is wrong with that."""
    if sharing is None:
        return []
    fields = [("gpu_sharing_problem", sharing.problem)]
    fields += [(f"gpu_{each.index}_tokens", token_words(each)) for each in sharing.gpus]
    demoted = [f"{each.job}" for each in sharing.jobs if each.demoted]
    if demoted:
        fields.append(("gpu_demoted", f"jobs {' '.join(demoted)}: too slow to leave the GPU"))
    if sharing.unhooked_symbols:
        count = sharing.unhooked_symbols
        fields.append(("gpu_unhooked", f"{count} functions of the driver are not controlled"))
    if sharing.restarts:
        fields.append(("token_daemon", f"started again {counted(sharing.restarts, 'time')}"))
    return fields


def token_words(gpu: TokenGpu) -> str:
    """Return ``held by job 7, 120 switches, 30 preemptions, drains 0.8 ms on average, ...``."""
    words = [f"held by job {gpu.holder}" if gpu.holder else "free"]
    words.append(counted(gpu.switches, "switch", "switches"))
    words.append(counted(gpu.preemptions, "preemption"))
    if gpu.drains:
        mean_ms, most_ms = 1000 * gpu.drain_s_sum / gpu.drains, 1000 * gpu.drain_s_max
        words.append(f"drains {mean_ms:.1f} ms on average, {most_ms:.1f} ms at most")
    words.append(counted(gpu.overlaps, "overlap"))
    return ", ".join(words)


def _used_memory(row: NodeRow) -> str:
    used_bytes = row.memory_bytes - row.memory_free_bytes
    return format_size(used_bytes) if used_bytes > 0 else "0"


_MAINTENANCE = (
    Column("Number", right=True),
    Column("Node", style="bold"),
    Column("From"),
    Column("To"),
    Column("State"),
    Column("By"),
    Column("Reason", wraps=True, least=20),
)


def print_maintenance(rows: Iterable[NodeRow], *, color: str) -> None:
    """Print one line for each window of maintenance of each node, in order of time."""
    found = [(window, row.name) for row in rows for window in row.windows]
    found.sort(key=lambda each: (each[0].from_s, each[0].number, each[1]))
    lines = [
        (
            str(window.number),
            name,
            format_time(window.from_s),
            format_time(window.to_s),
            "now" if window.begun else "planned",
            window.by,
            window.reason,
        )
        for window, name in found
    ]
    print_table(_MAINTENANCE, lines, color=color)


def print_state_list(rows: Iterable[NodeRow]) -> None:
    """Print name, state and reason of the nodes that take no jobs, as ``pbsnodes -l`` does."""
    for row in rows:
        if row.is_down or row.drained or row.problem:
            line = f"{row.name:<20} {shown_state(row):<20} {local_times(row.reason)}"
            print(printable(line.rstrip()))


def node_fields(row: NodeRow, *, now_s: float) -> None:
    """Print everything about one node, and a blank line."""
    print(printable(row.name))
    print_fields(node_words(row, now_s))
    print()


def _reason(row: NodeRow) -> str:
    """Return why a node takes no jobs, and when that may end by itself."""
    reason = local_times(row.reason)
    if not row.probe_due_s:
        return reason
    return f"{reason} (next probe {format_time(row.probe_due_s)})"


def _health(result: HealthResult) -> str:
    verdict = "passed" if result.passed else "failed"
    text = f": {result.text}" if result.text else ""
    return f"{verdict} at {format_time(result.at_s)}{text}"


def _config(row: ConfigRow | None) -> Iterator[tuple[str, str]]:
    """Yield how the node has read its configuration file."""
    if row is None:
        return
    yield "configuration", f"{row.path}, read at {format_time(row.read_s)}"
    if row.problem:
        yield "reload_refused", f"{row.problem} (at {format_time(row.problem_s)})"
    if row.waits:
        yield "needs_restart", ", ".join(row.waits)
    settings = row.settings
    if settings is None:
        return
    if settings.digest:
        yield "head_settings", f"received at {format_time(settings.received_s)}"
    if settings.problem:
        at = format_time(settings.problem_s)
        yield "settings_refused", f"{settings.problem} (at {at})"
    if settings.own:
        yield "own_settings", ", ".join(settings.own)


def _probe_fields(row: NodeRow) -> list[tuple[str, str]]:
    fields = []
    if row.faults:
        fields.append(("failed_starts", f"{row.faults} in a row"))
    if row.automatic:
        due = format_time(row.probe_due_s) if row.probe_due_s else "none: see gnodes resume"
        fields.extend([("next_probe", due), ("probes_failed", f"{row.probes_failed} in a row")])
    if row.resumptions:
        fields.append(("resumed_by_probes", f"{row.resumptions} times within a day"))
    return fields


def _since(row: NodeRow) -> str:
    """Return since when a node has its reason, and who gave it."""
    by = f", by {row.reason_by}" if row.reason_by else ""
    return f"{format_time(row.reason_s)}{by}" if row.reason and row.reason_s else ""


def node_words(row: NodeRow, now_s: float) -> list[tuple[str, str]]:
    """Return names and texts of all that is known of a node."""
    fields = [
        ("state", shown_state(row)),
        ("since", format_time(row.since_s or None)),
        ("reason", local_times(row.reason)),
        ("reason_since", _since(row)),
        *_probe_fields(row),
        ("refused", row.refused),
        *((f"health_{each.name}", _health(each)) for each in row.health),
        ("jobs", " ".join(map(short_job_id, row.jobs))),
        ("cpus", f"{row.cpus - row.cpus_free} of {row.cpus} in use"),
        ("cpu_binding", binding_words(row.cpu_binding)),
        ("gpu_fence", row.gpu_fence),
        ("gpus", f"{row.gpus - row.gpus_free} of {row.gpus} in use"),
        *((f"gpu_{each.index}", _shared(each)) for each in row.shared_gpus),
        ("gpu_sharing", (row.gpu_tokens and row.gpu_tokens.words) or row.sharing),
        *_token_fields(row.gpu_tokens),
        *_gpu_use_fields(row),
        ("gpu_types", ",".join(row.gpu_types)),
        ("memory", f"{_used_memory(row)} of {format_size(row.memory_bytes)} in use"),
        ("features", ",".join(row.features)),
    ]
    for name, count in sorted(row.generic.items()):
        fields.append((name, f"{count - row.generic_free.get(name, 0)} of {count} in use"))
    fields.extend(_load_fields(row, now_s))
    fields.extend([("address", row.address), ("version", row.version), ("identity", row.identity)])
    fields.extend(_config(row.config))
    return [(name, text) for name, text in fields if text]


def _load_fields(row: NodeRow, now_s: float) -> list[tuple[str, str]]:
    fields = []
    if row.load is not None:
        fields = [
            ("load", f"{row.load.load1:.2f}"),
            ("cpu_percent", f"{row.load.cpu_percent:.0f}"),
            ("memory_used", format_size(row.load.memory_used_bytes)),
            ("gpu_percent", ",".join(f"{util:.0f}" for util in row.load.gpu_util_percent)),
            (
                "gpu_memory_used",
                ",".join(format_size(used) for used in row.load.gpu_memory_used_bytes),
            ),
        ]
        if row.load_s is not None:
            fields.append(("measured", f"{max(0.0, now_s - row.load_s):.0f} s ago"))
    if row.heartbeat_s is not None:
        ago_s = max(0.0, now_s - row.heartbeat_s)
        fields.append(("heartbeat", f"{format_time(row.heartbeat_s)} ({ago_s:.0f} s ago)"))
    return fields
