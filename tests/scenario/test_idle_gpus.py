"""The owner of a job is warned that its GPUs are idle, and the job gives them back."""

import pytest
from msgspec import structs

from gsched.config.idle_gpus import (
    IdleAction,
    IdleGpusConfig,
    IdleInteractiveConfig,
    IdleQueueConfig,
)
from gsched.config.tables import QueueConfig
from gsched.model.gpu_idle import IdleGpu
from gsched.model.job import Interactive
from gsched.model.resources import LiveUse
from gsched.protocol.uses import Uses
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Settings
from tests.support.saving import Program
from tests.support.world import ADMIN, BEGIN_S, World, node, settings

HOUR_S = 3600.0
RULE = IdleGpusConfig(action="hold", warn_s=HOUR_S, warn_held_s=2 * HOUR_S, act_s=HOUR_S)
LONG = Program(runs_s=1e6)
MOVABLE = {"movable": True, "program": Program(runs_s=1e6, saves_s=1.0)}


def world_with(rule: IdleGpusConfig = RULE, nodes: int = 1, gpus: int = 4) -> World:
    config: Settings = settings(
        idle_gpus=rule,
        queues={"batch": QueueConfig(name="batch"), "notebook": QueueConfig(name="notebook")},
    )
    return World(*(node(f"n{at}", gpus=gpus) for at in range(1, nodes + 1)), config=config)


def tell(  # what a node may say
    world: World,
    job: int,
    *gpus: int,
    idle_s: float,
    held: bool = False,
    name: str = "n1",
    terminal_idle_s: float | None = None,
) -> None:
    """Let a node tell that these GPUs of a job are idle."""
    attempt = world.job(job).attempt
    number = attempt.number if attempt is not None else 1
    idle = tuple(IdleGpu(index=index, idle_s=idle_s, held=held) for index in gpus)
    use = LiveUse(gpus_idle=idle, terminal_idle_s=terminal_idle_s)
    world.hear_uses(name, Uses(uses=((job, number, use),)))


def idle_for(world: World, job: int, *gpus: int, hours: float, **what: object) -> None:
    """Let a node tell each minute that these GPUs are idle, from now on."""
    begin_s = world.now_s
    while world.now_s < begin_s + hours * HOUR_S and world.state(job) == "running":
        world.run_for(60.0)
        tell(world, job, *gpus, idle_s=world.now_s - begin_s, **what)  # type: ignore[arg-type] # passed on
    world.run_for(10.0)


def warnings_of(world: World, job: int) -> list[f.GpusIdleWarned]:
    return [
        each for each in world.told(f.GpusIdleWarned, job) if isinstance(each, f.GpusIdleWarned)
    ]


def test_the_owner_is_warned_once_and_the_job_s_error_file_says_so() -> None:
    world = world_with()
    job = world.submit("nodes=1:gpus=2", program=LONG)
    world.run_for(5)
    idle_for(world, job, 1, hours=0.9)
    assert warnings_of(world, job) == []
    idle_for(world, job, 1, hours=1.2)

    (warning,) = warnings_of(world, job)
    assert (warning.gpus, warning.of) == ({"n1": (1,)}, 2)
    assert warning.since_s == pytest.approx(BEGIN_S + 5 + 0.9 * HOUR_S + 10, abs=1)
    assert warning.cause == "message Uses"
    ((number, line),) = world.machines["n1"].messages
    assert number == job
    assert line.startswith(f"gsched: job {job}: 1 of 2 GPUs idle since ")
    assert line.endswith(": n1 (GPU 1)\n"), "it works on the other one: nothing follows"


def test_before_a_job_is_ended_its_owner_has_been_warned_of_all_its_idle_gpus() -> None:
    world = world_with()
    job = world.submit("nodes=1:gpus=2", program=LONG)
    world.run_for(5)
    idle_for(world, job, 1, hours=5)
    tell(world, job, 0, 1, idle_s=5 * HOUR_S)
    first, second = warnings_of(world, job)
    assert (first.action, first.acts_s) == ("warn", 0.0)
    assert (second.gpus, second.action) == ({"n1": (0, 1)}, "hold")
    assert second.acts_s == world.now_s + HOUR_S
    world.run_for(1)
    (_, line) = world.machines["n1"].messages[-1]
    assert line.endswith(" UTC if they stay idle\n")
    world.run_for(HOUR_S)
    tell(world, job, 1, idle_s=6 * HOUR_S)
    assert world.state(job) == "running"
    tell(world, job, 0, 1, idle_s=6 * HOUR_S)
    world.run_for(5)
    assert world.state(job) == "held"


