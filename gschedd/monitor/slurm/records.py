"""Jobs, nodes, queues and accounts in the forms of Slurm's REST API 0.0.43 to 0.0.45. Pure."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gsched.cli.slurm import words as w
from gsched.cli.slurm.fields import group_id, group_name, user_id
from gsched.cli.slurm.reservations import shown_flags
from gsched.model.host_lists import compact
from gsched.model.ids import array_of, index_of, submitted_number
from gsched.model.states import JobState
from gsched.model.window import NodeWindow
from gsched.protocol.api import QueueRow, StatusReply
from gsched.protocol.job_rows import JobRow
from gsched.protocol.node_rows import NodeRow
from gsched.protocol.reservations import ReservationRow

Json = dict[str, Any]

_MIB: Final = 1 << 20
_LARGEST_ID: Final = (1 << 31) - 1
#: Ids of trackable resources, as every Slurm has them; GPUs are the first that a site adds.
TRES_IDS: Final = {"cpu": 1, "mem": 2, "node": 4, "billing": 5, "gres": 1001}
#: By whether a queue accepts jobs and starts them.
_QUEUE_STATES: Final = {
    (True, True): "UP",
    (True, False): "DOWN",
    (False, True): "DRAIN",
    (False, False): "INACTIVE",
}


def number(value: float | None, *, infinite: bool = False) -> Json:
    """Return a number in Slurm's form; None: it is not set."""
    is_set = value is not None and not infinite
    return {"set": is_set, "infinite": infinite, "number": int(value or 0) if is_set else 0}


