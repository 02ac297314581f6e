"""From a launch order to a task: its program, environment, output files and limits."""

import posixpath
from dataclasses import replace

import msgspec

from gnode.core.contained import plan_container
from gnode.core.environment import environment_of
from gnode.core.program import program_of
from gnode.core.site import Site
from gnode.core.site_programs import programs_around
from gnode.core.staging import StagingPlace, StagingPlan, plan_staging
from gnode.core.task import AcceptedTask, Account, AttemptKey
from gnode.task import AwayFiles, CpusetCgroup, JobOptions, MemoryCgroup, PrivateTmp
from gsched.protocol.node import Launch

#: The least memory limit that is enforced, whatever was requested: a process cannot even be
#: prepared in less. Slurm's MinRAMSpace (30 MB) is there for the same reason.
LEAST_MEMORY_LIMIT_BYTES = 32 * 1024 * 1024
WORK_NAME = "work"  # in the job's directory: where it starts if its node lacks that of submission
GATE_VARIABLE = "GSCHED_GATE"  # see gnode.supervisor.gate, torchrun_agent and gsched.elastic.gate


def bind_prepared(
    launch: Launch, account: Account, site: Site, *, limit_s: float, yields: bool
) -> AcceptedTask:
    """Return the task that starts the processes of ``launch`` behind a gate.

    It owns no GPU and has no lease.

    Args:
        limit_s: how long it may wait to be launched.
        yields: until then it has a lower priority.
    """
    task = bind(launch, account, site)
    return replace(
        task,
        env={**_without_launch(task.env), GATE_VARIABLE: "stdin"},
        gpu_indices=(),
        gpu_shares=(),
        fence=site.gpu_access.fence(task.key),
        walltime_s=limit_s,
        lease_s=0.0,
        gate=True,
        yields=yields,
    )


def bind(
    launch: Launch,
    account: Account,
    site: Site,
    *,
    lease_from_s: float = 0.0,
    gate: bool = False,
    cpus: tuple[int, ...] = (),
) -> AcceptedTask:
    """Return the task that carries out ``launch`` on this node for ``account``.

    Args:
        lease_from_s: of a launch with a lease: when the head was reached last, CLOCK_BOOTTIME.
        gate: it was prepared before.
        cpus: that are the attempt's alone; empty: it is not bound.
    """
    spec = launch.spec
    key = AttemptKey(launch.job, launch.attempt)
    user_dir = posixpath.join(site.user_root, key.name)
    memory = _memory_limit(launch, site, key)
    switch_user = site.uid == 0 and account.uid != 0
    env = environment_of(launch, account, site, user_dir)
    program = program_of(launch, account, site, user_dir)
    scratch = posixpath.join(user_dir, WORK_NAME)
    staged = plan_staging(
        launch,
        StagingPlace(
            account=account,
            staging=site.staging,
            node=site.node,
            tmp_dir=env["TMPDIR"],
            scratch=scratch,
            carrier=site.carrier,
            socket=site.elastic_socket,
        ),
    )
    away = _away(launch, site, scratch, staged)
    task = AcceptedTask(
        job=launch.job,
        attempt=launch.attempt,
        user=account.user,
        uid=account.uid,
        gid=spec.owner.gid if switch_user else account.gid,
        switch_user=switch_user,
        argv=program.argv,
        env=env,
        cwd=spec.workdir,
        stdout_path=program.stdout.path,
        stderr_path=program.stderr.path,
        stdout_name=program.stdout.name,
        stderr_name=program.stderr.name,
        append=spec.append or launch.attempt > 1,
        files=program.files,
        user_dir=user_dir,
        cgroup=posixpath.join(site.cgroup_root, key.name) if site.cgroup_root else None,
        memory_cgroup=memory,
        walltime_s=launch.walltime_s,
        failure_report=program.failure_report,
        boot_id=site.boot_id,
        gpu_indices=launch.share.gpu_indices,
        gpu_shares=launch.share.gpu_shares,
        no_new_privileges=site.limits.no_new_privileges,
        open_files=site.limits.open_files,
        processes=site.limits.processes,
        processes_cgroup=_processes_group(site, key),
        origin=launch.origin,
        lease_s=launch.lease_s,
        lease_from_s=lease_from_s,
        lease_grace_s=launch.lease_grace_s,
        gate=gate,
        stage_in=staged.stage_in,
        stage_out=staged.stage_out,
        stage_timeout_s=site.staging.timeout_s if spec.stage_in or spec.stage_out else 0.0,
        directory_wait_s=site.limits.directory_wait_s,
        cpus=cpus,
        cpuset=_cpuset(site, key),
        fence=site.gpu_access.fence(key, launch.share.gpu_indices, launch.share.gpu_shares),
        detach_timeout_s=_detach_timeout_s(launch),
        private=private_tmp(
            site,
            (user_dir, *((away.outbox,) if away else ())),
            memory,
            shares=bool(launch.share.gpu_shares),
        ),
        away=away,
        programs=None if gate else programs_around(launch, account, site.programs, env),
        **vars(msgspec.convert(spec, JobOptions, from_attributes=True)),
    )
    plan = plan_container(task, launch, account, site)
    return task if plan is None else plan.task(task)


