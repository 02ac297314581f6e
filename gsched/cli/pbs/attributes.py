"""A job's attributes by the names of PBS, once for ``qstat -f``, XML, JSON and DSV. Pure."""

import grp
import pwd
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gsched.cli.pbs.personality import state_letter
from gsched.cli.show.jobfields import elapsed_s
from gsched.model.ids import job_file_suffix
from gsched.model.limits import SUBMIT_ARGS
from gsched.model.resources import Usage
from gsched.model.states import JobState
from gsched.model.units import format_duration
from gsched.model.wording import outcome_words
from gsched.protocol.job_rows import JobStory

LINE_SIZE: Final = 80  # Torque's linesize, OpenPBS's too
_HELD_LETTERS: Final = {"user": "u", "operator": "o", "system": "s", "dependency": "s"}


#: JOB_SUBSTATE_* of Torque and OpenPBS, by the letter of the state.
_SUBSTATES: Final = {"Q": 10, "H": 20, "W": 30, "R": 42, "E": 51, "C": 59, "F": 92}


class Attribute(NamedTuple):
    """One attribute; ``epoch_s`` of those that are moments, which formats write differently."""

    name: str
    resource: str
    value: str
    epoch_s: float | None = None

    @property
    def title(self) -> str:
        """Return ``Resource_List.walltime``."""
        return f"{self.name}.{self.resource}" if self.resource else self.name


def attributes_of(story: JobStory, *, openpbs: bool, finished_as_f: bool) -> list[Attribute]:
    """Return what ``qstat -f`` shows of a job, in its order; empty values are left out."""
    found = _attributes(story, openpbs=openpbs, finished_as_f=finished_as_f)
    return [each for each in found if each.value or each.epoch_s is not None]


def _attributes(story: JobStory, *, openpbs: bool, finished_as_f: bool) -> Iterator[Attribute]:
    row = story.row
    yield Attribute("Job_Name", "", row.name)
    yield Attribute("Job_Owner", "", _owner(story))
    yield from _used(story)
    yield Attribute("job_state", "", state_letter(row.letter, finished_as_f=finished_as_f))
    yield Attribute("queue", "", row.queue)
    yield Attribute("server", "", story.server)
    yield Attribute("Account_Name", "", story.account)
    yield Attribute("Checkpoint", "", "u")
    yield _moment("ctime", row.submitted_s)
    yield Attribute("depend", "", story.depends)
    yield Attribute("Error_Path", "", _path(story, story.stderr_path, "e"))
    yield Attribute("exec_host", "", exec_host(story))
    yield Attribute("exec_gpus", "", _exec_gpus(story))
    yield Attribute("Hold_Types", "", hold_types(story))
    yield Attribute("Join_Path", "", story.join)
    yield Attribute("Keep_Files", "", "n")
    yield Attribute("Mail_Points", "", story.mail_points or "n")
    yield Attribute("Mail_Users", "", story.mail_to)
    yield _moment("mtime", _modified_s(story))
    yield Attribute("Output_Path", "", _path(story, story.stdout_path, "o"))
    yield Attribute("Priority", "", str(row.priority))
    yield _moment("qtime", row.submitted_s)
    yield Attribute("Rerunable", "", str(story.rerunnable))
    yield from resource_list(story)
    yield from _last_attributes(story, openpbs=openpbs)


def _last_attributes(story: JobStory, *, openpbs: bool) -> Iterator[Attribute]:
    row = story.row
    if story.interactive is not None:
        yield Attribute("interactive", "", "True")
    if story.start_after_s:
        yield _moment("Execution_Time", story.start_after_s)
    yield Attribute("Shell_Path_List", "", story.shell)
    yield Attribute("Variable_List", "", ",".join(f"{n}={v}" for n, v in variables(story)))
    yield Attribute("euser", "", row.user)
    yield Attribute("egroup", "", _group(row.user))
    if (session := session_id(story)) and row.state != JobState.DONE:
        yield Attribute("session_id", "", session)
    yield Attribute("substate", "", str(_SUBSTATES.get(row.letter, 10)))
    if not openpbs and row.walltime_s and row.started_s is not None and row.ended_s is None:
        left_s = max(0.0, row.walltime_s - _wall_s(story))
        yield Attribute("Walltime", "Remaining", str(int(left_s)))
    yield Attribute("comment", "", _comment(story))
    yield _moment("etime", row.submitted_s)
    if row.outcome is not None:
        name = "Exit_status" if openpbs else "exit_status"
        yield Attribute(name, "", str(row.outcome.exit_status))
    if row.started_s is not None:
        yield _moment("stime" if openpbs else "start_time", row.started_s)
    yield Attribute("start_count" if not openpbs else "run_count", "", str(row.attempt))
    if row.ended_s is not None:
        yield _moment("history_timestamp" if openpbs else "comp_time", row.ended_s)
    name = "Submit_arguments" if openpbs else "submit_args"
    yield Attribute(name, "", story.origin.get(SUBMIT_ARGS, ""))
    yield Attribute("submit_host", "", story.submit_host)
    yield Attribute("init_work_dir", "", story.workdir)


def _moment(name: str, at_s: float) -> Attribute:
    return Attribute(name, "", c_time(at_s), at_s)


def c_time(at_s: float) -> str:
    """Return a moment as C's ctime writes it, in local time, without the end of the line."""
    return time.ctime(int(at_s))


def _owner(story: JobStory) -> str:
    return f"{story.row.user}@{story.submit_host or story.server}"


