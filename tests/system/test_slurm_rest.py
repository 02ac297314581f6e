"""The answers to Slurm's REST API, compared with the schema that slurmrestd itself prints."""

import base64
import getpass
import http.client
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from gsched.config.web import WebConfig
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.monitor import UnixConnection, address, get, is_ready, send, socket_of
from tests.support.processes import PATIENCE_S
from tests.support.slurm_schema import printed_schemas

PATHS = {
    "/slurm/{}/ping/": "ping",
    "/slurm/{}/diag/": "diag",
    "/slurm/{}/jobs/": "jobs",
    "/slurm/{}/job/{{job_id}}": "job/1",
    "/slurm/{}/nodes/": "nodes",
    "/slurm/{}/node/{{node_name}}": "node/a",
    "/slurm/{}/partitions/": "partitions/",
    "/slurm/{}/partition/{{partition_name}}": "partition/batch",
    "/slurm/{}/reservations/": "reservations",
    "/slurm/{}/licenses/": "licenses",
    "/slurm/{}/shares": "shares",
    "/slurm/{}/jobs/state/": "jobs/state",
    "/slurm/{}/resources/{{job_id}}": "resources/1",
    "/slurm/{}/conf": "conf",
    "/slurmdb/{}/tres/": "tres",
    "/slurmdb/{}/diag/": "diag",
    "/slurmdb/{}/wckeys/": "wckeys",
    "/slurmdb/{}/instances/": "instances",
    "/slurmdb/{}/conf": "conf",
    "/slurmdb/{}/jobs/": "jobs",
    "/slurmdb/{}/job/{{job_id}}": "job/1",
    "/slurmdb/{}/qos/": "qos",
    "/slurmdb/{}/accounts/": "accounts",
    "/slurmdb/{}/users/": "users",
    "/slurmdb/{}/associations/": "associations",
    "/slurmdb/{}/clusters/": "clusters",
    "/slurmdb/{}/config": "config",
}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster with three jobs; the tests read."""
    cluster = Cluster(tmp_path_factory.mktemp("used"), f"slurm-rest-{os.getpid()}")
    cluster.has_monitor = True
    cluster.web_settings = {"sample_period_s": 1}
    try:
        cluster.start_head()
        cluster.start_node("a")
        _use(cluster)
        yield cluster
    finally:
        cluster.stop()


def _use(cluster: Cluster) -> None:
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    for options in (["-A", "physics", "-l", "walltime=1:00:00"], ["-h"], ["-h", "-J", "0-3"]):
        done = run_command("gsub", *options, "--", "false", head=cluster.socket, cwd=cluster.jobs)
        assert done.status == 0, done.stderr
    run_command("gwait", "1", head=cluster.socket)
    wait_until(lambda: answer(cluster, "slurmdb/v0.0.44/accounts")["accounts"], what="its account")


def answer(cluster: Cluster, path: str, status: int = 200) -> dict[str, Any]:
    response = get(cluster, f"/{path}")
    assert response.status == status, response.text
    found: dict[str, Any] = json.loads(response.text)
    assert bool(found["errors"]) == (status != 200)
    return found


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the OpenAPI documents of the installed slurmrestd."""
    made = printed_schemas(tmp_path_factory.mktemp("slurm"))
    if not made:
        pytest.skip("no slurmrestd is installed that has one of these versions")
    return made


KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def faults(value: Any, schema: dict[str, Any], schemas: dict[str, Any], at: str) -> Iterator[str]:
    """Yield where a value is not as a schema says, or has a field that it does not know."""
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    kind = schema.get("type", "object")
    if type(value) not in KINDS[kind]:
        yield f"{at}: {value!r} is not of type {kind}"
        return
    if schema.get("format") == "int32" and not -(2**31) <= value < 2**31:
        yield f"{at}: {value} is no int32"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is not one of {schema['enum']}"
    for index, each in enumerate(value if kind == "array" else ()):
        yield from faults(each, schema["items"], schemas, f"{at}[{index}]")
    if kind == "object" and "properties" in schema:
        known = schema["properties"]
        yield from (
            f"{at}: {name} is missing" for name in schema.get("required", ()) if name not in value
        )
        yield from (f"{at}: {name} is unknown" for name in value if name not in known)
        for name in value.keys() & known.keys():
            yield from faults(value[name], known[name], schemas, f"{at}.{name}")


