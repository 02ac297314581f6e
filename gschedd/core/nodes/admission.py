"""Which gnode may speak for which node: a name belongs to the identity that had it first.

A name, a boot id or the cluster's key say nothing about that: two machines may be given one name,
and a copied disk has all of them. So a node has an identity, made when it was set up, and marks of
its machine. A gnode that does not fit is refused until an operator says which one is right.
"""

from typing import Final

from msgspec import Struct

from gsched.errors import BadStateError
from gsched.model.machine import is_same_machine
from gsched.model.states import NodeState, PartState
from gsched.model.wording import counted
from gsched.protocol import node as n
from gsched.protocol.actions import ReplaceNode
from gschedd.core.state import facts as f
from gschedd.core.state.records import Node
from gschedd.core.state.state import State
from gschedd.core.state.transient import Rival

#: Different gnodes that are remembered as refused, for each node; more are only counted.
MAX_RIVALS: Final = 4
#: How long a gnode that was refused is remembered; it tries again every minute. Seconds.
REMEMBERED_S: Final = 300.0
#: Characters of an identity that people get to see: enough to tell, too few to be it.
SHOWN: Final = 8


class Refusal(Struct, frozen=True, kw_only=True):
    """Why a gnode may not register; ``is_new``: it was not told of yet."""

    message: str
    is_new: bool


def objection(state: State, node: str, message: n.Register) -> tuple[str, str] | None:
    """Return whose place a gnode may not take, and why not; None if it may register."""
    known = state.nodes.get(node)
    is_same = known is not None and known.identity == message.identity  # and no other node's
    owner = known if is_same else _owner(state, message.identity)
    if owner is not None and owner.name != node:
        return owner.name, (
            f"the gnode that calls itself {node} has the identity of node {owner.name}: on a copy "
            f"of its state directory, remove identity.json there and start gnode again; if the "
            f"node was renamed: gnodes remove {owner.name}"
        )
    if known is None or not known.identity:
        return None
    if known.identity != message.identity:
        return node, (
            f"another gnode is known as {node} (identity {known.identity[:SHOWN]}…, this one's is "
            f"{message.identity[:SHOWN]}…): every node needs its own name; if this one takes its "
            f"place, as its disk is new: gnodes replace {node}"
        )
    if not is_same_machine(known.machine, message.machine):
        return node, (
            f"node {node} is another machine, and this gnode has a copy of its state directory, "
            f"or its disk: remove identity.json on a copy and give it its own name; if the other "
            f"machine is gone for good: gnodes replace {node}"
        )
    return None


def _owner(state: State, identity: str) -> Node | None:
    name = state.names_of.get(identity)
    return None if name is None else state.nodes[name]


def refusal(state: State, node: str, message: n.Register, now_s: float) -> Refusal | None:
    """Return why a gnode may not register, and remember that it wanted to; None if it may."""
    found = objection(state, node, message)
    if found is None:
        return None
    owner, why = found
    rivals = state.volatile.rivals.setdefault(owner, {})
    for key in [key for key, rival in rivals.items() if rival.at_s < now_s - REMEMBERED_S]:
        del rivals[key]
    key = (node, message.identity, message.machine)
    is_new = key not in rivals and len(rivals) < MAX_RIVALS
    if is_new or key in rivals:
        rivals[key] = Rival(
            name=node,
            identity=message.identity,
            machine=message.machine,
            address=message.address,
            why=why,
            at_s=now_s,
        )
    return Refusal(message=why, is_new=is_new)


def refused_words(state: State, node: str, now_s: float) -> str:
    """Return what is to be said of gnodes that wanted a node's place and were refused lately."""
    if node in state.volatile.quarantined:
        return f"refused: {state.volatile.quarantined[node]}"
    known = state.volatile.rivals.get(node, {}).values()
    rivals = [rival for rival in known if rival.at_s >= now_s - REMEMBERED_S]
    if not rivals:
        return ""
    newest = max(rivals, key=lambda rival: rival.at_s)
    more = f" (and {len(rivals) - 1} more)" if len(rivals) > 1 else ""
    return f"refused from {newest.address or 'this machine'}: {newest.why}{more}"


# --- what an operator says ---


def remove_node(state: State, node: Node, by: str, now_s: float) -> list[f.AnyFact]:
    """Return that a node is forgotten.

    Raises:
        BadStateError: it is connected, or jobs are on it or on their way to it.
    """
    _check_gone(state, node, "remove")
    return [f.NodeRemoved(at_s=now_s, node=node.name, by=by)]


def replace_node(
    state: State, node: Node, action: ReplaceNode, by: str, now_s: float
) -> list[f.AnyFact]:
    """Return that a gnode that was refused is the node from now on.

    Raises:
        BadStateError: the node is connected, or has jobs, or it is not clear which gnode is meant.
    """
    _check_gone(state, node, "replace")
    rivals = [
        rival
        for rival in state.volatile.rivals.get(node.name, {}).values()
        if rival.name == node.name and rival.identity.startswith(action.identity)
    ]
    if not rivals:
        raise BadStateError(
            f"no other gnode has called itself {node.name} since the head was started",
            hint="start the new one first: it tries again every minute; or: gnodes remove "
            f"{node.name}",
        )
    if len(rivals) > 1:
        known = ", ".join(
            f"{rival.identity[:SHOWN]} from {rival.address or 'this machine'}" for rival in rivals
        )
        raise BadStateError(
            f"{len(rivals)} gnodes have called themselves {node.name}: {known}",
            hint="stop all but one and say which: gnodes replace --identity BEGINNING "
            f"{node.name}; two machines with one identity need gnodes remove {node.name}",
        )
    (rival,) = rivals
    return [
        f.NodeReplaced(
            at_s=now_s,
            node=node.name,
            identity=rival.identity,
            machine=rival.machine,
            by=by,
        )
    ]


def _check_gone(state: State, node: Node, verb: str) -> None:
    if node.state is NodeState.UP:
        raise BadStateError(
            f"node {node.name} is connected: it would come back at once",
            hint=f"stop its gnode first, then: gnodes {verb} {node.name}",
        )
    jobs = sorted({*state.by_node.get(node.name, {}), *state.targets_on.get(node.name, {})})
    if jobs:
        shown = ", ".join(map(str, jobs[:5])) + (", …" if len(jobs) > 5 else "")
        live = any(
            job.attempt is not None
            and job.attempt.parts[node.name].state in {PartState.PENDING, PartState.RUNNING}
            for job in state.by_node.get(node.name, {}).values()
        )
        raise BadStateError(
            f"node {node.name} has {counted(len(jobs), 'job')}: {shown}",
            hint=f"if nothing of them runs there any more: gnodes confirm-dead {node.name}"
            if live
            else "wait until they have ended everywhere, or delete them",
        )
