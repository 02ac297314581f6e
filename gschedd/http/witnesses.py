"""Nodes as witnesses: what they know of the history that this head goes on with."""

import logging
from collections.abc import Collection

from msgspec import Struct

from gsched.protocol import node as n
from gschedd.core.recovery.lineage import Claim, Epoch, Verdict, describe, judge

log = logging.getLogger("gschedd.nodes")

#: So many known nodes that know more than the database prove that it is an old copy.
MIN_WITNESSES = 2


def claim_of(message: n.Register) -> Claim:
    """Return what a node claims at its registration."""
    return Claim(
        epoch=message.highest_epoch,
        epoch_id=message.epoch_id,
        seq=message.seq,
        next_job=message.next_job,
        highest_job=message.highest_job,
    )


class Ruling(Struct, frozen=True, kw_only=True):
    """What to do with a node that registers.

    Attributes:
        refusal: why it is not let in; empty: it is.
        late: it comes from a history whose loss was accepted: what it knows is taken back.
        older: in words, that this head is believed to run on an old copy.
        fenced: in words, that another head has taken the nodes over; this one must stop.
    """

    refusal: str = ""
    late: bool = False
    older: str = ""
    fenced: str = ""


class Witnesses:
    """Compares what nodes know with the database, and decides whom to believe.

    The word of one node is not enough to stop a cluster: anybody who has one node's key could say
    it. It is believed where the mark says the same (the head is in safe mode then), where another
    known node confirms it, or where no majority of the known nodes could say otherwise. Until then
    that node alone is refused.

    Attributes:
        claims: of nodes that know more than the database, by node.
        quarantined: why a node is refused, by node.
        believed: nodes that an operator believes.
    """

    def __init__(
        self,
        cluster: str,
        lineage: tuple[Epoch, ...],
        quarantined: dict[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.lineage = lineage
        self.claims: dict[str, Claim] = {}
        self.quarantined = {} if quarantined is None else quarantined
        self.believed: set[str] = set()
        self._obeyed: set[str] = set()

    @property
    def now(self) -> Epoch:
        """Return the epoch of this head."""
        return self.lineage[-1]

    def note_obeyed(self, node: str) -> None:
        """Note that a node has been let in by this very epoch."""
        self._obeyed.add(node)

    def begin(self, lineage: tuple[Epoch, ...]) -> None:
        """Go on after an operator has accepted a loss."""
        self.lineage = lineage
        self.claims.clear()
        self.quarantined.clear()
        self.believed.clear()
        self._obeyed.clear()

    def rule(
        self,
        node: str,
        claim: Claim,
        *,
        known: Collection[str],
        reached: tuple[int, int],
        safe_mode: bool,
    ) -> Ruling:
        """Return what to do with a node that claims this.

        Args:
            node: its name.
            claim: what it says of the heads that it has obeyed.
            known: the names of all nodes that have ever registered.
            reached: the newest event and the next job id of the database.
            safe_mode: whether the database is held to be old already.
        """
        seq, next_job = reached
        verdict = judge(self.lineage, claim, seq=seq, next_job=next_job)
        if verdict in {Verdict.KNOWN, Verdict.LATE}:
            self.claims.pop(node, None)
            self.quarantined.pop(node, None)
            return Ruling(late=verdict is Verdict.LATE)
        words = (
            f"{node} has obeyed a head that had come to {describe(claim)}, but the database of "
            f"this head ends at epoch {self.now.number} ({self.now.id[:8]}), event {seq}, "
            f"job {next_job - 1}"
        )
        if verdict is Verdict.ABSURD:
            hint = "remove head.json from that node's state directory, with gnode stopped"
            return self._quarantine(node, f"{words}: no head can have come so far", hint)
        self.claims[node] = claim
        believed = safe_mode or self._is_believed(node, known)
        is_inspected = node in self.believed  # an operator wants to look: no reason to stop
        if believed and not is_inspected and node in self._obeyed and claim.epoch > self.now.number:
            return Ruling(fenced=f"{words}: another head has taken over since this one started")
        if believed:
            self.quarantined.clear()
            older = f"{words}: this head runs on an old or restored copy"
            return Ruling(older=older)
        hint = f"an operator can believe it with: gsched recover --believe {node}"
        return self._quarantine(node, f"{words}, and no other node confirms it", hint)

    def _is_believed(self, node: str, known: Collection[str]) -> bool:
        if node in self.believed:
            return True
        voters = set(known) or {node}
        ahead = voters & self.claims.keys()
        return len(ahead) >= MIN_WITNESSES or 2 * len(ahead) > len(voters)

    def _quarantine(self, node: str, words: str, hint: str) -> Ruling:
        if node not in self.quarantined:
            log.error("%s: the node is refused", words)
        self.quarantined[node] = words
        return Ruling(refusal=f"{words}; {hint}")
