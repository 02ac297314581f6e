"""sstat: what running jobs use at the moment."""

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.fields import SSTAT, Listing, chosen, print_fields
from gsched.cli.slurm.options import parsed
from gsched.client import HeadClient
from gsched.model.states import JobState

_DEFAULT: Final = "JobID,NTasks,AveCPU,AveRSS,MaxRSS,MaxVMSize"


def sstat(words: Sequence[str]) -> int:
    """Print what running jobs use."""
    options, operands = parsed(words, "sstat")
    if "helpformat" in options:
        print(" ".join(field.title for field in SSTAT.values()))
        return 0
    named = [word.partition(".")[0] for each in [options.get("jobs", ""), *operands]
             for word in each.split(",") if word]  # fmt: skip
    if not named:
        raise SlurmError("You didn't give me any jobs to stat.")
    fields = chosen(options.get("format", _DEFAULT), SSTAT)
    reply = HeadClient().jobs(w.job_ids(named))
    rows = [row for row in reply.jobs if row.started_s is not None and row.state != JobState.DONE]
    if not rows:
        raise SlurmError("\n".join(f"No steps running for job {each}" for each in named))
    reply = structs.replace(reply, jobs=tuple(rows))
    print_fields(Listing.of(reply), fields, options, dashes=False)
    return 0
