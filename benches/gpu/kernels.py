"""What a step's time goes to, kernel by kernel: reads the log that CubeCL writes when it profiles. `steps.py` calls it."""

import re

# CubeCL looks for this file where a program starts and in the folders above. A line of its log is `| DURATION | KERNEL`; each kernel is timed by
# events of the device around its launch. A summary at each synchronisation has more columns.
CONFIGURATION = '[profiling.logger]\nlevel = "basic"\nfile = "{log}"\nappend = false\n'
LINE = re.compile(r"\| (\d+(?:\.\d+)?)(ns|µs|ms|s) +\| ([^|]+)$")
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def configure(folder):
    """Lets a program that starts in `folder` write a log; returns where."""
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
    """Calls and seconds a step of a run of `steps` steps more than another: what both do once falls out."""
    rows = []
    for name, (calls, seconds) in longer.items():
        before = shorter.get(name, (0, 0.0))
        if calls > before[0]:
            rows.append([name, (calls - before[0]) / steps, max(0.0, seconds - before[1]) / steps])
    return rows
