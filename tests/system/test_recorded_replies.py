"""What `scripts/reproduce/decisions` records of all commands."""

import tomllib

import msgspec
import pytest

from scripts.reproduce.decisions_replies import replies
from scripts.reproduce.still_world import BEGIN_S, ROOT

#: Programs that print nothing with --json, or nothing of a head.
#: Daemons, the simulator, what needs a running job and its terminal, and what the monitor answers.
NO_REPLIES = {
    *("gschedd", "gnode", "gsim"),
    *("gattach", "gshell", "gsched-launch-agent"),
    "greport",
}


@pytest.mark.timeout(600)
def test_every_command_replies_and_nothing_of_this_machine_is_left_in_it() -> None:
    """A new command must be added there, so that the next record holds what it prints."""
    told: list[str] = []
    found = replies(told.append)
    every = msgspec.json.encode(found).decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert set(project["project"]["scripts"]) - NO_REPLIES == {line.split()[0] for line in found}
    assert len(told) == len(found)
    assert str(ROOT) not in every
    assert "gsched-still-" not in every
    for steady in ('\\"user\\":\\"USER\\"', '\\"submit_host\\":\\"HOST\\"', "submitted by USER"):
        assert steady in every
    story = msgspec.json.decode(found["gstat -f 3"].stdout)
    assert story["jobs"][0]["row"]["state"] == "migrating"
    listed = msgspec.json.decode(found["gstat"].stdout)
    assert {row["state"] for row in listed["jobs"]} == {"running", "queued", "held", "waiting"}
    assert BEGIN_S < listed["now_s"] < BEGIN_S + 3600, "only the script turns the clock"
    refused = found["gsub -l nodes=1:gpus=64 job.sh"]
    assert (refused.status, refused.stdout) == (2, "")
    assert '"code":"request_too_large"' in refused.stderr
