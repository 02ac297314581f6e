"""What must agree between hosts: the time zone, and names and numbers of accounts."""

import grp
import pwd
import time
from itertools import islice

from gsched import trust
from gsched.directories import network_mounts
from gsched.protocol.hosts import MAX_MOUNTS, MAX_NAMES, HostReport


def host_report(now_s: float) -> HostReport:
    """Return the report of this host; it may ask a network directory."""
    least = trust.uid_min()
    users = ((each.pw_name, each.pw_uid) for each in pwd.getpwall() if each.pw_uid >= least)
    groups = ((each.gr_name, each.gr_gid) for each in grp.getgrall() if each.gr_gid >= least)
    return HostReport(
        sent_s=now_s,
        zone=time.strftime("%Z%z", time.localtime(now_s)),
        users=dict(islice(users, MAX_NAMES)),
        groups=dict(islice(groups, MAX_NAMES)),
        mounts=dict(islice(network_mounts().items(), MAX_MOUNTS)),
    )
