"""What a node knows of heads, held against the lineage of a database."""

import pytest

from gschedd.core.recovery.lineage import (
    MAX_EPOCHS_AHEAD,
    MAX_EVENTS_AHEAD,
    MAX_JOBS_AHEAD,
    Claim,
    Epoch,
    Verdict,
    judge,
)
from gschedd.http.witnesses import Witnesses

FIRST = Epoch(number=1, id="aa", prev_seq=0, prev_job=1, first_job=1)
SECOND = Epoch(number=2, id="bb", prev_seq=100, prev_job=10, first_job=10)
LINEAGE = (FIRST, SECOND)
NOW = {"seq": 150, "next_job": 20}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (Claim(), Verdict.KNOWN),  # it has obeyed no head
        (Claim(epoch=1, epoch_id="aa", seq=100, next_job=10), Verdict.KNOWN),
        (Claim(epoch=2, epoch_id="bb", seq=150, next_job=20, highest_job=19), Verdict.KNOWN),
        (Claim(epoch=2, highest_job=19), Verdict.KNOWN),  # of a head that had no ids yet
        # The first epoch came further than this database knows, although it has gone on since.
        (Claim(epoch=1, epoch_id="aa", seq=101, next_job=10), Verdict.AHEAD),
        (Claim(epoch=1, epoch_id="aa", seq=100, next_job=11), Verdict.AHEAD),
        (Claim(epoch=1, epoch_id="aa", seq=100, next_job=10, highest_job=10), Verdict.AHEAD),
        (Claim(epoch=2, epoch_id="bb", seq=151, next_job=20), Verdict.AHEAD),
        # The same number, begun on another copy.
        (Claim(epoch=2, epoch_id="cc", seq=101, next_job=10), Verdict.AHEAD),
        (Claim(epoch=1, epoch_id="bb", seq=100, next_job=10), Verdict.AHEAD),
        (Claim(epoch=3, epoch_id="dd"), Verdict.AHEAD),
        (Claim(epoch=3), Verdict.AHEAD),
        (Claim(epoch=2, highest_job=20), Verdict.AHEAD),
        (Claim(epoch=2**31, epoch_id="ff"), Verdict.ABSURD),
        (Claim(epoch=2 + MAX_EPOCHS_AHEAD + 1), Verdict.ABSURD),
        (Claim(epoch=2, epoch_id="bb", seq=151 + MAX_EVENTS_AHEAD), Verdict.ABSURD),
        (Claim(epoch=2, epoch_id="bb", next_job=21 + MAX_JOBS_AHEAD), Verdict.ABSURD),
        (Claim(epoch=-1), Verdict.ABSURD),
        (Claim(epoch=1, epoch_id="aa", seq=-5), Verdict.ABSURD),
    ],
)
def test_a_claim_fits_the_lineage_or_does_not(claim: Claim, verdict: Verdict) -> None:
    """As with a replicated log: an epoch's end is where the next one began."""
    assert judge(LINEAGE, claim, **NOW) is verdict


def test_what_an_operator_has_given_up_is_late_and_no_evidence() -> None:
    """Also of epochs that this database has never heard of, but not of ids given out since."""
    accepted = Epoch(number=7, id="ee", prev_seq=150, prev_job=20, first_job=1100, accepted=True)
    lineage = (*LINEAGE, accepted)

    def verdict(claim: Claim) -> Verdict:
        return judge(lineage, claim, seq=900, next_job=1105)

    assert verdict(Claim(epoch=1, epoch_id="aa", seq=500, next_job=90)) is Verdict.LATE
    assert verdict(Claim(epoch=6, epoch_id="xx", seq=500, next_job=1100)) is Verdict.LATE
    assert verdict(Claim(epoch=6, epoch_id="xx", seq=500, next_job=1101)) is Verdict.AHEAD
    assert verdict(Claim(epoch=7, epoch_id="ee", seq=900, next_job=1105)) is Verdict.KNOWN
    assert verdict(Claim(epoch=8, epoch_id="yy", seq=901, next_job=1101)) is Verdict.AHEAD


AHEAD = Claim(epoch=2, epoch_id="cc", seq=500, next_job=90)
REACHED = (150, 20)


def witnesses() -> Witnesses:
    return Witnesses("c", LINEAGE)


def test_one_of_several_nodes_is_refused_and_cannot_stop_the_cluster() -> None:
    """Anybody who has a node's key could say so."""
    told = witnesses()

    ruling = told.rule("n1", AHEAD, known={"n1", "n2"}, reached=REACHED, safe_mode=False)

    assert (ruling.older, ruling.fenced) == ("", "")
    assert "no other node confirms it" in ruling.refusal
    assert "gsched recover --believe n1" in ruling.refusal
    assert list(told.quarantined) == ["n1"]
    other = told.rule("n2", Claim(), known={"n1", "n2"}, reached=REACHED, safe_mode=False)
    assert other.refusal == ""


def test_names_that_nobody_knows_confirm_nothing() -> None:
    """With the key one can make up as many as one likes."""
    told = witnesses()

    rulings = [
        told.rule(name, AHEAD, known={"n1", "n2"}, reached=REACHED, safe_mode=False)
        for name in ("x1", "x2", "x3")
    ]

    assert [ruling.older for ruling in rulings] == ["", "", ""]


@pytest.mark.parametrize("known", [{"n1"}, {"n1", "n2", "n3", "n4", "n5"}])
def test_a_second_node_or_the_only_one_is_believed(known: set[str]) -> None:
    """A head that runs on an old copy must give no more ids."""
    told = witnesses()
    if len(known) > 1:
        told.rule("n2", AHEAD, known=known, reached=REACHED, safe_mode=False)

    ruling = told.rule("n1", AHEAD, known=known, reached=REACHED, safe_mode=False)

    assert "old or restored copy" in ruling.older
    assert told.quarantined == {}


def test_nothing_makes_an_absurd_claim_true() -> None:
    """Not even safe mode: the next id would be beyond all that an integer holds."""
    told = witnesses()
    absurd = Claim(epoch=2**31, epoch_id="zz", next_job=2**62)

    ruling = told.rule("n1", absurd, known={"n1"}, reached=REACHED, safe_mode=True)

    assert "no head can have come so far" in ruling.refusal
    assert told.claims == {}


def test_nodes_that_have_left_for_another_head_fence_this_one() -> None:
    """They had obeyed this very start of it, and now know a higher epoch that it does not."""
    told = witnesses()
    told.note_obeyed("n1")
    newer = Claim(epoch=3, epoch_id="dd", seq=200, next_job=30)

    ruling = told.rule("n1", newer, known={"n1"}, reached=REACHED, safe_mode=False)

    assert "another head has taken over" in ruling.fenced
    told.believed.add("n1")
    looked = told.rule("n1", newer, known={"n1"}, reached=REACHED, safe_mode=False)
    assert looked.fenced == ""
    assert "old or restored copy" in looked.older
