"""What DRS tells people: why a training starts there, why it waits, and why it will be late."""

from gsched.model.units import format_duration, format_gpus
from gschedd.allocation.shares import Levels
from gschedd.plan.forecast import Forecast
from gschedd.plan.moments import moment
from gschedd.plan.training import TrainingProfile, gpus_by_node
from gschedd.policies.training.drs.expected import cheapest, run_s
from gschedd.policies.training.drs.round import ChosenStart


def start_words(started: ChosenStart, now_s: float) -> str:
    """Return why a training starts so."""
    nodes = len(gpus_by_node(started.allocation))
    where = (
        f"{format_gpus(started.option.gpus)} on {nodes} nodes"
        if nodes > 1
        else (format_gpus(started.option.gpus) + " of one node")
    )
    profile = started.waiting.profile
    ends = f"{where}: done in {format_duration(started.end_s - now_s)}"
    if profile.deadline_s is None:
        return ends
    if started.meets:
        return f"{ends}, {format_duration(profile.deadline_s - started.end_s)} before its deadline"
    return f"{ends}, {format_duration(started.end_s - profile.deadline_s)} after its deadline"


def deadline_words(profile: TrainingProfile, now_s: float) -> str:
    """Return where its deadline stands."""
    if profile.deadline_s is None:
        return "it has no deadline"
    return (
        f"its deadline {'was' if profile.deadline_s < now_s else 'is'} {moment(profile.deadline_s)}"
    )


def wait_words(
    profile: TrainingProfile,
    levels: Levels,
    expected: Forecast,
    *,
    now_s: float,
    because: str,
) -> str:
    """Return why a training job waits, what its deadline would take, and what is expected.

    These words are read until the next plan, which may be hours: so they name moments, and not in
    how long they come.

    Args:
        profile: what is known of it.
        levels: numbers of GPUs worth having on an idle cluster.
        expected: of it.
        now_s: seconds since the epoch.
        because: why it does not start now.
    """
    words = [f"{because}; {deadline_words(profile, now_s)}"]
    if not levels.gpus:
        words.append("no node that is up can run it")
    elif profile.deadline_s is not None:
        most, soonest_s = levels.gpus[-1], run_s(profile, levels, len(levels.gpus) - 1)
        enough, soonest = cheapest(profile, levels, now_s), format_duration(soonest_s)
        if enough is None:
            words.append(f"even {format_gpus(most)} would take {soonest} from now")
        else:
            words.append(
                f"{format_gpus(levels.gpus[enough])} now would meet it, and {format_gpus(most)} "
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
