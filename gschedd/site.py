"""What a site says of its policies and its fabric: for the head that runs, and for replays."""

from msgspec import structs

from gsched.config import Config, FabricConfig
from gsched.errors import BadResourceError, ConfigError
from gsched.model.units import parse_bandwidth_bytes_s
from gschedd.plan.training import Fabric
from gschedd.policies import drs
from gschedd.policies.kit.beside import Fairness
from gschedd.policies.kit.capacity import Weights
from gschedd.policies.registry import Chosen, Predictor, Tuning, choose_for


def fabric_from(config: FabricConfig) -> Fabric:
    """Return how nodes are connected.

    Raises:
        ConfigError: a bandwidth that is none, or a link that is named twice.
    """
    links = {}
    for link in config.link:
        pair = (min(link.nodes), max(link.nodes))
        where = f"fabric.link of {pair[0]} and {pair[1]}"
        if pair[0] == pair[1]:
            raise ConfigError(
                f"{where}: that is one node", hint="its own bandwidth goes into fabric.inside_of"
            )
        if pair in links:
            raise ConfigError(f"{where}: is there twice", hint="keep one of them")
        links[pair] = _bandwidth(where, link.bandwidth)
    return Fabric(
        inside_bytes_s=_bandwidth("fabric.inside", config.inside),
        between_bytes_s=_bandwidth("fabric.between", config.between),
        inside={
            node: _bandwidth(f"fabric.inside_of.{node}", text)
            for node, text in config.inside_of.items()
        },
        between=links,
        devices=config.gpu_speeds,
    )


def _bandwidth(key: str, text: str) -> float:
    try:
        return parse_bandwidth_bytes_s(text)
    except BadResourceError as error:
        raise ConfigError(f"{key}: {error.message}", hint=error.hint) from None


def chosen_policy(config: Config) -> Chosen:
    """Return the policy that plans for all queues, with the site's own settings.

    Raises:
        ConfigError: the queues do not agree.
    """
    queues = {queue.name: queue.policy for queue in config.queue}
    return choose_for(queues, tuning_from(config))


def tuning_from(config: Config) -> Tuning:
    """Return what a site has chosen about its policies."""
    balance = config.balance
    return Tuning(
        weights=Weights(**structs.asdict(balance.weights)),
        latest=balance.latest,
        newest_weight=balance.newest_weight,
        window_s=balance.window_s,
        reserve=balance.reserve,
        predictor=Predictor(balance.predictor),
        literal=balance.rule == "paper",
        deadline=config.deadline.policy,
        drs_settings=drs.Settings(
            variant=drs.Variant(config.deadline.variant),
            moves_max=config.deadline.moves_max,
            patience_s=config.deadline.patience_s,
        ),
        fairness=Fairness(share=config.deadline.share_for_others),
    )
