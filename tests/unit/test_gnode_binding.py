"""From a launch order to a task: command line, environment, files, limits."""

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnode.core.binding import LEAST_MEMORY_LIMIT_BYTES, bind
from gnode.core.environment import processes_per_node
from gnode.core.site import NodeLimits
from gnode.core.task import Account
from gnode.task import MemoryCgroup
from gsched.model.host_lists import compact
from gsched.model.ids import element_number
from gsched.model.request import parse_resources
from gsched.model.resources import GpuShare, Share
from gsched.model.states import LaunchKind, ShareClass
from gsched.protocol.node import Launch
from tests.support.agent_driver import ALICE, order, site


def two_nodes(
    rank: int = 0, *, attempt: int = 3, cpus: tuple[int, int] = (2, 3), **settings: Any
) -> Launch:
    """Return the part of a job over n0 (GPUs 0 and 2) and n1 (GPU 1)."""
    values: dict[str, Any] = {
        "allocation": (
            Share(node="n0", cpus=cpus[0], gpu_indices=(0, 2)),
            Share(node="n1", cpus=cpus[1], gpu_indices=(1,)),
        ),
        "rank": rank,
        "every_node": True,
        "master_address": "10.0.0.1",
        "master_port": 20007,
        **settings,
    }
    return order(7, attempt, **values)


def argv(launch: Launch, account: Account = ALICE) -> tuple[str, ...]:
    return bind(launch, account, site()).argv


def env(launch: Launch) -> dict[str, str]:
    return bind(launch, ALICE, site()).env


def files(launch: Launch) -> dict[str, str]:
    return {file.name: file.content for file in bind(launch, ALICE, site()).files}


def with_request(text: str, *shares: Share) -> Launch:
    """Return a launch of a job with these resources, on nodes of these shares."""
    request = parse_resources([text], generic_names=()).request
    return order(request=request, allocation=shares)


@pytest.mark.parametrize(
    ("text", "cpus", "lines", "threads"),
    [
        ("nodes=2:ppn=4", (4, 4), (4, 4), "4"),
        ("select=2:ncpus=4", (4, 4), (1, 1), "4"),
        ("select=2:ncpus=4:mpiprocs=4", (4, 4), (4, 4), "1"),
        ("select=2:ncpus=8:mpiprocs=2", (8, 8), (2, 2), "4"),
        ("select=2:ncpus=8:mpiprocs=2:ompthreads=3", (8, 8), (2, 2), "3"),
        ("select=4:ncpus=2", (6, 2), (3, 1), "2"),
        ("select=1:ncpus=8:mpiprocs=8+2:ncpus=4:mpiprocs=1", (8, 4, 4), (8, 1, 1), "1"),
    ],
)
def test_the_node_file_has_a_line_for_each_rank(
    text: str, cpus: tuple[int, ...], lines: tuple[int, ...], threads: str
) -> None:
    """A rank is a CPU with ``nodes=``, and a chunk of ``select=`` has ``mpiprocs`` of them."""
    shares = [
        Share(node=f"n{at}", cpus=each, slots=2 if each == 6 else 1) for at, each in enumerate(cpus)
    ]
    launch = with_request(text, *shares)
    hosts = files(launch)["nodefile"].split()

    assert tuple(hosts.count(share.node) for share in shares) == lines
    assert env(launch)["PBS_NP"] == str(sum(lines))
    assert env(launch)["OMP_NUM_THREADS"] == env(launch)["NCPUS"] == threads


def test_an_exclusive_job_may_use_all_cpus_of_its_node() -> None:
    launch = order(
        share=Share(node="n1", cpus=1, exclusive=True), environment={"SLURM_SUBMIT_DIR": "/"}
    )
    found = bind(launch, ALICE, site(cpu_count=16)).env

    assert (found["OMP_NUM_THREADS"], found["SLURM_CPUS_ON_NODE"]) == ("16", "16")
    assert bind(order(), ALICE, site(cpu_count=16)).env["OMP_NUM_THREADS"] == "1"


