"""Programs that are stopped when their time is over, with all that they have started: what goes on holds the GPU's memory."""

import os
import signal
import subprocess


def run(command, limit, **rest):
    """As `subprocess.run`, in a group of its own."""
    command = [str(word) for word in command]
    process = subprocess.Popen(command, start_new_session=True, **rest)
    try:
        out, errors = process.communicate(timeout=limit)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)
