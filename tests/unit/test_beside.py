"""Training jobs with deadlines and all other jobs on one cluster: who gives way to whom."""

from msgspec import structs

from gsched.model.resources import Chunk, Gpu, Request
from gsched.model.states import Placement
from gschedd.plan.compose import MAX_CHECKED, NEXT, Composed
from gschedd.plan.elastic import allocate
from gschedd.plan.fit import NoFit, place
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Group, JobClass, Plan, Policy, Snapshot, Start
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.training import Layout, TrainingProfile

ONE_GPU = Request(chunks=(Chunk(cpus=1, gpus=1),))


class Steady:
    """Work done in a second on each GPU: one."""

    def rate(self, layout: Layout) -> float:
        """Return the number of GPUs."""
        return float(layout.gpus)


def node(name: str, gpus: int) -> FreeNode:
    """Return an idle node."""
    have = tuple(Gpu(index=index) for index in range(gpus))
    return FreeNode(
        name=name,
        cpus=128,
        memory_bytes=1,
        gpus=have,
        generic=(),
        total_cpus=128,
        total_memory_bytes=1,
        total_gpus=gpus,
        total_generic=(),
        all_gpus=have,
        features=frozenset(),
    )


def other(job: int, request: Request = ONE_GPU, walltime_s: float = 10.0 * 3600) -> Group:
    """Return a waiting job that is no training."""
    job_class = JobClass(queue="batch", request=request, walltime_s=walltime_s + job)
    return Group(job_class=job_class, order=[(0, job)])


def training(job: int) -> Group:
    """Return a waiting training on two GPUs."""
    request = Request(chunks=(Chunk(count=2, cpus=1, gpus=1),), placement=Placement.PACK)
    return Group(
        job_class=JobClass(queue="batch", request=request, walltime_s=None, training=job),
        order=[(0, job)],
    )


def profile(job: int) -> TrainingProfile:
    """Return what is known of such a training."""
    return TrainingProfile(
        job=job,
        arrived_s=0.0,
        deadline_s=100.0,
        work=10.0,
        total_work=10.0,
        speed=Steady(),
        gpus=(2,),
    )


def later(snapshot: Snapshot) -> Plan:
    """Start no training yet; each is in time as long as two GPUs are free for it."""
    free = sum(len(space.gpus) for space in snapshot.nodes.values() if space.open)
    jobs = sorted(snapshot.profiles)
    return Plan(
        verdicts=tuple(
            Forecast(job=job, meets=2 * (number + 1) <= free) for number, job in enumerate(jobs)
        )
    )


def at_once(snapshot: Snapshot) -> Plan:
    """Start each training where there is room."""
    free, starts = Spaces(snapshot.nodes), []
    for group in snapshot.groups:
        found = allocate(group.job_class.request, free, 2)
        if found is not None:
            free.take(found)
            starts.append(
                Start(
                    job=group.job_class.training,
                    job_class=group.job_class,
                    allocation=found,
                    why="room",
                )
            )
    return Plan(starts=tuple(starts))


def rest(snapshot: Snapshot) -> Plan:
    """Start every other job where there is room."""
    free, starts = Spaces(snapshot.nodes), []
    for group in snapshot.groups:
        assert group.job_class.training not in snapshot.profiles, "a training is not for this one"
        found = place(group.job_class.request, free)
        if not isinstance(found, NoFit):
            free.take(found)
            starts.append(
                Start(
                    job=group.order[0][1], job_class=group.job_class, allocation=found, why="room"
                )
            )
    return Plan(starts=tuple(starts))


def snapshot(*groups: Group, gpus: int = 4, nodes: int = 1) -> Snapshot:
    """Return idle nodes and what waits for them."""
    spaces = {f"n{number}": node(f"n{number}", gpus) for number in range(nodes)}
    profiles = {
        group.job_class.training: profile(group.job_class.training)
        for group in groups
        if group.job_class.training
    }
    return Snapshot(now_s=0.0, nodes=spaces, groups=groups, running=[], profiles=profiles)


def started(plan: Plan) -> set[int]:
    """Return the jobs that a plan starts."""
    return {start.job for start in plan.starts}


