"""Nodes that die, networks that lose, heads that restart: what becomes of the jobs."""

from gsched.errors import NotPermittedError, TryAgainError
from gsched.model.job import ExitRecord
from gsched.model.resources import Load, Usage
from gsched.model.states import HoldKind, OutcomeKind
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.attempts.requeue import MAX_FAULTS
from gschedd.core.requests import commands as c
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from tests.support.saving import Running
from tests.support.world import ADMIN, ALICE, BEGIN_S, BOB, Program, World, inventory, node

DEAD = c.ActOnNode(caller=ADMIN, node="n1", action=a.ConfirmDead())


def outcome_kind(world: World, job: int) -> OutcomeKind:
    outcome = world.job(job).outcome
    assert outcome is not None, f"job {job} is {world.state(job)}"
    return outcome.kind


# --- nodes ---


def test_a_short_break_of_the_connection_changes_nothing() -> None:
    """The job goes on, in the same attempt (E2)."""
    world = World(node("n1"))
    job = world.submit(runs_s=100)
    world.run_until(10)

    world.disconnect("n1")
    assert world.state(job) == "running"
    world.run_until(50)
    world.connect("n1")
    world.run_until(200)

    assert (world.state(job), world.job(job).attempts) == ("done", 1)


def test_an_exit_while_disconnected_is_told_at_registration() -> None:
    """The node kept it; the outcome is its own."""
    world = World(node("n1"))
    job = world.submit(program=Program(runs_s=30, exit_code=7))
    world.run_until(10)
    world.disconnect("n1")
    world.run_until(60)

    world.connect("n1")
    world.run_until(61)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert outcome.exit_code == 7
    assert world.machines["n1"].ended == {}, "the exit was acknowledged"


def test_a_job_is_not_started_elsewhere_while_its_node_is_only_unreachable() -> None:
    """No proof of death, no second attempt (I4)."""
    world = World(node("n1"), node("n2"))
    job = world.submit(runs_s=100_000)
    (place,) = world.machine_of(job)

    world.disconnect(place)
    world.run_until(50_000)

    assert world.state(job) == "running"
    assert world.job(job).attempts == 1
    assert world.machines["n2" if place == "n1" else "n1"].launches == []


def test_another_boot_id_proves_that_the_job_is_dead() -> None:
    """It is queued again with a delay, and runs to its end (C12)."""
    world = World(node("n1"))
    job = world.submit(runs_s=100)
    world.run_until(10)

    world.reboot("n1")
    assert world.state(job) == "waiting"
    assert "node n1 was lost" in world.why(job)
    world.run_until(500)

    assert outcome_kind(world, job) is OutcomeKind.EXITED
    assert world.started_s(job) == 12
    assert world.job(job).attempts == 2


def test_an_attempt_whose_start_was_never_told_is_not_started_twice() -> None:
    """It may have run before the node died, so the next start is another attempt (I4)."""
    world = World(node("n1"))
    world.lost[n.Started] = 1
    job = world.submit(runs_s=100)
    world.run_until(10)
    assert world.told(f.PartStarted, job) == []

    world.reboot("n1")
    assert "n1 rebooted while the job ran there" in world.job(job).requeue_reason
    world.run_until(500)

    assert world.machines["n1"].launches == [(job, 1), (job, 2)]


def test_a_job_that_may_not_be_rerun_ends_with_its_node() -> None:
    """-r n: lost is lost."""
    world = World(node("n1"))
    job = world.submit(runs_s=100, rerunnable=False)
    world.run_until(10)

    world.reboot("n1")

    assert outcome_kind(world, job) is OutcomeKind.NODE_LOST


def test_a_delete_of_a_job_on_a_dead_node_ends_it_when_the_node_is_back() -> None:
    """It does not rise again although it could be rerun."""
    world = World(node("n1"))
    job = world.submit(runs_s=100)
    world.run_until(10)
    world.lose_power("n1")
    world.delete(job)
    world.run_until(20)
    assert world.state(job) == "exiting"

    world.connect("n1")
    world.run_until(100)

    assert world.state(job) == "done"
    assert world.job(job).attempts == 1


def test_an_operator_can_vouch_for_a_death() -> None:
    """confirm-dead frees what the job owned; of a connected node it is refused."""
    world = World(node("n1", cpus=1), node("n2", cpus=1))
    jobs = [world.submit(runs_s=100) for _ in range(2)]
    world.run_until(1)
    lost = next(job for job in jobs if world.machine_of(job) == ("n1",))
    refused = world.refusal(DEAD)
    assert "is connected, so it is not dead" in str(refused)

    world.lose_power("n1")
    world.do(DEAD)
    world.run_until(500)

    assert world.machine_of(lost) == ("n2",)
    assert world.state(lost) == "done"


