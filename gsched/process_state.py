"""What a process does, in words, by proc(5): for messages about one that does not answer."""

from typing import Final

_STATES: Final = {
    "T": "is stopped by a signal (SIGSTOP)",
    "t": "is stopped by a debugger",
    "D": "waits for a disk",
    "R": "is busy: its event loop is blocked",
    "S": "sleeps: its event loop is blocked",
    "Z": "has ended",
}


def state_words(pid: int) -> str:
    """Return the words: ``process 4711 is stopped by a signal (SIGSTOP)``."""
    return f"process {pid} {_STATES.get(state := state_of(pid), f'is in state {state}')}"


def resume_words(pid: int) -> str:
    """Return what lets a process continue that a signal has stopped; empty: it is not stopped."""
    if state_of(pid) != "T":
        return ""
    return f"kill -CONT {pid} lets it continue; find out who has stopped it"


def state_of(pid: int) -> str:
    """Return the letter of a process's state; ``Z`` where there is no such process any more."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read(4096).rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "Z"
