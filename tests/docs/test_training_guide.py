"""The example of docs/training.md runs as it stands there, and its table is complete."""

import dataclasses
import pathlib
import re
import signal

import pytest

from gsched.elastic import Adaptive, Samples
from tests.support.elastic_runs import ROOT, run_ranks
from tests.support.forks import ForkServer

GUIDE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("batch", "last"),
    [pytest.param(64, 2, id="within an epoch"), pytest.param(1024, 1, id="after one")],
)
def test_example_trains_and_goes_on_where_it_was(
    tmp_path: pathlib.Path, forks: ForkServer, batch: int, last: int
) -> None:
    """Alone; then with a directory, killed after its ``last`` checkpoint, and started again.

    What comes after an epoch may need what its loop has set.
    """
    code, *_ = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert "global_batch=64" in code
    script = tmp_path / "train.py"
    code = code.replace("global_batch=64", f"global_batch={batch}")
    assert "schedule.step()\n" in code
    assert '"model.pt"' in code
    code = code.replace('"model.pt"', repr(str(tmp_path / "model.pt")))
    script.write_text(code.replace("schedule.step()\n", "schedule.step(); loss.item()\n"))
    directory = {"GSCHED_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    kill = f"training.save.after_publish:{last}:kill"
    often = {"GSCHED_CHECKPOINT_INTERVAL_S": "0.000001", "GSCHED_FAIL": kill}

    alone, whole = run_ranks(forks, tmp_path, str(script), ranks=2)
    assert alone == 0, whole
    killed, before = run_ranks(forks, tmp_path, str(script), ranks=2, **directory, **often)
    assert killed == -signal.SIGKILL, before
    (tmp_path / "model.pt").unlink()
    again, after = run_ranks(forks, tmp_path, str(script), ranks=2, **directory)
    assert again == 0, after
    assert (tmp_path / "model.pt").exists()

    lines = epochs(whole)
    assert [line.split(":")[0] for line in lines] == [f"epoch {epoch}" for epoch in range(4)]
    assert lines[-1].endswith("after 4096 samples")
    # The same losses: it went on, and did not begin anew with other numbers.
    assert (epochs(before) + epochs(after))[-1] == lines[-1]
    assert len(epochs(after)) <= (4 if batch == 64 else 3), "an epoch that was done is done again"
    assert "begins anew" not in after


def epochs(output: str) -> list[str]:
    """Return the lines of an example's output that are about an epoch."""
    return [line for line in output.splitlines() if line.startswith("epoch ")]


def test_guide_names_every_setting_and_variable() -> None:
    for field in (*dataclasses.fields(Samples), *dataclasses.fields(Adaptive)):
        assert f"`{field.name}`" in GUIDE
    source = (ROOT / "gsched" / "elastic" / "environment.py").read_text(encoding="utf-8")
    for variable in re.findall(r'"(GSCHED_[A-Z_]+)"', source):
        assert f"`{variable}`" in GUIDE
