"""Deadlines of GPU jobs where CPUs, memory or a limit are scarcer than GPUs: none is guaranteed."""

import pytest
from msgspec import convert, structs

from gsched.config.tables import LimitsConfig
from gsched.errors import GschedError, InvalidRequestError
from gsched.model.training import Training
from gsched.protocol import actions as a
from gsched.protocol.reservations import ReservationChange, ReservationTerms
from gschedd.core.requests import commands as c
from gschedd.core.state.state import State
from gschedd.core.views.jobs import JobViews
from gschedd.models.robust import RobustModel
from gschedd.plan.compose import Composed
from gschedd.plan.reserved import WithReservations
from gschedd.plan.snapshot import Policy
from gschedd.policies.queue import fifo
from gschedd.policies.training import deadline, drs, elasticflow
from tests.support.world import ADMIN, BOB, World, node, settings

POLICIES = [deadline.plan, elasticflow.plan, drs.plan]
GPU = "select=1:ncpus=1:ngpus=1,walltime=600"
#: 600 s on one GPU, and in proportion less on more.
ELASTIC = Training(iterations=600.0, rates=((1, 1.0), (2, 2.0), (4, 4.0)))


class Site(World):
    """Nodes with more GPUs than jobs find CPUs for."""

    def __init__(
        self,
        policy: Policy,
        *,
        names: str = "a",
        cpus: int = 4,
        gpus: int = 2,
        limits: LimitsConfig | None = None,
    ) -> None:
        machines = [node(name, cpus=cpus, gpus=gpus, memory_bytes=8 * 1024**3) for name in names]
        config = settings() if limits is None else settings(limits=limits)
        super().__init__(
            *machines, policy=Composed(policy, WithReservations(fifo.plan)), config=config
        )

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True, limits=self.settings.limit_rules())

    def insists(self, resources: str, in_s: float, **changes: object) -> int | GschedError:
        """Submit a job only if its deadline can be met; return it, or why it was refused."""
        try:
            return self.submit(
                resources,
                deadline_after_s=in_s,
                reject_if_late=True,
                runs_s=600.0,
                **changes,  # type: ignore[arg-type] # fields of a submission
            )
        except InvalidRequestError as error:
            return error


def refused(result: int | GschedError) -> str:
    assert isinstance(result, GschedError), "it was taken"
    return result.message


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("holds", "wants", "lacks"),
    [
        ("select=1:ncpus=4", GPU, "1 CPU short until "),
        ("select=1:ncpus=1:mem=7gb", GPU.replace("ncpus=1", "ncpus=1:mem=2gb"), "1gb memory short"),
        ("select=1:ncpus=3", GPU.replace("ncpus=1", "ncpus=2"), "1 CPU short until "),
    ],
)
def test_no_deadline_is_guaranteed_that_waits_for_cpus_or_memory(
    policy: Policy, holds: str, wants: str, lacks: str
) -> None:
    """GPUs are idle, but an ordinary job holds for two hours what is needed beside them."""
    site = Site(policy)
    site.submit(f"{holds},walltime=7200", runs_s=7000.0)

    message = refused(site.insists(wants, 1800.0))
    queued = site.submit(wants, deadline_after_s=1800.0, runs_s=600.0)
    kept = site.submit(wants, deadline_after_s=10_000.0, runs_s=600.0)

    assert "would miss its deadline" in message
    assert lacks in message
    assert (site.job(queued).meets, site.job(queued).guaranteed) == (False, None)
    assert site.job(kept).meets is not False
    site.run_for(9900.0)
    assert site.state(kept) == "done"


@pytest.mark.parametrize("policy", [deadline.plan, elasticflow.plan])
def test_cpus_that_other_training_jobs_hold_are_not_there(policy: Policy) -> None:
    """Two GPUs, and all CPUs are with a job with a later deadline, which can migrate."""
    site = Site(policy)
    all_cpus = "select=1:ncpus=4:ngpus=1,walltime=7200"
    site.submit(all_cpus, deadline_after_s=20_000.0, runs_s=7000.0, movable=True)

    assert "1 CPU short until " in refused(site.insists(GPU, 1800.0))


@pytest.mark.parametrize("policy", [deadline.plan, elasticflow.plan])
def test_jobs_that_need_all_cpus_are_forecast_one_after_the_other(policy: Policy) -> None:
    """Of two GPUs only one can be used at a time: three jobs of 600 s take 1,800 s, not 1,200."""
    site = Site(policy)
    all_cpus = "select=1:ncpus=4:ngpus=1,walltime=600"
    taken = [site.insists(all_cpus, 1300.0) for _ in range(2)]

    message = refused(site.insists(all_cpus, 1400.0))
    last = site.insists(all_cpus, 1900.0)

    assert all(isinstance(job, int) for job in [*taken, last])
    assert "CPUs short until " in message
    site.run_for(1900.0)
    assert {site.state(job) for job in [*taken, last] if isinstance(job, int)} == {"done"}