def test_a_node_that_forgot_a_running_job_has_lost_it() -> None:
    """A wiped spool on the same boot (C14)."""
    world = World(node("n1"))
    job = world.submit(runs_s=100)
    world.run_until(10)
    world.disconnect("n1")
    world.machines["n1"].running.clear()

    world.connect("n1")

    assert world.state(job) == "waiting"
    assert "no longer has a record of the job" in world.job(job).requeue_reason


def test_an_attempt_that_the_head_gave_up_is_stopped_when_its_node_comes_back() -> None:
    """confirm-dead was wrong: the old attempt is fenced, the new one runs on."""
    world = World(node("n1", cpus=1), node("n2", cpus=1))
    job = world.submit("nodes=n1", runs_s=10_000)
    world.run_until(1)
    world.disconnect("n1")
    world.do(DEAD)
    assert world.state(job) == "waiting"

    world.connect("n1")
    world.run_until(1)

    assert world.machines["n1"].running == {}
    assert world.head.oddities["attempt_given_up"] == 1
    world.run_until(20_000)
    assert world.state(job) == "done"


def test_after_five_faults_in_a_row_the_system_holds_the_job() -> None:
    """The delay doubles each time; a release begins anew."""
    world = World(node("n1"))
    job = world.submit(runs_s=100)
    delays_s = []
    for _ in range(5):
        world.run_for(10)
        assert world.state(job) == "running"
        world.reboot("n1")
        delays_s.append(world.job(job).not_before_s - world.now_s)
        world.run_for(max(delays_s[-1], 0))

    assert delays_s[:4] == [2, 4, 8, 16]
    assert world.state(job) == "held"
    assert world.job(job).holds == (HoldKind.SYSTEM,)
    assert "held after 5 failed attempts" in world.why(job)
    release = c.ActOnJob(caller=ALICE, job=job, action=a.ReleaseJob(holds=("system",)))
    refused = world.refusal(release)
    assert isinstance(refused, NotPermittedError)
    assert "system holds are for operators" in str(refused)
    world.release(job, by=ADMIN, kind=HoldKind.SYSTEM)
    assert world.job(job).faults == 0
    world.run_for(1000)
    assert world.state(job) == "done"


def test_a_node_that_cannot_start_jobs_is_drained_and_the_jobs_run_elsewhere() -> None:
    """Three launches in a row failed through the node's own fault, which cannot be probed (C15)."""
    world = World(node("n1", cpus=4), node("n2", cpus=4), connect=False)
    world.machines["n1"].can_probe = False
    for name in world.machines:
        world.connect(name)
    world.machines["n1"].launch_fault = "fork: resource temporarily unavailable"
    users = (ALICE, BOB, ALICE, BOB)
    jobs = [world.submit("nodes=1:ppn=2", runs_s=10, by=who) for who in users]

    world.run_until(500)

    broken = world.seen_node("n1")
    assert broken.drained
    assert broken.reason.startswith("3 launches of 2 users failed in a row, the last: fork")
    assert all(outcome_kind(world, job) is OutcomeKind.EXITED for job in jobs)


def test_a_good_start_forgets_a_nodes_faults() -> None:
    """Two faults, a success, two faults: not drained."""
    world = World(node("n1", cpus=1))
    machine = world.machines["n1"]
    for _ in range(2):
        machine.launch_fault = "no space left"
        world.submit(runs_s=1)
        world.run_for(2.5)
        machine.launch_fault = ""
        world.run_for(100)

    assert world.seen_node("n1").faults == 0
    assert not world.seen_node("n1").drained


def test_a_job_that_cannot_be_started_through_its_own_fault_ends() -> None:
    """No retry, and the node is not blamed (C16)."""
    world = World(node("n1"))
    job = world.submit(program=Program(user_error=True))

    world.run_until(10)

    assert outcome_kind(world, job) is OutcomeKind.LAUNCH_FAILED
    assert world.job(job).attempts == 1
    assert world.seen_node("n1").faults == 0


