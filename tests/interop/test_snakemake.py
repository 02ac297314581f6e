"""Snakemake's cluster-generic executor runs a workflow through the shims, unmodified."""

import sys
from importlib.util import find_spec

import pytest

from tests.interop.conftest import Site

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        find_spec("snakemake_executor_plugin_cluster_generic") is None,
        reason="snakemake is missing: pip install '.[interop]'",
    ),
]

SNAKEFILE = """
rule all:
    input: "sum.txt"

rule one:
    output: "{name}.txt"
    threads: 2
    wildcard_constraints: name="[ab]"
    shell: "echo $PBS_JOBID $PBS_NP > {output}"

rule both:
    input: "a.txt", "b.txt"
    output: "sum.txt"
    shell: "cat {input} > {output}"
"""
FAILING = """
rule all:
    output: "never.txt"
    shell: "echo broken >&2; exit 7"
"""
STATUS = """#!/bin/sh
# What Snakemake's documentation shows for Torque, by qstat -f.
text=$(qstat -f "$1") || exit 1
case $text in
    *"job_state = C"*) case $text in *"exit_status = 0"*) echo success ;; *) echo failed ;; esac ;;
    *) echo running ;;
esac
"""


def snakemake(site: Site, snakefile: str) -> "tuple[int, str]":
    (site.work / "Snakefile").write_text(snakefile, encoding="utf-8")
    status = site.work / "status.sh"
    status.write_text(STATUS, encoding="utf-8")
    status.chmod(0o755)
    ran = site.run(
        *(sys.executable, "-m", "snakemake", "--executor", "cluster-generic", "--jobs", "2"),
        *("--cluster-generic-submit-cmd", "qsub -V -l nodes=1:ppn={threads} -N {rule} -d ."),
        *("--cluster-generic-status-cmd", str(status), "--cluster-generic-cancel-cmd", "qdel"),
        *("--latency-wait", "20", "--seconds-between-status-checks", "1"),
        timeout_s=200,
    )
    return ran.returncode, ran.stderr


def test_a_workflow_runs_on_the_cluster(site: Site) -> None:
    status, told = snakemake(site, SNAKEFILE)

    assert status == 0, told
    lines = (site.work / "sum.txt").read_text().splitlines()
    assert sorted(lines) == ["1.test 2", "2.test 2"]


def test_a_job_that_fails_ends_the_workflow(site: Site) -> None:
    status, told = snakemake(site, FAILING)

    assert status != 0
    assert "1.test" in told
    assert not (site.work / "never.txt").exists()