def test_the_name_of_an_output_file_may_hold_the_index_as_in_openpbs() -> None:
    launch = order(element_number(5, 3), stdout_path="/out/scan_^array_index^.txt")

    assert bind(launch, ALICE, site()).stdout_path == "/out/scan_3.txt"


def test_a_job_that_shares_a_gpu_sees_it_and_knows_its_share() -> None:
    """The runtime may add to this."""
    part = GpuShare(index=3, percent=40, memory_bytes=2**34, share_class=ShareClass.LOW)
    launch = order(share=Share(node="n1", cpus=1, gpu_shares=(part,)))
    task = bind(launch, ALICE, site())

    assert task.gpu_shares == (part,)
    assert (task.gpu_indices, "PBS_GPUFILE" in task.env) == ((), False)
    assert task.env["CUDA_VISIBLE_DEVICES"] == "3"
    assert (task.env["GSCHED_NUM_GPUS"], task.env["GSCHED_GPUS_ON_NODE"]) == ("1", "1")
    assert {name: value for name, value in task.env.items() if "GPU_SHARE" in name} == {
        "GSCHED_GPU_SHARE_PERCENT": "40",
        "GSCHED_GPU_SHARE_MEMORY_BYTES": str(2**34),
        "GSCHED_GPU_SHARE_CLASS": "low",
    }


# --- command line ---


def test_a_script_with_a_first_line_is_executed_itself() -> None:
    assert argv(order(arguments=("a b", "c"))) == ("/s/user/1.1/script", "a b", "c")


def test_the_shell_that_the_user_names_wins_over_the_first_line() -> None:
    assert argv(order(shell="/bin/zsh")) == ("/bin/zsh", "/s/user/1.1/script")


def test_a_modelled_machine_gets_a_task_without_a_program() -> None:
    """All else is as on a real one: what an attempt owns, its limits and its leases."""
    launch = two_nodes(walltime_s=60.0, lease_s=30.0)
    real = bind(launch, ALICE, site())
    modelled = bind(launch, ALICE, site(runs_programs=False))
    assert (modelled.argv, modelled.files, list(modelled.env)) == ((), (), ["TMPDIR"])
    of_programs = {"argv", "env", "files", "stdout_path", "stderr_path"} | {
        *("stdout_name", "stderr_name", "failure_report")
    }
    for field in dataclasses.fields(real):
        if field.name not in of_programs:
            assert getattr(modelled, field.name) == getattr(real, field.name), field.name


def test_a_script_without_a_first_line_gets_the_login_shell() -> None:
    assert argv(order(script="echo\n"))[0] == "/bin/bash"


@pytest.mark.parametrize(
    ("first_line", "shell", "begins"),
    [
        ("#!/bin/bash -e", "", ("/bin/bash", "-l", "-e")),
        ("#!/usr/bin/env bash", "", ("bash", "-l")),
        ("#!/usr/bin/python3", "", ()),
        ("#!/bin/csh", "", ()),
        ("#!", "", ()),
        ("date", "", ("/bin/zsh", "-l")),
        ("#!/bin/bash", "/bin/sh", ("/bin/sh", "-l")),
        ("date", "/bin/tcsh", ("/bin/tcsh",)),
    ],
)
def test_scripts_are_run_by_login_shells_where_the_site_says_so(
    first_line: str, shell: str, begins: tuple[str, ...]
) -> None:
    """Torque does, so that `module load` works in scripts; csh takes -l alone only."""
    account = msgspec.structs.replace(ALICE, shell="/bin/zsh")
    launch = order(script=f"{first_line}\nmodule load x\n", shell=shell)
    logging_in = dataclasses.replace(site(), limits=NodeLimits(login_shell=True))

    argv = bind(launch, account, logging_in).argv
    assert argv[:-1] == begins
    assert argv[-1].endswith("/script")
    assert "-l" not in bind(launch, account, site()).argv


