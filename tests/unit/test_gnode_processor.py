"""The clock of the cores: the same at every start, or unknown."""

from pathlib import Path

import pytest

from gnode.hw.inventory import cpu_clock_mhz

VIRTUAL = """processor\t: 0
model name\t: AMD EPYC
cpu MHz\t\t: 2596.128
flags\t\t: fpu tsc constant_tsc hypervisor

processor\t: 1
cpu MHz\t\t: 9999.0
"""


def machine(directory: Path, cpuinfo: str, highest_khz: dict[int, str]) -> dict[str, Path]:
    (directory / "cpuinfo").write_text(cpuinfo)
    for number, khz in highest_khz.items():
        driver = directory / f"cpu{number}" / "cpufreq"
        driver.mkdir(parents=True)
        (driver / "cpuinfo_max_freq").write_text(khz)
    return {"devices": directory, "cpuinfo": directory / "cpuinfo"}


def test_the_highest_clock_counts_on_average_over_our_cores(tmp_path: Path) -> None:
    """Large and small cores; a third that is not ours."""
    paths = machine(tmp_path, VIRTUAL, {0: "5000000\n", 1: "3000000\n", 2: "100\n"})

    assert cpu_clock_mhz([0, 1], **paths) == 4000


@pytest.mark.parametrize(
    ("cpuinfo", "clock_mhz"),
    [
        (VIRTUAL, 2600),
        (VIRTUAL.replace("AMD EPYC", "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz"), 2600),
        (VIRTUAL.replace("EPYC", "Xeon @ 3.15 GHz"), 3150),
        (VIRTUAL.replace("hypervisor", "aperfmperf"), 0),
        (VIRTUAL.replace("constant_tsc", ""), 0),
        (VIRTUAL.replace("2596.128", "?"), 0),
        ("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n", 0),
        ("", 0),
    ],
)
def test_without_a_driver_only_what_lasts_counts(
    tmp_path: Path, cpuinfo: str, clock_mhz: float
) -> None:
    """The base clock in the name, or a virtual machine's constant one; never a momentary one."""
    assert cpu_clock_mhz([0], **machine(tmp_path, cpuinfo, {})) == clock_mhz


def test_a_machine_that_says_nothing_has_no_known_clock(tmp_path: Path) -> None:
    gone = tmp_path / "gone"

    assert cpu_clock_mhz([0], devices=gone, cpuinfo=gone) == 0


def test_this_machine_says_the_same_each_time() -> None:
    assert cpu_clock_mhz() == cpu_clock_mhz() >= 0
