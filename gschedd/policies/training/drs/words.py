"""What DRS tells people: why a training starts there, why it waits, and why it will be late."""

from gsched.model.units import format_duration, format_gpus
from gschedd.allocation.forecasts import Expected, Level, cheapest
from gschedd.plan.moments import moment
from gschedd.plan.training import TrainingProfile, gpus_by_node
from gschedd.policies.training.drs.round import Decided


def start_words(decided: Decided, now_s: float) -> str:
    """Return why a training starts so."""
    nodes = len(gpus_by_node(decided.allocation))
    where = (
        f"{format_gpus(decided.option.gpus)} on {nodes} nodes"
        if nodes > 1
        else (format_gpus(decided.option.gpus) + " of one node")
    )
    profile = decided.waiting.profile
    ends = f"{where}: done in {format_duration(decided.end_s - now_s)}"
    if profile.deadline_s is None:
        return ends
    if decided.meets:
        return f"{ends}, {format_duration(profile.deadline_s - decided.end_s)} before its deadline"
    return f"{ends}, {format_duration(decided.end_s - profile.deadline_s)} after its deadline"


def deadline_words(profile: TrainingProfile, now_s: float) -> str:
    """Return where its deadline stands."""
    if profile.deadline_s is None:
        return "it has no deadline"
    return (
        f"its deadline {'was' if profile.deadline_s < now_s else 'is'} {moment(profile.deadline_s)}"
    )


def wait_words(
    profile: TrainingProfile,
    levels: tuple[Level, ...] | None,
    expected: Expected,
    *,
    now_s: float,
    because: str,
) -> str:
    """Return why a training waits: by when it is wanted, what that would take, what will be.

    These words are read until the next plan, which may be hours: so moments are told, and not in
    how long they come.

    Args:
        profile: what is known of it.
        levels: numbers of GPUs worth having on an idle cluster; None: it cannot be told.
        expected: of it.
        now_s: seconds since the epoch.
        because: why it does not start now.
    """
    words = [f"{because}; {deadline_words(profile, now_s)}"]
    if levels is None:
        return words[0]
    if not levels:
        words.append("no node that is up can run it")
    elif profile.deadline_s is not None:
        enough = cheapest(levels, profile.work, profile.deadline_s - now_s - profile.startup_s)
        soonest = format_duration(profile.startup_s + profile.work * levels[-1][1])
        if enough is None:
            words.append(f"even {format_gpus(levels[-1][0])} would take {soonest} from now")
        else:
            words.append(
                f"{format_gpus(enough[0])} now would meet it, and {format_gpus(levels[-1][0])} "
                f"would end it soonest, in {soonest}"
            )
    if expected.start_s is not None and expected.end_s is not None:
        words.append(
            f"expected to start {moment(expected.start_s)} on {format_gpus(expected.gpus)} "
            f"and to end {moment(expected.end_s)}"
        )
    return "; ".join(words)


def late_words(profile: TrainingProfile, end_s: float) -> str:
    """Return by how much a training will be late."""
    if profile.deadline_s is None or end_s <= profile.deadline_s:
        return ""
    return f"will end {format_duration(end_s - profile.deadline_s)} after its deadline"
