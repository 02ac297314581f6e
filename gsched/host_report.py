"""What must agree between hosts: the time zone, and names and numbers of accounts."""

import subprocess
import time
from collections.abc import Iterator
from itertools import islice
from typing import Final

from gsched import trust
from gsched.directories import network_mounts
from gsched.protocol.hosts import MAX_MOUNTS, MAX_NAMES, HostReport

#: After which a name service counts as away, seconds.
ACCOUNTS_S: Final = 5.0


def host_report(now_s: float) -> HostReport:
    """Return the report of this host; without accounts if its name service does not answer."""
    least = trust.uid_min()
    users = (each for each in _accounts("passwd") if each[1] >= least)
    groups = (each for each in _accounts("group") if each[1] >= least)
    return HostReport(
        sent_s=now_s,
        zone=time.strftime("%Z%z", time.localtime(now_s)),
        users=dict(islice(users, MAX_NAMES)),
        groups=dict(islice(groups, MAX_NAMES)),
        mounts=dict(islice(network_mounts().items(), MAX_MOUNTS)),
    )


def _accounts(database: str) -> Iterator[tuple[str, int]]:
    """Yield names and numbers of users (``passwd``) or groups (``group``).

    By getent(1), which can be ended: `pwd.getpwall` lets no other thread run while it waits for a
    directory.
    """
    try:
        ran = subprocess.run(
            ("getent", database),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ACCOUNTS_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in ran.stdout.decode(errors="replace").splitlines():
        name, _, number, *_ = (*line.split(":"), "", "", "")
        if name and number.isdecimal():
            yield name, int(number)
