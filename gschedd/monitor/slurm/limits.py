"""Limits of QOS, and of projects and their users, in the forms of Slurm's REST API. Pure."""

from collections.abc import Mapping

from gsched.protocol.queues import QueueValue
from gschedd.monitor.slurm.records import TRES_IDS, Json, number

#: Attributes of an object, such as ``total.max_gpus``, as `gsched.config.objects` names them.
Values = Mapping[str, QueueValue]

_GPU = ("gres", "gpu")
#: Resources by the limit that counts them, and what one of Slurm's units is.
_RESOURCES = {
    "max_cpus": ("cpu", "", 1),
    "max_memory_bytes": ("mem", "", 1 << 20),
    "max_gpus": (*_GPU, 1),
}


def _most(values: Values, name: str) -> float | None:
    """Return a limit; None: there is none."""
    found = values.get(name, -1)
    return float(found) if isinstance(found, int | float) and found >= 0 else None


def _count(values: Values, name: str, unit: float = 1.0) -> Json:
    most = _most(values, name)
    return number(None if most is None else most / unit, infinite=most is None)


def _tres(values: Values, table: str) -> list[Json]:
    rows = []
    for key, (kind, name, unit) in _RESOURCES.items():
        most = _most(values, f"{table}.{key}")
        if most is not None:
            rows.append(_resource(kind, name, most / unit))
    return rows


def _gpu_minutes(values: Values, table: str) -> list[Json]:
    most = _most(values, f"{table}.max_running_gpu_hours")
    return [] if most is None else [_resource(*_GPU, most * 60.0)]


def _resource(kind: str, name: str, count: float) -> Json:
    return {"type": kind, "name": name, "id": TRES_IDS[kind], "count": int(count)}


def _none() -> Json:
    return number(None, infinite=True)


def of_qos(values: Values) -> Json:
    """Return the limits of a QOS; budgets of GPU-hours have no counterpart."""
    return {
        "factor": number(None),
        "grace_time": 0,
        "max": {
            "accruing": {"per": {"account": _none(), "user": _none()}},
            "active_jobs": {
                "accruing": _none(),
                "count": _count(values, "total.max_running"),
            },
            "jobs": {
                "active_jobs": {
                    "per": {
                        "account": _count(values, "each_project.max_running"),
                        "user": _count(values, "each_user.max_running"),
                    }
                },
                "count": _count(values, "total.max_queued"),
                "per": {
                    "account": _count(values, "each_project.max_queued"),
                    "user": _count(values, "each_user.max_queued"),
                },
            },
            "tres": {
                "minutes": {
                    "per": {
                        "account": _gpu_minutes(values, "each_project"),
                        "job": [],
                        "qos": _gpu_minutes(values, "total"),
                        "user": _gpu_minutes(values, "each_user"),
                    },
                    "total": [],
                },
                "per": {
                    "account": _tres(values, "each_project"),
                    "job": [],
                    "node": [],
                    "user": _tres(values, "each_user"),
                },
                "total": _tres(values, "total"),
            },
            "wall_clock": {
                "per": {"job": _count(values, "total.max_walltime_s", 60.0), "qos": _none()}
            },
        },
        "min": {"priority_threshold": _none(), "tres": {"per": {"job": []}}},
    }


def of_association(values: Values, user: str = "") -> Json:
    """Return the limits of a project with these attributes, or of a user in it."""
    own = _own(values, user) if user else {}
    group, table = ({}, "own") if user else (values, "total")
    each = {**group, **own}
    return {
        "jobs": {
            "accruing": _none(),
            "active": _count(own, "own.max_running"),
            "per": {
                "accruing": _none(),
                "count": _count(group, "total.max_running"),
                "submitted": _count(group, "total.max_queued"),
                "wall_clock": _count(each, f"{table}.max_walltime_s", 60.0),
            },
            "total": _count(own, "own.max_queued"),
        },
        "per": {"account": {"wall_clock": _none()}},
        "tres": {
            "group": {"active": _gpu_minutes(group, "total"), "minutes": []},
            "minutes": {"per": {"job": []}, "total": _gpu_minutes(own, "own")},
            "per": {"job": [], "node": []},
            "total": _tres(each, table),
        },
    }


def _own(values: Values, user: str) -> Values:
    """Return the limits of a user in a project, as of a table ``own``."""
    found: dict[str, QueueValue] = {}
    for table in ("each_user.", f"user.{user}."):
        for name, value in values.items():
            if name.startswith(table):
                found[f"own.{name.removeprefix(table)}"] = value
    return found
