"""The node's agent: what passes between the head and training jobs."""

from msgspec import structs

from gnode.core import effects as do
from gnode.core.inputs import HeadOrder, SupervisorAnswered, SupervisorEnded
from gnode.core.task import AttemptKey, SignalCommand
from gsched.protocol.node import CheckpointFailed, TakeCheckpoint
from tests.support.agent_driver import Driver, only, record

KEY = AttemptKey(1, 1)


def test_a_job_none_of_whose_processes_handles_its_signal_cannot_save_its_state() -> None:
    driver = Driver()
    driver.run()
    asked = TakeCheckpoint(job=1, attempt=1, request=3, signal=10)

    given, awaited = driver.step(HeadOrder(message=asked))

    assert isinstance(given, do.CommandSupervisor)
    assert given.command == SignalCommand(signal=10, request=3)
    assert awaited == do.AwaitAnswer(key=KEY, request=3, signal=10)
    answer = SupervisorAnswered(key=KEY, request=3, signal=10, sent=True)
    assert driver.step(answer) == [], "its end is the answer"
    (said,) = only(driver.step(structs.replace(answer, sent=False)), do.SendToHead)
    assert isinstance(said.message, CheckpointFailed)
    assert (said.message.job, said.message.request) == (1, 3)
    assert "no process of the job handles signal 10 (USR1)" in said.message.message
    driver.step(SupervisorEnded(key=KEY, record=record(), info=None))
    assert only(driver.step(structs.replace(answer, sent=False)), do.SendToHead) == []