def test_each_answer_is_as_the_schema_of_slurmrestd_says(
    specs: dict[str, dict[str, Any]], used: Cluster
) -> None:
    found: list[str] = []
    for version, spec in specs.items():
        for path, what in PATHS.items():
            if path.format(version) not in spec["paths"]:
                continue  # of a later version
            operation = spec["paths"][path.format(version)]["get"]
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            url = f"{path.split('/')[1]}/{version}/{what}"
            found += faults(answer(used, url), schema, spec["components"]["schemas"], url)

    assert found == []


#: Fields that the interface of Slurm-web 6 reads from each record without a check.
READ_BY_SLURM_WEB = {
    "slurm/v0.0.44/jobs": (
        "account cpus gres_detail job_id job_state node_count nodes partition priority qos "
        "sockets_per_node state_reason tasks tres_per_job tres_per_node tres_per_socket "
        "tres_per_task user_name"
    ),
    "slurmdb/v0.0.44/job/1": (
        "association.account association.cluster association.id association.partition "
        "association.user comment.administrator comment.job comment.system "
        "derived_exit_code.return_code derived_exit_code.signal.id derived_exit_code.signal.name "
        "derived_exit_code.status exit_code.return_code exit_code.signal.id exit_code.status "
        "group name nodes partition priority qos script state.current state.reason steps "
        "submit_line time.elapsed time.eligible time.end time.limit time.planned time.start "
        "time.submission time.suspended time.system.seconds time.total.microseconds "
        "time.user.seconds tres.allocated tres.requested user wckey.flags wckey.wckey "
        "working_directory"
    ),
    "slurmdb/v0.0.44/jobs": (
        "account job_id nodes partition priority qos state.current time.elapsed tres.allocated user"
    ),
    "slurm/v0.0.44/nodes": (
        "alloc_cpus alloc_idle_cpus alloc_memory architecture boot_time cores cpus gres gres_used "
        "last_busy name operating_system partitions real_memory reason sockets state threads"
    ),
    "slurm/v0.0.44/partitions": "name node_sets",
    "slurm/v0.0.44/reservations": (
        "accounts end_time flags name node_count node_list start_time users"
    ),
    "slurmdb/v0.0.44/qos": (
        "description flags name priority limits.factor limits.grace_time "
        "limits.max.accruing.per.account limits.max.accruing.per.user "
        "limits.max.active_jobs.accruing limits.max.active_jobs.count "
        "limits.max.jobs.active_jobs.per.account limits.max.jobs.active_jobs.per.user "
        "limits.max.jobs.count limits.max.jobs.per.account limits.max.jobs.per.user "
        "limits.max.tres.minutes.per.account limits.max.tres.minutes.per.job "
        "limits.max.tres.minutes.per.qos limits.max.tres.minutes.per.user "
        "limits.max.tres.minutes.total limits.max.tres.per.account limits.max.tres.per.job "
        "limits.max.tres.per.node limits.max.tres.per.user limits.max.tres.total "
        "limits.max.wall_clock.per.job limits.max.wall_clock.per.qos "
        "limits.min.priority_threshold limits.min.tres.per.job"
    ),
    "slurmdb/v0.0.44/accounts": "name",
    "slurmdb/v0.0.44/associations": (
        "account parent_account qos user max.jobs.accruing max.jobs.active "
        "max.jobs.per.accruing max.jobs.per.count max.jobs.per.submitted max.jobs.per.wall_clock "
        "max.jobs.total max.per.account.wall_clock max.tres.group.active max.tres.group.minutes "
        "max.tres.minutes.per.job max.tres.minutes.total max.tres.per.job max.tres.per.node "
        "max.tres.total"
    ),
}


