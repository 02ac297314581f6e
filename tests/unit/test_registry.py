"""Policies by name: the site's settings reach them, and queues that do not agree are refused."""

from collections.abc import Mapping
from functools import partial

import pytest
from msgspec import Struct, structs

from baselines.kit.paper_model import PaperModel
from baselines.registry import ALL
from gsched.config import words
from gsched.config.load import parse_config
from gsched.config.policies import (
    DeadlineConfig,
    DrsConfig,
    ElasticflowConfig,
    GoodputConfig,
    SiaConfig,
)
from gsched.errors import ConfigError
from gsched.model.resources import Allocation, Chunk, Request, Share
from gschedd.models.robust import RobustModel
from gschedd.plan.compose import Composed
from gschedd.plan.elastic import allocate
from gschedd.plan.load import Use
from gschedd.plan.snapshot import Group, JobClass, Policy, RunningJob, Snapshot
from gschedd.plan.space import FreeNode, Spaces, take
from gschedd.plan.training import Fabric
from gschedd.policies.registry import INSTALLED, Chosen, chosen_policy
from tests.support.runs import GB, node
from tests.support.spaces import space
from tests.support.training_jobs import NOW_S, VGG16, elastic, gpu_nodes, profile, snapshot_of

BUSY = Use(memory_bytes=60 * GB)
USED = Share(node="n1", cpus=3)
#: Of each policy for training jobs that has any.
SETTINGS: Mapping[str, type[Struct]] = {
    "deadline": DeadlineConfig,
    "drs": DrsConfig,
    "elasticflow": ElasticflowConfig,
    "goodput": GoodputConfig,
    "sia": SiaConfig,
}


def chosen(text: str = "") -> Chosen:
    return chosen_policy(parse_config(text, where="test.toml"))


def drs_with(line: str = "") -> Chosen:
    return chosen(f"[training]\npolicy = 'drs'\n[training.drs]\n{line}\n")


def settings_of(policy: Policy) -> Struct:
    """Return the settings of the policy for training jobs."""
    assert isinstance(policy, Composed)
    assert isinstance(policy.training, partial)
    said = policy.training.keywords["settings"]
    assert isinstance(said, Struct)
    return said


def first_node(policy: Policy) -> str:
    """Return where a job goes: n1's memory is in use, n2's cores are."""
    nodes = [space(name, cpus=8, memory_bytes=64 * GB) for name in ("n1", "n2")]
    loads = [node("n1", used=BUSY), node("n2", used=Use(cpu_cores=7))]
    job_class = JobClass(queue="batch", request=Request(chunks=(Chunk(),)), walltime_s=None)
    made = policy(
        Snapshot(
            now_s=0,
            nodes={each.name: each for each in nodes},
            groups=[Group(job_class=job_class, order=[(0, 1)])],
            running=(),
            loads={load.name: load for load in loads},
        )
    )
    return made.starts[0].allocation[0].node


def test_a_configuration_may_name_every_installed_policy() -> None:
    """And no other; a baseline is refused with what may be named."""
    assert tuple(sorted(INSTALLED.queue)) == words.POLICIES
    assert tuple(sorted(INSTALLED.training)) == words.TRAINING_POLICIES
    assert tuple(sorted(INSTALLED.adaptive)) == words.ADAPTIVE_POLICIES
    assert tuple(sorted({*ALL.names} - {*INSTALLED.names})) == words.BASELINES


