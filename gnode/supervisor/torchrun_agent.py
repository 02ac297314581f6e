"""torchrun that says which rank failed first, when and how.

Runs in the *user's* Python, with the user's torch, as a script of its own:

    python torchrun_agent.py --report FILE --grace SECONDS -- TORCHRUN-ARGUMENTS SCRIPT ARGUMENTS

It does what ``torchrun`` does. If ranks fail, it also writes FILE (JSON: rank, local_rank,
exit_code, signal, failed_s, message) and exits with the first one's exit code, 128 + n for a
signal. torch itself notes failures to the second and only when it looks; here the moment is that
of the process's death, since a rank on another node fails for it some milliseconds later and the
two have to be told apart.

An elastic training whose user gave torchrun no options of its own gets its ranks from here, with
the environment that torchrun would give them: torchrun imports torch for that, which takes as long
as a rank's own start and comes before it, in each move anew. Rank 0 then keeps the store itself.
When one of these ranks has failed, the others have SECONDS to end, the job's grace period.

The rendezvous port is the head's choice, who does not know what else is on a machine: another
cluster, or any program. The agent of the first node claims it, before a rank is started anywhere,
and gives the attempt up if it is somebody else's; the head tries another one. Agents of different
nodes tell each other their run id first, so that a rank never talks to those of another attempt.

The ranks of an attempt that was prepared, but not launched yet, wait at a gate (`rank_gate`).

It may import nothing of gsched, and runs on older Pythons than the daemons.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnode.supervisor.rank_gate import RankGate

_USAGE = (
    "usage: torchrun_agent.py --report FILE --grace SECONDS -- TORCHRUN-ARGUMENTS SCRIPT ARGUMENTS"
)
_NO_TORCH = 127  # what a shell says of a program that is not there
_FOR_EVER_S = 10**6  # who ends the job kills what does not end in time
_LOOK_S = 30.0  # between two looks at ranks of which no signal came
_TOGETHER_S = 0.2  # between the first and the last signal of somebody who ends all processes
_TAKEN = 75  # sysexits' EX_TEMPFAIL: the port is somebody else's
_MEETING_S = 900.0  # for agents to find each other, as torchrun has it
_WORD_S = 2.0  # for a stranger on the port to say who he is
_RETRY_S = 0.1
_WORD_BYTES = 256
_GATE = "GSCHED_GATE"  # "stdin": to this program; to a rank "open", or its descriptors
_SOCKET = "GSCHED_ELASTIC_SOCKET"
#: What ends a training from outside, as torchrun has it.
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
#: What may ask a training for a checkpoint; it is sent to all processes of a job.
_FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)
#: What gsched itself says to torchrun; whatever else comes before the script is its user's.
_OURS = (
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--rdzv-id",
    "--nproc-per-node",
    "--max-restarts",
)


class _Deaths:
    """When each child died: seconds since the epoch by pid, noted as SIGCHLD comes in."""

    def __init__(self) -> None:
        self.failed_s: dict[int, float] = {}
        signal.signal(signal.SIGCHLD, self._note)

    def _note(self, _number: int, _frame: object) -> None:
        now_s = time.time()
        for pid in _children():
            if pid in self.failed_s:
                continue
            try:  # WNOWAIT: torch has to find the child's status, too
                found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                continue
            if found is not None and found.si_status != 0:
                self.failed_s[pid] = now_s


def _children() -> list[int]:
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            # Bytes: a signal may come while the codec of a text is being imported.
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                found.extend(int(pid) for pid in file.read().split())
        except OSError:  # the thread has ended, or the kernel does not list children
            continue
    return found


def _write_report(path: str, rank: int, failure: object, failed_s: float) -> int:
    """Write what is known of the first failure; return the exit code that stands for it."""
    exit_code = int(getattr(failure, "exitcode", 1))
    report = {
        "rank": rank,
        "local_rank": getattr(failure, "local_rank", None),
        "exit_code": exit_code if exit_code > 0 else None,
        "signal": -exit_code if exit_code < 0 else None,
        "failed_s": failed_s,
        "message": f"rank {rank}: {_message(failure)}",
    }
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(report, file)
        os.replace(temporary, path)
    except OSError as error:  # its directory is gone, or full: the exit code still tells
        sys.stderr.write(f"gsched: the failure of rank {rank} cannot be noted: {error}\n")
    return exit_code if exit_code >= 0 else 128 - exit_code


def _message(failure: object) -> str:
    exit_code = int(getattr(failure, "exitcode", 1))
    if exit_code < 0:
        return f"killed by signal {-exit_code}"
    answer = getattr(failure, "message", "")
    text = str(answer.get("message", answer) if isinstance(answer, dict) else answer)
    # Without an error file torch only tells how to get one; the exit code says more.
    return f"exited with code {exit_code}" if "see: https://" in text or not text else text


class _TakenError(Exception):
    """The rendezvous port belongs to somebody else, or a gate did not open: try again."""


def _claim(port: int) -> socket.socket:
    """Return a claim on a port of this machine; it holds as long as this process lives.

    An abstract name, which the kernel keeps for each network as it keeps ports. The port itself
    cannot be held: rank 0 needs it, seconds later, and another agent would find it free until then.

    Raises:
        _TakenError: another agent has claimed it, or something listens there.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0gsched-port-{port}")
        _listener(port).close()
    except OSError as error:
        claim.close()
        raise _TakenError(f"the rendezvous port {port} is taken: {error.strerror}") from error
    return claim


