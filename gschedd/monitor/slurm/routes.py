"""``/slurm/VERSION/...`` and ``/slurmdb/VERSION/...``, as slurmrestd serves them to be read."""

import grp
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from aiohttp import web
from msgspec import Struct, structs

from gsched.cli.slurm import words as w
from gsched.cli.slurm.fields import group_name
from gsched.errors import (
    GschedError,
    InvalidRequestError,
    NotPermittedError,
    UnknownJobError,
)
from gsched.model.limits import MAX_HISTORY_ROWS
from gsched.protocol import api, job_rows, node_rows
from gsched.protocol.queues import Objects, ObjectsReply
from gsched.protocol.reservations import ReservationsReply
from gschedd.http.answers import answer, check_query
from gschedd.monitor.model import ReadModel
from gschedd.monitor.slurm import limits
from gschedd.monitor.slurm import records as r
from gschedd.monitor.slurm.records import Json
from gschedd.monitor.viewers import Viewer

#: Versions of the API, and the first release of Slurm that has it.
VERSIONS: Final[Mapping[str, str]] = {
    "v0.0.43": "25.05.0",
    "v0.0.44": "25.11.0",
    "v0.0.45": "26.05.0",
}
#: Jobs that ended within this time are in the list of jobs, as with Slurm's MinJobAge, seconds.
RECENT_S: Final = 300.0
USER_HEADER: Final = "X-SLURM-USER-NAME"
#: Slurm's numbers of errors.
_AUTHENTICATION, _INVALID_JOB, _INVALID_QUERY, _UNREACHABLE = 1007, 2017, 9201, 1800
#: HTTP status and Slurm's number, by error.
_STATUSES: Final[Mapping[type[GschedError], tuple[int, int]]] = {
    NotPermittedError: (401, _AUTHENTICATION),
    UnknownJobError: (404, _INVALID_JOB),
    InvalidRequestError: (400, _INVALID_QUERY),
}
_COUNTED: Final = {
    "gsched_jobs_submitted": "jobs_submitted",
    "gsched_jobs_started": "jobs_started",
    "succeeded": "jobs_completed",
    "cancelled": "jobs_canceled",
}


class _Query(Struct, frozen=True, kw_only=True):
    """A request, once it is known who sent it; ``name`` is the last part of its path."""

    viewer: Viewer
    version: str
    name: str
    arguments: Mapping[str, str]


T = TypeVar("T")
Values = Callable[[T], Iterable[str]]
#: What the arguments of a request for past jobs select by.
_JOB_FIELDS: Final[Mapping[str, Values[job_rows.JobRow]]] = {
    "users": lambda row: (row.user,),
    "account": lambda row: (row.account,),
    "partition": lambda row: (row.queue,),
    "job_name": lambda row: (row.name,),
    "groups": lambda row: (group_name(row),),
    "state": w.state_of,
    "node": lambda row: row.nodes,
    "step": lambda row: (str(r.job_id(row)), w.slurm_id(row)),
    "qos": lambda row: (w.qos_of(row),),
}


class _UnknownError(UnknownJobError):
    """There is no such thing."""


Handler = Callable[[_Query], Awaitable[Json]]


class _Endpoint(Struct, frozen=True):
    """What answers a path.

    Attributes:
        empty: the fields that an answer has in any case, as an error has them.
        words: what an argument of the request may be, where Slurm's schema lists it.
    """

    handler: Handler
    empty: Json
    words: Mapping[str, frozenset[str]] = {}


_FLAGS: Final = {
    "flags": frozenset(["ALL", "DETAIL", "MIXED", "LOCAL", "SIBLING", "FEDERATION", "FUTURE"])
}
_CLUSTER_WORDS: Final = {
    "classification": frozenset(["UNCLASSIFIED", "CAPABILITY", "CAPACITY", "CAPAPACITY"]),
    "flags": frozenset(["DELETED", "REGISTERING", "MULTIPLE_SLURMD", "FEDERATION", "EXTERNAL"]),
}
_PREEMPT_MODES: Final = frozenset(["DISABLED", "SUSPEND", "REQUEUE", "CANCEL", "GANG"])
_ADMIN_LEVELS: Final = frozenset(("Not Set", "None", "Operator", "Administrator"))
_NO_JOBS: Final = {
    "jobs": [],
    "last_backfill": r.number(None),
    "last_update": r.number(None),
}