def test_slurm_web_finds_what_it_reads(used: Cluster) -> None:
    """Its agent takes no other type than this one, and knows an error by its number."""
    made = run_command(
        "gnodes", "maintenance", "a", "--from", "+10h", "--to", "+1h", head=used.socket
    )
    assert made.status == 0, made.stderr
    for path, names in READ_BY_SLURM_WEB.items():
        response = get(used, f"/{path}")
        assert response.headers["content-type"] == "application/json"
        found = json.loads(response.text)
        assert (found["errors"], found["warnings"]) == ([], [])
        rows = next(value for name, value in found.items() if isinstance(value, list))
        assert rows, path
        for row, name in itertools.product(rows, names.split()):
            value = row
            for key in name.split("."):
                assert key in value, f"{path}: {name}"
                value = value[key]
    assert {"version", "release", "cluster"} <= answer(used, "slurm/v0.0.44/ping")["meta"][
        "slurm"
    ].keys()
    for path in ("slurm/v0.0.44/job/99", "slurmdb/v0.0.44/job/99"):
        (error,) = answer(used, path, 404)["errors"]
        assert error["error_number"] == 2017


def test_jobs_have_slurms_states_and_limits(used: Cluster) -> None:
    jobs = {row["job_id"]: row for row in answer(used, "slurm/v0.0.44/jobs")["jobs"]}

    assert jobs[1]["job_state"] == ["FAILED"]
    assert jobs[1]["account"] == "physics"
    assert jobs[1]["time_limit"] == {"set": True, "infinite": False, "number": 60}
    assert jobs[1]["exit_code"]["return_code"]["number"] == 1
    assert (jobs[2]["job_state"], jobs[2]["state_reason"]) == (["PENDING"], "JobHeldUser")
    assert jobs[2]["time_limit"]["infinite"]
    assert jobs[3]["array_job_id"]["number"] == 3
    assert jobs[3]["array_task_string"] == "0-3"
    assert answer(used, "slurm/v0.0.44/nodes")["nodes"][0]["state"] == ["IDLE"]
    partitions = answer(used, "slurm/v0.0.44/partitions")["partitions"]
    assert [row["partition"]["state"] for row in partitions] == [["UP"]]


def test_an_error_has_slurms_form(used: Cluster) -> None:
    for path in (
        *("slurm/v0.0.44/job/99", "slurm/v0.0.44/job/no", "slurm/v0.0.44/node/no"),
        *("slurm/v0.0.1/jobs", "slurm/v0.0.44/none", "slurmdb/v0.0.44/user/nobody"),
    ):
        (error,) = answer(used, path, 404)["errors"]
        assert error["error_number"]
        assert error["description"]


def test_over_tcp_a_token_says_who_reads(used: Cluster) -> None:
    text = send(UnixConnection(socket_of(used)), "POST", "/v1/slurm-token").text
    token = text.strip().removeprefix("SLURM_JWT=")
    host, _, port = address(used).address.rpartition(":")

    def status(**headers: str) -> int:
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        return send(connection, "GET", "/slurm/v0.0.44/jobs", headers=headers).status

    assert status() == 401
    assert status(**{"X-SLURM-USER-TOKEN": "no"}) == 401
    assert status(**{"X-SLURM-USER-TOKEN": token}) == 200
    assert status(Authorization=f"Bearer {token}") == 200
    assert status(Authorization=f"Bearer {token[:-4]}") == 401
    assert status(**{"X-SLURM-USER-TOKEN": token, "X-SLURM-USER-NAME": "another"}) == 401
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    assert send(connection, "POST", "/v1/slurm-token").status == 403


def test_the_token_tells_its_end_as_a_json_web_token(used: Cluster) -> None:
    """Slurm-web and others read the claims of a token, without its signature."""
    text = send(UnixConnection(socket_of(used)), "POST", "/v1/slurm-token").text
    header, claims, _ = text.strip().removeprefix("SLURM_JWT=").split(".")

    assert json.loads(base64.urlsafe_b64decode(header + "=="))["typ"] == "JWT"
    found = json.loads(base64.urlsafe_b64decode(claims + "=="))
    assert found["sun"] == getpass.getuser()
    assert found["exp"] - found["iat"] == 3600 * WebConfig().session_hours