def test_training_jobs_choose_first_and_the_others_find_that_taken() -> None:
    """Two GPUs are left for four that want one each."""
    plan = Composed(at_once, rest)(snapshot(*map(other, (1, 2, 3, 4)), training(5)))

    assert started(plan) == {5, 1, 2}
    used = [(s.node, i) for start in plan.starts for s in start.allocation for i in s.gpu_indices]
    assert len(used) == len(set(used)) == 4


def test_others_make_no_training_late() -> None:
    """A training that will start later keeps what it needs; who would take it is told why."""
    plan = Composed(later, rest)(snapshot(*map(other, (1, 2, 3, 4)), training(5)))

    assert started(plan) == {1, 2}
    reasons = {wait.first: str(wait.reason) for wait in plan.waits}
    assert reasons == dict.fromkeys((3, 4), "would make job 5 miss its deadline")


def test_a_training_that_is_late_anyway_keeps_nobody_waiting() -> None:
    """Three training jobs would need six GPUs of four: the third one's verdict cannot get worse."""
    both = Composed(later, rest)(snapshot(other(1), *map(training, (5, 6, 7))))

    assert started(both) == set()
    assert started(Composed(later, rest)(snapshot(other(1), training(5), gpus=1))) == {1}


def test_jobs_without_gpus_are_not_held_up() -> None:
    """They take nothing that training jobs want."""
    plan = Composed(later, rest)(snapshot(other(1, Request()), training(5), gpus=2))

    assert started(plan) == {1}


def test_a_share_of_the_nodes_is_kept_for_others_that_want_gpus() -> None:
    """Of two nodes the second; where nobody wants GPUs, training jobs have all."""
    half = Composed(at_once, rest, share=0.5)
    training_jobs = list(map(training, (5, 6, 7, 8)))

    crowded = half(snapshot(other(1), *training_jobs, nodes=2))
    alone = half(snapshot(other(1, Request()), *training_jobs, nodes=2))

    assert len(started(crowded) & {5, 6, 7, 8}) == 2
    assert 1 in started(crowded)
    assert started(alone) == {1, 5, 6, 7, 8}


def test_the_share_lies_on_nodes_that_take_work() -> None:
    """Of three the last one is drained: it is of no use to those that the share is for."""
    half = Composed(at_once, rest, share=0.5)
    seen = snapshot(*map(other, range(10, 14)), *map(training, (5, 6, 7, 8)), nodes=3)
    nodes = {**seen.nodes, "n2": structs.replace(seen.nodes["n2"], open=False)}

    plan = half(structs.replace(seen, nodes=nodes))

    where = {start.job: {share.node for share in start.allocation} for start in plan.starts}
    assert {5, 6} <= where.keys()
    assert all(nodes == ({"n0"} if job < 10 else {"n1"}) for job, nodes in where.items())
    assert where.keys() >= {10, 11, 12, 13}


def test_so_many_are_checked_in_one_cycle() -> None:
    """What was not checked waits: no cycle takes for ever."""
    count = MAX_CHECKED + 5
    groups = [other(job) for job in range(1, count + 1)]
    plan = Composed(later, rest)(snapshot(*groups, training(100), gpus=64))

    assert len(started(plan)) == MAX_CHECKED
    assert plan.again_s == 0.0, "else it would wait until something ends"
    assert {wait.reason for wait in plan.waits} == {NEXT}


def test_nothing_is_looked_at_again_where_all_were_checked() -> None:
    """Not what would make a training late, either: that is so until something happens."""
    assert Composed(later, rest)(snapshot(*map(other, (1, 2, 3, 4)), training(5))).again_s is None


def test_what_a_policy_wants_to_be_asked_again_for_is_asked_for() -> None:
    """By either of them: the earlier of both."""

    def asking(policy: Policy, again_s: float) -> Policy:
        return lambda seen: structs.replace(policy(seen), again_s=again_s)

    seen = snapshot(other(1), training(5))

    assert Composed(asking(later, 30.0), rest)(seen).again_s == 30.0
    assert Composed(asking(later, 30.0), asking(rest, 20.0))(seen).again_s == 20.0


def test_without_training_jobs_it_is_the_other_policy_itself() -> None:
    """The very snapshot, so that nothing is looked at twice."""
    seen: list[Snapshot] = []

    def watching(snapshot: Snapshot) -> Plan:
        seen.append(snapshot)
        return Plan()

    alone = structs.replace(snapshot(other(1)), profiles={})
    Composed(at_once, watching)(alone)

    assert seen == [alone]
    assert seen[0] is alone
