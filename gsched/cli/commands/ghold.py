"""``ghold``: hold jobs: they are not started until they are released."""

from gsched.cli.holds import hold_command
from gsched.cli.running import runner
from gsched.protocol.actions import HoldJob

TEXT = """Hold jobs: they do not start until they are released with grls.

The owner can set u, only operators can set o and s. A running job keeps running, but is not
started again.
"""
EPILOG = """\b
Examples:
  ghold 17 18                         not started until grls 17 18
  ghold -h o 17                       an operator's hold: only operators release it
"""

ghold = hold_command("ghold", HoldJob, text=TEXT, epilog=EPILOG)
main = runner(ghold)

if __name__ == "__main__":
    main()