def test_a_range_of_gpus_is_forecast_on_those_that_have_cpus() -> None:
    """Four GPUs are free, but CPUs for two of them: the job takes 300 s, and not 150."""
    site = Site(deadline.plan, gpus=4)
    site.submit("select=1:ncpus=2,walltime=7200", runs_s=7000.0)
    wide = "select=1:ncpus=1:ngpus=1,place=free"

    message = refused(site.insists(wide, 200.0, places_max=4, training=ELASTIC))
    job = site.insists(wide, 400.0, places_max=4, training=ELASTIC)

    assert "would miss its deadline" in message
    assert isinstance(job, int)
    assert site.job(job).meets is True


@pytest.mark.parametrize("policy", POLICIES)
def test_a_later_job_without_gpus_leaves_the_cpus_of_a_guaranteed_one(policy: Policy) -> None:
    """The only GPU is taken for 600 s; a CPU job of two hours would take the CPUs beside it."""
    site = Site(policy, gpus=1)
    site.submit("select=1:ncpus=1:ngpus=1,walltime=600", runs_s=600.0)
    job = site.insists("select=1:ncpus=3:ngpus=1,walltime=600", 1800.0)
    assert isinstance(job, int)

    short = site.submit("select=1:ncpus=1,walltime=300", runs_s=300.0)
    long = site.submit("select=1:ncpus=2,walltime=7200", runs_s=7200.0)

    assert site.state(short) == "running"
    assert "would make job" in site.why(long)
    site.run_for(1800.0)
    assert site.state(job) == "done"


@pytest.mark.parametrize("policy", [deadline.plan, elasticflow.plan])
def test_nothing_is_guaranteed_that_a_limit_may_prevent(policy: Policy) -> None:
    """Both GPUs come free at 600 s, but the user may have only one of them at a time."""
    limits = convert({"user": {"alice": {"max_gpus": 1}}}, LimitsConfig)
    site = Site(policy, limits=limits)
    site.submit("select=1:ncpus=1:ngpus=2,walltime=600", runs_s=600.0, by=BOB)

    assert isinstance(site.insists(GPU, 1800.0), int)
    message = refused(site.insists(GPU, 1800.0))
    assert "cannot predict whether the deadline" in message
    assert "GPUs, the limit of user alice" in message


def test_no_deadline_is_expected_of_a_job_without_gpus_that_waits_for_a_limit() -> None:
    """As of one with GPUs: its place in the queue says when the limit leaves it room, or others."""
    limits = convert({"user": {"alice": {"max_cpus": 1}}}, LimitsConfig)
    site = Site(deadline.plan, limits=limits)
    first = site.insists(CPU, 1800.0)
    message = refused(site.insists(CPU, 1800.0))
    queued = site.submit(CPU, deadline_after_s=1800.0, runs_s=500.0)
    seen = JobViews(site.head, now_s=site.now_s).row(site.job(queued))

    assert isinstance(first, int)
    assert "cannot predict whether the deadline" in message
    assert "CPUs, the limit of user alice" in message
    endless = site.insists("select=1:ncpus=1", 1800.0, training=ELASTIC)
    assert "CPUs, the limit of user alice" in refused(endless)
    assert (site.state(queued), seen.deadline_s) == ("queued", site.job(queued).spec.deadline_s)
    assert seen.meets_deadline is None
    site.run_for(610.0)
    row = JobViews(site.head, now_s=site.now_s).row(site.job(queued))
    assert (row.state, row.meets_deadline) == ("running", True)


def test_the_deadline_of_a_training_job_in_a_reservation_is_predicted() -> None:
    """It runs there on its fewest GPUs: 600 s of work on one of them."""
    site = Site(deadline.plan)
    terms = ReservationTerms(
        from_s=site.now_s, duration_s=30_000.0, node_names=("a",), users=("alice",)
    )
    change = ReservationChange(verb="create", name="course", terms=terms)
    site.do(c.ChangeReservation(caller=ADMIN, action=change))
    work = {"training": ELASTIC, "places_max": 2, "reservation": "course"}
    wide = "select=1:ncpus=1:ngpus=1,walltime=7200"

    kept = site.insists(wide, 700.0, **work)
    late = refused(site.insists(wide, 500.0, **work))

    assert isinstance(kept, int)
    assert "the job would miss its deadline" in late
    assert "its expected end is" in late
    row = JobViews(site.head, now_s=site.now_s).row(site.job(kept))
    assert (row.meets_deadline, row.deadline_s) == (True, site.job(kept).spec.deadline_s)


