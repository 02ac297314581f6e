"""The texts of notices: mail as Torque writes it, and JSON for hooks. Pure."""

import email.message
import email.policy
import email.utils
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from gsched.logs import one_line
from gsched.model.resources import MEASURED_LEAST_S
from gsched.model.states import OutcomeKind
from gsched.model.units import exact_size, format_duration, format_size
from gschedd.notify.notices import ABORT, BEGIN, END, IDLE, PREEMPT, RECLAIM, Notice

#: Of the JSON that hooks get; it grows when a field changes its meaning.
FORMAT_VERSION: Final = 1
_LONGEST: Final = 1000  # characters of a line of mail
_HAPPENED: Final = {
    BEGIN: "Begun execution",
    ABORT: "Aborted by PBS Server",
    IDLE: "GPUs idle",
    RECLAIM: "GPUs idle: execution terminated",
    PREEMPT: "Preempted",
}
_IN_SHORT: Final = {
    END: "finished",
    IDLE: "does not use its GPUs",
    RECLAIM: "was stopped: its GPUs were idle",
    PREEMPT: "was preempted",
}
_LONGEST_SUBJECT: Final = 200  # characters
SIGNAL_STATUS: Final = 256  # of Torque's exit status, plus the number of a signal
_COLUMNS: Final = "{:<10}  {:<16}  {}"


def mail_of(
    notice: Notice,
    *,
    sender: str,
    recipients: str,
    last_of_hour: int = 0,
    as_pbs: bool = False,
    stderr: Sequence[str] = (),
) -> bytes:
    """Return the message as bytes, with CR LF.

    Args:
        notice: the event.
        sender: address from which it comes.
        recipients: addresses, separated by commas.
        as_pbs: the subject is Torque's.
        stderr: the last lines of the job's error output.
        last_of_hour: it is the last mail about jobs of its user in this hour, of so many; 0: no.
    """
    message = email.message.EmailMessage(policy=email.policy.SMTP)
    message["From"] = sender
    message["To"] = ", ".join(recipients.split(","))
    subject = f"PBS JOB {notice.job_id}" if as_pbs else subject_of(notice)
    message["Subject"] = one_line(subject)[:_LONGEST_SUBJECT]
    message["Date"] = email.utils.format_datetime(datetime.fromtimestamp(notice.at_s, UTC))
    message["Message-ID"] = f"<{notice.seq}.{notice.job}.{notice.event}@{_word(notice.server)}>"
    message["Precedence"] = "bulk"
    message["Auto-Submitted"] = "auto-generated"
    lines = [*_lines(notice)]
    if stderr:
        lines += ["", "The error output ends with:", "", *(f"    {line}" for line in stderr)]
    if last_of_hour:
        count = f"mail {last_of_hour} about jobs of {notice.user} in this hour"
        lines += ["", f"This is {count}: further ones are dropped."]
    message.set_content("\n".join(one_line(line)[:_LONGEST] for line in lines) + "\n")
    return message.as_bytes()


def subject_of(notice: Notice) -> str:
    """Return ``gsched: job 12 train failed (exit 3)``."""
    number = notice.job_id.removesuffix(f".{notice.server}")
    return f"gsched: job {number} {notice.name} {_happened(notice)}"


def _happened(notice: Notice) -> str:
    """Return what has happened in a few words: ``failed (exit 3)``."""
    if notice.event == BEGIN:
        return f"begun on {', '.join(notice.nodes)}" if notice.nodes else "begun"
    if notice.event in _IN_SHORT:
        return _IN_SHORT[notice.event]
    if notice.kind == OutcomeKind.CANCELLED:
        return "cancelled"
    status = notice.exit_status or 0
    if notice.kind == OutcomeKind.EXITED:
        return f"failed (exit {status})"
    if notice.kind == OutcomeKind.SIGNALLED and status > SIGNAL_STATUS:
        return f"failed (signal {status - SIGNAL_STATUS})"
    return f"failed ({notice.kind.replace('_', ' ')})"


def _word(text: str) -> str:
    return "".join(each if each.isalnum() or each in ".-" else "-" for each in text) or "gsched"