def test_a_node_that_comes_back_smaller_gets_no_more_than_it_has() -> None:
    """Free CPUs are below zero until the jobs have ended; nothing new comes."""
    world = World(node("n1", cpus=4))
    job = world.submit("nodes=1:ppn=4", runs_s=100)
    world.run_until(10)
    world.replace_hardware("n1", inventory(cpus=2))
    small = world.submit("nodes=1:ppn=2", runs_s=10)
    assert world.head.state.spaces["n1"].cpus == -2
    assert (world.state(job), world.state(small)) == ("running", "queued")
    world.run_until(500)

    assert world.started_s(small) == 100
    assert world.head.state.spaces["n1"].cpus == 2


# --- messages ---


def test_doubled_messages_change_nothing() -> None:
    """Every kind comes twice: one attempt, one outcome (E8)."""
    world = World(node("n1"))
    for kind in (n.Started, n.Exited, e.SendLaunch, n.StopAttempt, n.ExitAck):
        world.doubled[kind] = 100
    job = world.submit(runs_s=10)
    deleted = world.submit(runs_s=1000)
    world.run_until(5)
    world.delete(deleted)

    world.run_until(100)
    world.check_history()

    assert len(world.told(f.AttemptEnded, job)) == 1
    assert len(world.told(f.JobEnded, deleted)) == 1
    assert world.machines["n1"].launches == [(job, 1), (deleted, 1)]


def test_a_lost_exit_is_told_again() -> None:
    """The node repeats it until it is acknowledged; a lost acknowledgement makes one more."""
    world = World(node("n1"))
    world.lost[n.Exited] = 1
    world.lost[n.ExitAck] = 1
    job = world.submit(runs_s=10)

    world.run_until(100)

    assert outcome_kind(world, job) is OutcomeKind.EXITED
    assert world.machines["n1"].ended == {}
    assert world.head.oddities["exit_again"] == 1


def test_a_start_told_after_the_exit_is_not_believed() -> None:
    """Reordered: the exit overtakes the start."""
    world = World(node("n1"))
    world.delayed_s[n.Started] = 60
    job = world.submit(runs_s=10)

    world.run_until(100)

    assert outcome_kind(world, job) is OutcomeKind.EXITED
    assert world.told(f.PartStarted, job) == []
    assert world.job(job).started_s == BEGIN_S


# --- the head ---


def test_a_restarted_head_goes_on_where_the_old_one_was() -> None:
    """Queued, running, held and delayed jobs are what they were; queue times are the old ones."""
    world = World(node("n1", cpus=2))
    running = world.submit("nodes=1:ppn=2,walltime=100", runs_s=100)
    queued = world.submit("nodes=1:ppn=2", runs_s=10)
    held = world.submit(holds=("user",))
    delayed = world.submit(start_after_s=BEGIN_S + 500)
    world.run_until(50)

    world.restart_head()
    assert [world.state(job) for job in (running, queued, held, delayed)] == [
        "running",
        "queued",
        "held",
        "waiting",
    ]
    world.run_until(1000)

    assert (world.started_s(queued), world.started_s(delayed)) == (100, 500)
    assert world.job(running).attempts == 1
    assert world.job(queued).eligible_s == BEGIN_S


def test_a_launch_lost_with_the_old_head_is_sent_by_the_new_one() -> None:
    """Same attempt, once (A4)."""
    world = World(node("n1"))
    world.lost[e.SendLaunch] = 1
    job = world.submit(runs_s=10)
    world.run_until(5)

    world.restart_head()
    world.run_until(100)

    assert world.state(job) == "done"
    assert world.machines["n1"].launches == [(job, 1)]


def test_a_stop_lost_with_the_old_head_is_sent_by_the_new_one() -> None:
    """gdel holds over a restart (A9)."""
    world = World(node("n1"))
    job = world.submit(runs_s=1000)
    world.run_until(5)
    world.lost[n.StopAttempt] = 1
    world.delete(job)

    world.restart_head()
    world.run_until(50)

    assert outcome_kind(world, job) is OutcomeKind.CANCELLED


def test_a_node_that_died_with_the_old_head_is_not_up_for_the_new_one() -> None:
    """Nothing is given to a node before it has registered with this head."""
    world = World(node("n1"))
    world.machines["n1"].connected = False

    world.restart_head()
    job = world.submit()

    assert world.seen_node("n1").state.value == "unreachable"
    assert world.state(job) == "queued"
    assert "drained, down or full" in world.why(job)