def test_the_deadline_of_a_job_without_gpus_is_expected_and_not_guaranteed() -> None:
    """It waits in the queue like all others: a job with a higher priority may overtake it."""
    site = Site(deadline.plan)
    job = site.insists("select=1:ncpus=1,walltime=600", 1800.0)

    assert isinstance(job, int)
    assert (site.job(job).meets, site.job(job).guaranteed) == (True, None)


def test_a_deadline_without_an_open_node_is_refused_with_this_reason() -> None:
    site = Site(deadline.plan)
    site.do(c.ActOnNode(caller=ADMIN, node="a", action=a.DrainNode(reason="dust")))

    message = refused(site.insists(GPU, 1800.0))

    assert "1 node is drained, down or full" in message


def test_maintenance_in_the_way_of_a_deadline_is_named() -> None:
    """The node is open, but the job would still run when maintenance begins."""
    site = Site(deadline.plan)
    begins_s = site.now_s + 300
    window = a.MaintainNode(from_s=begins_s, to_s=begins_s + 7200, reason="new switch")
    site.do(c.ActOnNode(caller=ADMIN, node="a", action=window))

    message = refused(site.insists(GPU, 1800.0))

    assert "maintenance of a from " in message
    assert "new switch; its walltime does not end before" in message


def _two_nodes(policy: Policy, *, part: bool = False) -> Site:
    """Return a site of two idle nodes; maintenance of both, or of one, begins in 20 minutes."""
    site = Site(policy, names="ab")
    begins_s = site.now_s + 1200
    window = a.MaintainNode(from_s=begins_s, to_s=begins_s + 14_400, reason="course")
    for name in ("a",) if part else ("a", "b"):
        site.do(c.ActOnNode(caller=ADMIN, node=name, action=window))
    return site


HOUR = "select=1:ncpus=1:ngpus=1,walltime=3600"
MINUTES = "select=1:ncpus=1:ngpus=1,walltime=120"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("walltime", [",walltime=3600", ""])
def test_a_training_job_that_waits_for_a_window_leaves_the_nodes_to_shorter_ones(
    policy: Policy, walltime: str
) -> None:
    """It would run into the window on each node; those of two minutes would not."""
    site = _two_nodes(policy)
    long = site.submit(
        HOUR.replace(",walltime=3600", walltime),
        deadline_after_s=10_800.0,
        training=Training(iterations=3600.0, rates=((1, 1.0),)),
        runs_s=3600.0,
    )

    short = site.insists(MINUTES, 600.0)
    ranged = site.submit(f"{MINUTES},place=free", places_max=2, runs_s=100.0)

    assert isinstance(short, int)
    assert site.job(short).meets is True
    assert [site.state(job) for job in (short, ranged, long)] == ["running", "running", "queued"]
    assert "maintenance of a (and 1 more) from " in site.why(long)
    assert site.job(long).meets is False


@pytest.mark.parametrize("policy", POLICIES)
def test_a_training_job_that_waits_for_a_window_starts_after_it(policy: Policy) -> None:
    """Nothing is known of its deadline, which is after the window: it is not late."""
    site = _two_nodes(policy)
    job = site.submit(HOUR, deadline_after_s=30_000.0, runs_s=3500.0)

    assert (site.state(job), site.job(job).meets) == ("queued", None)
    message = refused(site.insists(HOUR, 30_000.0))
    assert "cannot predict whether the deadline" in message
    assert "course; its walltime does not end before" in message
    site.run_for(20_000.0)
    assert (site.state(job), site.job(job).meets) == ("done", True)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_running_training_job_closes_no_other_node_by_its_walltime(policy: Policy) -> None:
    """It runs on the node without a window, and cannot migrate to the other one."""
    site = _two_nodes(policy, part=True)
    long = site.submit(HOUR.replace("ngpus=1", "ngpus=2"), deadline_after_s=5000.0, runs_s=3500.0)

    short = site.insists(MINUTES.replace("ngpus=1", "ngpus=2"), 600.0)

    assert isinstance(short, int)
    assert (site.state(long), site.state(short)) == ("running", "running")
    assert site.machine_of(long) == ("b",)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("walltime", [",walltime=3600", ""])
def test_a_training_job_that_waits_for_a_node_without_a_window_leaves_the_others(
    policy: Policy, walltime: str
) -> None:
    """It would run into the window of one node, and the other one is in use."""
    site = _two_nodes(policy, part=True)
    both = HOUR.replace("ngpus=1", "ngpus=2")
    before = site.submit(both, deadline_after_s=5000.0, runs_s=3500.0)
    long = site.submit(
        both.replace(",walltime=3600", walltime), deadline_after_s=30_000.0, runs_s=3500.0
    )

    short = site.insists(MINUTES, 600.0)
    shorter = site.submit(MINUTES.replace("120", "60"), deadline_after_s=900.0, runs_s=50.0)
    third = site.submit(MINUTES, deadline_after_s=900.0, runs_s=100.0)

    assert isinstance(short, int)
    assert site.machine_of(before) == ("b",)
    assert [site.state(job) for job in (short, shorter)] == ["running", "running"]
    assert site.machine_of(short) == site.machine_of(shorter) == ("a",)
    assert [site.state(job) for job in (long, third)] == ["queued", "queued"]
    site.run_for(300.0)
    assert site.state(third) == "done"
    site.run_for(20_000.0)
    assert site.state(long) == "done"


