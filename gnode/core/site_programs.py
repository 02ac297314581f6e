"""The site's programs around each job: prolog, epilog, and health checks before a job."""

from collections.abc import Mapping
from typing import Final

from gnode.core.environment import variables_of_gsched
from gnode.core.site import ProgramRules
from gnode.core.task import Account
from gnode.task import SitePrograms
from gsched.model.ids import format_job_id
from gsched.model.units import format_duration
from gsched.protocol.node import Launch

ROOT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def programs_around(
    launch: Launch, account: Account, rules: ProgramRules, env: Mapping[str, str]
) -> SitePrograms | None:
    """Return the programs around a job, None if the site has none.

    Args:
        env: of the job.
    """
    if rules.is_empty:
        return None
    spec = launch.spec
    indices = ",".join(str(held.index) for held in launch.share.gpus_held)
    own = {
        "GSCHED_GPUS": indices,
        "GSCHED_MEMORY_BYTES": str(launch.share.memory_bytes),
        "GSCHED_WORKDIR": spec.workdir,
        "GSCHED_HOME": account.home,
    }
    job = format_job_id(launch.job, launch.server)
    arguments = (job, _requested(launch), spec.queue, spec.account)
    return _made(rules, account, spec.name, arguments, {**variables_of_gsched(env), **own})


def programs_of_probe(
    name: str, account: Account, rules: ProgramRules, env: Mapping[str, str]
) -> SitePrograms | None:
    """Return the programs around a probe, which is job 0; None if the site has none."""
    if rules.is_empty:
        return None
    return _made(rules, account, name, ("0", "", "", ""), {**env, "GSCHED_GPUS": ""})


def _made(
    rules: ProgramRules,
    account: Account,
    name: str,
    arguments: tuple[str, ...],
    env: Mapping[str, str],
) -> SitePrograms:
    return SitePrograms(
        prolog=rules.prolog,
        epilog=rules.epilog,
        prolog_user=rules.prolog_user,
        epilog_user=rules.epilog_user,
        prolog_timeout_s=rules.prolog_timeout_s,
        epilog_timeout_s=rules.epilog_timeout_s,
        checks=rules.checks,
        name=name,
        arguments=arguments,
        variables={
            **env,
            "PATH": ROOT_PATH,
            "LANG": "C.UTF-8",
            "GSCHED_USER": account.user,
            "GSCHED_UID": str(account.uid),
            "GSCHED_GID": str(account.gid),
        },
    )


def _requested(launch: Launch) -> str:
    """Return the job's resources as Torque shows them to its scripts."""
    allocation = launch.origin.allocation
    parts = [f"nodect={len(allocation)}", f"ncpus={sum(share.cpus for share in allocation)}"]
    gpus = sum(len(tuple(share.gpus_held)) for share in allocation)
    if gpus:
        parts.append(f"ngpus={gpus}")
    memory_bytes = sum(share.memory_bytes for share in allocation)
    if memory_bytes:
        parts.append(f"mem={memory_bytes // 1024}kb")
    if launch.walltime_s is not None:
        parts.append(f"walltime={format_duration(launch.walltime_s)}")
    return ",".join(parts)
