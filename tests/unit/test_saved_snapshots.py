"""Files of snapshots: what is not one is refused in words, and runs nothing."""

import pickle
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from gsched.config.policies import BalanceConfig, TrainingConfig
from gsched.model.resources import Share
from gsched.model.training import Inference, Scaling
from gschedd.models.goodput.inference import LatencyBoundedInference, goodput_of
from gschedd.models.goodput.model import GoodputModel
from gschedd.models.goodput.records import (
    BatchLimits,
    GradientNoise,
    ThroughputParameters,
    TypeModel,
)
from gschedd.models.saved import FORMAT, VERSION, SnapshotFile, decode, encode, restored, saved
from gschedd.plan.snapshot import Snapshot
from gschedd.plan.training import AdaptiveProfile
from gschedd.sim.cli import status_of
from tests.support.training_jobs import gpu_nodes, profile, snapshot_of


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def content(snapshot: Snapshot) -> SnapshotFile:
    return SnapshotFile(
        format=FORMAT,
        version=VERSION,
        gsched="1",
        policy="fifo",
        balance=BalanceConfig(),
        training=TrainingConfig(),
        snapshot=saved(snapshot),
    )


def plain() -> Snapshot:
    return snapshot_of(gpu_nodes(2), [])


def test_a_pickle_is_refused_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever replays a bug report runs none of it."""
    sprung, file = tmp_path / "sprung", tmp_path / "report"
    file.write_bytes(pickle.dumps(Trap(sprung)))

    status = status_of(["plan", str(file)])

    assert status == 2
    assert "it is no snapshot" in capsys.readouterr().err
    assert not sprung.exists()


def test_another_version_is_named() -> None:
    """It is not guessed at."""
    data = encode(msgspec.structs.replace(content(plain()), version=99))

    with pytest.raises(ValueError, match="version 99, this gsched reads 'gsched-snapshot' version"):
        decode(data)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"now_s":', b'"then_s":', "damaged"),
        (b'"n1"', b"17", "damaged"),
        (b'"kinds":[', b'"kinds":[{"kind":{"key":"k"},"jobs":[1],"said":[null]}', "damaged"),
    ],
)
def test_damage_is_told(old: bytes, new: bytes, says: str) -> None:
    """In words, not by a traceback."""
    data = encode(content(plain()))
    assert old in data

    with pytest.raises(ValueError, match=says):
        decode(data.replace(old, new))


def test_a_job_on_a_node_that_is_not_there_is_damage() -> None:
    """Policies look its node up."""
    share = Share(node="n1", cpus=1, gpu_indices=(0,))
    snapshot = snapshot_of(gpu_nodes(2), running=[(profile(1), (share,))])
    data = encode(content(msgspec.structs.replace(snapshot, nodes={})))

    with pytest.raises(ValueError, match="which is not there"):
        decode(data)


def test_what_is_known_of_adaptive_training_jobs_comes_back() -> None:
    """So that a policy plans the same on the file: types, times, noise and limits."""
    adaptive = AdaptiveProfile(
        goodput=GoodputModel(
            limits=BatchLimits(batch=128, batch_max=4096),
            noise=GradientNoise(square_norm=1.0, variance=40.0),
            models=(
                TypeModel(gpu_type="t4", parameters=ThroughputParameters(compute_s=0.1)),
                TypeModel(gpu_type="a100", parameters=ThroughputParameters(), per_gpu_max=512),
            ),
        ),
        scaling=Scaling.ADAPTIVE,
        age_s=60.0,
        restarts=1,
        restart_s=30.0,
        gpus_min=1,
        gpus_max=16,
        gpu_types=frozenset({"a100", "t4"}),
        replica_gpus={"t4": 2},
    )
    assert isinstance(adaptive.goodput, GoodputModel)
    bounded = goodput_of(adaptive.goodput, Inference(latency_s=0.05))
    assert isinstance(bounded, LatencyBoundedInference)
    infers = structs.replace(adaptive, goodput=bounded, preemptible=False)
    known = {
        number: structs.replace(profile(number, gpus=(1, 2)), adaptive=each)
        for number, each in ((1, adaptive), (2, infers))
    }
    snapshot = structs.replace(plain(), profiles=known)

    kept = decode(encode(content(snapshot)))

    assert restored(kept.snapshot).profiles == known
