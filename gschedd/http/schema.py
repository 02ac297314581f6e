"""The published description of the API, made from the very types that encode it."""

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

import msgspec
from aiohttp import web

from gsched.protocol import actions as a
from gsched.protocol import api, job_rows, node_rows, recover, submissions
from gsched.protocol import joining as j
from gsched.protocol import predictions as p
from gsched.protocol import tokens as t
from gsched.protocol.code import CodePiece, CodeReply
from gsched.protocol.hosts import HostList
from gsched.protocol.messages import JobMessage, MessageReply
from gsched.protocol.queues import ObjectsReply, QueueRequest
from gsched.protocol.rerun import RerunFailed, RerunReply, SubmitAgain, SubmitAgainReply
from gsched.protocol.reservations import ReservationChange, ReservationsReply
from gsched.protocol.running import ReloadReply, RunningConfig
from gsched.protocol.samples import UseSamples
from gsched.protocol.settings import NodeSettingsReply
from gsched.protocol.shares import LimitsReply, SharesReply
from gsched.protocol.stories import JobStories
from gsched.protocol.tasks import RunTask, TaskList
from gsched.version import VERSION
from gschedd.http.answers import answer
from gschedd.models.saved import SnapshotFile

#: Method, path, what it is for, body, answer.
ROUTES: Final[tuple[tuple[str, str, str, type | None, type], ...]] = (
    ("get", "/v1/health", "the head answers", None, api.Health),
    ("get", "/v1/status", "how the head is", None, api.StatusReply),
    ("post", "/v1/jobs", "queue jobs", submissions.SubmitRequest, submissions.SubmitReply),
    ("post", "/v1/code", "send a code snapshot", CodePiece, CodeReply),
    ("get", "/v1/jobs", "list jobs", None, job_rows.JobList),
    ("get", "/v1/jobs/{id}", "one job's story", None, job_rows.JobStory),
    ("get", "/v1/stories", "the stories of many jobs", None, JobStories),
    ("get", "/v1/jobs/{id}/wait", "wait until a job is done", None, job_rows.JobStory),
    ("get", "/v1/jobs/{id}/output", "read a running job's output", None, api.OutputChunk),
    ("post", "/v1/jobs/{id}/message", "write into output files", JobMessage, MessageReply),
    ("post", "/v1/jobs/actions", "act on jobs", a.JOB_ACTION, api.ActionReply),
    ("post", "/v1/jobs/rerun-failed", "submit what has failed again", RerunFailed, RerunReply),
    ("post", "/v1/jobs/submit-again", "submit a job again", SubmitAgain, SubmitAgainReply),
    ("get", "/v1/nodes", "list nodes", None, node_rows.NodeList),
    ("get", "/v1/samples", "figures of nodes and running jobs", None, UseSamples),
    ("post", "/v1/nodes/actions", "act on nodes", a.NODE_ACTION, api.ActionReply),
    ("get", "/v1/nodes/predictions", "nodes beside predictions", None, p.NodePredictions),
    ("post", "/v1/queues", "change queues", QueueRequest, api.ActionReply),
    ("get", "/v1/reservations", "reservations of nodes and GPUs", None, ReservationsReply),
    (
        *("post", "/v1/reservations", "create, alter or delete a reservation"),
        *(ReservationChange, ReservationsReply),
    ),
    ("get", "/v1/objects", "queues, projects, users and QOS", None, ObjectsReply),
    ("get", "/v1/limits", "limits, what is used of them, and by whom", None, LimitsReply),
    ("get", "/v1/shares", "usage and fair shares of projects and users", None, SharesReply),
    ("get", "/v1/history", "past jobs and totals", None, job_rows.HistoryReply),
    ("get", "/v1/history/predictions", "predicted and measured", None, p.PredictionsReply),
    ("get", "/v1/nodes/{name}/settings", "settings of a node", None, NodeSettingsReply),
    ("get", "/v1/config", "the configuration of the running head", None, RunningConfig),
    ("post", "/v1/reload", "read the configuration again", None, ReloadReply),
    ("get", "/v1/hosts", "the hosts of the cluster", None, HostList),
    ("get", "/v1/tasks", "the periodic tasks of the head", None, TaskList),
    ("post", "/v1/tasks", "start a periodic task", RunTask, TaskList),
    ("get", "/v1/user-tokens", "tokens of users", None, t.UserTokenList),
    ("post", "/v1/user-tokens", "create a token", t.CreateUserToken, t.CreatedUserToken),
    ("delete", "/v1/user-tokens/{id}", "revoke a token", None, t.UserTokenList),
    ("get", "/v1/tokens", "tokens by which hosts join", None, j.TokenList),
    ("post", "/v1/tokens", "let a host join", j.CreateToken, j.CreatedToken),
    ("delete", "/v1/tokens/{id}", "revoke a token of a host", None, j.TokenList),
    ("get", "/v1/authority", "authorities and certificates", None, j.AuthorityState),
    ("get", "/v1/authority/certificate", "authorities in PEM", None, j.AuthorityReply),
    ("post", "/v1/authority", "replace the authority", j.ChangeAuthority, j.AuthorityState),
    ("post", "/v1/nodes/{name}/revoke", "revoke a host's certificates", None, j.AuthorityState),
    ("get", "/v1/snapshot", "what the policies see, to be replayed", None, SnapshotFile),
    ("post", "/v1/recover", "end safe mode", recover.RecoverRequest, api.Health),
    ("get", "/v1/recover", "what nodes know that the database lacks", None, recover.RecoverReply),
)
_HISTORY: Final = ("ids", "user", "queue", "name", "outcome", "since", "until", "limit")
#: Fields of the query, by path of a GET.
QUERIES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "/v1/jobs": ("ids", "user", "state", "all", "elements", "forecast"),
        "/v1/stories": ("ids", "forecast"),
        "/v1/jobs/{id}/wait": ("timeout_s",),
        "/v1/jobs/{id}/output": ("stream", "offset", "max", "node"),
        "/v1/history": _HISTORY,
        "/v1/history/predictions": _HISTORY,
        "/v1/shares": ("project", "user"),
        "/v1/hosts": ("names",),
    }
)
_NUMBERS: Final = frozenset({"since", "until", "limit", "timeout_s", "offset", "max"})


