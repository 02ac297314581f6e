"""What nodes say of the present moment. No facts: it is not durable, and comes again."""

from gschedd.core.attempts.reports import MAX_PROBLEM
from gschedd.core.state import State


def note_binding(state: State, node: str, words: str) -> None:
    """Note how a node binds jobs to CPUs, in its words."""
    if node in state.nodes:
        state.volatile.cpu_bindings[node] = words[:MAX_PROBLEM]
