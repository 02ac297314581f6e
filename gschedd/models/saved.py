"""Snapshots in files: JSON decoded into declared types, so that a hostile file can run nothing.

A bug report brings what a policy saw, and the policy plans on it again (``gsim plan``).
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct, structs

from gsched.config.policies import BalanceConfig, TrainingConfig
from gsched.model.training import Inference
from gsched.model.window import NodeWindow
from gschedd.models.goodput.inference import goodput_of, parts_of
from gschedd.models.goodput.model import GoodputModel
from gschedd.models.runtime import PaperSpeed, WalltimeSpeed
from gschedd.models.runtime_table import TableSpeed
from gschedd.models.steptimes import MeasuredSpeed
from gschedd.plan.load import Kind, NodeLoad, Prediction, PredictionTable, predict_all
from gschedd.plan.snapshot import Group as WaitingGroup
from gschedd.plan.snapshot import JobClass, OrderKey, RunningJob, Snapshot
from gschedd.plan.space import FreeNode
from gschedd.plan.training import AdaptiveProfile, Fabric, TrainingProfile, UnknownSpeed
from gschedd.plan.windows import ReservedWindow

FORMAT: Final = "gsched-snapshot"
VERSION: Final = 2
#: Predictions that are kept: of each kind of jobs on each node, the first kinds first. A snapshot
#: of more than that many lacks the rest, so that a policy may plan otherwise on it.
MAX_PREDICTIONS: Final = 200_000

Speed = PaperSpeed | WalltimeSpeed | TableSpeed | MeasuredSpeed | UnknownSpeed


class SavedAdaptive(AdaptiveProfile, frozen=True, kw_only=True, omit_defaults=True):
    """An `AdaptiveProfile` with the goodput model that there is.

    Attributes:
        inference: see `gschedd.models.goodput.inference.goodput_of`; None: the job trains.
    """

    goodput: GoodputModel
    inference: Inference | None = None


class SavedProfile(TrainingProfile, frozen=True, kw_only=True, omit_defaults=True):
    """A `TrainingProfile` with one of the speeds that there are."""

    speed: Speed
    adaptive: SavedAdaptive | None = None


class SavedGroup(Struct, frozen=True, kw_only=True):
    """Waiting jobs of one class."""

    job_class: JobClass
    order: tuple[OrderKey, ...]


class SavedFabric(Struct, frozen=True, kw_only=True):
    """A `Fabric`; pairs of nodes are no keys in JSON."""

    inside_bytes_s: float
    between_bytes_s: float
    inside: dict[str, float]
    between: tuple[tuple[str, str, float], ...]
    devices: dict[str, float]


class SavedKind(Struct, frozen=True, kw_only=True):
    """A kind of jobs.

    Attributes:
        jobs: those in the snapshot.
        predictions: of it, for each node that had reported; in the order of the
            loads. None: nothing, as nothing is learned or there were too many kinds.
    """

    kind: Kind
    jobs: tuple[int, ...]
    predictions: tuple[Prediction, ...] | None


class SavedSnapshot(Struct, frozen=True, kw_only=True):
    """A `Snapshot`; see there."""

    now_s: float
    nodes: tuple[FreeNode, ...]
    groups: tuple[SavedGroup, ...]
    running: tuple[RunningJob, ...]
    loads: tuple[NodeLoad, ...]
    kinds: tuple[SavedKind, ...]
    learns: bool
    profiles: tuple[SavedProfile, ...]
    fabric: SavedFabric
    default_walltime_s: float | None
    predicted_times: bool
    moves_max: int | None
    moves_left: bool = False
    windows: dict[str, tuple[NodeWindow, ...]] = {}
    reserved: tuple[ReservedWindow, ...] = ()


class SnapshotFile(Struct, frozen=True, kw_only=True):
    """The content of a file.

    Attributes:
        gsched: the version that wrote it.
        policy: what planned, by its name.
        balance, training: the site's settings of its policies.
    """

    format: str
    version: int
    gsched: str
    policy: str
    balance: BalanceConfig
    training: TrainingConfig
    snapshot: SavedSnapshot


def saved(snapshot: Snapshot) -> SavedSnapshot:
    """Return a snapshot as it is saved."""
    fabric, loads = snapshot.fabric, tuple(snapshot.loads.values())
    return SavedSnapshot(
        now_s=snapshot.now_s,
        nodes=tuple(snapshot.nodes.values()),
        groups=tuple(
            SavedGroup(job_class=g.job_class, order=tuple(g.order)) for g in snapshot.groups
        ),
        running=tuple(snapshot.running),
        loads=loads,
        kinds=tuple(_kinds(snapshot, loads)),
        learns=snapshot.predictor is not None,
        profiles=tuple(_saved_profile(profile) for profile in snapshot.profiles.values()),
        fabric=SavedFabric(
            inside_bytes_s=fabric.inside_bytes_s,
            between_bytes_s=fabric.between_bytes_s,
            inside=dict(fabric.inside),
            between=tuple((*names, speed) for names, speed in fabric.between.items()),
            devices=dict(fabric.devices),
        ),
        default_walltime_s=snapshot.default_walltime_s,
        predicted_times=snapshot.predicted_times,
        moves_max=snapshot.moves_max,
        moves_left=snapshot.moves_left,
        windows=dict(snapshot.windows),
        reserved=snapshot.reserved,
    )


def _saved_profile(profile: TrainingProfile) -> SavedProfile:
    assert isinstance(profile.speed, Speed), f"a speed of a kind that is not saved: {profile.speed}"
    fields = structs.asdict(profile)
    if profile.adaptive is not None:
        known = structs.asdict(profile.adaptive)
        known["goodput"], inference = parts_of(profile.adaptive.goodput)
        fields["adaptive"] = SavedAdaptive(**known, inference=inference)
    return SavedProfile(**fields)


def _kinds(snapshot: Snapshot, loads: Sequence[NodeLoad]) -> list[SavedKind]:
    jobs: dict[Kind, list[int]] = {}
    for job, kind in snapshot.kinds.items():
        jobs.setdefault(kind, []).append(job)
    predictor = snapshot.predictor
    predicted_jobs = (
        list(jobs)[: MAX_PREDICTIONS // max(len(loads), 1)] if predictor is not None else []
    )
    predictions: Mapping[Kind, Mapping[str, Prediction]] = {}
    if predictor is not None:
        predictions = predict_all(
            predictor, predicted_jobs, {load.name: load for load in loads}, snapshot.now_s
        ).predictions
    return [
        SavedKind(
            kind=kind,
            jobs=tuple(numbers),
            predictions=tuple(predictions[kind].values()) if kind in predictions else None,
        )
        for kind, numbers in jobs.items()
    ]


def _restored_profile(kept: SavedProfile) -> TrainingProfile:
    fields = structs.asdict(kept)
    if kept.adaptive is not None:
        known = structs.asdict(kept.adaptive)
        known["goodput"] = goodput_of(kept.adaptive.goodput, known.pop("inference"))
        fields["adaptive"] = AdaptiveProfile(**known)
    return TrainingProfile(**fields)


def restored(kept: SavedSnapshot) -> Snapshot:
    """Return a snapshot that was saved."""
    fabric, names = kept.fabric, [load.name for load in kept.loads]
    predictions = {
        each.kind: dict(zip(names, each.predictions, strict=True))
        for each in kept.kinds
        if each.predictions is not None
    }
    return Snapshot(
        now_s=kept.now_s,
        nodes={space.name: space for space in kept.nodes},
        groups=tuple(
            WaitingGroup(job_class=group.job_class, order=group.order) for group in kept.groups
        ),
        running=kept.running,
        loads={load.name: load for load in kept.loads},
        kinds={
            job: each.kind
            for each in kept.kinds
            if each.predictions is not None or not kept.learns
            for job in each.jobs
        },
        predictor=PredictionTable(predictions=predictions) if kept.learns else None,
        profiles={profile.job: _restored_profile(profile) for profile in kept.profiles},
        fabric=Fabric(
            inside_bytes_s=fabric.inside_bytes_s,
            between_bytes_s=fabric.between_bytes_s,
            inside=fabric.inside,
            between={(first, second): speed for first, second, speed in fabric.between},
            devices=fabric.devices,
        ),
        default_walltime_s=kept.default_walltime_s,
        predicted_times=kept.predicted_times,
        moves_max=kept.moves_max,
        moves_left=kept.moves_left,
        windows=kept.windows,
        reserved=kept.reserved,
    )


def encode(content: SnapshotFile) -> bytes:
    """Return the bytes of a file."""
    return msgspec.json.encode(content, enc_hook=dict)  # uses may be any mapping


def decode(data: bytes) -> SnapshotFile:
    """Return the content of a file.

    Raises:
        ValueError: it is no snapshot, or one that this version does not know.
    """
    try:
        label = msgspec.json.decode(data, type=_Label)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is no snapshot: {error}") from None
    if label.format != FORMAT or label.version != VERSION:
        raise ValueError(
            f"it is {label.format[:40]!r} version {label.version}, "
            f"this gsched reads {FORMAT!r} version {VERSION}"
        )
    try:
        content = msgspec.json.decode(data, type=SnapshotFile)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is a damaged snapshot: {error}") from None
    _check(content.snapshot)
    return content


class _Label(Struct, frozen=True, kw_only=True):
    """What every version has."""

    format: str
    version: int


def _check(kept: SavedSnapshot) -> None:
    """Check what policies count on in any snapshot.

    Raises:
        ValueError: something that is named is not there.
    """
    nodes = {space.name for space in kept.nodes}
    for job in kept.running:
        for share in job.allocation:
            if share.node not in nodes:
                raise ValueError(f"job {job.job} runs on {share.node}, which is not there")
    for group in kept.groups:
        if not group.order:
            raise ValueError(f"no job of {group.job_class} waits")
    for each in kept.kinds:
        if each.predictions is not None and len(each.predictions) != len(kept.loads):
            raise ValueError(f"{len(each.predictions)} predictions for {len(kept.loads)} nodes")