@cache
def document() -> dict[str, object]:
    """Return the OpenAPI 3.1 document."""
    types = sorted(
        {kind for route in ROUTES for kind in route[3:] if kind is not None} | {api.ErrorReply},
        key=str,
    )
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=_of_anything, ref_template="#/components/schemas/{name}"
    )
    refs = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for method, path, summary, body, reply in ROUTES:
        operation: dict[str, object] = {
            "summary": summary,
            "responses": {
                "200": {"description": "done", "content": _json(refs[reply])},
                "default": {"description": "refused", "content": _json(refs[api.ErrorReply])},
            },
        }
        if body is not None:
            operation["requestBody"] = {"required": True, "content": _json(refs[body])}
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", path)
        ]
        parameters += [
            {
                "name": name,
                "in": "query",
                "schema": {"type": "number" if name in _NUMBERS else "string"},
            }
            for name in (QUERIES.get(path, ()) if method == "get" else ())
        ]
        if parameters:
            operation["parameters"] = parameters
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "gsched head", "version": VERSION},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "over HTTPS: of gsched token create --role user",
                }
            },
        },
    }


def _of_anything(kind: type) -> dict[str, object]:
    """Return the schema of a value that may be any JSON, such as a site's setting.

    Raises:
        NotImplementedError: nothing is known of the type.
    """
    if kind is object:
        return {"description": "any value"}  # msgspec takes an empty one for none
    raise NotImplementedError(kind)


def _json(schema: dict[str, object]) -> dict[str, object]:
    return {"application/json": {"schema": schema}}


async def _openapi(_: web.Request) -> web.Response:
    """``GET /v1/openapi.json``."""
    return answer(document())


OPENAPI: Final = web.get("/v1/openapi.json", _openapi)
