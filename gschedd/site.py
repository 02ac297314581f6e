"""What a site says of its policies and its fabric: for the head that runs, and for replays."""

from msgspec import convert, structs

from gsched.config import Config, FabricConfig
from gsched.config_gpu_share import GpuShareConfig
from gsched.model.units import parse_bandwidth_bytes_s
from gschedd.plan.compose import Fairness
from gschedd.plan.sharing import SharingRules
from gschedd.plan.training import Fabric
from gschedd.policies.baselines import themis
from gschedd.policies.kit.capacity import Weights
from gschedd.policies.registry import Chosen, Predictor, Tuning, choose_for
from gschedd.policies.training import deadline, drs, elasticflow, goodput, sia


def fabric_from(config: FabricConfig) -> Fabric:
    """Return how nodes are connected; `gsched.config_rules` has checked it."""
    return Fabric(
        inside_bytes_s=parse_bandwidth_bytes_s(config.inside),
        between_bytes_s=parse_bandwidth_bytes_s(config.between),
        inside={node: parse_bandwidth_bytes_s(text) for node, text in config.inside_of.items()},
        between={
            (min(link.nodes), max(link.nodes)): parse_bandwidth_bytes_s(link.bandwidth)
            for link in config.link
        },
        devices=config.gpu_speeds,
    )


def sharing_from(config: GpuShareConfig) -> SharingRules:
    """Return how jobs share GPUs."""
    return SharingRules(
        low_max=config.low_max,
        low_max_printed=config.low_max_printed,
        utilisation_max=config.utilisation_max,
        utilisation_assumed=config.utilisation_assumed,
    )


def chosen_policy(config: Config) -> Chosen:
    """Return the policy that plans for all queues, with the site's own settings.

    Raises:
        ConfigError: the queues do not agree.
    """
    queues = {queue.name: queue.policy for queue in config.queue}
    return choose_for(queues, tuning_from(config))


def tuning_from(config: Config) -> Tuning:
    """Return what a site has chosen about its policies."""
    balance, training = config.balance, config.training
    return Tuning(
        weights=Weights(**structs.asdict(balance.weights)),
        latest=balance.latest,
        newest_weight=balance.newest_weight,
        window_s=balance.window_s,
        reserve=balance.reserve,
        predictor=Predictor(balance.predictor),
        literal=balance.rule == "paper",
        training=training.policy,
        deadline_settings=convert(structs.asdict(training.deadline), deadline.Settings),
        drs_settings=convert(structs.asdict(training.drs), drs.Settings),
        elasticflow_settings=convert(structs.asdict(training.elasticflow), elasticflow.Settings),
        goodput_settings=convert(structs.asdict(training.goodput), goodput.Settings),
        sia_settings=convert(structs.asdict(training.sia), sia.Settings),
        themis_settings=convert(structs.asdict(training.themis), themis.Settings),
        fairness=Fairness(share=training.share_for_others),
    )