def test_work_ends_the_warning_and_a_later_idle_time_is_warned_of_again() -> None:
    world = world_with()
    job = world.submit("nodes=1:gpus=1", program=LONG)
    world.run_for(5)
    idle_for(world, job, 0, hours=1.5)
    tell(world, job, idle_s=0.0)
    assert len(world.told(f.IdleWarningEnded, job)) == 1
    assert world.job(job).idle is None
    world.run_for(3 * HOUR_S)
    assert world.state(job) == "running"
    idle_for(world, job, 0, hours=1.5)
    assert len(warnings_of(world, job)) == 2


def test_a_job_whose_gpus_stay_idle_is_held_and_its_gpu_hours_are_recorded() -> None:
    world = world_with()
    job = world.submit("nodes=1:gpus=2,walltime=10:00:00", program=LONG)
    world.run_for(5)
    idle_for(world, job, 0, 1, hours=3)

    assert world.state(job) == "held"
    assert "2 GPUs idle since" in world.why(job)
    (idled,) = world.told(f.GpusIdled, job)
    assert isinstance(idled, f.GpusIdled)
    assert idled.action == "hold"
    ended_s = next(each for each in world.told(f.AttemptEnded, job)).at_s
    left_s = BEGIN_S + 10 * HOUR_S - ended_s
    assert idled.returned_s == pytest.approx(2 * left_s, rel=0.01)
    world.release(job)
    world.run_for(5)
    assert world.state(job) == "running", "its owner may release it"


def test_a_job_without_walltime_returns_what_was_predicted_or_nothing() -> None:
    world = world_with()
    job = world.submit("nodes=1:gpus=1", program=LONG)
    world.run_for(5)
    idle_for(world, job, 0, hours=2.1)
    (idled,) = world.told(f.GpusIdled, job)
    assert isinstance(idled, f.GpusIdled)
    assert (idled.action, idled.returned_s) == ("hold", 0.0)


@pytest.mark.parametrize(
    ("action", "state"), [("report", "running"), ("warn", "running"), ("cancel", "done")]
)
def test_each_action_does_what_it_says(action: IdleAction, state: str) -> None:
    world = world_with(structs.replace(RULE, action=action))
    job = world.submit("nodes=1:gpus=1", program=LONG)
    world.run_for(5)
    idle_for(world, job, 0, hours=5)
    assert world.state(job) == state
    assert len(warnings_of(world, job)) == (action != "report")


def test_a_requeued_job_runs_again_and_may_be_warned_again() -> None:
    world = world_with(structs.replace(RULE, action="requeue"))
    job = world.submit("nodes=1:gpus=1", program=LONG)
    world.run_for(5)
    idle_for(world, job, 0, hours=2.1)
    assert (world.state(job), world.job(job).attempts) == ("running", 2)
    assert world.job(job).idle is None
    idle_for(world, job, 0, hours=2.1)
    assert world.state(job) == "held", "it would be so for ever"


def test_a_job_that_can_save_its_state_does_so_before_it_is_held() -> None:
    world = world_with()
    job = world.submit("nodes=1:gpus=1", **MOVABLE)  # type: ignore[arg-type] # as they are
    world.run_for(5)
    idle_for(world, job, 0, hours=2.1)
    world.run_for(60)
    assert len(world.told(f.MigrationRequested, job)) == 1
    assert len(world.told(f.CheckpointTaken, job)) == 1
    assert world.state(job) == "held"
    (idled,) = world.told(f.GpusIdled, job)
    assert isinstance(idled, f.GpusIdled)
    assert idled.action == "hold"


def test_a_job_that_hangs_instead_is_stopped_and_restarts_from_its_last_checkpoint() -> None:
    world = world_with()
    hangs = Program(runs_s=1e6, saves_s=None)
    job = world.submit("nodes=1:gpus=1", movable=True, program=hangs)
    world.run_for(5)
    idle_for(world, job, 0, hours=2.1)
    world.run_for(400)
    assert len(world.told(f.MigrationAbandoned, job)) == 1
    tell(world, job, 0, idle_s=3 * HOUR_S)
    world.run_for(5)
    assert world.state(job) == "held"
    assert len(world.told(f.IdleGpusReclaimed, job)) == 1


