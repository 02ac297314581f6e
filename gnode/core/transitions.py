"""Where an attempt is on this node, and what may follow: what is not listed cannot happen."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from gsched.model.states import PartState


class Phase(StrEnum):
    """Where an attempt is in its life on this node."""

    ACCEPTED = "accepted"  # task.json is there; no supervisor that we know of
    STARTING = "starting"  # a supervisor is forked, its record not seen yet
    RUNNING = "running"  # its record seen
    LOST = "lost"  # the supervisor died without a record; its remains are being killed
    EPILOG = "epilog"  # there is an exit record; the epilog runs, or is about to
    DELIVERY = "delivery"  # there is an exit record; its output returns to the submission host
    ENDED = "ended"  # there is an exit record, the head has not acknowledged it
    ACKED = "acked"  # the head has it; the spool goes after a delay


class Happening(StrEnum):
    """What moves an attempt from one phase to the next."""

    LAUNCHED = "launched"
    SEEN = "seen"
    EPILOG_DUE = "epilog_due"  # there is an exit record, and the epilog has not ended
    DELIVERY_DUE = "delivery_due"  # there is an exit record, and the output has not returned
    RECORDED = "recorded"  # there is an exit record: the supervisor's or our own
    LOST = "lost"
    ACKED = "acked"


_P, _H = Phase, Happening

MOVES: Final[Mapping[tuple[Phase, Happening], Phase]] = MappingProxyType(
    {
        (_P.ACCEPTED, _H.LAUNCHED): _P.STARTING,
        (_P.ACCEPTED, _H.SEEN): _P.RUNNING,  # found in the spool after a restart
        (_P.ACCEPTED, _H.RECORDED): _P.ENDED,  # it never ran, or was over before we looked
        (_P.ACCEPTED, _H.LOST): _P.LOST,
        (_P.STARTING, _H.SEEN): _P.RUNNING,
        (_P.STARTING, _H.RECORDED): _P.ENDED,
        (_P.STARTING, _H.LOST): _P.LOST,
        (_P.RUNNING, _H.RECORDED): _P.ENDED,
        (_P.RUNNING, _H.LOST): _P.LOST,
        (_P.LOST, _H.RECORDED): _P.ENDED,
        (_P.ACCEPTED, _H.EPILOG_DUE): _P.EPILOG,
        (_P.STARTING, _H.EPILOG_DUE): _P.EPILOG,
        (_P.RUNNING, _H.EPILOG_DUE): _P.EPILOG,
        (_P.LOST, _H.EPILOG_DUE): _P.EPILOG,
        (_P.EPILOG, _H.EPILOG_DUE): _P.EPILOG,  # requested again, of another launcher
        (_P.EPILOG, _H.RECORDED): _P.ENDED,
        (_P.ACCEPTED, _H.DELIVERY_DUE): _P.DELIVERY,
        (_P.STARTING, _H.DELIVERY_DUE): _P.DELIVERY,
        (_P.RUNNING, _H.DELIVERY_DUE): _P.DELIVERY,
        (_P.LOST, _H.DELIVERY_DUE): _P.DELIVERY,
        (_P.EPILOG, _H.DELIVERY_DUE): _P.DELIVERY,
        (_P.DELIVERY, _H.RECORDED): _P.ENDED,
        (_P.ENDED, _H.ACKED): _P.ACKED,
        (_P.ACKED, _H.ACKED): _P.ACKED,  # acknowledged twice: the exit was repeated
    }
)

#: Phases in which processes of the attempt may live, so that it owns what it was given.
LIVE: Final = frozenset({_P.ACCEPTED, _P.STARTING, _P.RUNNING, _P.LOST, _P.EPILOG, _P.DELIVERY})
#: Phases in which there is an exit record, so that none of them live.
OVER: Final = frozenset({_P.EPILOG, _P.DELIVERY})

PART_STATES: Final[Mapping[Phase, PartState]] = MappingProxyType(
    {
        _P.ACCEPTED: PartState.PENDING,
        _P.STARTING: PartState.PENDING,
        _P.RUNNING: PartState.RUNNING,
        _P.LOST: PartState.RUNNING,
        _P.EPILOG: PartState.RUNNING,
        _P.DELIVERY: PartState.RUNNING,
        _P.ENDED: PartState.ENDED,
        _P.ACKED: PartState.ENDED,
    }
)


def next_phase(phase: Phase, happening: Happening) -> Phase | None:
    """Return the phase after ``happening``, or None if it cannot follow: a stale report, say."""
    return MOVES.get((phase, happening))
