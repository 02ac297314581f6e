"""Files of snapshots: what is not one is refused in words, and runs nothing."""

import pickle
from pathlib import Path

import msgspec
import pytest

from gsched.model.resources import Share
from gschedd.models.saved import FORMAT, VERSION, Saved, decode, encode, saved
from gschedd.plan.snapshot import Snapshot
from gschedd.sim.cli import status_of
from tests.support.trainings import gpu_nodes, profile, snapshot_of


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def content(snapshot: Snapshot) -> Saved:
    return Saved(
        format=FORMAT,
        version=VERSION,
        gsched="1",
        policy="fifo",
        tuning={},
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
