"""What programs of a job and its step agents say to each other, over TCP between their nodes.

The step agent connects to the program, and both prove that they know the secret that reached the
agent through both gnodes and the head; then each frame is sealed (`gsched.protocol.sealing`, where
the agent has the part of the node and the program that of the head). A frame on the wire is

    length of the rest (4 bytes, big-endian) | sealed payload

and the first byte of a payload says what it is. Nothing is encrypted, as between the ranks of an
MPI program. Only the standard library is used here: agents start quickly.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

VERSION: Final = 1
SECRET_BYTES: Final = 16
NONCE_BYTES: Final = 16
LENGTH_BYTES: Final = 4
#: A task's arguments and environment: as much as Linux takes, escaped.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
MAX_HELLO_BYTES: Final = 1024
#: Output in one frame, and input that a task may have without having read it.
CHUNK_BYTES: Final = 32 * 1024
INPUT_WINDOW_BYTES: Final = 64 * 1024
#: Output that waits for its reader; beyond it the tasks' pipes are not read.
OUTPUT_BYTES_MAX: Final = 256 * 1024

# program to agent
SPAWN, INPUT, INPUT_END, SIGNAL = b"S", b"I", b"E", b"K"
# agent to program
READY, STARTED, FAILED, OUTPUT, ERRORS, ENDED, TAKEN = b"H", b"R", b"F", b"O", b"X", b"D", b"A"
_TASK_BYTES: Final = 4

#: Variables that say something of a node or of the job's part there: each task gets its node's.
NODE_BOUND: Final = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "GSCHED_CPUS_ON_NODE",
        "GSCHED_GPUFILE",
        "GSCHED_GPUS_ON_NODE",
        "GSCHED_GPU_SHARE_CLASS",
        "GSCHED_GPU_SHARE_MEMORY_BYTES",
        "GSCHED_GPU_SHARE_PERCENT",
        "GSCHED_JOB_DIR",
        "GSCHED_NODE",
        "GSCHED_NODEFILE",
        "GSCHED_NODE_RANK",
        "GSCHED_NODE_SOCKET",
        "GSCHED_SNAPSHOT_DIR",
        "HOME",
        "HOSTNAME",
        "HYDRA_HOST_FILE",
        "HYDRA_LAUNCHER_EXEC",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC",
        "I_MPI_HYDRA_HOST_FILE",
        "LOGNAME",
        "NODE_RANK",
        "OMPI_MCA_orte_default_hostfile",
        "OMPI_MCA_plm_rsh_agent",
        "PBS_GPUFILE",
        "PBS_NODEFILE",
        "PBS_NODENUM",
        "PBS_NUM_PPN",
        "PRTE_MCA_plm_ssh_agent",
        "PRTE_MCA_prte_default_hostfile",
        "SHELL",
        "SLURMD_NODENAME",
        "SLURM_CPUS_ON_NODE",
        "SLURM_GPUS_ON_NODE",
        "SLURM_JOB_GPUS",
        "TMPDIR",
        "USER",
    }
)


class StepProtocolError(Exception):
    """The other side does not follow the protocol; the message says how."""


class Spawn(NamedTuple):
    """A task that an agent is to start.

    Attributes:
        task: its number in this connection.
        argv: program and arguments; the program is looked for along PATH of ``env``.
        env: its environment, without what is of its node (`NODE_BOUND`).
        cwd: its working directory.
        has_input: its standard input comes from the program; else it is /dev/null.
        stdout_path, stderr_path: files on its node; empty: to the program.
        append: these files are continued, not replaced.
    """

    task: int
    argv: list[str]
    env: dict[str, str]
    cwd: str
    has_input: bool = False
    stdout_path: str = ""
    stderr_path: str = ""
    append: bool = False


def node_environment(given: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a task: the program's, with what is of the task's own node."""
    env = {name: value for name, value in given.items() if name not in NODE_BOUND}
    env.update({name: own[name] for name in NODE_BOUND if name in own})
    return env


def encode_spawn(spawn: Spawn) -> bytes:
    """Return the payload that starts a task."""
    return SPAWN + json.dumps(spawn._asdict()).encode("utf-8", "surrogateescape")


def decode_spawn(payload: bytes) -> Spawn:
    """Return the task that is to be started.

    Raises:
        StepError: the payload is not of this form.
    """
    values = decode_object(payload)
    try:
        spawn = Spawn(**values)  # type: ignore[arg-type] # checked below
    except TypeError as error:
        raise StepProtocolError(str(error)) from error
    if not (spawn.argv and all(map(_is_text, (*spawn.argv, *spawn.env.values(), spawn.cwd)))):
        raise StepProtocolError("a task lacks its program, environment or directory")
    return spawn


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def encode_object(kind: bytes, values: Mapping[str, object]) -> bytes:
    """Return the payload of a message with named values."""
    return kind + json.dumps(values).encode("utf-8", "surrogateescape")


def decode_object(payload: bytes) -> dict[str, object]:
    """Return the named values of a message.

    Raises:
        StepError: they cannot be read.
    """
    try:
        values = json.loads(payload[1:].decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise StepProtocolError(f"unreadable message: {error}") from error
    if not isinstance(values, dict):
        raise StepProtocolError("a message without names")
    return values


def encode_data(kind: bytes, task: int, data: bytes = b"") -> bytes:
    """Return the payload of a piece of a task's input or output."""
    return kind + task.to_bytes(_TASK_BYTES, "big") + data


def decode_data(payload: bytes) -> tuple[int, bytes]:
    """Return the number of a task and the piece of its input or output.

    Raises:
        StepError: the payload is too short.
    """
    if len(payload) < 1 + _TASK_BYTES:
        raise StepProtocolError("a piece of data without its task")
    return int.from_bytes(payload[1 : 1 + _TASK_BYTES], "big"), payload[1 + _TASK_BYTES :]


def framed(sealed: bytes) -> bytes:
    """Return a frame as it goes over the wire."""
    return len(sealed).to_bytes(LENGTH_BYTES, "big") + sealed


def take_frames(buffer: bytearray, most_bytes: int = MAX_FRAME_BYTES) -> Iterator[bytes]:
    """Take all complete frames out of what has come.

    Raises:
        StepError: a frame is larger than ``most_bytes``.
    """
    while len(buffer) >= LENGTH_BYTES:
        length = int.from_bytes(buffer[:LENGTH_BYTES], "big")
        if length > most_bytes:
            raise StepProtocolError(f"a frame of {length} bytes")
        if len(buffer) < LENGTH_BYTES + length:
            return
        frame = bytes(buffer[LENGTH_BYTES : LENGTH_BYTES + length])
        del buffer[: LENGTH_BYTES + length]
        yield frame
