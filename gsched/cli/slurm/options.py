"""The options of Slurm's commands that list and cancel: of 22.05 to 26.05. Pure.

Those of sbatch, salloc and srun are in `gsched.cli.submit.slurm_options`.
"""

import grp
import pwd
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.submit.slurm_options import option_table
from gsched.cli.submit.slurm_options import parse as getopt
from gsched.model.host_lists import expanded
from gsched.protocol.job_rows import JobRow

#: As `option_table` reads them. What a command does not look at requests what is so here anyway.
_COMMANDS: Final[Mapping[str, str]] = {
    "squeue": """Format/O account=accounts/A all/a0 array-unique0 array/r0 autocomplete
        clusters=cluster/M expand-patterns0 federation0 format/o help0
        helpformat=helpFormat0 helpstate0 hide0 iterate/i jobs=job/j json2 licenses/L local0
        long/l0 me0 name/n noconvert0 nodelist=nodes=node/w noheader/h0 notme0
        only-job-state0 partition=partitions/p priority/P0 qos/q reservation/R running-over
        running-under sibling0 sort/S start0 states=state/t steps=step/s usage0 users=user/u
        verbose/v0 version/V0 yaml2""",
    "sacct": """account=accounts/A allclusters/L0 allocations/X0 allusers/a0 array0 associations/x
        autocomplete batch-script/B0 brief/b0 clusters=cluster/M completion/c0 constraints/C
        delimiter duplicates/D0 endtime/E env-vars0 expand-patterns0 federation0 file/f
        flags/F format=fields/o gid=group/g help/h0 helpformat=help-fields/e0 helpreason0
        helpstate0 jobs=job/j json2 local0 long/l0 name ncpus/I nnodes/i noconvert0
        nodelist/N noheader/n0 parsable/p0 parsable2/P0 partition/r qos/q reason/R
        starttime/S states:state/s timelimit-max/K timelimit-min/k truncate/T0 units usage0
        use-local-uid0 users:user=uid/u verbose/v0 version/V0 wckeys/W whole-hetjob2 yaml2""",
    "scancel": """account/A admin-comment autocomplete batch/b0 clusters=cluster/M cron0 ctld0
        full/f0 help0 hurry/H0 interactive/i0 me0 name=jobname/n nodelist/w partition/p qos/q
        quiet/Q0 reservation/R sibling signal/s states:state/t usage0 users:user/u
        verbose/v0 version/V0 wckey""",
    "sinfo": """Format/O all/a0 autocomplete clusters=cluster/M dead/d0 exact/e0 federation0
        format/o future0 help0 helpformat=helpFormat0 helpstate0 hide0 iterate/i json2
        local0 long/l0 noconvert0 node=Node/N0 nodes/n noheader/h0 partition/p
        reasons:list-reasons/R0 reservation/T0 responding/r0 sort/S states=state/t
        summarize/s0 usage0 verbose/v0 version/V0 yaml2""",
    "sreport": """all_clusters/a0 autocomplete cluster/M federation0 help/h0 immediate/i0 local0
        noheader/n0 parsable/p0 parsable2/P0 quiet/Q0 time/t tres/T usage0 verbose/v0
        version/V0""",
    "sshare": """accounts/A all/a0 autocomplete clusters=cluster/M format/o help0
        helpformat/e0 json2 long/l0 noheader/h0 noheader:noheader/n0 parsable/p0 parsable2/P0
        partition/m0 usage0 users=user/u Users/U0 verbose/v0 version/V0 yaml2""",
    "sstat": """allsteps/a0 autocomplete format=fields/o help/h0 helpformat/e0 jobs/j noconvert0
        noheader/n0 parsable/p0 parsable2/P0 pidformat/i0 usage0 verbose/v0 version/V0""",
}
#: What gsched does not have, by command.
_MISSING: Final = {
    command: frozenset(names.split())
    for command, names in {
        "squeue": "autocomplete helpformat helpstate running-over running-under steps yaml",
        "sacct": """associations autocomplete batch-script completion constraints env-vars file
            flags helpreason helpstate json ncpus nnodes reason timelimit-max
            timelimit-min truncate units wckeys whole-hetjob yaml""",
        "scancel": "admin-comment autocomplete cron sibling",
        "sinfo": "autocomplete future helpformat helpstate json sort yaml",
        "sreport": "autocomplete",
        "sshare": "autocomplete json yaml",
        "sstat": "autocomplete pidformat",
    }.items()
}
#: Filters that no job meets: there are no licenses and workload keys.
_OF_NONE: Final = ("licenses", "wckey")


def parsed(words: Sequence[str], command: str) -> w.ParsedCommand:
    """Return a command line: options by name, flags with an empty value, and operands.

    Raises:
        OptionError: an option is unknown to Slurm, or lacks its value.
        SlurmError: gsched does not have it.
    """
    read = getopt(words, option_table(_COMMANDS[command]), ends=False)
    stated = {name[2:]: value for name, value in read.options}
    missing = sorted(_MISSING[command] & set(stated))
    if missing:
        raise SlurmError(f"--{missing[0]} is not supported by gsched")
    return w.ParsedCommand(stated, read.operands)


def is_wanted(row: JobRow, options: Mapping[str, str], states: Collection[str] = ()) -> bool:
    """Return whether a job meets the filters of a command line; ``states``: one of these."""
    users, names = _listed(options, "users"), _listed(options, "name")
    queues, accounts = _listed(options, "partition"), _listed(options, "account")
    kept = _listed(options, "reservation")
    nodes = set(expanded(options.get("nodelist", ""), option="--nodelist"))
    return (
        (not users or row.user in users)
        and ("me" not in options or row.user == w.own_name())
        and ("notme" not in options or row.user != w.own_name())
        and (not accounts or row.account in accounts)
        and (not nodes or bool(nodes & set(row.nodes)))
        and (not states or bool(set(states) & set(w.state_of(row))))
        and (not names or row.name in names)
        and (not queues or row.queue in queues)
        and ("gid" not in options or _is_of_group(row.user, _listed(options, "gid")))
        and (not kept or row.reservation in kept)
        and ("qos" not in options or w.qos_of(row) in _listed(options, "qos"))
        and not any(name in options for name in _OF_NONE)
    )


def _listed(options: Mapping[str, str], name: str) -> set[str]:
    return set(options.get(name, "").split(",")) - {""}


def _is_of_group(user: str, groups: Collection[str]) -> bool:
    try:
        number = pwd.getpwnam(user).pw_gid
        return str(number) in groups or grp.getgrgid(number).gr_name in groups
    except KeyError:
        return False
