"""When a node takes no new jobs for want of disk space."""

from pathlib import Path

import pytest

from gnode.core import effects as do
from gnode.core.inputs import AlarmRang, HeadOffered, ProblemChanged
from gnode.daemon.space import SpoolSpace
from gsched.protocol.node import Heartbeat
from tests.support.agent_driver import Driver, only
from tests.support.disks import fill, free, small_disk

FULL = "its spool /s has less than 32mb left"


def told(effects: list[do.Effect]) -> list[str]:
    return [
        effect.message.problem
        for effect in only(effects, do.SendToHead)
        if isinstance(effect.message, Heartbeat)
    ]


def test_a_change_is_told_to_the_head_at_once() -> None:
    driver = Driver()

    assert told(driver.step(ProblemChanged(problem=FULL))) == [FULL]
    assert told(driver.step(ProblemChanged(problem=""))) == [""]


def test_a_node_registers_with_its_problem() -> None:
    driver = Driver(welcome=False)
    assert told(driver.step(ProblemChanged(problem=FULL))) == []

    offered = driver.step(HeadOffered(cluster="c", epoch=1))

    assert only(offered, do.SendRegister)[0].problem == FULL


def test_records_that_nobody_needs_go_at_once_while_space_is_short() -> None:
    driver = Driver()
    driver.run()
    driver.ended()
    driver.ack()
    assert only(driver.step(AlarmRang()), do.RemoveSpool) == []

    effects = driver.step(ProblemChanged(problem=FULL))

    assert len(only(effects, do.RemoveSpool)) == 1


def test_the_limit_has_a_margin_so_that_the_node_does_not_flap(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        space = SpoolSpace(str(disk), 1 << 20)
        assert space.problem() == ""
        part = disk / "part"
        part.write_bytes(bytes((3 << 20) + (1 << 19)))
        assert space.problem() == f"its spool {disk} has less than 1mb left"
        part.write_bytes(bytes((3 << 20) - (1 << 16)))  # a little more than the limit
        assert space.problem() != ""
        fill(disk)
        assert space.problem() != ""
        free(disk)
        part.unlink()
        assert space.problem() == ""


def test_a_directory_that_is_gone_is_a_problem(tmp_path: Path) -> None:
    problem = SpoolSpace(str(tmp_path / "no"), 1).problem()

    assert problem == f"its spool {tmp_path / 'no'} cannot be used: No such file or directory"


@pytest.mark.parametrize("limit", [0, 1])
def test_a_disk_with_space_is_no_problem(tmp_path: Path, limit: int) -> None:
    assert SpoolSpace(str(tmp_path), limit).problem() == ""