def private_tmp(
    site: Site, own: tuple[str, ...], memory: MemoryCgroup | None, *, shares: bool
) -> PrivateTmp | None:
    """Return the /tmp and /dev/shm of an attempt; None: those of the node.

    Jobs that share a GPU by MPS meet its server in /dev/shm.

    Args:
        site: of the node.
        own: directories of the attempt.
        memory: its limit.
        shares: it shares a GPU.
    """
    if not site.limits.private_tmp:
        return None
    return PrivateTmp(
        visible=(*site.visible, *own),
        shm=not shares,
        shm_bytes=memory.limit_bytes if memory is not None else 0,
    )


def _away(launch: Launch, site: Site, scratch: str, staged: StagingPlan) -> AwayFiles | None:
    """Return what the part does if this node lacks the directory of submission.

    Containers mount the working directory, and step agents have no output.
    """
    spec = launch.spec
    if spec.place is None or spec.container is not None or not site.outbox_root:
        return None
    submit_dir = spec.submit_dir or spec.workdir
    return AwayFiles(
        mark=spec.place.mark,
        submit_dir=submit_dir,
        host=spec.place.host or launch.server,
        outbox=posixpath.join(site.outbox_root, f"{launch.job}.{launch.attempt}.{launch.token}"),
        scratch=scratch if spec.workdir == submit_dir else "",
        kept=spec.place.kept,
        stage_in=staged.away_in,
        stage_out=staged.away_out,
        leave=staged.leave,
        rank=launch.rank,
    )


def _cpuset(site: Site, key: AttemptKey) -> CpusetCgroup | None:
    """Return the group for an attempt's CPUs: also of one without any, which may get them later."""
    if site.cpuset_root is None:
        return None
    version, root = site.cpuset_root
    return CpusetCgroup(version=version, path=posixpath.join(root, key.name))


def _detach_timeout_s(launch: Launch) -> float | None:
    """Return the time-out of the part's terminal, None if it has none: agents have output files."""
    if launch.spec.interactive is None or launch.is_step_agent:
        return None
    return launch.spec.interactive.detach_timeout_s or 0.0


def _without_launch(env: dict[str, str]) -> dict[str, str]:
    """Return an environment without what only a launched attempt may use: GPUs, a rendezvous."""
    kept = {name: value for name, value in env.items() if name != "MASTER_PORT"}
    return {**kept, "CUDA_VISIBLE_DEVICES": ""}


def _processes_group(site: Site, key: AttemptKey) -> str | None:
    if not site.limits.processes or site.processes_root is None:
        return None
    return posixpath.join(site.processes_root, key.name)


def _memory_limit(launch: Launch, site: Site, key: AttemptKey) -> MemoryCgroup | None:
    if site.memory_root is None or not launch.share.memory_bytes:
        return None
    version, root = site.memory_root
    return MemoryCgroup(
        version=version,
        path=posixpath.join(root, key.name),
        limit_bytes=max(LEAST_MEMORY_LIMIT_BYTES, launch.share.memory_bytes),
    )