def test_a_retried_submission_gets_its_job_also_from_the_next_head() -> None:
    """One id per intent (I2), also for a job that has ended meanwhile."""
    world = World(node("n1"))
    first = world.submit(key="abc", runs_s=10)

    assert world.submit(key="abc") == first
    world.run_until(50)
    world.restart_head()

    assert world.submit(key="abc") == first
    assert world.submit(key="abd") == first + 1


def test_safe_mode_starts_nothing_and_says_so() -> None:
    """Until an operator has looked."""
    world = World(node("n1"))
    world.disconnect("n1")
    job = world.submit()
    world.head.safe_mode = "the database is an old copy"
    world.connect("n1")

    deletion = c.ActOnJob(caller=ALICE, job=job, action=a.DeleteJob())
    assert isinstance(world.refusal(deletion), TryAgainError)
    assert world.why(job) == "no job is started: the database is an old copy"
    world.head.safe_mode = ""
    world.settle()

    assert world.state(job) == "running"


# --- a head that knows less than its nodes ---


def test_what_an_older_copy_of_the_database_does_not_know_is_left_alone() -> None:
    """Neither stopped nor acknowledged: an operator must look first."""
    world = World(node("n1"))
    world.run_until(1)
    key = (500, 1)
    record = ExitRecord(job=501, attempt=1, kind=OutcomeKind.EXITED, exit_code=0)
    exited = n.Exited(record=record, usage=Usage(), load=Load())
    started = n.Started(job=key[0], attempt=1, pid=1, started_s=BEGIN_S)

    steps = [
        world.head.reported("n1", started, world.now_s),
        world.head.reported("n1", exited, world.now_s),
    ]
    assert [step.effects for step in steps] == [(), ()]
    world.disconnect("n1")
    world.machines["n1"].running[key] = Running(share_gpus=(), cpus=1, started_s=BEGIN_S)
    world.connect("n1")
    world.run_until(5)

    assert key in world.machines["n1"].running
    assert world.head.oddities == {"attempt_of_unknown_job": 2, "exit_of_unknown_job": 1}


def test_an_exit_that_is_recorded_already_is_acknowledged_at_registration() -> None:
    """Two nodes; the first one's acknowledgement was lost, its job still runs on the second."""
    world = World(node("n1"), node("n2"))
    world.lost[n.ExitAck] = 1
    job = world.torchrun("nodes=2", program=Program(runs_on_s={"n1": 5, "n2": 100}))
    world.run_until(6)
    assert world.machines["n1"].ended

    world.disconnect("n1")
    world.connect("n1")
    world.run_until(7)

    assert world.machines["n1"].ended == {}
    assert world.state(job) == "running"


def test_in_safe_mode_nothing_is_ended_or_forgotten_and_afterwards_all_is_said_anew() -> None:
    """A better copy of the database may still be put in place."""
    world = World(node("n1", cpus=1), node("n2", cpus=1))
    job = world.submit("nodes=n1", runs_s=10)
    world.run_until(1)
    world.disconnect("n1")
    world.do(DEAD)
    world.head.safe_mode = "an old copy"

    world.connect("n1")
    world.run_until(5)
    assert (job, 1) in world.machines["n1"].running, "it was given up, but is not stopped"
    world.run_until(20)
    assert (job, 1) in world.machines["n1"].ended, "its exit is not acknowledged"
    world.head.safe_mode = ""
    world.disconnect("n1")
    world.connect("n1")
    world.run_until(100)

    assert world.machines["n1"].ended == {}
    assert world.state(job) == "done"
    assert world.job(job).attempts == 2


def test_i17_each_attempt_has_another_port_and_one_that_is_taken_is_no_fault_of_the_node() -> None:
    """The job is tried again, some times; the node takes other jobs meanwhile."""
    world = World(node("a"))
    job = world.torchrun("nodes=1:ppn=2", program=Program(runs_s=1e5))
    ports = []
    for number in range(1, MAX_FAULTS + 1):
        world.run_for(60.0)
        attempt = world.job(job).attempt
        assert attempt is not None
        ports.append(attempt.master_port)
        machine = world.machines["a"]
        del machine.running[job, number]
        record = ExitRecord(
            job=job,
            attempt=number,
            kind=OutcomeKind.LAUNCH_FAILED,
            port_taken=True,
            message="taken",
        )
        world.tell(machine, n.Exited(record=record, usage=Usage(), load=Load()))
        world.run_for(0.0)
        assert world.seen_node("a").faults == 0

    assert len(set(ports)) == MAX_FAULTS
    assert world.state(job) == "held"
    assert not world.seen_node("a").drained
