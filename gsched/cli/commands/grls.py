"""``grls``: release held jobs."""

from gsched.cli.holds import hold_command
from gsched.cli.running import runner
from gsched.protocol.actions import ReleaseJob

TEXT = """Release jobs that were held with ghold.

A job can start when it has no hold left. Only operators release o and s.
"""
EPILOG = """\b
Examples:
  grls 17                             release the user hold
  grls -h uo 17                       also an operator's hold
"""

grls = hold_command("grls", ReleaseJob, text=TEXT, epilog=EPILOG)
main = runner(grls)

if __name__ == "__main__":
    main()
