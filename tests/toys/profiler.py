"""A program with the command line of a profiler: runs the rest of its arguments as a child and writes a report.

Copied under the name `nsys` or `ncu`. How it misbehaves is in FAKE_PROFILER: `no_report`, `fails`, `fails_at_once`;
`slow` writes when its child had ended, and then takes its time.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

WITH_VALUE = {"--export", "--target-processes", "--launch-count", "--clock-control"}


def main() -> int:
    manner = os.environ.get("FAKE_PROFILER", "")
    arguments = sys.argv[1:]
    is_nsys = Path(sys.argv[0]).name == "nsys"
    if is_nsys:
        assert arguments.pop(0) == "profile"
    options = {}
    while arguments and arguments[0].startswith("-"):
        word = arguments.pop(0)
        name, _, value = word.partition("=")
        options[name] = arguments.pop(0) if name in WITH_VALUE else value
    if manner == "fails_at_once":
        print("no permission for the counters", file=sys.stderr)
        return 9
    signal.signal(signal.SIGTERM, signal.SIG_IGN if manner == "ignores_term" else signal.SIG_DFL)
    status = subprocess.Popen(arguments).wait()
    ended_ns = []
    if manner == "slow":
        time.sleep(1.0)
        ended_ns = [str(time.monotonic_ns())]
    if manner == "fails":
        print("the report could not be written")
        return 7
    if manner != "no_report":
        output = options["--output" if is_nsys else "--export"].replace("%%", "%")
        Path(f"{output}{'.nsys-rep' if is_nsys else '.ncu-rep'}").write_text(" ".join(sys.argv[1:] + ended_ns))
    return status


if __name__ == "__main__":
    sys.exit(main())
