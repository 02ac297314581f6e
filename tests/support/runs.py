"""Builders of nodes, kinds and past runs for the predictors."""

from gschedd.models.records import Record
from gschedd.plan.load import Kind, NodeLoad, NodeRates, Use

GB = 1024**3


def rates(
    cores: int = 8, core_rate: float = 1.0, gpus: int = 0, gpu_rate: float = 1.0
) -> NodeRates:
    return NodeRates(
        cores=cores,
        memory_bytes=64 * GB,
        core_rate=core_rate,
        gpus=gpus,
        gpu_rate=gpu_rate,
        gpu_memory_bytes=gpus * 16 * GB,
    )


def node(name: str = "n1", of: NodeRates | None = None, **more: object) -> NodeLoad:
    return NodeLoad(name=name, rates=of or rates(), **more)  # type: ignore[arg-type] # its fields


def kind(key: str = "k", **more: object) -> Kind:
    fields: dict[str, object] = {"key": key, "program": f"{key}-program", "owner_uid": 1000, **more}
    return Kind(**fields)  # type: ignore[arg-type] # any of its fields may be given


def run(
    of: Kind | str = "k",
    *,
    wall_s: float = 100.0,
    cpu_cores: float = 1.0,
    memory_bytes: float = GB,
    gpus: float = 0.0,
    ended_s: float = 1000.0,
    where: NodeLoad | None = None,
    succeeded: bool = True,
) -> Record:
    at = where or node()
    return Record(
        kind=kind(of) if isinstance(of, str) else of,
        node=at.name,
        rates=at.rates,
        wall_s=wall_s,
        used=Use(cpu_cores=cpu_cores, memory_bytes=memory_bytes, gpus=gpus),
        ended_s=ended_s,
        succeeded=succeeded,
    )
