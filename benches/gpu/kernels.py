"""Breaks a step's time down by kernel, from the log that CubeCL writes when it profiles. `steps.py` calls it."""

import re

# CubeCL looks for this file in the folder where a program starts and in its parents. A line of its log is `| DURATION |
# KERNEL`; device events around each launch time the kernel. The summary at each synchronization has more columns.
CONFIGURATION = '[profiling.logger]\nlevel = "basic"\nfile = "{log}"\nappend = false\n'
LINE = re.compile(r"\| (\d+(?:\.\d+)?)(ns|µs|ms|s) +\| ([^|]+)$")
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def configure(folder):
    """Makes a program that starts in `folder` write a log. Returns its path."""
    log = folder / "cubecl.log"
    (folder / "cubecl.toml").write_text(CONFIGURATION.format(log=log))
    return log


def read(log):
    """Calls and seconds of each kernel."""
    found = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []:
        if match := LINE.match(line):
            calls, seconds = found.get(match[3].strip(), (0, 0.0))
            found[match[3].strip()] = calls + 1, seconds + float(match[1]) * UNITS[match[2]]
    return found


def difference(longer, shorter, steps):
    """Calls and seconds per step, for a run with `steps` more steps than another: one-time work cancels out."""
    rows = []
    for name, (calls, seconds) in longer.items():
        before = shorter.get(name, (0, 0.0))
        if calls > before[0]:
            rows.append([name, (calls - before[0]) / steps, max(0.0, seconds - before[1]) / steps])
    return rows