def test_a_job_that_did_not_save_its_state_and_works_again_is_let_go() -> None:
    world = world_with()
    hangs = Program(runs_s=5 * HOUR_S, saves_s=None)
    job = world.submit("nodes=1:gpus=1,walltime=9:00:00", movable=True, program=hangs)
    world.run_for(5)
    idle_for(world, job, 0, hours=2.1)
    world.run_for(400)
    assert world.job(job).holds
    tell(world, job, idle_s=0.0)
    assert (world.job(job).holds, world.job(job).hold_reason) == ((), "")
    world.run_for(4 * HOUR_S)
    assert world.state(job) == "done"
    assert world.told(f.GpusIdled, job) == [], "nothing has ended it, and no node counted"


def test_a_job_that_must_not_be_rerun_is_only_warned_unless_the_site_wants_it() -> None:
    world = world_with()
    job = world.submit("nodes=1:gpus=1", program=LONG, rerunnable=False)
    world.run_for(5)
    idle_for(world, job, 0, hours=4)
    assert world.state(job) == "running"
    (warning,) = warnings_of(world, job)
    assert (warning.action, warning.acts_s) == ("warn", 0.0)

    world = world_with(structs.replace(RULE, end_any=True))
    job = world.submit("nodes=1:gpus=1", program=LONG, rerunnable=False)
    world.run_for(5)
    idle_for(world, job, 0, hours=4)
    assert world.state(job) == "done"
    assert warnings_of(world, job)[0].action == "cancel"


def test_memory_that_is_held_has_a_rule_of_its_own() -> None:
    world = world_with()
    job = world.submit("nodes=1:gpus=1", program=LONG)
    world.run_for(5)
    idle_for(world, job, 0, hours=1.9, held=True)
    assert warnings_of(world, job) == []
    tell(world, job, 0, idle_s=2 * HOUR_S, held=True)
    assert len(warnings_of(world, job)) == 1


def test_a_job_that_works_on_some_of_its_gpus_is_warned_of_the_others_and_keeps_running() -> None:
    world = world_with(gpus=8)
    job = world.submit("nodes=1:gpus=8", program=LONG)
    world.run_for(5)
    idle_for(world, job, *range(2, 8), hours=5)
    assert world.state(job) == "running"
    (warning,) = warnings_of(world, job)
    assert (len(warning.gpus["n1"]), warning.of) == (6, 8)

    world = world_with(structs.replace(RULE, act_part=0.75), gpus=8)
    job = world.submit("nodes=1:gpus=8", program=LONG)
    world.run_for(5)
    idle_for(world, job, *range(2, 8), hours=3)
    assert world.state(job) == "held"


def test_a_job_across_nodes_ends_only_when_all_its_nodes_say_that_it_is_idle() -> None:
    world = world_with(nodes=2, gpus=1)
    job = world.torchrun("nodes=2:gpus=1", program=LONG)
    world.run_for(5)
    idle_for(world, job, 0, hours=3, name="n1")
    assert warnings_of(world, job) == [], "of n2 nothing is known"

    begin_s = world.now_s
    while world.now_s < begin_s + 3 * HOUR_S and world.state(job) == "running":
        world.run_for(60.0)
        for name in ("n1", "n2"):
            tell(world, job, 0, idle_s=world.now_s - begin_s, name=name)
    world.run_for(10)
    assert warnings_of(world, job)[0].gpus == {"n1": (0,), "n2": (0,)}
    assert world.state(job) == "held"


@pytest.mark.parametrize(
    "exempt",
    [{"exempt_users": ("alice",)}, {"exempt_accounts": ("chem",)}, {"exempt_queues": ("batch",)}],
)
def test_exempt_users_accounts_and_queues_are_left_alone(exempt: dict[str, tuple[str]]) -> None:
    world = world_with(structs.replace(RULE, **exempt))
    job = world.submit("nodes=1:gpus=1", program=LONG, account="chem")
    world.run_for(5)
    idle_for(world, job, 0, hours=5)
    assert world.state(job) == "running"
    assert warnings_of(world, job) == []


def test_a_queue_can_have_a_rule_of_its_own() -> None:
    own = IdleQueueConfig(name="notebook", action="warn", warn_s=60.0)
    world = world_with(structs.replace(RULE, queue=(own,)))
    job = world.submit("nodes=1:gpus=1", program=LONG, queue="notebook")
    world.run_for(5)
    idle_for(world, job, 0, hours=5)
    (warning,) = warnings_of(world, job)
    assert warning.at_s - warning.since_s == pytest.approx(60.0, abs=60)
    assert world.state(job) == "running"


