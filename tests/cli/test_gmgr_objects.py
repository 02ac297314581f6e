"""gmgr: projects, users, QOS and limits on a running head, and what coordinators may change."""

import getpass
import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.in_process import run_here
from tests.support.users import made_users

pytestmark = pytest.mark.timeout(240)


TABLES = (
    '[[queue]]\nname = "batch"\ntotal.max_running = 50\n'
    '[[project]]\nname = "base"\nshares = 2\nusers = ["alice"]\n'
)


@pytest.fixture
def head(cluster: Cluster) -> Cluster:
    cluster.queues = TABLES
    cluster.start_head()
    return cluster


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a head with objects, for commands that change nothing."""
    cluster = Cluster(tmp_path_factory.mktemp("filled"), f"filled-{os.getpid()}")
    cluster.queues = TABLES
    try:
        cluster.start_head()
        fill(cluster)
        yield cluster
    finally:
        cluster.stop()


def gmgr(cluster: Cluster, *words: str) -> str:
    ran = run_here("gmgr", *words, head=cluster.socket)
    assert (ran.status, ran.stderr) == (0, "")
    return ran.stdout


def fill(cluster: Cluster) -> None:
    gmgr(cluster, "create", "project", "ai", "shares=3", "users=alice:2,bob", "parent=base")
    gmgr(cluster, "set", "project", "ai", "total.max_gpus=16", "user.a.b.max_gpus_of.h100=2.5")
    gmgr(cluster, "set", "project", "ai", "each_user.max_walltime_s=1:30:00", "users+=carol:4")
    gmgr(cluster, "create", "qos", "urgent", "priority=50", "each_project.max_running=3")
    gmgr(cluster, "set", "queue", "batch", "each_user.max_memory_bytes=64gb")
    gmgr(cluster, "set", "user", "alice", "max_running=20", "max_running_gpu_hours=-1")
    gmgr(cluster, "set", "server", "each_user.max_cpus=512")


def test_what_print_and_export_print_makes_the_same_objects(head: Cluster, tmp_path: Path) -> None:
    """With the limits of queues, users and the site, also after a restart."""
    fill(head)
    printed, before = gmgr(head, "print"), json.loads(gmgr(head, "list", "--json"))
    exported = gmgr(head, "export")
    listed = gmgr(head, "list")
    for line in (
        *("project ai", "    shares = 3", "    users = alice:2,bob,carol:4", "    parent = base"),
        *("    user.a.b.max_gpus_of.h100 = 2.5", "    each_user.max_walltime_s = 01:30:00"),
        *("qos urgent", "    each_project.max_running = 3", "    total.max_running = 50"),
        *("user alice", "    max_running = 20", "server", "    each_user.max_cpus = 512"),
    ):
        assert f"{line}\n" in f"{listed}\n", line
    head.stop_head()
    head.start_head()
    assert gmgr(head, "print") == printed

    other = Cluster(tmp_path / "other", head._marker)
    try:
        other.start_head()
        (tmp_path / "commands").write_text(printed)
        for line in printed.splitlines():
            run_here("gmgr", *line.split(), head=other.socket)
        assert gmgr(other, "print", "project") in printed
        assert gmgr(other, "print", "user", "alice") in printed
        other.stop_head()
        (other.state_dir / "queues.json").write_text("{}")
        assert tomllib.loads(exported)["limits"]["each_user"] == {"max_cpus": 512}
        other.queues = exported
        other.start_head()
        assert json.loads(gmgr(other, "list", "--json")) == before
    finally:
        other.stop()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("set project ai shares=0", "shares = 0: Expected `int` >= 1"),
        ("set project ai shares=-3", "shares = -3: Expected `int` >= 1"),
        ("set project ai parent=ai", "makes a circle: ai is below ai"),
        ("set project base parent=ai", "makes a circle"),
        ("set project ai parent=none", "unknown project 'none'"),
        ("set project ai users=alice:many", "users = ('alice:many',): Expected"),
        ("set project ai total.max_gpu=3", "did you mean 'total.max_gpus'?"),
        ("set project none shares=3", "unknown project 'none'"),
        ("set user alice enabled=true", "unknown attribute 'enabled' of a user"),
        ("set user alice max_gpus=many", "write an integer"),
        ("create project base", "project base exists already"),
        ("create project a,b/c", "invalid name 'b/c'"),
        ("create user dora", "create user is not possible"),
        ("delete project base", "project base is configured: a running head cannot delete it"),
        ("delete project none", "unknown project 'none'"),
        ("delete qos none", "unknown qos 'none'"),
        ("list project none", "unknown project 'none'"),
        ("set qos urgent allow_projects=none", "unknown project 'none'"),
    ],
)
def test_mistakes_with_objects_are_errors_and_change_nothing(
    filled: Cluster, words: str, text: str
) -> None:
    before = gmgr(filled, "print")

    ran = run_here("gmgr", *words.split(), head=filled.socket)

    assert text.replace("`", "'") in ran.stderr
    assert "Traceback" not in ran.stderr
    assert gmgr(filled, "print") == before


def test_a_project_goes_without_jobs_and_projects_below_it(head: Cluster) -> None:
    """And what was set of it goes with it; what the file has counts again when it is unset."""
    gmgr(head, "create", "project", "ai", "total.max_gpus=4")
    gmgr(head, "create", "project", "nlp", "parent=ai")
    refused = run_here("gmgr", "delete", "project", "ai", head=head.socket)
    assert "project ai has projects below it: nlp" in refused.stderr
    gmgr(head, "delete", "project", "nlp")
    gmgr(head, "delete", "project", "ai")
    assert "ai" not in gmgr(head, "list", "project")
    gmgr(head, "set", "project", "base", "shares=9")
    gmgr(head, "unset", "project", "base", "shares")
    assert "    shares = 2\n" in gmgr(head, "list", "project", "base")
    gmgr(head, "set", "project", "base", "users=")


def test_coordinators_change_shares_and_limits_of_their_subtree(process_marker: str) -> None:
    """Not the limits of their own project, not those of others, and they create none."""
    with made_users(Cluster, process_marker) as (cluster, users):
        ann = users.add("annc")
        cluster.start_head()
        for line in (
            "create project ai users=annc coordinators=annc",
            "create project nlp parent=ai",
            "create project bio",
        ):
            gmgr(cluster, *line.split())

        for allowed in (
            *("set project nlp shares=5", "set project nlp total.max_gpus=4"),
            *("set project ai users+=bob:3", "set project ai user.bob.max_running=2"),
        ):
            ran = users.run(cluster, ann, "gmgr", *allowed.split())
            assert (ran.status, ran.stderr) == (0, ""), allowed
        for refused, text in (
            ("set project ai total.max_gpus=4", "cannot change its 'total.max_gpus'"),
            ("set project ai shares=5", "a coordinator of ai cannot change its 'shares'"),
            ("set project bio shares=5", "only an operator can change queues, projects"),
            ("delete project nlp", "only an operator can change queues, projects"),
            ("set server scheduling=false", "only an operator can change queues, projects"),
        ):
            ran = users.run(cluster, ann, "gmgr", *refused.split())
            assert ran.status == 159, refused
            assert text in ran.stderr
        assert "bob:3" in gmgr(cluster, "list", "project", "ai")


def test_a_head_warns_of_jobs_whose_project_is_gone(head: Cluster) -> None:
    """At a start as at a reload."""
    gmgr(head, "create", "project", "ai", f"users={getpass.getuser()}")
    gmgr(head, "set", "project", "base", f"users={getpass.getuser()}")
    for project in ("ai", "base"):
        ran = run_here("gsub", "-A", project, "-h", "--", "true", head=head.socket)
        assert ran.status == 0, ran.stderr
    refused = run_here("gmgr", "delete", "project", "ai", head=head.socket)
    assert "project ai has 1 unfinished job" in refused.stderr
    head.stop_head()
    head.queues = '[[queue]]\nname = "batch"\n'

    head.start_head()

    assert "project base has 1 unfinished job, and does not exist" in head.log("head.log")
    assert "project ai" not in head.log("head.log")