def _used(story: JobStory) -> Iterator[Attribute]:
    """Yield ``resources_used``: there is none before the first start."""
    row = story.row
    if row.started_s is None:
        return
    usage = _usage(story)
    yield Attribute("resources_used", "cput", format_duration(row.cpu_s))
    peak = max(usage.memory_peak_bytes if usage is not None else 0, row.memory_peak_bytes)
    if row.live is not None:
        yield Attribute("resources_used", "cpupercent", f"{100.0 * row.live.cpu_cores:.0f}")
    yield Attribute("resources_used", "mem", f"{-(-peak // 1024)}kb")
    yield Attribute("resources_used", "vmem", f"{-(-peak // 1024)}kb")
    yield Attribute("resources_used", "walltime", format_duration(_wall_s(story)))


def _wall_s(story: JobStory) -> float:
    return elapsed_s(story.row, story.now_s) or 0.0


def _usage(story: JobStory) -> Usage | None:
    return next((each.usage for each in reversed(story.attempts) if each.usage is not None), None)


def exec_host(story: JobStory) -> str:
    """Return ``n1/0+n1/1+n2/0``: one word for each CPU; empty before the first start."""
    if not story.attempts:
        return ""
    parts = story.attempts[-1].parts
    return "+".join(f"{part.node}/{cpu}" for part in parts for cpu in range(max(1, part.cpus)))


def _exec_gpus(story: JobStory) -> str:
    if not story.attempts:
        return ""
    parts = story.attempts[-1].parts
    return "+".join(f"{part.node}-gpu/{gpu}" for part in parts for gpu in part.gpu_indices)


def hold_types(story: JobStory) -> str:
    """Return the letters of a job's holds, ``n`` for none."""
    return "".join(_HELD_LETTERS.get(hold, hold[:1]) for hold in story.holds) or "n"


def _path(story: JobStory, path: str, letter: str) -> str:
    """Return ``HOST:PATH``; of the default name, as the node will make it."""
    row = story.row
    name = f"{row.name}.{letter}{job_file_suffix(row.id)}"
    if not path:
        path = f"{story.workdir.rstrip('/')}/{name}"
    elif path.endswith("/"):
        path += name
    return f"{story.submit_host or story.server}:{path}"


def _modified_s(story: JobStory) -> float:
    last_s = story.events[-1].at_s if story.events else story.row.submitted_s
    return max(last_s, story.row.ended_s or 0.0)


def resource_list(story: JobStory) -> Iterator[Attribute]:
    """Yield ``Resource_List``: what was requested, and its totals."""
    row = story.row
    yield Attribute("Resource_List", "ncpus", str(row.cpus))
    if row.gpus:
        yield Attribute("Resource_List", "ngpus", str(row.gpus))
    yield Attribute("Resource_List", "nodect", str(row.places))
    for term in story.resources.split(","):
        name, _, value = term.partition("=")
        if name not in {"ncpus", "ngpus"}:
            yield Attribute("Resource_List", name, value)


def session_id(story: JobStory) -> str:
    """Return the session of a job's first process; empty before its start."""
    if not story.attempts or not story.attempts[-1].parts:
        return ""
    pid = story.attempts[-1].parts[0].pid
    return str(pid) if pid else ""


def _group(user: str) -> str:
    """Return the name of a user's group; empty where the user is unknown here."""
    try:
        return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
    except KeyError:
        return ""


def _account(user: str) -> dict[str, str]:
    """Return what the user's account says, for who is not told the values of the submission."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return {}
    return {"PBS_O_HOME": entry.pw_dir, "PBS_O_SHELL": entry.pw_shell}


def variables(story: JobStory) -> Sequence[tuple[str, str]]:
    """Return the variables of the submission in the order of Torque, as far as the head tells."""
    origin = _account(story.row.user) | story.origin
    found = [
        ("PBS_O_QUEUE", story.row.queue),
        ("PBS_O_HOME", origin.get("PBS_O_HOME", "")),
        ("PBS_O_LANG", origin.get("PBS_O_LANG", "")),
        ("PBS_O_LOGNAME", story.row.user),
        ("PBS_O_PATH", origin.get("PBS_O_PATH", "")),
        ("PBS_O_MAIL", origin.get("PBS_O_MAIL", "")),
        ("PBS_O_SHELL", origin.get("PBS_O_SHELL", "")),
        ("PBS_O_TZ", origin.get("PBS_O_TZ", "")),
        ("PBS_O_WORKDIR", story.submit_dir or story.workdir),
        ("PBS_O_HOST", story.submit_host),
        ("PBS_O_SERVER", story.server),
    ]
    return [(name, value) for name, value in found if value]


def _comment(story: JobStory) -> str:
    row = story.row
    if row.state == JobState.DONE and row.outcome is not None:
        return outcome_words(row.outcome, walltime_s=row.walltime_s, grace_s=story.grace_s)
    return row.reason


def wrapped(attribute: Attribute, *, line_size: int = LINE_SIZE) -> str:
    """Return the line of ``qstat -f``, broken at commas as ``prt_attr`` of both systems does.

    Args:
        line_size: characters; 0: the line is never broken (``-1``, ``-w``).
    """
    head = f"    {attribute.title} = "
    if not line_size:
        return head + attribute.value
    start = len(head)
    out = [head]
    parts = [part for part in attribute.value.split(",") if part]
    for number, part in enumerate(parts):
        if len(part) + start < line_size:
            out.append(part)
            start += len(part)
        else:
            if number:
                out.append("\n\t")
                start = 9
            for character in part:
                out.append(character)
                start += 1
                if start > line_size:
                    start = 8
                    out.append("\n\t")
        if number + 1 < len(parts):
            out.append(",")
    return "".join(out)