def _limit_minutes(limit_s: float | None) -> Json:
    return number(None if not limit_s else -(-limit_s // 60), infinite=not limit_s)


def job_id(row: JobRow) -> int:
    """Return a job's number, which clients hold in 31 bits; else that of its array."""
    found = w.number_of(row)
    return found if found <= _LARGEST_ID else submitted_number(row.id)


def _exit_code(row: JobRow) -> Json:
    code, _, signal = w.exit_code(row).partition(":")
    if row.outcome is None:
        status = "PENDING"
    elif int(signal):
        status = "SIGNALED"
    else:
        status = "ERROR" if int(code) or w.state_of(row)[0] != "COMPLETED" else "SUCCESS"
    return {
        "status": [status],
        "return_code": number(int(code) if row.outcome is not None else None),
        "signal": {"id": number(int(signal) or None), "name": ""},
    }


def _tres_text(row: JobRow, nodes: int) -> str:
    parts = {
        "cpu": row.cpus,
        "mem": f"{-(-row.memory_bytes // _MIB)}M" if row.memory_bytes else 0,
        "node": nodes,
        "billing": row.cpus,
        "gres/gpu": row.gpus,
    }
    return ",".join(f"{name}={value}" for name, value in parts.items() if value)


def _tres_list(cpus: int, memory_bytes: int, nodes: int, gpus: int) -> list[Json]:
    rows = (
        ("cpu", "", cpus),
        ("mem", "", memory_bytes // _MIB),
        ("node", "", nodes),
        ("billing", "", cpus),
        ("gres", "gpu", gpus),
    )
    return [
        {"type": kind, "name": name, "id": TRES_IDS[kind], "count": count}
        for kind, name, count in rows
        if count
    ]


def _ends_s(row: JobRow) -> float | None:
    if row.ended_s is not None:
        return row.ended_s
    return row.started_s + row.walltime_s if row.started_s and row.walltime_s else None


def job(row: JobRow, cluster: str) -> Json:
    """Return a job as ``/slurm/V/jobs`` has it."""
    is_element, is_held = bool(array_of(row.id)), row.state == JobState.HELD
    nodes = len(row.nodes) or row.places
    return {
        "account": row.account,
        "accrue_time": number(row.submitted_s),
        "array_job_id": number(submitted_number(row.id) if is_element or row.array else 0),
        "array_task_id": number(index_of(row.id) if is_element else None),
        "array_task_string": w.task_id(row) if row.array is not None else "",
        "array_max_tasks": number(row.array.at_once if row.array is not None else 0),
        "batch_flag": True,
        "batch_host": row.nodes[0] if row.nodes else "",
        "cluster": cluster,
        "comment": row.comment,
        "cpus": number(row.cpus),
        "cpus_per_task": number(None),
        "current_working_directory": "",
        "deadline": number(row.deadline_s or 0),
        "dependency": "",
        "derived_exit_code": _exit_code(row),
        "eligible_time": number(row.submitted_s),
        "end_time": number(_ends_s(row) or 0),
        "exit_code": _exit_code(row),
        "flags": [],
        "gres_detail": [f"gpu:{row.gpus}"] if row.gpus and row.nodes else [],
        "group_id": group_id(row) or 0,
        "group_name": group_name(row),
        "hold": is_held,
        "job_id": job_id(row),
        "job_state": [w.state_of(row)[0]],
        "memory_per_cpu": number(None),
        "memory_per_node": number(-(-row.memory_bytes // _MIB // max(1, nodes)) or None),
        "name": row.name,
        "node_count": number(nodes),
        "nodes": compact(row.nodes),
        "partition": row.queue,
        "priority": number(0 if is_held else max(1, row.priority)),
        "qos": w.qos_of(row),
        "requeue": False,
        "restart_cnt": max(0, row.attempt - 1),
        "sockets_per_node": number(None),
        "standard_error": "",
        "standard_input": "/dev/null",
        "standard_output": "",
        "start_time": number(row.started_s or row.predicted_start_s or 0),
        "state_description": row.reason,
        "state_reason": w.reason_word(row),
        "submit_time": number(row.submitted_s),
        "suspend_time": number(0),
        "tasks": number(row.places),
        "time_limit": _limit_minutes(row.walltime_s),
        "time_minimum": number(0),
        "tres_alloc_str": _tres_text(row, nodes) if row.nodes else "",
        "tres_per_job": f"gres/gpu:{row.gpus}" if row.gpus else "",
        "tres_per_node": "",
        "tres_per_socket": "",
        "tres_per_task": "",
        "tres_req_str": _tres_text(row, row.places),
        "user_id": user_id(row) or 0,
        "user_name": row.user,
    }


def past_job(row: JobRow, cluster: str, now_s: float) -> Json:
    """Return a job as ``/slurmdb/V/jobs`` has it."""
    nodes = len(row.nodes) or row.places
    tres = _tres_list(row.cpus, row.memory_bytes, nodes, row.gpus)
    microseconds = int(row.cpu_s * 1e6)
    cpu_time = {"seconds": microseconds // 1_000_000, "microseconds": microseconds % 1_000_000}
    is_element = bool(array_of(row.id))
    return {
        "account": row.account,
        "allocation_nodes": len(row.nodes),
        "array": {
            "job_id": submitted_number(row.id) if is_element or row.array else 0,
            "limits": {"max": {"running": {"tasks": 0}}},
            "task_id": number(index_of(row.id) if is_element else None),
            "task": w.task_id(row) if row.array is not None else "",
        },
        "association": {
            "account": row.account, "cluster": cluster, "partition": "", "user": row.user, "id": 0,
        },
        "cluster": cluster,
        "comment": {"administrator": "", "job": row.comment, "system": ""},
        "derived_exit_code": _exit_code(row),
        "exit_code": _exit_code(row),
        "flags": [],
        "group": group_name(row),
        "job_id": job_id(row),
        "name": row.name,
        "nodes": compact(row.nodes),
        "partition": row.queue,
        "priority": number(max(1, row.priority)),
        "qos": w.qos_of(row),
        "required": {
            "CPUs": row.cpus,
            "memory_per_cpu": number(None),
            "memory_per_node": number(-(-row.memory_bytes // _MIB // max(1, nodes)) or None),
        },
        "restart_cnt": max(0, row.attempt - 1),
        "script": "",
        "state": {"current": [w.state_of(row)[0]], "reason": w.reason_word(row)},
        "steps": [],
        "submit_line": "",
        "time": {
            "elapsed": int(w.elapsed_s(row, now_s)),
            "eligible": int(row.submitted_s),
            "end": int(row.ended_s or 0),
            "limit": _limit_minutes(row.walltime_s),
            "planned": number(row.started_s - row.submitted_s if row.started_s else None),
            "start": int(row.started_s or 0),
            "submission": int(row.submitted_s),
            "suspended": 0,
            "system": {"seconds": 0, "microseconds": 0},
            "total": cpu_time,
            "user": cpu_time,
        },
        "tres": {"allocated": tres if row.nodes else [], "requested": tres},
        "used_gres": f"gpu:{row.gpus}" if row.gpus and row.nodes else "",
        "user": row.user,
        "wckey": {"wckey": "", "flags": []},
        "working_directory": "",
    }  # fmt: skip


def _node_state(row: NodeRow) -> list[str]:
    if row.is_down:
        base = ["DOWN", "NOT_RESPONDING"]
    elif not row.jobs:
        base = ["IDLE"]
    else:
        base = ["MIXED" if row.cpus_free > 0 else "ALLOCATED"]
    base += [row.power.upper()] if row.power else []
    base += ["DRAIN"] if row.drained or row.problem else []
    return base + (["MAINTENANCE"] if any(each.begun for each in row.windows) else [])


def _gres(row: NodeRow, gpus: int) -> str:
    kinds = Counter(row.gpu_types)
    if len(kinds) == 1 and gpus:
        return f"gpu:{next(iter(kinds))}:{gpus}"
    return f"gpu:{gpus}" if gpus else ""


def node(row: NodeRow, cluster: str, queues: Sequence[str]) -> Json:
    """Return a node."""
    used, load = row.cpus - row.cpus_free, row.load
    memory_used = row.memory_bytes - row.memory_free_bytes
    free = row.memory_bytes - load.memory_used_bytes if load is not None else None
    return {
        "active_features": list(row.features),
        "address": row.address or row.name,
        "alloc_cpus": used,
        "alloc_idle_cpus": row.cpus_free,
        "alloc_memory": memory_used // _MIB,
        "architecture": "",
        "boards": 1,
        "boot_time": number(None),
        "cluster_name": cluster,
        "comment": "",
        "cores": row.cpus,
        "cpu_load": int(load.load1 * 100) if load is not None else 0,
        "cpus": row.cpus,
        "effective_cpus": row.cpus,
        "features": list(row.features),
        "free_mem": number(None if free is None else max(0, free) // _MIB),
        "gres": _gres(row, row.gpus),
        "gres_drained": "",
        "gres_used": _gres(row, row.gpus - row.gpus_free),
        "hostname": row.name,
        "last_busy": number(None),
        "name": row.name,
        "operating_system": "",
        "owner": "",
        "partitions": list(queues),
        "port": 0,
        "real_memory": row.memory_bytes // _MIB,
        "reason": row.reason,
        "reason_changed_at": number(int(row.reason_s) if row.reason_s else None),
        "reason_set_by_user": row.reason_by,
        "sockets": 1,
        "state": _node_state(row),
        "temporary_disk": 0,
        "threads": 1,
        "tres": f"cpu={row.cpus},mem={row.memory_bytes // _MIB}M"
        + (f",gres/gpu={row.gpus}" if row.gpus else ""),
        "tres_used": f"cpu={used},mem={memory_used // _MIB}M"
        + (f",gres/gpu={row.gpus - row.gpus_free}" if row.gpus > row.gpus_free else ""),
        "version": row.version,
        "weight": 1,
    }


def partition(queue: QueueRow, nodes: Sequence[NodeRow], cluster: str) -> Json:
    """Return a queue as a partition; all nodes are in each."""
    cpus, gpus = sum(row.cpus for row in nodes), sum(row.gpus for row in nodes)
    memory = sum(row.memory_bytes for row in nodes) // _MIB
    names = compact([row.name for row in nodes])
    default_s = queue.default_walltime_s or queue.max_walltime_s
    return {
        "accounts": {"allowed": "ALL", "deny": ""},
        "alternate": "",
        "cluster": cluster,
        "cpus": {"total": cpus},
        "defaults": {"time": _limit_minutes(default_s), "job": ""},
        "grace_time": 0,
        "groups": {"allowed": "ALL"},
        "maximums": {
            "time": _limit_minutes(queue.max_walltime_s),
            "nodes": number(None, infinite=True),
        },
        "minimums": {"nodes": 0},
        "name": queue.name,
        "node_sets": "",
        "nodes": {"allowed_allocation": "", "configured": names, "total": len(nodes)},
        "partition": {"state": [_QUEUE_STATES[queue.enabled, queue.started]]},
        "priority": {"job_factor": max(0, queue.priority), "tier": 1},
        "qos": {"allowed": "ALL", "deny": "", "assigned": ""},
        "tres": {
            "billing_weights": "",
            "configured": f"cpu={cpus},mem={memory}M,node={len(nodes)}"
            + (f",gres/gpu={gpus}" if gpus else ""),
        },
    }


def reservations(nodes: Iterable[NodeRow]) -> list[Json]:
    """Return the maintenance windows, each with its nodes."""
    found: dict[int, tuple[NodeWindow, list[str]]] = {}
    for row in nodes:
        for window in row.windows:
            found.setdefault(window.number, (window, []))[1].append(row.name)
    return [
        {
            "name": f"maintenance-{window.number}",
            "accounts": "",
            "users": window.by or "root",
            "flags": ["MAINT", "SPEC_NODES"],
            "node_list": compact(names),
            "node_count": len(names),
            "start_time": number(window.from_s),
            "end_time": number(window.to_s),
            "partition": "",
        }
        for window, names in found.values()
    ]


def reserved(rows: Iterable[ReservationRow]) -> list[Json]:
    """Return reservations."""
    return [
        {
            "name": kept.name,
            "accounts": ",".join(kept.projects),
            "users": ",".join(kept.users),
            "flags": shown_flags(kept),
            "node_list": compact([share.node for share in kept.shares]),
            "node_count": len(kept.shares),
            "core_count": sum(share.cpus for share in kept.shares),
            "start_time": number(kept.from_s),
            "end_time": number(kept.to_s),
            "partition": "",
        }
        for kept in (row.reservation for row in rows)
    ]


def licenses(nodes: Iterable[NodeRow]) -> list[Json]:
    """Return the consumable resources of all nodes together."""
    total: Counter[str] = Counter()
    free: Counter[str] = Counter()
    for row in nodes:
        total.update(row.generic)
        free.update(row.generic_free)
    return [
        {
            "LicenseName": name,
            "Total": count,
            "Used": count - free[name],
            "Free": free[name],
            "Remote": False,
            "Reserved": 0,
        }
        for name, count in sorted(total.items())
    ]


def statistics(status: StatusReply, counted: Mapping[str, int]) -> Json:
    """Return the statistics of the head; ``counted`` has numbers of jobs by their field here."""
    last = int(status.last_cycle_s * 1e6)
    waiting = sum(status.jobs.get(name, 0) for name in (JobState.QUEUED, JobState.HELD))
    return {
        "req_time": number(status.now_s),
        "req_time_start": number(status.started_s),
        "job_states_ts": number(status.now_s),
        "jobs_pending": waiting + status.jobs.get(JobState.WAITING, 0),
        "jobs_running": status.jobs.get(JobState.RUNNING, 0),
        "schedule_cycle_last": last,
        "schedule_cycle_total": status.cycles,
        "schedule_queue_length": status.jobs.get(JobState.QUEUED, 0),
        "server_thread_count": 1,
        **counted,
    }


def qos(name: str, number_: int, priority: int, limits: Json) -> Json:
    """Return a quality of service; ``normal`` is that of jobs which name none."""
    return {
        "description": "Normal QOS default" if name == "normal" else name,
        "flags": [],
        "id": number_,
        "limits": limits,
        "name": name,
        "priority": number(max(0, priority)),
        "usage_factor": {"set": True, "infinite": False, "number": 1.0},
    }


def account(name: str, description: str = "", coordinators: Sequence[str] = ()) -> Json:
    """Return a project, or an account that a job named."""
    return {
        "associations": [],
        "coordinators": [{"name": each, "direct": True} for each in coordinators],
        "description": description or name,
        "flags": [],
        "name": name,
        "organization": name,
    }


def user(name: str, accounts: Sequence[str]) -> Json:
    """Return a user with jobs; ``accounts`` are those that the jobs name."""
    return {
        "administrator_level": ["None"],
        "associations": [],
        "coordinators": [],
        "default": {"account": accounts[0] if accounts else "", "wckey": ""},
        "flags": [],
        "name": name,
        "wckeys": [],
    }


def association(
    number_: int,
    name: str,
    account_: str,
    cluster: str,
    *,
    parent: str,
    shares: int,
) -> Json:
    """Return that a user is in a project, or has jobs that name an account; no user: the project.

    It lacks the limits.
    """
    return {
        "account": account_,
        "cluster": cluster,
        "comment": "",
        "flags": [],
        "id": number_,
        "is_default": False,
        "parent_account": parent,
        "partition": "",
        "qos": ["normal"],
        "shares_raw": shares,
        "user": name,
    }


def cluster_record(name: str, nodes: Sequence[NodeRow]) -> Json:
    """Return the cluster."""
    tres = _tres_list(
        sum(row.cpus for row in nodes),
        sum(row.memory_bytes for row in nodes),
        len(nodes),
        sum(row.gpus for row in nodes),
    )
    return {
        "controller": {"host": name, "port": 0},
        "flags": [],
        "name": name,
        "nodes": compact([row.name for row in nodes]),
        "tres": tres,
    }


def read_moment_s(text: str) -> float | None:
    """Return a moment of a query, seconds since the epoch; None: it is none."""
    if text.isdecimal():
        return float(text)
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"):
        try:
            return time.mktime(time.strptime(text, form))
        except ValueError:
            continue
    return None
