"""Runs programs with a time limit. When time runs out, everything that they started is stopped, because a leftover
process would hold the GPU's memory.
"""

import os
import signal
import subprocess


def run(command, limit, **rest):
    """Like `subprocess.run`, but in a separate process group."""
    command = [str(word) for word in command]
    process = subprocess.Popen(command, start_new_session=True, **rest)
    try:
        out, errors = process.communicate(timeout=limit)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)