def test_arguments_select_jobs(used: Cluster) -> None:
    def numbers(query: str) -> list[int]:
        jobs = answer(used, f"slurmdb/v0.0.44/jobs?{query}")["jobs"]
        return [row["job_id"] for row in jobs]

    assert numbers("") == [1, 2, 3]
    assert numbers("account=physics,other") == [1]
    assert numbers("account=other") == []
    assert numbers("state=FAILED") == numbers("state=F,R") == [1]
    assert numbers("state=PENDING") == [2, 3]
    assert numbers("node=a,b") == [1]
    assert numbers("step=2") == [2]
    assert numbers(f"users=nobody,{getpass.getuser()}") == [1, 2, 3]
    assert numbers("end_time=2001-01-01") == []
    (error,) = answer(used, "slurmdb/v0.0.44/jobs?start_time=yesterday", 400)["errors"]
    assert "'yesterday' is not a time" in error["description"]


def test_an_error_has_the_fields_that_the_schema_requires(used: Cluster) -> None:
    assert answer(used, "slurm/v0.0.44/job/99", 404)["jobs"] == []
    twice = answer(used, "slurm/v0.0.44/nodes?flags=DETAIL&flags=DETAIL", 400)
    assert twice["nodes"] == []
    assert "the query states 'flags' 2 times" in twice["errors"][0]["description"]
    found = answer(used, "slurm/v0.0.44/nodes?flags=WRONG", 400)
    assert found["nodes"] == []
    assert "unknown value 'WRONG'; valid values: ALL, DETAIL" in found["errors"][0]["description"]
    assert answer(used, "slurmdb/v0.0.44/account/a%0Ab", 404)["accounts"] == []
    response = send(UnixConnection(socket_of(used)), "DELETE", "/slurm/v0.0.44/job/1")
    assert (response.status, response.headers["allow"]) == (405, "GET,HEAD")


def test_projects_and_qos_are_listed_as_they_are(cluster: Cluster) -> None:
    """With parents, shares and coordinators, also those that no job names."""
    cluster.queues = (
        '[[queue]]\nname = "batch"\n[[qos]]\nname = "urgent"\npriority = 50\n'
        "total = { max_running = 9, max_walltime_s = 5400 }\neach_user = { max_gpus = 4 }\n"
        '[[project]]\nname = "ai"\nusers = { alice = 3 }\ncoordinators = ["alice"]\nshares = 7\n'
        'total = { max_memory_bytes = "1gb" }\nuser = { alice = { max_running = 5 } }\n'
        "each_user = { max_running = 2, max_queued = 20 }\n"
        '[[project]]\nname = "nlp"\nparent = "ai"\nusers = ["bob"]\n'
    )
    cluster.has_monitor = True
    cluster.start_head()
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")

    found = {each["name"]: each for each in answer(cluster, "slurmdb/v0.0.44/accounts")["accounts"]}
    assert found.keys() == {"ai", "nlp"}
    assert [each["name"] for each in found["ai"]["coordinators"]] == ["alice"]
    qos = {each["name"]: each for each in answer(cluster, "slurmdb/v0.0.44/qos")["qos"]}
    assert {name: each["priority"]["number"] for name, each in qos.items()} == {
        "normal": 0,
        "urgent": 50,
    }
    rows = answer(cluster, "slurmdb/v0.0.44/associations")["associations"]
    assert {(r["user"], r["account"], r["parent_account"], r["shares_raw"]) for r in rows} == {
        ("", "root", "", 1),
        ("", "ai", "root", 7),
        ("", "nlp", "ai", 1),
        ("alice", "ai", "root", 3),
        ("bob", "nlp", "ai", 1),
    }
    most = qos["urgent"]["limits"]["max"]
    assert most["active_jobs"]["count"] == {"set": True, "infinite": False, "number": 9}
    assert most["jobs"]["per"]["user"] == {"set": False, "infinite": True, "number": 0}
    assert most["wall_clock"]["per"]["job"]["number"] == 90
    assert [(row["type"], row["count"]) for row in most["tres"]["per"]["user"]] == [("gres", 4)]
    limits = {(row["user"], row["account"]): row["max"] for row in rows}
    (memory,) = limits["", "ai"]["tres"]["total"]
    assert (memory["type"], memory["count"]) == ("mem", 1024)
    assert limits["", "ai"]["jobs"]["active"]["infinite"]
    assert limits["alice", "ai"]["jobs"]["active"]["number"] == 5, "not what each user has"
    assert limits["alice", "ai"]["jobs"]["total"]["number"] == 20