def _none_of(what: str) -> Json:
    return {what: [], "last_update": r.number(None)}


class SlurmRoutes:
    """Answers from what the head and the read model have."""

    def __init__(self, model: ReadModel) -> None:
        self._model = model
        endpoint = _Endpoint
        nodes = endpoint(self._nodes, _none_of("nodes"), _FLAGS)
        partitions = endpoint(self._partitions, _none_of("partitions"), _FLAGS)
        reservations = endpoint(self._reservations, _none_of("reservations"))
        accounts = endpoint(self._accounts, {"accounts": []})
        associations = endpoint(self._associations, {"associations": []})
        instances = endpoint(self._instances, {"instances": []})
        wckeys = endpoint(self._wckeys, {"wckeys": []})
        ping = endpoint(self._ping, {"pings": []})
        users: Json = {"users": []}
        clusters: Json = {"clusters": []}
        qos: Json = {"qos": []}
        #: By path; one that ends in "/" is followed by a name.
        self._endpoints: Mapping[str, _Endpoint] = {
            "slurm/ping": ping,
            "slurm/jobs": endpoint(self._jobs, _NO_JOBS, _FLAGS),
            "slurm/jobs/state": endpoint(self._jobs, _NO_JOBS),
            "slurm/job/": endpoint(self._job, _NO_JOBS, _FLAGS),
            "slurm/nodes": nodes,
            "slurm/node/": nodes,
            "slurm/partitions": partitions,
            "slurm/partition/": partitions,
            "slurm/reservations": reservations,
            "slurm/reservation/": reservations,
            "slurm/resources/": endpoint(self._resources, {"nodes": []}),
            "slurm/diag": endpoint(self._diag, {"statistics": {}}),
            "slurm/licenses": endpoint(self._licenses, _none_of("licenses")),
            "slurm/shares": endpoint(self._shares, {"shares": {}}),
            "slurm/conf": endpoint(self._conf, {}),
            "slurmdb/ping": ping,
            "slurmdb/jobs": endpoint(self._past_jobs, {"jobs": []}),
            "slurmdb/job/": endpoint(self._past_job, {"jobs": []}),
            "slurmdb/qos": endpoint(self._qos, qos, {"preempt_mode": _PREEMPT_MODES}),
            "slurmdb/qos/": endpoint(self._qos, qos),
            "slurmdb/tres": endpoint(self._tres, {"TRES": []}),
            "slurmdb/accounts": accounts,
            "slurmdb/account/": accounts,
            "slurmdb/users": endpoint(self._users, users, {"admin_level": _ADMIN_LEVELS}),
            "slurmdb/user/": endpoint(self._users, users),
            "slurmdb/associations": associations,
            "slurmdb/association": associations,
            "slurmdb/clusters": endpoint(self._clusters, clusters),
            "slurmdb/cluster/": endpoint(self._clusters, clusters, _CLUSTER_WORDS),
            "slurmdb/wckeys": wckeys,
            "slurmdb/wckey/": wckeys,
            "slurmdb/instances": instances,
            "slurmdb/instance": instances,
            "slurmdb/diag": endpoint(self._past_diag, {"statistics": {}}),
            "slurmdb/config": endpoint(self._config, {}),
            "slurmdb/conf": endpoint(self._past_conf, {"slurmdbd_conf": {}}),
        }

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get(r"/slurm/{version}/{what:[\s\S]*}", self.give),
            web.get(r"/slurmdb/{version}/{what:[\s\S]*}", self.give),
            web.post("/v1/slurm-token", self.new_token),
        ]

    async def new_token(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/slurm-token``: a token for X-SLURM-USER-TOKEN, as text; Unix socket only."""
        viewers = self._model.viewers
        token = viewers.slurm_token(await viewers.at_socket(request))
        return web.Response(text=f"SLURM_JWT={token}\n")

    async def give(self, request: web.Request) -> web.StreamResponse:
        """Answer a request; errors have Slurm's form, too."""
        version, path = request.match_info["version"], request.match_info["what"].strip("/")
        plugin = request.path.split("/")[1]
        what, name = f"{plugin}/{path}", ""
        if what not in self._endpoints:
            first, _, name = path.partition("/")
            what = f"{plugin}/{first}/"
        endpoint = self._endpoints.get(what)
        if version not in VERSIONS or endpoint is None or (what.endswith("/") and not name):
            text = f"{request.path[:80]}: no such endpoint of this API, or not one that reads"
            return self._reply(request, None, {}, 404, _error(text, _INVALID_QUERY, path))
        viewer: Viewer | None = None
        try:
            viewer = await self._viewer(request)
            check_query(request)
            _check_words(request.query, endpoint.words)
            query = _Query(viewer=viewer, version=version, name=name, arguments=request.query)
            content = await endpoint.handler(query)
        except GschedError as error:
            status, number = next(
                (known for kind, known in _STATUSES.items() if isinstance(error, kind)),
                (500, _UNREACHABLE),
            )
            found = _error(error.message, number, path)
            return self._reply(request, viewer, endpoint.empty, status, found)
        return self._reply(request, viewer, content, 200)

    async def _viewer(self, request: web.Request) -> Viewer:
        """Return who sent a request.

        Raises:
            NotPermittedError: nobody who is known, or somebody else than the header says.
        """
        viewer = await self._model.viewers.of(request)
        stated = request.headers.get(USER_HEADER, viewer.user)
        if stated != viewer.user:
            raise NotPermittedError(f"{USER_HEADER} names another user than the token")
        return viewer

    def _reply(
        self,
        request: web.Request,
        viewer: Viewer | None,
        content: Json,
        status: int,
        error: Json | None = None,
    ) -> web.Response:
        version = request.match_info["version"]
        release = VERSIONS.get(version, "")
        major, minor, micro = (*release.split("."), "", "", "")[:3]
        plugin = "slurmdbd" if request.path.startswith("/slurmdb/") else "slurmctld"
        meta = {
            "plugin": {
                "type": f"openapi/{plugin}",
                "name": "gsched",
                "data_parser": f"data_parser/{version}",
                "accounting_storage": "",
            },
            "client": {
                "source": request.remote or "",
                "user": viewer.user if viewer is not None else "",
                "group": _group(viewer.gid) if viewer is not None else "",
            },
            "command": [],
            "slurm": {
                "version": {"major": major, "minor": minor, "micro": micro},
                "release": release,
                "cluster": self._model.server,
            },
        }
        errors = [error] if error is not None else []
        return answer({**content, "meta": meta, "errors": errors, "warnings": []}, status=status)

    # --- slurmctld ---

    async def _node_rows(self, query: _Query) -> node_rows.NodeList:
        return await self._model.head.get("/v1/nodes", node_rows.NodeList, viewer=query.viewer)

    async def _status(self, query: _Query) -> api.StatusReply:
        return await self._model.head.get("/v1/status", api.StatusReply, viewer=query.viewer)

    def _now(self) -> Json:
        return {"last_update": r.number(self._model.clock.wall_s())}

    async def _ping(self, query: _Query) -> Json:
        await self._model.head.get("/v1/health", api.Health, viewer=query.viewer)
        row = {"hostname": self._model.server, "responding": True, "latency": 0, "primary": True}
        if query.version < "v0.0.45":
            row |= {"pinged": "UP", "mode": "primary"}
        else:
            row["status"] = "UP"
        return {"pings": [row]}

    async def _jobs(self, query: _Query) -> Json:
        head, now_s = self._model.head, self._model.clock.wall_s()
        live = await head.get("/v1/jobs", job_rows.JobList, viewer=query.viewer)
        past = await self._ended(query, {"since": str(now_s - RECENT_S)})
        known = {row.id: row for row in (*past, *live.jobs)}
        wanted = _words_of(query, "job_id")
        jobs = [
            r.job(row, self._model.server)
            for _, row in sorted(known.items())
            if not wanted or str(r.job_id(row)) in wanted
        ]
        return {"jobs": jobs, "last_backfill": r.number(now_s), **self._now()}

    async def _ended(
        self, query: _Query, filters: Mapping[str, str]
    ) -> tuple[job_rows.JobRow, ...]:
        reply = await self._model.head.get(
            "/v1/history",
            job_rows.HistoryReply,
            viewer=query.viewer,
            limit=str(MAX_HISTORY_ROWS),
            **filters,
        )
        return reply.jobs

    async def _rows_of(self, query: _Query) -> tuple[job_rows.JobRow, ...]:
        text = query.name.replace("_", "[", 1) + ("]" if "_" in query.name else "")
        reply = await self._model.head.get(
            "/v1/jobs", job_rows.JobList, viewer=query.viewer, ids=text
        )
        for error in reply.errors.values():
            raise _UnknownError(error.message)
        return reply.jobs

    async def _job(self, query: _Query) -> Json:
        rows = await self._rows_of(query)
        jobs = [r.job(row, self._model.server) for row in rows]
        return {"jobs": jobs, "last_backfill": r.number(None), **self._now()}

    async def _nodes(self, query: _Query) -> Json:
        status, reply = await self._status(query), await self._node_rows(query)
        found = [
            r.node(row, self._model.server, status.queues)
            for row in reply.nodes
            if query.name in ("", row.name)
        ]
        return {"nodes": _some(found, query), **self._now()}

    async def _partitions(self, query: _Query) -> Json:
        status, reply = await self._status(query), await self._node_rows(query)
        found = [
            r.partition(row, reply.nodes, self._model.server)
            for row in status.queue_rows
            if query.name in ("", row.name)
        ]
        return {"partitions": _some(found, query), **self._now()}

    async def _reservations(self, query: _Query) -> Json:
        reply = await self._model.head.get(
            "/v1/reservations", ReservationsReply, viewer=query.viewer
        )
        found = [*r.reserved(reply.rows), *r.reservations((await self._node_rows(query)).nodes)]
        found = [row for row in found if query.name in ("", row["name"])]
        return {"reservations": _some(found, query), **self._now()}

    async def _diag(self, query: _Query) -> Json:
        counted = await self._model.database.read(_counted)
        return {"statistics": r.statistics(await self._status(query), counted)}

    async def _licenses(self, query: _Query) -> Json:
        return {"licenses": r.licenses((await self._node_rows(query)).nodes), **self._now()}

    async def _resources(self, query: _Query) -> Json:
        return {
            "nodes": [{"node": node} for row in await self._rows_of(query) for node in row.nodes]
        }

    async def _conf(self, query: _Query) -> Json:
        status = await self._status(query)
        return {
            "slurm_conf": {"ClusterName": self._model.server, "MinJobAge": int(RECENT_S)},
            "slurm_conf_meta": {
                "BOOT_TIME": int(status.started_s),
                "SLURM_VERSION": VERSIONS[query.version],
            },
        }

    async def _shares(self, _: _Query) -> Json:
        return {"shares": {"shares": [], "total_shares": 0}}

    # --- slurmdbd ---

    async def _past_jobs(self, query: _Query) -> Json:
        server, now_s = self._model.server, self._model.clock.wall_s()
        since_s, until_s = (_moment_s(query, name) for name in ("start_time", "end_time"))
        filters = {"since": since_s, "until": until_s}
        ended = await self._ended(
            query, {name: str(at_s) for name, at_s in filters.items() if at_s is not None}
        )
        live = await self._model.head.get("/v1/jobs", job_rows.JobList, viewer=query.viewer)
        begun = [row for row in live.jobs if until_s is None or row.submitted_s <= until_s]
        known = {row.id: row for row in (*ended, *begun)}
        rows = _matching([row for _, row in sorted(known.items())], query, _JOB_FIELDS)
        return {"jobs": [r.past_job(row, server, now_s) for row in rows]}

    async def _past_job(self, query: _Query) -> Json:
        now_s, server = self._model.clock.wall_s(), self._model.server
        return {"jobs": [r.past_job(row, server, now_s) for row in await self._rows_of(query)]}

    async def _qos(self, query: _Query) -> Json:
        objects = (await self._objects(query))["qos"]
        known = {"normal": {}, **objects}
        found = [
            r.qos(name, at, int(str(values.get("priority", 0))), limits.of_qos(values))
            for at, (name, values) in enumerate(known.items(), 1)
            if query.name in ("", name)
        ]
        return {"qos": _matching(_some(found, query), query, _fields_of("id", "name"))}

    async def _accounts(self, query: _Query) -> Json:
        named = {account for _, account in await self._pairs(query) if account}
        projects = (await self._objects(query))["project"]
        found = []
        for name in sorted(named | projects.keys()):
            values = projects.get(name, {})
            coordinators, description = values.get("coordinators", ()), values.get("description")
            known = coordinators if isinstance(coordinators, tuple) else ()
            if query.name in ("", name):
                found.append(r.account(name, str(description or ""), known))
        return {"accounts": _some(found, query)}

    async def _objects(self, query: _Query) -> Objects:
        """Return projects, QOS and others, by kind and name."""
        reply = await self._model.head.get("/v1/objects", ObjectsReply, viewer=query.viewer)
        return reply.objects

    async def _users(self, query: _Query) -> Json:
        accounts: dict[str, list[str]] = {}
        for name, account in await self._memberships(query):
            accounts.setdefault(name, []).extend([account] if account else [])
        found = [r.user(*each) for each in sorted(accounts.items()) if query.name in ("", each[0])]
        return {"users": _some(found, query)}

    async def _associations(self, query: _Query) -> Json:
        """Return the tree of projects, as accounts without a user, and the users in each."""
        projects = (await self._objects(query))["project"]
        pairs = await self._memberships(query)
        accounts = {account for _, account in pairs if account} | projects.keys()
        shares = {("", account): 1 for account in ("root", *sorted(accounts))}
        found = []
        for number, ((name, account), count) in enumerate((shares | pairs).items(), 1):
            values = projects.get(account, {})
            parent = "" if account == "root" else str(values.get("parent", "root"))
            stated = count if name else int(str(values.get("shares", 1)))
            row = r.association(
                number, name, account, self._model.server, parent=parent, shares=stated
            )
            found.append(row | {"max": limits.of_association(values, name)})
        fields = _fields_of("account", "cluster", "id", "parent_account", "partition", "user")
        return {"associations": _matching(found, query, fields)}

    async def _clusters(self, query: _Query) -> Json:
        nodes = (await self._node_rows(query)).nodes
        found = [r.cluster_record(self._model.server, nodes)]
        found = [row for row in found if query.name in ("", row["name"])]
        return {"clusters": _some(found, query)}

    async def _config(self, query: _Query) -> Json:
        whole = structs.replace(query, name="", arguments={})
        parts = (self._clusters, self._accounts, self._users, self._qos, self._associations)
        found: Json = {"tres": (await self._tres(query))["TRES"], **await self._wckeys(whole)}
        for part in parts:
            found |= await part(whole)
        return found

    async def _tres(self, query: _Query) -> Json:
        return {"TRES": r.cluster_record("", (await self._node_rows(query)).nodes)["tres"]}

    async def _wckeys(self, query: _Query) -> Json:
        return {"wckeys": _some([], query)}

    async def _instances(self, _: _Query) -> Json:
        return {"instances": []}

    async def _past_diag(self, query: _Query) -> Json:
        return {"statistics": {"time_start": int((await self._status(query)).started_s)}}

    async def _past_conf(self, _: _Query) -> Json:
        return {"slurmdbd_conf": {"DbdHost": self._model.server}}

    async def _memberships(self, query: _Query) -> dict[tuple[str, str], int]:
        """Return the shares of users in projects, and 1 in accounts that only their jobs name."""
        found = dict.fromkeys(await self._pairs(query), 1)
        for project, values in (await self._objects(query))["project"].items():
            users = values.get("users", ())
            for entry in users if isinstance(users, tuple) else ():
                name, _, count = entry.partition(":")
                found[name, project] = int(count or 1)
        return found

    async def _pairs(self, query: _Query) -> list[tuple[str, str]]:
        """Return users and the accounts that their jobs name, each pair once."""
        only = self._model.only(query.viewer)
        found = await self._model.database.read(_user_accounts)
        return [pair for pair in found if not only or pair[0] == only]


def _user_accounts(db: sqlite3.Connection) -> list[tuple[str, str]]:
    query = "SELECT DISTINCT user, account FROM usage UNION SELECT DISTINCT user, '' FROM head.jobs"
    rows: list[tuple[str, str]] = db.execute(query).fetchall()
    named = {user for user, account in rows if account}
    return sorted((user, account) for user, account in rows if account or user not in named)


def _counted(db: sqlite3.Connection) -> dict[str, int]:
    """Return how many jobs were submitted and started, and have ended in which way."""
    counted = dict.fromkeys((*_COUNTED.values(), "jobs_failed"), 0)
    for name, labels, value in db.execute("SELECT name, labels, value FROM metric_counts"):
        if name in _COUNTED:
            counted[_COUNTED[name]] += int(value)
        elif name == "gsched_jobs_ended":
            counted[_COUNTED.get(json.loads(labels)[1], "jobs_failed")] += int(value)
    return counted


def _some(found: list[Json], query: _Query) -> list[Json]:
    """Return what was found.

    Raises:
        _UnknownError: it was requested by name, and there is none.
    """
    if query.name and not found:
        raise _UnknownError(f"{query.name[:80]}: there is no such record")
    return found


def _words_of(query: _Query, name: str) -> frozenset[str]:
    """Return the values of an argument, which may be a list; empty: it is not given."""
    return frozenset(query.arguments.get(name, "").split(",")) - {""}


def _matching(found: Sequence[T], query: _Query, fields: Mapping[str, Values[T]]) -> list[T]:
    """Return the rows that have one of the values of each argument that is given."""
    wanted = [
        (values, words) for name, values in fields.items() if (words := _words_of(query, name))
    ]
    return [row for row in found if all(words & {*values(row)} for values, words in wanted)]


def _fields_of(*names: str) -> Mapping[str, Values[Json]]:
    def field(name: str) -> Values[Json]:
        return lambda row: (str(row[name]),)

    return {name: field(name) for name in names}


def _check_words(given: Mapping[str, str], allowed: Mapping[str, frozenset[str]]) -> None:
    """Check the arguments of which Slurm's schema lists the values.

    Raises:
        InvalidRequestError: a value is unknown.
    """
    for name, words in allowed.items():
        unknown = sorted({*given[name].split(",")} - words) if name in given else ()
        if unknown:
            text = f"{name}: unknown value '{unknown[0][:80]}'"
            raise InvalidRequestError(f"{text}; valid values: {', '.join(sorted(words))}")


def _moment_s(query: _Query, name: str) -> float | None:
    """Return a time of a query, seconds since the epoch; None: it is not given.

    Raises:
        InvalidRequestError: it cannot be read.
    """
    text = query.arguments.get(name, "")
    at_s = r.read_moment_s(text)
    if text and at_s is None:
        valid = "seconds since 1970 or YYYY-MM-DD[THH:MM[:SS]]"
        raise InvalidRequestError(f"{name}: '{text[:80]}' is not a time: {valid}")
    return at_s


def _error(text: str, code: int, source: str) -> Json:
    return {"description": text, "error_number": code, "error": text, "source": source}


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