def _listener(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _give_up(report: str, error: _TakenError) -> int:
    """Say that the attempt needs another port; return the exit code that stands for it."""
    with open(report, "w", encoding="utf-8") as file:
        json.dump({"port_taken": True, "failed_s": time.time(), "message": str(error)}, file)
    sys.stderr.write(f"gsched: {error}; the job is tried again\n")
    return _TAKEN


def _meet(options: Mapping[str, str]) -> None:
    """Return when the agents of all nodes are there and know that they are of one attempt.

    The first node's listens where rank 0 will, and no rank lives before it has stopped to.

    Raises:
        TimeoutError: the others did not come.
        _TakenError: something listens on the port.
    """
    port, nodes = int(options["--master-port"]), int(options["--nnodes"])
    if nodes == 1:
        return
    if options["--node-rank"] != "0":
        _join((options["--master-addr"], port), f"{options['--rdzv-id']} {options['--node-rank']}")
        return
    wanted = {f"{options['--rdzv-id']} {node_rank}" for node_rank in range(1, nodes)}
    there: dict[str, socket.socket] = {}
    until_s = time.monotonic() + _MEETING_S
    try:
        with _listener(port) as listener:
            while wanted - there.keys():
                listener.settimeout(max(0.001, until_s - time.monotonic()))
                channel, _ = listener.accept()
                word = _word(channel, _WORD_S)
                if word in wanted:
                    there[word] = channel
                else:
                    channel.close()  # a stranger, or one of another attempt
    except TimeoutError:
        raise TimeoutError(f"only {len(there)} of {nodes - 1} other nodes came") from None
    for channel in there.values():
        with channel, contextlib.suppress(OSError):  # one that has died: the head will hear of it
            channel.sendall(b"go\n")
            _word(channel, _WORD_S)  # it closes first, so that the port is free at once


def _join(address: tuple[str, int], name: str) -> None:
    """Return when the first node's agent says so.

    Raises:
        TimeoutError: it did not.
    """
    until_s = time.monotonic() + _MEETING_S
    while time.monotonic() < until_s:
        try:
            with socket.create_connection(address, _WORD_S) as channel:
                channel.sendall(f"{name}\n".encode())
                if _word(channel, until_s - time.monotonic()) == "go":
                    return
        except OSError:
            pass  # it is not there yet, or it is somebody else
        time.sleep(_RETRY_S)
    raise TimeoutError(f"the first node does not answer at {address[0]}:{address[1]}")


def _word(channel: socket.socket, timeout_s: float) -> str:
    """Return the line that the other side says, or what of it has come in time."""
    channel.settimeout(max(0.001, timeout_s))
    answer = b""
    try:
        while not answer.endswith(b"\n") and len(answer) < _WORD_BYTES:
            more = channel.recv(_WORD_BYTES)
            if not more:
                break
            answer += more
    except OSError:
        pass
    return answer.decode(errors="replace").strip()


def _launch(report: str, arguments: list[str]) -> int:
    """Run torchrun; return its exit code.

    When one rank has failed, torchrun gives the others 30 s to end.

    Raises:
        _TakenError: the attempt was only to be prepared, and these ranks would not wait.
    """
    if os.environ.get(_GATE) == "stdin":
        raise _TakenError("torchrun starts these ranks itself: they have no gate")
    try:
        from torch.distributed import run as torchrun
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise  # torch is there, and lacks something itself
        sys.stderr.write(
            f"gsched: --torchrun: {sys.executable} on {os.uname().nodename} has no torch: activate "
            "an environment that has it before gsub, or name its Python with --python\n"
        )
        return _NO_TORCH
    try:
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        run, parse = torchrun.run, torchrun.parse_args
    except (ImportError, AttributeError):  # another torch: better no report than no training
        sys.stderr.write("gsched: this torch tells no failing ranks\n")
        torchrun.main(arguments)
        return 0
    deaths = _Deaths()
    try:
        options = parse(arguments)
        if getattr(options, "shutdown_timeout", 0) is None:  # its user says nothing else
            options.shutdown_timeout = _FOR_EVER_S
        run(options)
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        noticed_s = time.time()
        failed_s = {
            rank: deaths.failed_s.get(getattr(failure, "pid", 0), noticed_s)
            for rank, failure in error.failures.items()
        }
        first = min(failed_s, key=failed_s.__getitem__)
        return _write_report(report, first, error.failures[first], failed_s[first])
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


class _Failure:
    """How a rank has failed, with the names that torchrun has for it."""

    def __init__(self, local_rank: int, status: int, error_file: str) -> None:
        self.local_rank = local_rank
        self.exitcode = os.waitstatus_to_exitcode(status)
        self.message: object = ""
        try:
            with open(error_file, encoding="utf-8") as file:
                self.message = json.load(file)["message"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # most leave none; what it would say is only more words for the exit code


class _Ranks:
    """The ranks of an elastic training on this node, without torchrun.

    Args:
        options: what gsched says to torchrun, by option.
        command: the script and its arguments.
        report: file that is written if one fails.
        grace_s: what the others get to end then. Whoever ends all of us kills who does not.
    """

    def __init__(
        self, options: Mapping[str, str], command: Sequence[str], report: str, grace_s: float
    ) -> None:
        self._options = dict(options)
        self._command = list(command)
        self._report = report
        self._grace_s = grace_s
        self._local: dict[int, int] = {}
        self._first: tuple[_Failure, float] | None = None
        self._ending_signal: int | None = None
        self._kill_s: float | None = None
        self._claimed: socket.socket | None = None

    def run(self) -> int:
        """Start them, wait for all; return the exit code that stands for them.

        Raises:
            _TakenError: see `_meet`; or the attempt was not launched after all.
        """
        count = int(self._options["--nproc-per-node"])
        watched = {signal.SIGCHLD, *_ENDING}
        if os.environ.get(_GATE) == "stdin":
            gate = _gate(count)
            signal.pthread_sigmask(signal.SIG_BLOCK, watched)
            self._begin_at(gate, count)
            try:
                self._pass(gate)
            except (_TakenError, TimeoutError):
                self._send(signal.SIGKILL)
                raise
        else:
            os.environ[_GATE] = "open"
            _meet(self._options)
            signal.pthread_sigmask(signal.SIG_BLOCK, watched)
            for local_rank in range(count):
                self._start(local_rank, {**os.environ, **self._environment(local_rank)})
        while self._local:
            wait_s = _LOOK_S if self._kill_s is None else max(0.0, self._kill_s - time.monotonic())
            came = signal.sigtimedwait(watched, wait_s)
            if came is not None and came.si_signo in _ENDING and self._ending_signal is None:
                self._ending_signal = came.si_signo
                self._send(signal.SIGTERM)
            self._reap()
            if self._kill_s is not None and time.monotonic() >= self._kill_s:
                self._send(signal.SIGKILL)
                self._kill_s = None
        if self._first is None:
            return 128 + self._ending_signal if self._ending_signal is not None else 0
        failure, failed_s = self._first
        rank = self._rank(failure.local_rank)
        sys.stderr.write(f"gsched: rank {rank}: {_message(failure)}; the others were ended\n")
        return _write_report(self._report, rank, failure, failed_s)

    def _rank(self, local_rank: int) -> int:
        each = int(self._options["--nproc-per-node"])
        return int(self._options["--node-rank"]) * each + local_rank

    def _start(self, local_rank: int, environment: Mapping[str, str]) -> None:
        python = os.environ.get("PYTHON_EXEC", sys.executable)
        argv = [python, "-u", *self._command]
        pid = os.posix_spawn(python, argv, environment, setsigmask=())
        self._local[pid] = local_rank

    def _begin_at(self, gate: RankGate, count: int) -> None:
        """Start the ranks at their gates, without what only the launch will say."""
        for local_rank in range(count):
            reader = gate.new_pipe(local_rank)
            environment = {**os.environ, **self._environment(local_rank)}
            environment[_GATE] = f"{reader}:{gate.ready_writer}"
            del environment["MASTER_PORT"]
            self._start(local_rank, environment)
            os.close(reader)
        gate.listen()

    def _pass(self, gate: RankGate) -> None:
        """Return when the attempt is launched and the ranks may train.

        Raises:
            _TakenError: it is not, or a rank has ended at its gate, or as `_meet`.
        """
        watched = {signal.SIGCHLD, *_ENDING}
        while gate.words is None:
            came = signal.sigtimedwait(watched, _LOOK_S)
            if gate.is_shut or (came is not None and came.si_signo in _ENDING):
                raise _TakenError("the prepared attempt was not launched")
            self._expect_all()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)  # who ends us need not wait for others
        given, removed = gate.words.get("environment"), gate.words.get("removed")
        before = {**os.environ, "MASTER_PORT": ""}
        os.environ.update(given if isinstance(given, dict) else {})
        for name in removed if isinstance(removed, list) else []:
            os.environ.pop(name, None)
        os.environ[_GATE] = "open"
        self._options["--master-addr"] = os.environ["MASTER_ADDR"]
        self._options["--master-port"] = os.environ["MASTER_PORT"]
        self._claimed = _claim_of([word for pair in self._options.items() for word in pair])
        _meet(self._options)
        signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        self._expect_all()
        for local_rank in sorted(self._local.values()):
            after = {**os.environ, **self._environment(local_rank)}
            changed = {name: text for name, text in after.items() if before.get(name) != text}
            gate.open(local_rank, {"environment": changed, "removed": removed})

    def _expect_all(self) -> None:
        """Raise _TakenError if a rank has ended at its gate: no rank has trained then."""
        for pid, local_rank in self._local.items():
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                how = "killed by signal" if found.si_code != os.CLD_EXITED else "exited with code"
                raise _TakenError(
                    f"rank {self._rank(local_rank)} has ended before elastic.ready() returned: "
                    f"{how} {found.si_status}"
                )

    def _environment(self, local_rank: int) -> dict[str, str]:
        """Return what torchrun says to a rank."""
        options = self._options
        each, nodes = int(options["--nproc-per-node"]), int(options["--nnodes"])
        rank, world_size = str(self._rank(local_rank)), str(each * nodes)
        names = {
            "LOCAL_RANK": str(local_rank),
            "RANK": rank,
            "GROUP_RANK": options["--node-rank"],
            "ROLE_RANK": rank,
            "ROLE_NAME": "default",
            "LOCAL_WORLD_SIZE": str(each),
            "WORLD_SIZE": world_size,
            "GROUP_WORLD_SIZE": str(nodes),
            "ROLE_WORLD_SIZE": world_size,
            "MASTER_ADDR": options["--master-addr"],
            "MASTER_PORT": options["--master-port"],
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": options["--rdzv-id"],
            "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 has it
            "TORCHELASTIC_ERROR_FILE": self._error_file(local_rank),
            "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(number.name for number in _ENDING),
        }
        names["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = os.environ.get(
            "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"
        )
        if each > 1 and "OMP_NUM_THREADS" not in os.environ:
            names["OMP_NUM_THREADS"] = "1"  # else each rank would use all cores
        return names

    def _error_file(self, local_rank: int) -> str:
        return f"{self._report}.rank-{self._rank(local_rank)}"

    def _reap(self) -> None:
        while self._local:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            local_rank = self._local.pop(pid, None)
            if local_rank is None or status == 0 or self._first is not None:
                continue
            failed_s = time.time()
            # Who ends all of us at once may have got to the rank first: that is no failure.
            came = (
                signal.sigtimedwait(_ENDING, _TOGETHER_S) if self._ending_signal is None else None
            )
            if came is not None:
                self._ending_signal = came.si_signo
                self._send(signal.SIGTERM)
            if self._ending_signal is None:
                self._first = _Failure(local_rank, status, self._error_file(local_rank)), failed_s
                # There is nothing to do without it.
                self._kill_s = time.monotonic() + self._grace_s
                self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for pid in self._local:
            os.kill(pid, number)  # not reaped yet, so the number is no other process's


def _gate(count: int) -> RankGate:
    """Return a gate for so many ranks; see `rank_gate`, the file beside this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location("rank_gate", os.path.join(here, "rank_gate.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: RankGate = module.RankGate(count)
    return found


def _options_of(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return what gsched itself says to torchrun, by option, and what comes after it."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while len(rest) > 1 and rest[0] in _OURS:
        options[rest[0]] = rest[1]
        rest = rest[2:]
    return options, rest


def _own_ranks(report: str, grace_s: float, arguments: list[str]) -> _Ranks | None:
    """Return the ranks of an elastic training that needs nothing else of torchrun."""
    if _SOCKET not in os.environ:
        return None
    options, rest = _options_of(arguments)
    if rest[:1] == ["--"]:
        rest = rest[1:]
    if set(options) != set(_OURS) or options["--max-restarts"] != "0":
        return None
    if not rest or rest[0].startswith("-") or importlib.util.find_spec("torch") is None:
        return None
    return _Ranks(options, rest, report, grace_s)


def main() -> None:
    """Take the arguments apart and launch."""
    # Python has put this script's folder first; its neighbours are not for the user's imports.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    if len(sys.argv) < 7 or sys.argv[1:6:2] != ["--report", "--grace", "--"]:
        sys.exit(_USAGE)
    report, grace_s, arguments = sys.argv[2], float(sys.argv[4]), sys.argv[6:]
    for number in _FOR_RANKS:  # a handler: ranks get their own, but would inherit SIG_IGN
        signal.signal(number, lambda _number, _frame: None)
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb") as file:
        file.write(b"gsv ranks")  # whose handlers save nothing: see gnode.supervisor.proc
    try:
        gated = os.environ.get(_GATE) == "stdin"
        claim = None if gated else _claim_of(arguments)
        ranks = _own_ranks(report, grace_s, arguments)
        code = _launch(report, arguments) if ranks is None else ranks.run()
        if claim is not None:
            claim.close()
    except _TakenError as error:
        code = _give_up(report, error)
    except TimeoutError as error:
        sys.exit(f"gsched: the nodes of this job do not meet: {error}")
    sys.exit(code)


def _claim_of(arguments: Sequence[str]) -> socket.socket | None:
    """Return the first node's claim on the rendezvous port; None on all other nodes."""
    options = _options_of(arguments)[0]
    if options.get("--node-rank") != "0" or not options.get("--master-port", "").isdigit():
        return None
    return _claim(int(options["--master-port"]))


if __name__ == "__main__":
    main()
