"""The lists of queues and servers: ``qstat -Q``, ``-q`` and ``-B``. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gsched.cli.pbs.attributes import Attribute, wrapped
from gsched.model.states import JobState
from gsched.model.units import format_duration
from gsched.protocol.api import QueueRow, StatusReply

#: In the order of PBS's ``state_count``.
_COUNTED: Final = (
    ("Transit", JobState.MIGRATING),
    ("Queued", JobState.QUEUED),
    ("Held", JobState.HELD),
    ("Waiting", JobState.WAITING),
    ("Running", JobState.RUNNING),
    ("Exiting", JobState.EXITING),
)
_QUEUE_TITLES: Final = (
    *("Queue", "Max", "Tot", "Ena", "Str", "Que", "Run", "Hld", "Wat", "Trn", "Ext", "T", "Cpt"),
)
_SERVER_TITLES: Final = (
    *("Server", "Max", "Tot", "Que", "Run", "Hld", "Wat", "Trn", "Ext", "Com", "Status"),
)
_SHORT: Final = ("Queued", "Running", "Held", "Waiting", "Transit", "Exiting")
_TORQUE_QUEUE: Final = (-16, 5, 6, 5, 5, 5, 5, 5, 5, 5, 5, -1, 5)
_TORQUE_SERVER: Final = (-16, 5, 5, 5, 5, 5, 5, 5, 5, 5, -10)
_OPENPBS_QUEUE: Final = (-16, 5, 5, 3, 3, 5, 5, 5, 5, 5, 5, -4)
_OPENPBS_SERVER: Final = (-16, 5, 5, 5, 5, 5, 5, 5, 5, -10)


def state_counts(jobs: Mapping[str, int], *, complete: bool) -> dict[str, int]:
    """Return how many jobs are in each of PBS's states, in PBS's order.

    Args:
        jobs: by state of gsched.
        complete: with Torque's ``Complete``; finished jobs are not in the list, so it is 0.
    """
    counts = {name: jobs.get(state.value, 0) for name, state in _COUNTED}
    return counts | ({"Complete": 0} if complete else {})


def _row(widths: Sequence[int], cells: Sequence[str]) -> str:
    shown = (
        f"{cell[:-width]:<{-width}}" if width < 0 else f"{cell[:width]:>{width}}"
        for width, cell in zip(widths, cells, strict=True)
    )
    return " ".join(shown) + "\n"


def queue_list(queues: Sequence[QueueRow], *, openpbs: bool) -> Iterator[str]:
    """Yield ``qstat -Q``."""
    if openpbs:
        yield (
            "Queue              Max   Tot Ena Str   Que   Run   Hld   Wat   Trn   Ext Type\n"
            "---------------- ----- ----- --- --- ----- ----- ----- ----- ----- ----- ----\n"
        )
    else:
        yield _row(_TORQUE_QUEUE, _QUEUE_TITLES)
        dashes = ("-" * 16, "---", "----", "--", "--", *["---"] * 6, "-", "---")
        yield _row(_TORQUE_QUEUE, dashes)
    for queue in queues:
        counts = state_counts(queue.jobs, complete=True)
        cells = [queue.name, "0", str(sum(queue.jobs.values()))]
        cells += [_yes(queue.enabled), _yes(queue.started)]
        cells += [str(counts[name]) for name in _SHORT]
        if openpbs:
            yield _row(_OPENPBS_QUEUE, [*cells, "Exec"])
        else:
            yield _row(_TORQUE_QUEUE, [*cells, "E", str(counts["Complete"])])


def _yes(value: bool) -> str:  # noqa: FBT001 - the value itself
    return "yes" if value else "no"


def queue_limits(queues: Sequence[QueueRow], *, server: str, openpbs: bool) -> Iterator[str]:
    """Yield ``qstat -q``: limits and numbers of jobs."""
    yield f"\nserver: {server}\n\n"
    if openpbs:
        yield "Queue            Memory CPU Time Walltime Node   Run   Que   Lm  State\n"
        yield "---------------- ------ -------- -------- ---- ----- ----- ----  -----\n"
    else:
        yield "Queue            Memory CPU Time Walltime Node  Run Que Lm  State\n"
        yield "---------------- ------ -------- -------- ----  --- --- --  -----\n"
    blank = "  --   " if openpbs else "--   "
    all_running = all_queued = 0
    for queue in queues:
        counts = state_counts(queue.jobs, complete=False)
        running = counts["Running"]
        queued = counts["Queued"] + counts["Held"] + counts["Waiting"]
        all_running, all_queued = all_running + running, all_queued + queued
        most_s = queue.max_walltime_s
        walltime = format_duration(most_s) if most_s else blank
        head = f"{queue.name[:16]:<16} {'--  ':>6} {blank[:8]:>8} {walltime[:8]:>8} "
        state = f"{'E' if queue.enabled else 'D'} {'R' if queue.started else 'S'}"
        if openpbs:
            yield f"{head}{'-- ':>4} {running:5d} {queued:5d} {blank[:4]:>4}   {state}\n"
        else:
            yield f"{head}{'-- ':>5} {running:3d} {queued:3d} {blank[:2]:>2}   {state}\n"
    yield "                                               ----- -----\n"
    yield f"                                               {all_running:5d} {all_queued:5d}\n"


def queue_attributes(queue: QueueRow, *, openpbs: bool) -> Iterator[str]:
    """Yield ``qstat -Q -f`` of one queue."""
    yield f"Queue: {queue.name}\n"
    counts = state_counts(queue.jobs, complete=not openpbs)
    fields = [
        Attribute("queue_type", "", "Execution"),
        Attribute("Priority", "", str(queue.priority)),
        Attribute("total_jobs", "", str(sum(queue.jobs.values()))),
        Attribute("state_count", "", _count_text(counts)),
    ]
    if queue.max_walltime_s:
        limit = format_duration(queue.max_walltime_s)
        fields.append(Attribute("resources_max", "walltime", limit))
    if queue.default_walltime_s:
        default = format_duration(queue.default_walltime_s)
        fields.append(Attribute("resources_default", "walltime", default))
    for kind, names in (("user", queue.allow_users), ("group", queue.allow_groups)):
        if names:
            fields.append(Attribute(f"acl_{kind}_enable", "", "True"))
            fields.append(Attribute(f"acl_{kind}s", "", ",".join(names)))
    if queue.deny_users:
        fields.append(Attribute("gsched_deny_users", "", ",".join(queue.deny_users)))
    fields += [
        Attribute("enabled", "", str(queue.enabled)),
        Attribute("started", "", str(queue.started)),
    ]
    for each in fields:
        yield wrapped(each) + "\n"
    yield "\n"


def _count_text(counts: Mapping[str, int]) -> str:
    return " ".join(f"{name}:{count}" for name, count in counts.items()) + " "


def server_list(status: StatusReply, *, openpbs: bool) -> Iterator[str]:
    """Yield ``qstat -B``."""
    counts = state_counts(status.jobs, complete=True)
    cells = [status.server, "0", str(sum(status.jobs.values()))]
    cells += [str(counts[name]) for name in _SHORT]
    if openpbs:
        yield "Server             Max   Tot   Que   Run   Hld   Wat   Trn   Ext Status\n"
        yield "---------------- ----- ----- ----- ----- ----- ----- ----- ----- -----------\n"
        yield _row(_OPENPBS_SERVER, [*cells, _server_state(status)])
        return
    yield _row(_TORQUE_SERVER, _SERVER_TITLES)
    yield _row(_TORQUE_SERVER, ("-" * 16, *["---"] * 9, "-" * 10))
    yield _row(_TORQUE_SERVER, [*cells, str(counts["Complete"]), _server_state(status)])


def _server_state(status: StatusReply) -> str:
    return "Idle" if status.safe_mode or not status.scheduling else "Active"


def server_attributes(status: StatusReply, *, openpbs: bool) -> Iterator[str]:
    """Yield ``qstat -B -f``."""
    yield f"Server: {status.server}\n"
    counts = state_counts(status.jobs, complete=not openpbs)
    fields = (
        Attribute("server_state", "", _server_state(status)),
        Attribute("scheduling", "", str(status.scheduling and not status.safe_mode)),
        Attribute("total_jobs", "", str(sum(status.jobs.values()))),
        Attribute("state_count", "", _count_text(counts)),
        Attribute("default_queue", "", next(iter(status.queues), "")),
        Attribute("pbs_version", "", f"gsched-{status.version}"),
    )
    for each in fields:
        yield wrapped(each) + "\n"
    yield "\n"
