"""Who makes exit records durable: gnode for many at once, else the launcher or the supervisor."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnode.supervisor import journal
from gsched.protocol.node import ExitAck, Register
from tests.support import records
from tests.support.gnode_world import GnodeWorld
from tests.support.launching import Launcher, Way, wait_until

KEEPS = {"rules": {"allow_root": True, "uid_min": 0}, "keeps": True}


@pytest.fixture
def launcher(tmp_path: Path, way: Way) -> Iterator[Launcher]:
    """A launcher whose flushes, and those of its supervisors, are noted in ``flushes``."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace here to see system calls")
    said = str(tmp_path / "flushes")
    options = ("-D", "-f", "-y", "-qq", "-e", "trace=fsync,fdatasync", "-e", "signal=none")
    made = Launcher(tmp_path / "state", under=(strace, *options, "-o", said), **vars(way))
    yield made
    made.close()


def flushes(launcher: Launcher) -> list[tuple[int, str]]:
    """Return which process has flushed which journal."""
    text = (launcher.state.parent / "flushes").read_text()
    lines = [line.split(None, 1) for line in text.splitlines() if f"/{journal.NAME}>" in line]
    return [(int(pid), Path(call.split("<")[1].split(">")[0]).parent.name) for pid, call in lines]


def names(launcher: Launcher) -> list[str]:
    return [name for _, name in flushes(launcher)]


def end_job(launcher: Launcher, job: int) -> dict[str, Any]:
    launcher.launch(launcher.task(job, ["true"]))
    return launcher.hear("ended", f"{job}.1")


def connect_again(launcher: Launcher, rules: dict[str, object]) -> None:
    launcher.channel.close()
    launcher.connect()
    launcher.ask(rules)


def test_the_launcher_flushes_before_it_tells_a_gnode_that_does_not(launcher: Launcher) -> None:
    assert "unflushed" not in end_job(launcher, 1)

    wait_until(lambda: flushes(launcher) == [(launcher.process.pid, "1.1")], "the flush")


def test_what_gnode_has_made_durable_is_not_flushed_again(launcher: Launcher) -> None:
    launcher.ask(KEEPS)
    assert end_job(launcher, 1)["unflushed"] is True
    end_job(launcher, 2)
    launcher.ask({"kept": ["1.1"]})

    connect_again(launcher, KEEPS | {"keeps": False})
    end_job(launcher, 3)

    wait_until(lambda: "3.1" in names(launcher), "the flush of the last one")
    assert flushes(launcher) == [(launcher.process.pid, "2.1"), (launcher.process.pid, "3.1")]


def test_the_launcher_flushes_what_a_gnode_that_hangs_has_not(launcher: Launcher) -> None:
    launcher.ask(KEEPS)
    end_job(launcher, 1)
    assert flushes(launcher) == []

    wait_until(lambda: flushes(launcher) == [(launcher.process.pid, "1.1")], "the flush")


def test_a_supervisor_flushes_its_last_record_when_the_launcher_is_killed(
    launcher: Launcher,
) -> None:
    launcher.ask(KEEPS)
    pid = launcher.launch(launcher.task(1, ["true"]))
    launcher.hear("ended", "1.1")

    launcher.process.kill()

    wait_until(lambda: (pid, "1.1") in flushes(launcher), "the flush")


def test_a_supervisor_flushes_its_record_when_no_launcher_is_there(
    launcher: Launcher, tmp_path: Path
) -> None:
    launcher.ask(KEEPS)
    wait = f"while [ ! -e {tmp_path}/gate ]; do sleep 0.02; done"
    pid = launcher.launch(launcher.task(1, ["/bin/sh", "-c", wait]))
    launcher.started(1)
    launcher.process.kill()
    launcher.process.wait()

    (tmp_path / "gate").touch()

    wait_until(lambda: (pid, "1.1") in flushes(launcher), "the flush")


# --- gnode: what a restart finds ---


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(tmp_path / "w", process_marker)
    yield made
    print(made.log())
    made.stop()


def lose_power(world: GnodeWorld) -> None:
    """Lose what nobody has flushed: with gnode and launcher dead, journals without their end."""
    world.kill()
    for directory in (world.state / "attempts").iterdir():
        path = directory / journal.NAME
        path.write_bytes(path.read_bytes().partition(b"\nended ")[0] + b"\n")
        assert records.ended(directory) is None


def remove_directories(world: GnodeWorld) -> None:
    world.kill()
    for directory in (world.state / "attempts").iterdir():
        shutil.rmtree(directory)


@pytest.mark.parametrize("lose", [lose_power, remove_directories])
def test_outcomes_that_the_head_may_know_outlive_a_power_loss(
    world: GnodeWorld, lose: Callable[[GnodeWorld], None]
) -> None:
    world.start()
    for job in (1, 2, 3):
        world.launch(job, f"exit {job}")
    for job in (1, 2, 3):
        world.head.wait_for_exit(job)
    lose(world)

    world.start()

    reports = world.head.wait_for(Register, count=2)[-1].attempts
    codes = {each.job: each.exit.exit_code for each in reports if each.exit is not None}
    assert codes == {1: 1, 2: 2, 3: 3}


def test_what_was_removed_after_its_acknowledgement_is_not_reported_again(
    world: GnodeWorld,
) -> None:
    world.start({"GSCHED_TEST_REMOVE_DELAY_S": "0.01"})
    for job in (1, 2):
        world.launch(job, "true")
        world.head.wait_for_exit(job)
        world.head.send(ExitAck(job=job, attempt=1))
        wait_until(lambda: not list((world.state / "attempts").iterdir()), "the removal")
    for path in ("ended.jsonl", "ended.older.jsonl"):
        (world.state / path).unlink(missing_ok=True)  # as if many had ended since
    assert b"gone 1.1" in (world.state / "outcomes").read_bytes()
    world.terminate()

    world.start()

    assert world.head.wait_for(Register, count=2)[-1].attempts == ()


def test_without_its_log_gnode_flushes_journals(world: GnodeWorld) -> None:
    world.start()
    (world.state / "outcomes").mkdir()

    world.launch(1, "exit 5")

    assert world.head.wait_for_exit(1).record.exit_code == 5
    assert "the log of outcomes cannot be written" in world.log()


def test_a_log_that_others_could_have_written_is_refused(world: GnodeWorld) -> None:
    world.state.mkdir(mode=0o711)
    path = world.state / "outcomes"
    path.write_text(json.dumps("whatever"))
    path.chmod(0o666)

    world.start(wait=False)

    assert world.wait_for_death() != 0
    assert "the log of outcomes" in world.log()
