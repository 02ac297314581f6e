"""Two heads of one cluster, with one store in PostgreSQL."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.errors import GschedError
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.postgres import Postgres, postgres_server

LEASE_S = 2.0  # a head that a slow machine keeps from renewing for longer ends


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server() as made:
        yield made


@pytest.fixture
def store(server: Postgres) -> Iterator[Postgres]:
    yield server
    server.psql("DROP TABLE IF EXISTS gsched_lease, gsched_log, gsched_base, gsched_file")


@pytest.fixture
def heads(store: Postgres, tmp_path: Path) -> Iterator[tuple[Cluster, Cluster]]:
    """Return two heads of one cluster, not started."""
    made = [head_of(store, tmp_path / name) for name in ("one", "two")]
    try:
        yield made[0], made[1]
    finally:
        for each in made:
            each.stop()


def head_of(store: Postgres, directory: Path) -> Cluster:
    made = Cluster(directory, f"standby-{os.getpid()}-{directory.name}")
    made.queues = f'[store]\nurl = "{store.url}"\nlease_s = {LEASE_S}\n'
    return made


def give_authority(first: Cluster, second: Cluster) -> None:
    shutil.copytree(first.state_dir / "pki", second.state_dir / "pki", dirs_exist_ok=True)


def join_as_head(first: Cluster, second: Cluster) -> Ran:
    made = run_command("gsched", "token", "create", "--role", "head", head=first.socket)
    assert made.status == 0, made.stderr
    config = second.directory / "head.toml"
    config.write_text(f'[head]\nstate_dir = "{second.state_dir}"\n', encoding="utf-8")
    return run_command(*made.stdout.split(), "--config", str(config))


def submit(cluster: Cluster, *words: str) -> str:
    ran = run_command("gsub", "-h", *words, "--", "true", head=cluster.socket, cwd=cluster.jobs)
    assert ran.status == 0, ran.stderr
    return ran.stdout.partition(".")[0]


def jobs(cluster: Cluster) -> list[str]:
    return [str(row.id) for row in cluster.head.jobs().jobs]


def rules(cluster: Cluster) -> bool:
    return "this head rules" in cluster.log("head.log")


def follows(cluster: Cluster, position: int) -> bool:
    database = cluster.state_dir / "gsched.db"
    if not database.exists():
        return False
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        row = db.execute("SELECT value FROM meta WHERE key = 'log_position'").fetchone()
    return row is not None and int(row[0]) >= position


def newest(store: Postgres) -> int:
    return int(store.psql("SELECT max(position) FROM gsched_log"))


def contents(cluster: Cluster) -> list[str]:
    with sqlite3.connect(f"file:{cluster.state_dir / 'gsched.db'}?mode=ro", uri=True) as db:
        return sorted(db.iterdump())


def stand_by(first: Cluster, second: Cluster) -> None:
    give_authority(first, second)
    second.start_head(wait=False)
    wait_until(lambda: answers(second), what="the second head to answer")


def answers(cluster: Cluster) -> bool:
    try:
        return cluster.head.health().ok
    except GschedError:
        return False


def store_command(cluster: Cluster, *words: str) -> Ran:
    config = str(cluster.directory / "head.toml")
    return run_command("gsched", "store", *words, "--config", config)


def standing(cluster: Cluster) -> bool:
    return "stands by" in run_command("gstat", head=cluster.socket).stderr