def interactive(world: World) -> int:
    job = world.submit("nodes=1:gpus=1", program=LONG, interactive=Interactive(), arguments=())
    world.run_for(5)
    return job


def test_an_interactive_job_is_idle_when_its_terminal_is_idle_too() -> None:
    world = world_with()
    job = interactive(world)
    idle_for(world, job, 0, hours=3, terminal_idle_s=60.0)
    assert warnings_of(world, job) == []
    idle_for(world, job, 0, hours=3, terminal_idle_s=7200.0)
    (warning,) = warnings_of(world, job)
    assert warning.action == "warn", "the site's rule for batch jobs does not end it"
    assert world.machines["n1"].messages == [], "it has no error file"

    own = IdleInteractiveConfig(action="cancel", warn_s=600.0, act_s=600.0)
    world = world_with(structs.replace(RULE, interactive=own))
    job = interactive(world)
    tell(world, job, 0, idle_s=900.0, terminal_idle_s=7200.0)
    tell(world, job, 0, idle_s=930.0, terminal_idle_s=5.0)
    assert len(world.told(f.IdleWarningEnded, job)) == 1, "its user is back"
    world.run_for(HOUR_S)
    tell(world, job, 0, idle_s=HOUR_S, terminal_idle_s=1900.0)
    assert len(warnings_of(world, job)) == 2, "and is warned again before the end"
    assert world.state(job) == "running"
    idle_for(world, job, 0, hours=1, terminal_idle_s=7200.0)
    assert world.state(job) == "done"


def test_elements_of_an_array_are_looked_at_one_by_one() -> None:
    world = world_with()
    array = world.submit("nodes=1:gpus=1", program=LONG, array="0-1")
    world.run_for(5)
    first, second = sorted(world.head.state.running)
    tell(world, second, 1, idle_s=2 * HOUR_S)
    assert array
    assert (warnings_of(world, first), len(warnings_of(world, second))) == ([], 1)


def test_a_head_that_restarts_keeps_the_warning_and_waits_until_its_nodes_tell_again() -> None:
    world = world_with()
    job = world.submit("nodes=1:gpus=1", program=LONG)
    world.run_for(5)
    idle_for(world, job, 0, hours=1.5)
    world.restart_head()
    assert world.job(job).idle is not None
    world.run_for(2 * HOUR_S)
    assert world.state(job) == "running"

    idle_for(world, job, hours=0.01)
    tell(world, job, 0, idle_s=3 * HOUR_S)
    assert len(warnings_of(world, job)) == 2, "it was used meanwhile"
    world.restart_head()
    world.run_for(2 * HOUR_S)
    tell(world, job, 0, idle_s=5 * HOUR_S)
    world.run_for(5)
    assert len(warnings_of(world, job)) == 2, "nobody is warned twice of the same"
    assert world.state(job) == "held"


def test_a_node_that_restarts_says_nothing_until_its_window_is_full_and_nothing_happens() -> None:
    world = world_with()
    job = world.submit("nodes=1:gpus=1", program=LONG)
    world.run_for(5)
    idle_for(world, job, 0, hours=1.5)
    world.hear_uses("n1", Uses(uses=((job, 1, LiveUse()),)))
    assert world.told(f.IdleWarningEnded, job) == []
    world.run_for(2 * HOUR_S)
    world.hear_uses("n1", Uses(uses=((job, 1, LiveUse()),)))
    assert world.state(job) == "running"
    tell(world, job, 0, idle_s=900.0)
    world.run_for(5)
    assert world.state(job) == "running", "not long enough by what is known now"
    tell(world, job, 0, idle_s=HOUR_S)
    world.run_for(5)
    assert world.state(job) == "held"


def test_an_operator_s_stop_and_a_short_idle_time_leave_no_trace_of_reclaiming() -> None:
    world = world_with()
    job = world.submit("nodes=1:gpus=1", program=LONG)
    world.run_for(5)
    idle_for(world, job, 0, hours=1.5)
    world.delete(job, by=ADMIN)
    world.run_for(5)
    (idled,) = world.told(f.GpusIdled, job)
    assert isinstance(idled, f.GpusIdled)
    assert (idled.action, idled.returned_s) == ("", 0.0)
    world.check_history()