CPU = "select=1:ncpus=1,walltime=600"
WITHOUT = "submit it without --reject-if-late"
LATER = "submit it with a later deadline, or without --reject-if-late"


@pytest.mark.parametrize("wants", [GPU, CPU])
def test_a_deadline_is_unknown_while_scheduling_is_stopped(wants: str) -> None:
    site = Site(deadline.plan)
    site.head.settings = structs.replace(site.head.settings, scheduling=False)

    result = site.insists(wants, 1800.0)

    assert "an operator has stopped scheduling; nothing was queued" in refused(result)
    assert isinstance(result, GschedError)
    assert result.hint == WITHOUT


def hint(result: int | GschedError) -> str:
    assert isinstance(result, GschedError), "it was taken"
    return result.hint


def test_a_refusal_advises_only_what_could_help() -> None:
    """More GPUs help a training of a stated workload, and none that lacks CPUs or a node."""
    site = Site(deadline.plan)
    site.submit("select=1:ncpus=4:ngpus=2,walltime=7200", runs_s=7000.0)
    work = Training(iterations=600.0, rates=((1, 1.0), (2, 2.0)))

    assert hint(site.insists(CPU, 1800.0)) == LATER
    assert hint(site.insists(GPU, 1800.0)) == LATER
    assert hint(site.insists("select=1:ncpus=1", 1800.0)).startswith("submit it with a --walltime,")
    assert hint(site.insists(GPU, 1800.0, holds=("user",))) == WITHOUT
    site.do(c.ActOnNode(caller=ADMIN, node="a", action=a.DrainNode(reason="dust")))
    assert hint(site.insists(GPU, 1800.0)) == WITHOUT

    other = Site(deadline.plan, cpus=8)
    other.submit(
        "select=1:ncpus=1:ngpus=1,walltime=600", training=work, runs_s=600.0, deadline_after_s=650.0
    )
    other.submit(
        "select=1:ncpus=1:ngpus=1,walltime=600", training=work, runs_s=600.0, deadline_after_s=650.0
    )
    assert "later deadline or more GPUs" in hint(other.insists(GPU, 700.0, training=work))


@pytest.mark.parametrize("policy", [deadline.plan, elasticflow.plan])
def test_a_job_that_has_outlived_its_run_time_holds_its_cpus_until_its_walltime_ends(
    policy: Policy,
) -> None:
    """It stated 600 s of work, has all CPUs and runs for two hours."""
    site = Site(policy)
    site.submit(
        "select=1:ncpus=4:ngpus=1,walltime=7200",
        training=Training(iterations=600.0, rates=((1, 1.0),)),
        deadline_after_s=10_000.0,
        runs_s=7100.0,
    )
    site.run_for(1000.0)

    assert "1 CPU short until " in refused(site.insists(GPU, 1800.0))
    assert isinstance(site.insists(GPU, 8000.0), int)


@pytest.mark.parametrize("policy", [deadline.plan, elasticflow.plan])
def test_no_deadline_is_guaranteed_that_holds_only_for_learned_run_times(policy: Policy) -> None:
    """Jobs of the kind took 50 s; one has all CPUs, and a walltime of two hours."""
    site = Site(policy)
    site.head.model = RobustModel()
    holds = "select=1:ncpus=4,walltime=7200"
    for _ in range(6):
        site.submit(holds, kind="prepare", runs_s=50.0)
        site.run_for(60.0)
    site.submit(holds, kind="prepare", runs_s=3000.0)

    result = site.insists(GPU, 1800.0)
    message = refused(result)
    assert hint(result) == LATER
    queued = site.submit(GPU, deadline_after_s=1800.0, runs_s=600.0)
    kept = site.insists(GPU, 9000.0)

    assert "cannot predict whether the deadline" in message
    assert "1 CPU short until " in message
    assert "if running jobs use their whole walltimes" in message
    assert (site.job(queued).meets, site.job(queued).guaranteed) == (None, None)
    assert isinstance(kept, int)
    site.run_for(1500.0)
    site.submit("select=1:ncpus=1,walltime=60")  # with it all is judged anew
    assert site.job(queued).meets is False
    site.run_for(6000.0)
    assert site.state(kept) == "done"
