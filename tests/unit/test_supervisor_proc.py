"""In which order the processes of a job get a signal."""

import subprocess
import time

from gnode.supervisor import proc


def test_the_oldest_process_is_the_first() -> None:
    """Whatever their numbers are: these wrap."""
    started = []
    try:
        for _ in range(5):
            started.append(subprocess.Popen(["sleep", "60"]))
            time.sleep(0.03)
        pids = [process.pid for process in started]

        assert proc.oldest_first(reversed(pids)) == pids
        assert proc.oldest_first(set(pids)) == pids
    finally:
        for process in started:
            process.kill()
            process.wait()
