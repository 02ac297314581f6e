"""Jobs on hosts without a shared file system: their output returns to the host of submission."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.failpoint import FAILPOINTS
from gsched.jobs import ClusterClient
from gsched.protocol.deliveries import DeliverPiece, PieceDelivered
from tests.support.apart import Apart, made_apart
from tests.support.cluster import wait_until
from tests.support.dialler import answered, dialled, launched, replaced
from tests.support.processes import PATIENCE_S

LINES = 400_000
#: About 2.7 MiB: three pieces.
COUNT = ("-N", "count", "--", "seq", str(LINES))

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]


def counted() -> str:
    return "".join(f"{number}\n" for number in range(1, LINES + 1))


@pytest.fixture
def apart(process_marker: str) -> Iterator[Apart]:
    with made_apart(process_marker) as made:
        yield made


def test_output_returns_to_the_head_s_machine(apart: Apart) -> None:
    apart.start_host("n1")

    job = apart.submit("-N", "away", "--", "sh", "-c", "pwd; echo trouble >&2; exit 3")
    story = apart.ended(job)

    out, err = (apart.home / f"away.{letter}{job}" for letter in "oe")
    assert story.row.outcome is not None
    assert (story.row.outcome.exit_code, story.row.outcome.message) == (3, "")
    assert out.read_text().endswith(f"/{job}.1/work\n")
    assert err.read_text() == "trouble\n"
    assert out.stat().st_uid == apart.alice.uid
    assert story.stdout_path == f"test:{out}"
    assert list(apart.on("n1", apart.home).iterdir()) == []
    wait_until(lambda: apart.outboxes() == [], what="the outbox to be removed")


def test_output_returns_to_the_login_host(apart: Apart) -> None:
    apart.start_host("l1", role="login")
    apart.start_host("n1")

    job = apart.submit("-j", "oe", "-N", "away", "--", "sh", "-c", "echo a; echo b >&2", host="l1")
    apart.ended(job)

    assert apart.on("l1", apart.home / f"away.o{job}").read_text() == "a\nb\n"
    assert list(apart.home.iterdir()) == []
    peeks = [apart.run("gpeek", str(job), host=host) for host in ("", "l1")]
    assert [ran.stdout for ran in peeks] == ["a\nb\n"] * 2, peeks
    assert ClusterClient(str(apart.cluster.socket)).job(job).output() == "a\nb\n"


def test_a_node_with_the_same_directory_writes_there_itself(apart: Apart) -> None:
    apart.cluster.start_node("n1")

    job = apart.submit("-N", "here", "--", "pwd")
    story = apart.ended(job)

    assert (apart.home / f"here.o{job}").read_text() == f"{apart.home}\n"
    assert story.stdout_path == str(apart.home / f"here.o{job}")


def start_both(apart: Apart) -> None:
    apart.start_host("l1", role="login")
    apart.start_host("n1")


#: Writes a line, and another one when the file ``go`` of the node is there.
TWO_LINES = ("sh", "-c", "echo first; while ! [ -e {go} ]; do sleep 0.1; done; echo second")


def two_lines(apart: Apart, name: str, *words: str) -> int:
    """Start a job that writes two lines, and wait for the first one on its node."""
    command = [each.format(go=apart.home / "go") for each in TWO_LINES]
    job = apart.submit(*words, "-N", name, "--", *command, host="l1")
    wait_until(lambda: apart.run("gpeek", str(job)).stdout == "first\n", what=name)
    return job


def test_output_returns_while_the_job_runs(apart: Apart) -> None:
    """Also after a crash of gnode; with -k n at the end only."""
    start_both(apart)
    at_end = two_lines(apart, "end", "-k", "n")
    job = two_lines(apart, "now", "-k", "oed")
    home = apart.on("l1", apart.home)
    out, err = home / f"now.o{job}", home / f"now.e{job}"
    wait_until(lambda: err.exists() and out.read_text() == "first\n", what="the first line")
    apart.cluster.kill_node("n1")
    apart.start_host("n1")
    found = sorted(path.name for path in home.iterdir())
    peeked = [apart.run("gpeek", str(each), host="l1") for each in (job, at_end)]
    reason = apart.cluster.head.job(job).row.reason
    apart.on("n1", apart.home / "go").touch()
    apart.ended(job)
    apart.ended(at_end)

    assert found == [f"now.e{job}", f"now.o{job}"]
    assert [ran.stdout for ran in peeked] == ["first\n"] * 2, peeked
    assert "return" not in reason
    assert returned(apart, job, "now") == "first\nsecond\n"
    assert returned(apart, at_end, "end") == "first\nsecond\n"


def test_a_running_job_shows_that_its_output_cannot_return(apart: Apart) -> None:
    start_both(apart)
    home = apart.on("l1", apart.home)
    job = two_lines(apart, "late")
    home.chmod(0o555)
    text = "Permission denied"
    wait_until(lambda: text in apart.run("gstat", "--why", str(job)).stdout, what="the reason")
    home.chmod(0o755)
    apart.on("n1", apart.home / "go").touch()
    story = apart.ended(job)

    assert story.row.outcome is not None
    assert story.row.outcome.message == ""
    assert returned(apart, job, "late") == "first\nsecond\n"


def returned(apart: Apart, job: int, name: str = "count", host: str = "l1") -> str:
    """Return what has returned of the standard output of a job, once its outbox is gone."""
    wait_until(lambda: apart.outboxes() == [], 90, what="the outbox to be removed")
    return apart.on(host, apart.home / f"{name}.o{job}").read_text()


@pytest.mark.parametrize("point", [name for name in FAILPOINTS if name.startswith("delivery.")])
def test_whoever_is_killed_on_the_way_nothing_is_lost_and_nothing_twice(
    apart: Apart, tmp_path: Path, point: str
) -> None:
    """With output that is appended to what an earlier job has written."""
    once = {"GSCHED_FAIL": f"{point}:kill-once={tmp_path / 'killed'}"}
    cluster, who = apart.cluster, point.split(".")[1]
    if who == "head":
        cluster.kill_head()
        cluster.start_head(env=once)
    apart.start_host("l1", role="login", env=once if who == "host" else None)
    apart.start_host("n1", env=once if who == "node" else None)
    target = apart.on("l1", apart.home / "all")
    target.write_text("before\n")
    target.chmod(0o666)

    job = apart.submit("-j", "oe", "-o", "all", "--open-mode", "append", *COUNT, host="l1")
    wait_until((tmp_path / "killed").exists, 60, what=point)
    if who == "head":
        cluster.head_process.wait(PATIENCE_S)
        cluster.start_head()
    else:
        name = {"host": "l1", "node": "n1"}[who]
        cluster.node_process(name).wait(PATIENCE_S)
        apart.start_host(name, role="login" if name == "l1" else "compute")
    story = apart.ended(job)
    wait_until(lambda: apart.outboxes() == [], 90, what="the outbox to be removed")

    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 0
    assert target.read_text() == "before\n" + counted()


def test_output_waits_for_room_on_the_host_of_submission(apart: Apart) -> None:
    apart.start_host("l1", role="login", size="1m")
    apart.start_host("n1")
    job = apart.submit(*COUNT, host="l1")
    story = apart.ended(job)
    peeked = apart.run("gpeek", "-n", "1", str(job))
    homes = apart.home.parent
    subprocess.run(
        ["nsenter", f"--mount={apart.namespace('l1')}", "mount", "-o", "remount,size=64m", homes],
        check=True,
    )

    assert story.row.outcome is not None
    assert "output had not returned when the job ended: l1: " in story.row.outcome.message
    assert "l1: " in story.row.outcome.message
    assert "No space left on device" in story.row.outcome.message
    assert peeked.stdout == f"{LINES}\n", peeked
    assert returned(apart, job) == counted()


def waiting(apart: Apart) -> int:
    """Start a job that writes a line when the file ``go`` of the node is there."""
    script = f"while ! [ -e {apart.home / 'go'} ]; do sleep 0.1; done; echo here"
    return apart.submit("-N", "late", "--", "sh", "-c", script, host="l1")


def test_output_waits_for_a_host_of_submission_that_is_gone(apart: Apart) -> None:
    start_both(apart)
    job = waiting(apart)
    apart.cluster.kill_node("l1")
    apart.on("n1", apart.home / "go").touch()
    story = apart.ended(job)
    apart.cluster.kill_node("n1")
    apart.start_host("n1")
    apart.start_host("l1", role="login")

    assert story.row.outcome is not None
    assert "when the job ended: l1 is not connected; it was kept in" in story.row.outcome.message
    assert returned(apart, job, "late") == "here\n"


def test_output_that_nobody_can_write_is_named(apart: Apart) -> None:
    start_both(apart)
    job = waiting(apart)
    home = apart.on("l1", apart.home)
    home.chmod(0o555)
    apart.on("n1", apart.home / "go").touch()
    story = apart.ended(job)
    (path,) = (each for each in apart.outboxes() if each.endswith("stdout"))
    shown = apart.run("gstat", "-f", str(job)).stdout

    assert story.row.outcome is not None
    begin = f"output was not delivered: l1: {apart.home}/late."
    end = f"{job}: Permission denied; it is on n1"
    texts = [f"{begin}{kind}{end}" for kind in "oe"]  # the one that is refused first is named
    message = story.row.outcome.message
    (text,) = (each for each in texts if each in message)
    assert path.rpartition("/")[0] in message
    assert text in shown.replace("\n", " ")
    assert apart.run("gpeek", str(job), host="l1").stdout == "here\n"


def test_t9_t31_a_node_delivers_nothing_but_the_output_of_its_own_attempts(apart: Apart) -> None:
    """A node that was taken over: the head alone says whose file that is, and where it is."""
    apart.start_host("n1")
    other = apart.submit("-N", "other", "--", "sleep", "600")
    wait_until(lambda: apart.cluster.head.job(other).row.state == "running", what="a job on n1")

    async def attack() -> tuple[dict[str, str], int]:
        async with dialled(apart.cluster, node="n9") as n9:
            await n9.call()
            await n9.register()
            job = await asyncio.to_thread(
                apart.submit, "-N", "mine", "-j", "oe", "-l", "nodes=n9", "--", "true"
            )
            launch = await launched(n9)
            assert launch.job == job
            mine = DeliverPiece(
                request=1, job=job, attempt=1, token=launch.token, file="stdout", data=b"out"
            )
            pieces = {
                "job of another node": replaced(mine, job=other),
                "attempt": replaced(mine, attempt=2),
                "token": replaced(mine, token="0" * 32),
                "job": replaced(mine, job=4711),
                "joined": replaced(mine, file="stderr"),
                "path": replaced(mine, file="files/../../.ssh/authorized_keys"),
                "absolute": replaced(mine, file="/etc/passwd"),
                "allowed": mine,
            }
            found = {
                name: await answered(n9, piece, PieceDelivered) for name, piece in pieces.items()
            }
            return {name: answer.error for name, answer in found.items()}, job

    errors, job = asyncio.run(attack())

    assert errors.pop("allowed") == ""
    assert all(errors.values()), errors
    assert f"attempt 1 of job {other} is not of n9" in errors["job of another node"]
    assert [each.name for each in apart.home.iterdir()] == [f"mine.o{job}"]
    assert (apart.home / f"mine.o{job}").read_text() == "out"
