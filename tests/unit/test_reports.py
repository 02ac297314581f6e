"""What nodes say is believed of their own parts only."""

from msgspec import structs

from gsched.model.job import ExitRecord
from gsched.model.resources import Load
from gsched.model.states import OutcomeKind, PartState
from gsched.protocol import node as n
from tests.support.world import World, node


def test_an_exit_that_names_another_job_than_its_report_is_only_counted() -> None:
    """Otherwise one node could end, or crash the head with, a job that runs elsewhere."""
    world = World(node("good", cpus=2), node("evil", cpus=2))
    mine = world.submit("nodes=evil", runs_s=100)
    other = world.submit("nodes=good", runs_s=100)
    world.run_until(1)
    forged = n.AttemptReport(
        job=mine,
        attempt=1,
        state=PartState.ENDED,
        exit=ExitRecord(job=other, attempt=1, kind=OutcomeKind.EXITED, exit_code=0),
    )
    said = n.Register(
        boot_id=world.machines["evil"].boot_id,
        incarnation="again",
        address="10.0.0.1",
        gnode_version="test",
        inventory=world.machines["evil"].has,
        attempts=(forged,),
        load=Load(),
    )
    step = world.head.registered("evil", said, world.now_s)

    assert [type(fact).__name__ for fact in step.facts if "Part" in type(fact).__name__] == [
        "PartEnded"
    ]
    assert {fact.job for fact in step.facts if hasattr(fact, "job")} == {mine}
    assert world.head.oddities["exit_of_another_attempt"] == 1
    assert structs.asdict(world.job(other))["state"] == "running"