def _lines(notice: Notice) -> Iterator[str]:
    yield f"PBS Job Id: {notice.job_id}"
    yield f"Job Name:   {notice.name}"
    if notice.nodes:
        yield f"Exec host:  {'+'.join(f'{name}/0' for name in notice.nodes)}"
    yield _HAPPENED.get(notice.event, "Execution terminated")
    if notice.exit_status is not None:
        yield f"Exit_status={notice.exit_status}"
    if notice.used is not None:
        yield f"resources_used.cput={format_duration(notice.used.cpu_s)}"
        yield f"resources_used.mem={exact_size(notice.used.memory_peak_bytes)}"
        yield f"resources_used.walltime={format_duration(notice.used.wall_s)}"
    if notice.stderr_path:
        yield f"Error_Path: {notice.stderr_path}"
    if notice.stdout_path:
        yield f"Output_Path: {notice.stdout_path}"
    yield ""
    yield summary_of(notice) + "."
    if notice.event == IDLE:
        number = notice.job_id.removesuffix(f".{notice.server}")
        yield ""
        yield f"gstat --why {number} shows its idle GPUs, gdel {number} cancels the job."
        yield "Computing on its GPUs ends the warning."
    elif notice.event == RECLAIM:
        yield ""
        yield "Submit it with fewer GPUs or a shorter walltime, or with its preparation in a job"
        yield "without GPUs (gsub -W depend=afterok:JOB). A held job runs again after grls JOB."
    if notice.used is not None:
        yield ""
        yield from _table(notice)


def _table(notice: Notice) -> Iterator[str]:
    """Yield what was requested beside what was used, as gseff shows it."""
    used = notice.used
    assert used is not None, "it has ended"
    cores = used.cpu_s / used.wall_s if used.wall_s > 0 else 0.0
    memory = format_size(notice.memory_bytes) if notice.memory_bytes else "-"
    busiest = max(cores, used.cpu_peak_cores)
    yield _COLUMNS.format("", "requested", "used")
    busy = f"{cores:.1f} on average, {busiest:.1f} at most"
    yield _COLUMNS.format("CPUs", notice.cpus, busy if used.wall_s >= MEASURED_LEAST_S else "-")
    if notice.gpus:
        busy = f"{used.gpu_util_mean_percent:.0f} % busy on average" if used.samples else "unknown"
        yield _COLUMNS.format("GPUs", notice.gpus, busy)
    yield _COLUMNS.format("Memory", memory, f"{format_size(used.memory_peak_bytes)} at most")
    limit = "-" if notice.walltime_s is None else format_duration(notice.walltime_s)
    yield _COLUMNS.format("Walltime", limit, format_duration(used.wall_s))


def summary_of(notice: Notice) -> str:
    """Return the event in one sentence without its full stop."""
    name = f"job {notice.job_id} ({notice.name}) of {notice.user}"
    if notice.event == BEGIN:
        where = f" on {', '.join(notice.nodes)}" if notice.nodes else ""
        return f"{name} has begun{where}"
    return f"{name}: {notice.outcome}"


def json_of(notice: Notice) -> bytes:
    """Return the event for a hook. ``text`` is what Slack and Mattermost show."""
    fields = msgspec.to_builtins(notice) | {
        "version": FORMAT_VERSION,
        "text": one_line(summary_of(notice)),
        "array": notice.is_array,
    }
    fields.pop("is_array", None)
    return msgspec.json.encode(fields)


def variables_of(notice: Notice) -> dict[str, str]:
    """Return the variables that a command gets; none holds a NUL byte or a line break."""
    values = {
        "GSCHED_EVENT": notice.event,
        "GSCHED_JOB_ID": notice.job_id,
        "GSCHED_JOB_NAME": notice.name,
        "GSCHED_JOB_USER": notice.user,
        "GSCHED_JOB_QUEUE": notice.queue,
        "GSCHED_JOB_ACCOUNT": notice.account,
        "GSCHED_JOB_NODES": ",".join(notice.nodes),
        "GSCHED_JOB_OUTCOME": notice.outcome,
        "GSCHED_JOB_EXIT_STATUS": "" if notice.exit_status is None else str(notice.exit_status),
        "GSCHED_TEXT": summary_of(notice),
    }
    return {name: one_line(value)[:_LONGEST] for name, value in values.items()}
