"""Policies for training jobs that are slow, fail, hang or die; other processes can import them."""

import os
import time
from pathlib import Path

from baselines import edf
from gschedd.plan.snapshot import Plan, Policy, Snapshot


def slow(snapshot: Snapshot, seconds: float) -> Plan:
    """Take a time, then plan as edf does."""
    time.sleep(seconds)
    return edf.plan(snapshot)


def waits(snapshot: Snapshot, path: str) -> Plan:
    """Wait until a file is there, then plan as edf does."""
    while not os.path.exists(path):
        time.sleep(0.05)
    return edf.plan(snapshot)


def raises(snapshot: Snapshot) -> Plan:
    """Fail."""
    del snapshot
    raise ZeroDivisionError("nobody is there to share with")


def hangs(snapshot: Snapshot) -> Plan:
    """Never come back; without a processor, which the test's cluster needs."""
    del snapshot
    while True:
        time.sleep(0.05)


def spins(snapshot: Snapshot) -> Plan:
    """Never come back, and compute all the time."""
    del snapshot
    while True:
        pass


def dies(snapshot: Snapshot) -> Plan:
    """Take the process along."""
    del snapshot
    os._exit(3)


def once(snapshot: Snapshot, odd: Policy, path: str) -> Plan:
    """Be odd as long as a file is not there, which this makes; then plan as edf does."""
    file = Path(path)
    if not file.exists():
        file.touch()
        return odd(snapshot)
    return edf.plan(snapshot)
