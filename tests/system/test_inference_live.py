"""A real inference job under sia: it grows, keeps its latency, and uses each sample once."""

from collections import Counter

import pytest

from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.commands import run_command
from tests.support.torch_python import TRAINING_PATH, torch_python

pytestmark = [pytest.mark.timeout(1500), pytest.mark.xdist_group("adaptive"), pytest.mark.sweep]

SCRIPT = ROOT / "tests" / "support" / "inferring.py"
SETTINGS = """
[[queue]]
name = "batch"
[training]
policy = "sia"
[training.sia]
round_s = 10
"""
COUNT, EACH_S, LATENCY_S = 15_000, 0.004, 0.2


def test_an_inference_job_grows_and_uses_each_sample_once(cluster: Cluster) -> None:
    """A sample takes 4 ms: no more than 50 are done in 200 ms, though 64 are allowed."""
    cluster.queues = SETTINGS
    cluster.start_head()
    cluster.start_node("n1", cpus=4, gpus=2, gpu_type="fast")
    ran = run_command(
        *("gsub", "-v", f"PYTHONPATH={TRAINING_PATH}", "--adaptive", "--inference"),
        *("--gpus", "1..2"),
        *("--latency", f"{LATENCY_S}s", "--batch", "8", "--batch-max", "64"),
        *("--python", torch_python(), "--torchrun", str(SCRIPT), str(cluster.jobs), str(COUNT)),
        str(EACH_S),
        head=cluster.socket,
        cwd=cluster.jobs,
    )
    assert ran.status == 0, ran.stderr
    number = ran.stdout.split(".")[0]

    wait_until(lambda: cluster.head.job(number).row.state == "done", 1200.0, what="the job's end")
    story = cluster.head.job(number)

    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 0, cluster.logs()
    gpus = [len(part.gpu_indices) for each in story.attempts for part in each.parts]
    assert gpus[0] == 1
    assert max(gpus) == 2
    seen: Counter[int] = Counter()
    batches: list[int] = []
    for path in cluster.jobs.glob("seen-*"):
        lines = path.read_text().splitlines()
        seen.update(int(word) for line in lines for word in line.split())
        attempt = int(path.name.split("-")[1])
        if attempt == len(story.attempts):
            batches += [len(line.split()) for line in lines[10:-1]]
    assert seen == dict.fromkeys(range(COUNT), 1)
    assert 1 <= max(batches) <= LATENCY_S / EACH_S
