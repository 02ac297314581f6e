"""The node's agent: an epilog is a gate between the end of an attempt and its resources."""

from gnode.core import effects as do
from gnode.core.inputs import (
    EpilogEnded,
    HeadOrder,
    LauncherDown,
    LauncherUp,
    SpoolEntry,
    SpoolFound,
    Welcomed,
)
from gnode.core.site import ProgramRules
from gnode.core.task import AttemptKey
from gsched.protocol.node import Probe, Probed
from tests.support.agent_driver import (
    ALICE,
    Driver,
    exits,
    info,
    only,
    order,
    record,
    refusal,
)

KEY = AttemptKey(1, 1)
RULES = ProgramRules(prolog="/p", epilog="/e")


def driver(**settings: object) -> Driver:
    return Driver(gpus=2, programs=RULES, **settings)  # type: ignore[arg-type]  # as `Driver`


def test_an_end_is_reported_and_its_gpu_free_only_after_the_epilog() -> None:
    node = driver()
    node.launch(order(gpus=(1,)))
    node.forked()
    node.seen()

    effects = node.ended(code=3)

    assert only(effects, do.RunEpilog) == [do.RunEpilog(key=KEY)]
    assert exits(effects) == []
    assert "GPU 1 of node n1 still belongs" in refusal(node, gpus=(1,))
    effects = node.step(EpilogEnded(key=KEY, fault="epilog /e failed: exit code 1"))
    (told,) = exits(effects)
    assert (told.exit_code, told.epilog) == (3, "epilog /e failed: exit code 1")
    assert only(node.launch(order(10, gpus=(1,))), do.AcceptTask)


def test_a_stop_does_not_touch_an_attempt_whose_epilog_runs() -> None:
    node = driver()
    node.launch(order())
    node.forked()
    node.seen()
    node.ended()

    assert node.stop() == []
    assert exits(node.step(EpilogEnded(key=KEY, fault="")))[0].exit_code == 0


def test_an_epilog_that_may_not_have_ended_is_requested_again_of_a_launcher_or_by_a_gnode() -> None:
    node = driver()
    accepted = only(node.launch(order()), do.AcceptTask)[0].task
    node.forked()
    node.seen()
    node.ended()
    there = SpoolEntry(key=KEY, task=accepted, info=info(), record=record())

    node.step(LauncherDown())
    assert node.step(LauncherUp()) == [do.LookAtSpool(keys=(KEY,))]
    assert node.step(SpoolFound(found=(there,))) == [do.RunEpilog(key=KEY)]

    restarted = driver(welcome=False)
    assert only(restarted.step(SpoolFound(found=(there,))), do.RunEpilog)
    restarted.step(Welcomed(cluster="c", epoch=1))
    assert exits(restarted.step(EpilogEnded(key=KEY, fault="")))[0].exit_code == 0


def test_an_epilog_that_has_ended_before_a_restart_does_not_run_again() -> None:
    accepted = only(driver().launch(order()), do.AcceptTask)[0].task
    there = SpoolEntry(key=KEY, task=accepted, info=info(), record=record(), epilog="it failed")
    node = driver(welcome=False)

    assert only(node.step(SpoolFound(found=(there,))), do.RunEpilog) == []
    assert exits(node.step(Welcomed(cluster="c", epoch=1)))[0].epilog == "it failed"


def test_a_probe_runs_both_programs_and_fails_with_the_epilog() -> None:
    node = driver(probe_account=ALICE)
    node.step(HeadOrder(message=Probe(request=7)))
    node.forked(0)

    effects = node.ended(0)

    assert only(effects, do.RunEpilog) == [do.RunEpilog(key=AttemptKey(0, 1))]
    assert only(effects, do.SendToHead) == []
    effects = node.step(EpilogEnded(key=AttemptKey(0, 1), fault="a GPU hangs"))
    (answer,) = (each.message for each in only(effects, do.SendToHead))
    assert isinstance(answer, Probed)
    assert (answer.passed, answer.message) == (False, "a GPU hangs")
    assert only(effects, do.RemoveSpool)