CHANGED = {
    "deadline": "reserve_share = 0.2\nreserve_after_s = 60\nguarantee_below = 0.5\n"
    "grow_below = 0.5\nhold_s = 1\nsteps_max = 9\nsteps_min = 8\n",
    "drs": "moves_max = 1\npatience_s = 5\n",
    "elasticflow": "slot_s = 60\nin_slots = true\n",
    "goodput": "round_s = 30\np = 1\nlambda_n = 2\nstart_gpus = 2\ncaution = 0\nstart_noise = 1\n"
    "short_first = 0\nweight_bound = 2\nageing = 1\ngap = 0.1\n"
    "time_limit_s = 1\nreserved_gpus = {a = 1}\n",
    "sia": "round_s = 30\np = 0.5\nlambda_n = 2\nrestart_factor = false\ngap = 0.1\n"
    "time_limit_s = 1\nreserved_gpus = {a = 1}\n",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_each_key_of_a_policys_table_reaches_the_policy(name: str) -> None:
    """Whether the site names it in ``[training] policy`` or gsim is requested it by name."""
    text = f"[training]\npolicy = '{name}'\n[training.{name}]\n{CHANGED[name]}"
    config = parse_config(text, where="test.toml")
    named = ALL.choose(name, config)

    for made in (chosen_policy(config), named):
        said, default = settings_of(made.plan), SETTINGS[name]()
        assert isinstance(said, SETTINGS[name])
        same = [
            key for key in said.__struct_fields__ if getattr(said, key) == getattr(default, key)
        ]
        assert same == []


def test_drs_without_migration_keeps_the_sites_other_settings() -> None:
    config = parse_config("[training.drs]\nmoves_max = 3\npatience_s = 5\n", where="test.toml")

    settings = settings_of(ALL.choose("drs-still", config).plan)

    assert settings == DrsConfig(moves_max=0, patience_s=5.0)


def test_balance_with_what_learns_best_is_the_default() -> None:
    """For a machine without any configuration."""
    default = chosen()

    assert (default.name, default.reads_loads, default.predicts_run_times) == (
        "balance",
        True,
        True,
    )
    assert isinstance(default.make_model(), RobustModel)


@pytest.mark.parametrize("name", ALL.names)
def test_each_policy_has_a_predictor_of_its_own(name: str) -> None:
    """Two heads, or two runs of the simulator, do not learn from each other."""
    made = ALL.choose(name)

    assert made.name == name
    assert made.make_model() is not made.make_model()
    assert isinstance(made.make_model(), PaperModel if name == "paper" else RobustModel)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    """Whoever asks; and with the one that was meant."""
    with pytest.raises(ConfigError, match="unknown policy 'fifi'") as refused:
        INSTALLED.choose("fifi")
    assert refused.value.hint.startswith("did you mean 'fifo'? valid: balance, deadline, drs")
    with pytest.raises(
        ConfigError, match="'torque' is a baseline for comparison, and not"
    ) as refused:
        INSTALLED.choose("torque")
    assert refused.value.hint.startswith("valid: balance, deadline, drs")


def test_weights_of_the_site_decide() -> None:
    """Under ``balance`` and under ``paper``."""
    by_cpu, by_memory = (
        parse_config(f"[balance.weights]\n{each}", where="x")
        for each in ("cpu = 1\nmemory = 0\n", "cpu = 0\nmemory = 1\n")
    )
    for name in ("balance", "paper"):
        assert first_node(ALL.choose(name, by_cpu).plan) == "n1"
        assert first_node(ALL.choose(name, by_memory).plan) == "n2"


def test_the_paper_reserves_nothing() -> None:
    """As ``balance`` without a reservation; the first job of the queue is passed over."""
    full = take(space("n1", cpus=4), USED)
    job_classes = [
        JobClass(queue="batch", request=Request(chunks=(Chunk(cpus=cpus),)), walltime_s=500.0)
        for cpus in (4, 1)
    ]
    snapshot = Snapshot(
        now_s=0,
        nodes={"n1": full},
        groups=[
            Group(job_class=job_class, order=[(0, job)])
            for job, job_class in enumerate(job_classes)
        ],
        running=[RunningJob(job=9, allocation=(USED,), started_s=0, end_s=100)],
    )

    plans = (
        chosen().plan,
        chosen("[balance]\nreserve = false\n").plan,
        ALL.choose("paper").plan,
        chosen("[[queue]]\nname = 'batch'\npolicy = 'fifo'\n").plan,
    )

    assert [[start.job for start in plan(snapshot).starts] for plan in plans] == [[], [1], [1], []]


def test_gsim_plans_by_predicted_times_where_these_are_seldom_exceeded() -> None:
    """A mean is exceeded by every other job."""
    assert {name for name in ALL.names if not ALL.choose(name).predicts_run_times} == {"paper"}


def test_queues_that_name_different_policies_are_refused() -> None:
    """They share their nodes, and no policy plans for the other's jobs."""
    text = "[[queue]]\nname = 'a'\npolicy = 'fifo'\n[[queue]]\nname = 'b'\n"

    with pytest.raises(ConfigError) as refused:
        chosen(text)

    assert "'balance' of queue 'b' differs from 'fifo' of queue 'a'" in refused.value.message
    assert "the same policy in every" in refused.value.hint


def test_the_keys_of_drs_reach_it() -> None:
    """Three small training jobs on three nodes, and one that needs two GPUs of one node to be in
    time.

    One is moved for it; with ``moves_max = 0`` none is. As published all are placed anew, and two
    of them get other places.
    """
    nodes = gpu_nodes(2, 2, 2)
    fixed, wide = elastic(1, 1), elastic(2, 2)
    running = [
        (
            profile(job, request=fixed, movable=True, deadline_s=1e6, work=1e5),
            places(nodes, fixed, name),
        )
        for job, name in enumerate(nodes, 1)
    ]
    seen = snapshot_of(nodes, [profile(9, request=wide, speed=VGG16, deadline_s=60.0)], running)
    seen = structs.replace(seen, fabric=Fabric(between_bytes_s=1e6))

    assert len(drs_with().plan(seen).moves) == 1
    assert drs_with("moves_max = 0").plan(seen).moves == ()
    assert len(ALL.choose("drs-paper").plan(seen).moves) == 2


def test_the_patience_of_drs_is_the_sites_own() -> None:
    """One that was late an hour ago goes before one that can be in time, or does not."""
    late = profile(1, request=elastic(1, 1), deadline_s=-10.0, arrived_s=NOW_S - 3600)
    other = profile(2, request=elastic(1, 1), deadline_s=1e5)
    seen = snapshot_of(gpu_nodes(1), [late, other])

    assert [each.job for each in drs_with().plan(seen).starts] == [2]
    impatient = drs_with("patience_s = 600")
    assert [each.job for each in impatient.plan(seen).starts] == [1]


def places(nodes: Mapping[str, FreeNode], request: Request, name: str) -> Allocation:
    """Return an allocation on one node."""
    found = allocate(request, Spaces({name: nodes[name]}), request.places)
    assert found is not None
    return found
