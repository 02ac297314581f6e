"""``/slurm/VERSION/...`` and ``/slurmdb/VERSION/...``, as slurmrestd serves them to be read."""

import grp
import json
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web
from msgspec import Struct, structs

from gsched.errors import GschedError, NotPermittedError, UnknownJobError
from gsched.protocol import api
from gschedd.http.answers import answer
from gschedd.monitor.model import ReadModel
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


class _UnknownError(GschedError):
    """There is no such thing."""


Handler = Callable[[_Query], Awaitable[Json]]


class SlurmRoutes:
    """Answers from what the head and the read model have."""

    def __init__(self, model: ReadModel) -> None:
        self._model = model
        self._handlers: Mapping[tuple[str, str], Handler] = {
            ("slurm", "ping"): self._ping,
            ("slurm", "jobs"): self._jobs,
            ("slurm", "job"): self._job,
            ("slurm", "nodes"): self._nodes,
            ("slurm", "node"): self._nodes,
            ("slurm", "partitions"): self._partitions,
            ("slurm", "partition"): self._partitions,
            ("slurm", "reservations"): self._reservations,
            ("slurm", "reservation"): self._reservations,
            ("slurm", "diag"): self._diag,
            ("slurm", "licenses"): self._licenses,
            ("slurm", "shares"): self._shares,
            ("slurmdb", "ping"): self._ping,
            ("slurmdb", "jobs"): self._past_jobs,
            ("slurmdb", "job"): self._past_job,
            ("slurmdb", "qos"): self._qos,
            ("slurmdb", "accounts"): self._accounts,
            ("slurmdb", "account"): self._accounts,
            ("slurmdb", "users"): self._users,
            ("slurmdb", "user"): self._users,
            ("slurmdb", "associations"): self._associations,
            ("slurmdb", "clusters"): self._clusters,
            ("slurmdb", "cluster"): self._clusters,
            ("slurmdb", "config"): self._config,
        }

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/slurm/{version}/{what:.*}", self.give),
            web.get("/slurmdb/{version}/{what:.*}", self.give),
            web.post("/v1/slurm-token", self.new_token),
        ]

    async def new_token(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/slurm-token``: a token for X-SLURM-USER-TOKEN, as text; Unix socket only."""
        viewers = self._model.viewers
        viewer = viewers.at_socket(request)
        token = viewers.begin_session(viewers.new_token(viewer))
        return web.Response(text=f"SLURM_JWT={token}\n")

    async def give(self, request: web.Request) -> web.StreamResponse:
        """Answer a request; errors have Slurm's form, too."""
        version, path = request.match_info["version"], request.match_info["what"].strip("/")
        plugin = request.path.split("/")[1]
        what, _, name = path.partition("/")
        handler = self._handlers.get((plugin, what))
        if version not in VERSIONS or handler is None:
            text = f"/{plugin}/{version}/{what}: no such endpoint of this API"
            return self._reply(request, None, {}, 404, _error(text, _INVALID_QUERY, what))
        viewer: Viewer | None = None
        try:
            viewer = self._viewer(request)
            query = _Query(viewer=viewer, version=version, name=name, arguments=request.query)
            content = await handler(query)
        except NotPermittedError as error:
            found = _error(error.message, _AUTHENTICATION, what)
            return self._reply(request, None, {}, 401, found)
        except (_UnknownError, UnknownJobError) as error:
            found = _error(error.message, _INVALID_JOB, what)
            return self._reply(request, viewer, {}, 404, found)
        except GschedError as error:
            found = _error(error.message, _UNREACHABLE, what)
            return self._reply(request, viewer, {}, 500, found)
        return self._reply(request, viewer, content, 200)

    def _viewer(self, request: web.Request) -> Viewer:
        """Return who sent a request.

        Raises:
            NotPermittedError: nobody who is known, or somebody else than the header says.
        """
        viewer = self._model.viewers.of(request)
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

    async def _node_rows(self, query: _Query) -> api.NodeList:
        return await self._model.head.get("/v1/nodes", api.NodeList, viewer=query.viewer)

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
        live = await head.get("/v1/jobs", api.JobList, viewer=query.viewer)
        since = str(now_s - RECENT_S)
        past = await head.get("/v1/history", api.HistoryReply, viewer=query.viewer, since=since)
        known = {row.id: row for row in (*past.jobs, *live.jobs)}
        jobs = [r.job(row, self._model.server) for _, row in sorted(known.items())]
        return {"jobs": jobs, "last_backfill": r.number(now_s), **self._now()}

    async def _rows_of(self, query: _Query) -> tuple[api.JobRow, ...]:
        text = query.name.replace("_", "[", 1) + ("]" if "_" in query.name else "")
        reply = await self._model.head.get("/v1/jobs", api.JobList, viewer=query.viewer, ids=text)
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
        found = r.reservations((await self._node_rows(query)).nodes)
        found = [row for row in found if query.name in ("", row["name"])]
        return {"reservations": _some(found, query), **self._now()}

    async def _diag(self, query: _Query) -> Json:
        counted = await self._model.database.read(_counted)
        return {"statistics": r.statistics(await self._status(query), counted)}

    async def _licenses(self, query: _Query) -> Json:
        return {"licenses": r.licenses((await self._node_rows(query)).nodes), **self._now()}

    async def _shares(self, _: _Query) -> Json:
        return {"shares": {"shares": [], "total_shares": 0}}

    # --- slurmdbd ---

    async def _past_jobs(self, query: _Query) -> Json:
        given = query.arguments
        filters = {
            name: given[slurm_name]
            for name, slurm_name in (
                ("user", "users"), ("queue", "partition"), ("name", "job_name")
            )
            if given.get(slurm_name)
        }  # fmt: skip
        for name, slurm_name in (("since", "start_time"), ("until", "end_time")):
            at_s = r.read_moment_s(given.get(slurm_name, ""))
            if at_s is not None:
                filters[name] = str(at_s)
        reply = await self._model.head.get(
            "/v1/history", api.HistoryReply, viewer=query.viewer, **filters
        )
        server = self._model.server
        return {"jobs": [r.past_job(row, server, reply.now_s) for row in reply.jobs]}

    async def _past_job(self, query: _Query) -> Json:
        now_s, server = self._model.clock.wall_s(), self._model.server
        return {"jobs": [r.past_job(row, server, now_s) for row in await self._rows_of(query)]}

    async def _qos(self, query: _Query) -> Json:
        return {"qos": _some([r.qos()] if query.name in ("", "normal") else [], query)}

    async def _accounts(self, query: _Query) -> Json:
        names = sorted({account for _, account in await self._pairs() if account})
        found = [r.account(name) for name in names if query.name in ("", name)]
        return {"accounts": _some(found, query)}

    async def _users(self, query: _Query) -> Json:
        accounts: dict[str, list[str]] = {}
        for name, account in await self._pairs():
            accounts.setdefault(name, []).extend([account] if account else [])
        found = [r.user(*each) for each in sorted(accounts.items()) if query.name in ("", each[0])]
        return {"users": _some(found, query)}

    async def _associations(self, _: _Query) -> Json:
        server = self._model.server
        return {
            "associations": [
                r.association(number, name, account, server)
                for number, (name, account) in enumerate(await self._pairs(), 1)
            ]
        }

    async def _clusters(self, query: _Query) -> Json:
        nodes = (await self._node_rows(query)).nodes
        found = [r.cluster_record(self._model.server, nodes)]
        found = [row for row in found if query.name in ("", row["name"])]
        return {"clusters": _some(found, query)}

    async def _config(self, query: _Query) -> Json:
        whole = structs.replace(query, name="", arguments={})
        parts = (self._clusters, self._accounts, self._users, self._qos, self._associations)
        found: Json = {"tres": r.cluster_record("", (await self._node_rows(query)).nodes)["tres"]}
        for part in parts:
            found |= await part(whole)
        return found

    async def _pairs(self) -> list[tuple[str, str]]:
        """Return users and the accounts that their jobs name, each pair once."""
        return await self._model.database.read(_user_accounts)


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


def _error(text: str, code: int, source: str) -> Json:
    return {"description": text, "error_number": code, "error": text, "source": source}


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
