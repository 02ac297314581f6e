"""gsched-elastic: what training scripts import, alone in an environment with PyTorch."""

import email
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from gsched.version import VERSION
from tests.support.torch_python import torch_python

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "packages" / "gsched-elastic"
LINKED = ("__init__.py", "directories.py", "failpoint.py", "unix_address.py", "version.py")

#: Refuses what gsched depends on and what of gsched is no part of the package, then trains.
ALONE = """
import importlib.abc, pathlib, sys
REFUSED = {"aiohttp", "click", "msgspec", "psutil", "pynvml", "rich", "gnode", "gschedd"}
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ImportError(f"{name} is refused")
sys.meta_path.insert(0, Refuse())
import gsched
assert pathlib.Path(gsched.__file__).is_relative_to(sys.argv[1]), gsched.__file__
import torch
from gsched import elastic
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(8, 4))
training = elastic.start(model, optimizer, elastic.Samples(8, global_batch=4, epochs=1))
print("from", training.restored_step)
for _ in training.epochs():
    for (x,) in training.loader(data):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        training.step()
        if training.step_count == 1:
            if training.restored_step is None:
                training.checkpoint()
    print("done", training.step_count)
if training.restored_step is None:
    sys.exit()
training.finish()
assert not REFUSED & set(sys.modules)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built without a network: the build tools are this environment's."""
    made = tmp_path_factory.mktemp("wheel")
    purelib = sysconfig.get_path("purelib")
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    source = _copy(made / "src")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(made), source],
        env={**os.environ, "PYTHONPATH": purelib},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (built,) = made.glob("*.whl")
    return built


def _copy(to: Path) -> str:
    """Copy the package and what it takes from the tree: pip builds where the sources are."""
    to.mkdir()
    for name in ("packages", "gsched", "LICENSE"):
        subprocess.run(["cp", "-a", str(ROOT / name), str(to)], check=True)
    return str(to / PACKAGE.relative_to(ROOT))


def test_the_package_has_no_dependencies(wheel: Path) -> None:
    """pip would bring what a training does not need, or another PyTorch than its own."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (each for each in file.namelist() if each.endswith("/METADATA"))
        metadata = email.message_from_bytes(file.read(name))

    assert metadata.get_all("Requires-Dist") is None
    assert (metadata["Name"], metadata["Version"]) == ("gsched-elastic", VERSION)


def test_the_package_holds_all_of_the_library_and_little_else(wheel: Path) -> None:
    """A module that is added to gsched.elastic is in it, none of the rest of gsched."""
    with zipfile.ZipFile(wheel) as file:
        held = {name for name in file.namelist() if name.endswith(".py")}

    library = {str(path.relative_to(ROOT)) for path in (ROOT / "gsched/elastic").rglob("*.py")}
    assert held == library | {f"gsched/{name}" for name in LINKED}


def test_a_training_runs_and_resumes_with_nothing_else_of_gsched(
    wheel: Path, tmp_path: Path
) -> None:
    """Also none of the packages that daemons and commands need."""
    python = torch_python()
    place = tmp_path / "site"
    with zipfile.ZipFile(wheel) as file:  # all that pip does with a wheel of one's own
        file.extractall(place)

    told = [
        subprocess.run(
            [python, "-c", ALONE, str(place)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(place),
                "GSCHED_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
            },
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        ).stdout.split("\n")[:2]
        for _ in range(2)
    ]

    assert told == [["from None", "done 2"], ["from 1", "done 2"]]
