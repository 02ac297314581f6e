"""The tables of the configuration file about policies, and about what all of them reckon with."""

from typing import Annotated

import msgspec
from msgspec import Struct

from gsched.config.words import Seconds, TrainingPolicy, Weight
from gsched.model.training import Profiling


class WeightsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``weights`` in ``[balance]``: how much each resource counts, k1 to k4, of any sum."""

    cpu: Weight = 0.25
    memory: Weight = 0.25
    gpu: Weight = 0.25
    gpu_memory: Weight = 0.25


class BalanceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[balance]``: balancing, and what all policies predict by.

    Attributes:
        weights: of the resources.
        reserve: the first job that has to wait gets a reservation.
        window_s: a job younger than this is not in its node's report yet.
        predicted_times: plan with predicted run times instead of walltimes.
    """

    weights: WeightsConfig = WeightsConfig()
    reserve: bool = True
    window_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 10.0
    predicted_times: bool = True


class LinkConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[fabric.link]]``: two nodes whose connection is not the usual one.

    Attributes:
        nodes: their names.
        bandwidth: as ``25GB/s``.
    """

    nodes: tuple[str, str]
    bandwidth: str


class FabricConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[fabric]``: how fast data moves among GPUs, and how fast these are.

    Attributes:
        inside, between: bandwidth in each node and between each pair of nodes.
        inside_of: of single nodes, by name.
        gpu_speeds: by type, against the GPU on which step times are measured; 1 where it is not
            named.
        link: pairs of nodes that differ.
    """

    inside: str = "10GB/s"
    between: str = "6GB/s"
    inside_of: dict[str, str] = {}
    gpu_speeds: dict[str, Annotated[float, msgspec.Meta(gt=0, le=1e6)]] = {}
    link: tuple[LinkConfig, ...] = ()


class DeadlineConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training.deadline]``: the policy ``deadline``.

    Attributes:
        reserve_share: part of the GPUs kept for training jobs still to come, once not all deadlines
            can be met.
        reserve_after_s: from when on, counted from now, they are kept; seconds.
        guarantee_below: a deadline is guaranteed once the GPU time that its job still needs is at
            most this part of the median of all, or of 4 hours of all GPUs; 0: never.
        grow_below: a running job gets more GPUs than it needs if its remaining time, with the
            migration, becomes at most this part of it.
        hold_s: a job that was started or migrated is left alone for so long; seconds.
        steps_max, steps_min: steps of the time line ahead, for few jobs and for many.
    """

    reserve_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.3
    reserve_after_s: Seconds = 3600.0
    guarantee_below: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.25
    grow_below: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.95
    hold_s: Seconds = 30.0
    steps_max: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 64
    steps_min: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 24


class DrsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training.drs]``: the policy ``drs``.

    Attributes:
        moves_max: maximum number of training jobs that migrate at once to make room; 0: none.
        patience_s: the waiting time after which a late job goes first; seconds.
    """

    moves_max: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 8
    patience_s: Seconds = 86400.0


class ElasticflowConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training.elasticflow]``: the policy ``elasticflow``.

    Attributes:
        slot_s: a job keeps its number of GPUs for so long, unless others need them; seconds.
        in_slots: decisions are made at the end of each slot only.
    """

    slot_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 240.0
    in_slots: bool = False


class GoodputConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training.goodput]``: the policy ``goodput``.

    Attributes:
        round_s: time between decisions about running jobs, seconds.
        p: power of the speed of a job, of its best.
        lambda_n: cost of a job that gets no GPUs, times its weight if that is more than 1.
        start_gpus: GPUs on which a job may start whose step times are known.
        caution: goodput on n times the GPUs on which a job has run is divided by n^caution.
        start_noise: gradient noise scale of a job that has measured none, in initial batches.
        short_first: weight of a job is (median / its time left)^short_first.
        weight_bound: that weight is no larger, nor smaller than one over it.
        ageing: a job counts (1 + its age in hours)^ageing times that weight.
        gap: an assignment that is proven to be so near to the best is good enough, relative.
        time_limit_s: for the search of an assignment, seconds.
        reserved_gpus: GPUs of each type that are left to jobs of other policies.
    """

    round_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 60.0
    p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    lambda_n: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.1
    start_gpus: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 8
    caution: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.1
    start_noise: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 4.0
    short_first: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.2
    weight_bound: Annotated[float, msgspec.Meta(ge=1, le=1e9)] = 1.5
    ageing: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.3
    gap: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 1e-3
    time_limit_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    reserved_gpus: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]] = {}


class SiaConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training.sia]``: the policy ``sia``.

    Attributes:
        round_s: time between decisions about running jobs, seconds.
        p: power of the goodputs; not 0.
        lambda_n: cost of a job that gets no GPUs.
        restart_factor: whether the cost of a restart counts.
        gap: an assignment that is proven to be so near to the best is good enough, relative.
        time_limit_s: for the search of an assignment, seconds.
        reserved_gpus: GPUs of each type that are left to jobs of other policies.
    """

    round_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 60.0
    p: Annotated[float, msgspec.Meta(ge=-10, le=10)] = -0.5
    lambda_n: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 1.1
    restart_factor: bool = True
    gap: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 1e-5
    time_limit_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    reserved_gpus: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]] = {}


class TrainingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training]``: training jobs; each policy that has settings has a table of its own.

    Attributes:
        policy: how they are planned; all other jobs are planned by their queue's policy, beside
            them.
        refuse_impossible: deadlines that an idle cluster could not meet are not taken.
        move_s: from the order to migrate a training job to its first further step, where nothing
            was measured; seconds.
        share_for_others: fraction of the nodes with GPUs on which no training job with a deadline
            starts while other jobs wait for GPUs.
        profile: which elastic training jobs first run on their minimum number of GPUs, until their
            step times are measured: those without measured step times and those that request it
            (``auto``), only those that request it (``requested``), or none (``never``).
        planning_limit_s: a policy that has not planned within this time is given up for that time,
            and its process is started again, seconds.
    """

    policy: TrainingPolicy = "deadline"
    refuse_impossible: bool = True
    move_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 30.0
    share_for_others: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    profile: Profiling = Profiling.AUTO
    planning_limit_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 30.0
    deadline: DeadlineConfig = DeadlineConfig()
    drs: DrsConfig = DrsConfig()
    elasticflow: ElasticflowConfig = ElasticflowConfig()
    goodput: GoodputConfig = GoodputConfig()
    sia: SiaConfig = SiaConfig()
