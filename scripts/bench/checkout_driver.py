"""Runs the rounds of another checkout's gsched, with that checkout's own interpreter and code.

Arguments: the checkout's scripts/bench directory, CPUs, control group, and whose jobs (empty: of
this user). Each line of the input is a number of tasks; each line of the output says how long they
took and what CPU time they used.
"""

import dataclasses
import json
import sys


def main() -> None:
    """Serve until the input ends."""
    place, cpus, cgroup, user = sys.argv[1:]
    from as_user import ClientOf  # beside this file
    from floor import NOOP

    sys.path.insert(0, place)
    import gsched_system  # the other one's

    if hasattr(gsched_system, "_noop"):  # until 2026-11-28 a script
        gsched_system._noop = lambda: gsched_system.new_job(  # noqa: SLF001 - of any version
            name="noop",
            workdir="/",
            launch="command",
            arguments=NOOP,
            stdout_path="/dev/null",
            stderr_path="/dev/null",
        )
    with gsched_system.running(
        cpus=int(cpus), cgroup=cgroup, policy="balance", learn=True
    ) as system:
        if user:
            system._head = ClientOf(system._head, user, system._cluster.layout.directory)  # noqa: SLF001 - of any version
        for line in sys.stdin:
            elapsed_s = system.measure(int(line))
            used = dataclasses.asdict(system.used)
            print(json.dumps({"elapsed_s": elapsed_s, "used": used}), flush=True)


if __name__ == "__main__":
    main()