def test_threads_follow_the_cpus_unless_the_user_says_it() -> None:
    assert env(order(cpus=6))["OMP_NUM_THREADS"] == "6"
    assert env(two_nodes(rank=1))["OMP_NUM_THREADS"] == "3"
    ranks = two_nodes(launch=LaunchKind.TORCHRUN, cpus=(5, 3), arguments=("train.py",))
    assert env(ranks)["OMP_NUM_THREADS"] == "2", "two ranks share five CPUs"
    assert env(order(cpus=6, environment={"OMP_NUM_THREADS": "1"}))["OMP_NUM_THREADS"] == "1"
    assert env(order(cpus=6, environment={"SLURM_CPUS_PER_TASK": "3"}))["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize("shell", ["/usr/sbin/nologin", "/bin/false", ""])
def test_a_login_shell_that_refuses_is_replaced(shell: str) -> None:
    account = Account(user="alice", uid=1000, gid=1000, home="/", shell=shell)

    assert argv(order(script="echo\n"), account)[0] == "/bin/sh"


def test_a_command_is_taken_word_by_word() -> None:
    launch = order(launch=LaunchKind.COMMAND, arguments=("echo", "$HOME; rm", ""))

    assert argv(launch) == ("echo", "$HOME; rm", "")


def test_torchrun_gets_its_rendezvous_and_reports_failures() -> None:
    launch = two_nodes(
        1,
        launch=LaunchKind.TORCHRUN,
        python="/venv/python",
        arguments=("train.py", "--lr=1"),
        grace_s=45.0,
    )

    task = bind(launch, ALICE, site(node="n1"))

    assert task.argv[:7] == (
        "/venv/python",
        "/lib/torchrun_agent.py",
        *("--report", "/s/user/7.3/failure.json"),
        *("--grace", "45.0"),
        "--",
    )
    options = dict(zip(task.argv[7:-2:2], task.argv[8:-2:2], strict=True))
    assert options == {
        "--nnodes": "2",
        "--node-rank": "1",
        "--master-addr": "10.0.0.1",
        "--master-port": "20007",
        "--rdzv-id": "7.3",
        "--nproc-per-node": "1",
        "--max-restarts": "0",
    }
    assert task.argv[-2:] == ("train.py", "--lr=1")
    assert task.failure_report == "/s/user/7.3/failure.json"
    assert bind(order(), ALICE, site()).failure_report is None


def test_ranks_follow_the_gpus_and_without_any_the_cpus() -> None:
    assert processes_per_node(two_nodes(0)) == 2
    assert processes_per_node(order(cpus=3)) == 3


# --- environment ---


def test_the_job_is_described_in_pbs_words_and_in_ours() -> None:
    names = env(two_nodes(1, walltime_s=90.0, account="lab"))

    assert names["PBS_JOBID"] == names["GSCHED_JOB_ID"] == "7.head"
    assert names["PBS_NODEFILE"] == "/s/user/7.3/nodefile"
    assert names["PBS_GPUFILE"] == "/s/user/7.3/gpufile"
    expected = {
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBNAME": "train",
        "PBS_QUEUE": "batch",
        "PBS_O_QUEUE": "batch",
        "PBS_O_WORKDIR": "/home/alice/runs",
        "PBS_SERVER": "head",
        "PBS_NODENUM": "1",
        "PBS_NUM_NODES": "2",
        "PBS_NUM_PPN": "3",
        "PBS_NP": "5",
        "PBS_WALLTIME": "90",
        "PBS_VERSION": "gsched-1.2",
        "GSCHED_ATTEMPT": "3",
        "GSCHED_RESTART_COUNT": "2",
        "GSCHED_ACCOUNT": "lab",
        "GSCHED_NODELIST": "n0,n1",
        "GSCHED_NUM_GPUS": "3",
        "GSCHED_GPUS_ON_NODE": "1",
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20007",
        "NODE_RANK": "1",
        "NNODES": "2",
        "GSCHED_RDZV_ID": "7.3",
        "HOME": "/home/alice",
        "USER": "alice",
        "LOGNAME": "alice",
        "SHELL": "/bin/bash",
        "TMPDIR": "/s/user/7.3",
    }
    assert {name: names.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("cpus", "stated", "shown", "tasks"),
    [
        ((2, 2), {"SLURM_NTASKS": "2"}, "2(x2)", "1(x2)"),
        ((4, 2), {"SLURM_NTASKS": "6"}, "4,2", "4,2"),
        ((4, 4), {"SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "2"}, "4(x2)", "2(x2)"),
        ((8, 8), {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2"}, "8(x2)", "2(x2)"),
        ((1, 1), {}, "1(x2)", "1(x2)"),
    ],
)
def test_a_job_of_slurm_has_the_counts_of_its_nodes_in_short(
    cpus: tuple[int, int], stated: dict[str, str], shown: str, tasks: str
) -> None:
    """As Slurm 22.05 sets them; 4,2 is its answer to six tasks on nodes of four CPUs."""
    came = {"SLURM_SUBMIT_DIR": "/here", "PBS_O_HOST": "login", **stated}
    found = env(two_nodes(rank=0, environment=came, cpus=cpus))

    assert found["SLURM_JOB_CPUS_PER_NODE"] == shown
    assert found["SLURM_TASKS_PER_NODE"] == tasks
    assert (found["SLURM_SUBMIT_HOST"], found["SLURM_GTIDS"]) == ("login", "0")
    assert found["SLURM_JOB_GID"] == str(two_nodes(0).spec.owner.gid)


def test_a_name_with_slashes_names_no_directory() -> None:
    launch = order(name="../a/b", stdout_path="/out/$PBS_JOBNAME.txt")
    task = bind(launch, ALICE, site())

    assert task.stdout_path == "/out/.._a_b.txt"
    assert task.stderr_name.startswith(".._a_b.e")
    assert env(launch)["PBS_JOBNAME"] == "../a/b"


def test_a_job_that_came_as_one_of_slurms_has_its_variables_too() -> None:
    """Whatever the submitting shell had of them, as they describe this job."""
    came = {"SLURM_SUBMIT_DIR": "/here", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"}
    found = env(two_nodes(rank=1, environment=came))
    launch = two_nodes(rank=1)

    assert (
        found.items()
        >= {
            "SLURM_JOB_ID": str(launch.job),
            "SLURM_JOB_NAME": launch.spec.name,
            "SLURM_JOB_NODELIST": compact(launch.hosts),
            "SLURM_NNODES": "2",
            "SLURM_NODEID": "1",
            "SLURM_PROCID": "1",
            "SLURM_NTASKS": "8",
            "SLURM_SUBMIT_DIR": "/here",
            "SLURM_RESTART_COUNT": "2",
            "SLURM_GPUS_ON_NODE": str(len(launch.share.gpu_indices)),
        }.items()
    )
    assert found["PBS_JOBID"], "beside those of PBS"
    first = env(two_nodes(attempt=1, environment=came))
    assert not {"SLURM_RESTART_COUNT", "SLURM_JOB_ACCOUNT"} & set(first), "there is none"
    assert not any(name.startswith("SLURM") for name in env(two_nodes()))


def test_names_in_output_paths_are_replaced() -> None:
    launch = two_nodes(
        name="train", stdout_path="/o/$GSCHED_JOB_NUMBER-${PBS_JOBNAME}.$GSCHED_NODE.$USER"
    )

    assert outputs(launch)[0] == f"/o/{launch.job}-train.{launch.hosts[0]}.{ALICE.user}"


def test_a_job_without_gpus_sees_none_and_a_single_node_needs_no_master() -> None:
    names = env(order())

    assert names["CUDA_VISIBLE_DEVICES"] == ""
    assert "PBS_GPUFILE" not in names
    assert "MASTER_ADDR" not in names
    assert "MASTER_ADDR" in env(order(launch=LaunchKind.TORCHRUN))


def test_t37_users_cannot_override_what_describes_the_job() -> None:
    own = {
        "PBS_JOBID": "1.evil",
        "PBS_GPUFILE": "/tmp/evil",
        "PBS_O_PATH": "/opt/bin",
        "PBS_O_QUEUE": "asked",
        "GSCHED_ATTEMPT": "99",
        "GSCHED_FAIL": "head.submit.before_commit:kill",
        "GSCHED_HEAD": "/run/head.sock",
        "HOME": "/evil",
        "CUDA_VISIBLE_DEVICES": "0,1,2",
        "PATH": "/mine",
        "LD_PRELOAD": "/mine.so",
        "BASH_FUNC_x%%": "() { :; }",
        "BAD=NAME": "x",
        "NUL": "a\0b",
        "": "x",
    }

    names = env(order(environment=own))

    assert names["PBS_JOBID"] == "1.head"
    assert names["GSCHED_ATTEMPT"] == "1"
    assert names["HOME"] == "/home/alice"
    assert names["CUDA_VISIBLE_DEVICES"] == ""
    assert names["PBS_O_QUEUE"] == "asked"
    for kept in ("PBS_O_PATH", "GSCHED_HEAD", "PATH", "LD_PRELOAD", "BASH_FUNC_x%%"):
        assert names[kept] == own[kept]
    for dropped in ("PBS_GPUFILE", "GSCHED_FAIL", "BAD=NAME", "NUL", ""):
        assert dropped not in names


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=8))
def test_whatever_the_user_exports_can_be_given_to_exec(exported: dict[str, str]) -> None:
    plain = env(order())
    names = env(order(environment=exported))

    for name, value in names.items():
        assert name
        assert "=" not in name
        assert "\0" not in name + value
    for name, value in plain.items():
        if name.startswith(("GSCHED_", "PBS_J", "HOME", "CUDA_")):
            assert names[name] == value


def test_a_default_path_is_there_when_none_was_exported() -> None:
    assert env(order())["PATH"] == "/usr/local/bin:/usr/bin:/bin"


def test_a_temporary_directory_too_long_for_sockets_is_not_used() -> None:
    names = bind(order(), ALICE, site(user_root="/" + "d" * 80)).env

    assert names["TMPDIR"] == "/tmp"


# --- files ---


def test_the_node_file_has_a_line_for_each_slot_and_the_gpu_file_for_each_gpu() -> None:
    assert files(two_nodes()) == {
        "nodefile": "n0\nn0\nn1\nn1\nn1\n",
        "gpufile": "n0-gpu0\nn0-gpu2\nn1-gpu1\n",
        "script": "#!/bin/sh\necho hi\n",
    }
    assert set(files(order(launch=LaunchKind.COMMAND))) == {"nodefile"}


# --- output ---


def outputs(launch: Launch) -> tuple[str, str]:
    task = bind(launch, ALICE, site())
    return task.stdout_path, task.stderr_path


def test_output_goes_by_default_beside_the_job() -> None:
    assert outputs(order()) == ("/home/alice/runs/train.o1", "/home/alice/runs/train.e1")


def test_output_paths_are_expanded() -> None:
    assert outputs(order(stdout_path="log/$PBS_JOBID.out", stderr_path="~/err.${PBS_JOBID}")) == (
        "/home/alice/runs/log/1.head.out",
        "/home/alice/err.1.head",
    )
    assert outputs(order(stdout_path="/logs/", stderr_path="~")) == ("/logs/", "/home/alice")


def test_an_element_of_an_array_has_files_and_variables_of_its_own() -> None:
    """As Torque and OpenPBS name them: NAME.oARRAY-INDEX, PBS_ARRAYID, PBS_ARRAY_INDEX."""
    job = element_number(123, 7)
    launch = order(job, name="train")
    assert outputs(launch) == ("/home/alice/runs/train.o123-7", "/home/alice/runs/train.e123-7")
    told = env(launch)
    assert told["PBS_JOBID"] == told["GSCHED_JOB_ID"] == f"123[7].{launch.server}"
    assert told["PBS_ARRAYID"] == told["PBS_ARRAY_INDEX"] == told["GSCHED_ARRAY_INDEX"] == "7"
    assert told["LSB_JOBINDEX"] == told["SGE_TASK_ID"] == "7"
    assert told["PBS_ARRAY_ID"] == told["GSCHED_ARRAY_ID"] == f"123[].{launch.server}"
    assert not {name for name in env(order(123)) if "ARRAY" in name}


@pytest.mark.parametrize("name", ["PBS_ARRAYID", "PBS_ARRAY_INDEX", "GSCHED_ARRAY_INDEX"])
def test_a_path_may_hold_the_index_of_the_element(name: str) -> None:
    """In both ways in which a shell writes a variable; in other jobs it stays as it is."""
    job = element_number(123, 7)
    assert outputs(order(job, stdout_path=f"out/a${name}.txt"))[0].endswith("/out/a7.txt")
    assert outputs(order(job, stdout_path=f"out/${{{name}}}x"))[0].endswith("/out/7x")
    plain = "0" if name.startswith("GSCHED") else f"${name}"
    assert outputs(order(12, stdout_path=f"${name}"))[0].endswith(f"/{plain}")
    named = order(job, stdout_path="$GSCHED_ARRAY_NUMBER.$GSCHED_JOB_NUMBER")
    assert outputs(named)[0].endswith("/123.123-7")


def test_an_element_that_came_as_one_of_slurms_has_its_index_in_slurms_names() -> None:
    launch = order(element_number(123, 7), environment={"SLURM_SUBMIT_DIR": "/x"})
    told = env(launch)
    assert (told["SLURM_ARRAY_JOB_ID"], told["SLURM_ARRAY_TASK_ID"]) == ("123", "7")


def test_a_directory_gets_the_default_names() -> None:
    task = bind(order(12, stdout_path="/logs/"), ALICE, site())

    assert (task.stdout_path, task.stdout_name, task.stderr_name) == (
        "/logs/",
        "train.o12",
        "train.e12",
    )


def test_the_nodes_of_a_job_do_not_write_into_one_file() -> None:
    asked: dict[str, Any] = {"stdout_path": "/logs/all.txt", "stderr_path": "/dev/null"}

    assert outputs(two_nodes(0, **asked)) == ("/logs/all.txt", "/dev/null")
    assert outputs(two_nodes(1, **asked)) == ("/logs/all.txt.1", "/dev/null")
    assert bind(two_nodes(1), ALICE, site()).stdout_name == "train.o7.1"


def test_a_job_name_cannot_lead_out_of_the_directory() -> None:
    assert outputs(order(name="../../etc/x"))[0] == "/home/alice/runs/.._.._etc_x.o1"


def test_a_later_attempt_appends() -> None:
    assert not bind(order(1, 1), ALICE, site()).append
    assert bind(order(1, 2), ALICE, site()).append


# --- limits and user ---


@pytest.mark.parametrize(
    ("asked_bytes", "limit_bytes"),
    [(1, LEAST_MEMORY_LIMIT_BYTES), (4096, LEAST_MEMORY_LIMIT_BYTES), (1 << 30, 1 << 30)],
)
def test_memory_is_limited_where_it_can_be_and_was_asked_for(
    asked_bytes: int, limit_bytes: int
) -> None:
    limited = order(share=Share(node="n1", cpus=1, memory_bytes=asked_bytes))
    where = site(cgroup_root="/cg", memory_root=(1, "/mem"))

    task = bind(limited, ALICE, where)

    assert task.cgroup == "/cg/1.1"
    assert task.memory_cgroup == MemoryCgroup(version=1, path="/mem/1.1", limit_bytes=limit_bytes)
    assert bind(order(), ALICE, where).memory_cgroup is None
    assert bind(limited, ALICE, site()).memory_cgroup is None


def test_only_root_switches_users() -> None:
    assert bind(order(), ALICE, site(uid=0)).switch_user
    assert not bind(order(), ALICE, site(uid=1000)).switch_user


def test_what_can_be_moved_is_told_where_it_keeps_its_state_and_whom_to_tell() -> None:
    launch = order(checkpoint_dir="/data/ckpt", checkpoint_interval_s=0.5)
    found = bind(launch, ALICE, site(elastic_socket="@gsched-1")).env

    assert found["GSCHED_CHECKPOINT_DIR"] == "/data/ckpt"
    assert found["GSCHED_ELASTIC_SOCKET"] == "@gsched-1"
    assert found["GSCHED_CHECKPOINT_INTERVAL_S"] == "0.5"
    assert not {name for name in env(order()) if "CHECKPOINT" in name or "ELASTIC" in name}
