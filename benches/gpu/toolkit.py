"""Finds the parts of CUDA that Kiln's programs need to compile kernels: `CUDA_PATH` and libnvrtc. If no toolkit is
installed, they are assembled from the packages of PyTorch and Triton. `run.py` calls it.
"""

import os
import sysconfig
from pathlib import Path

TOOLKITS = ["/usr/local/cuda", "/opt/cuda"]
LIBDEVICE = "nvvm/libdevice/libdevice.10.bc"


def first(folder, *patterns):
    return next((path for pattern in patterns for path in sorted(folder.glob(pattern))), None)


def environment(folder):
    """The environment for the programs, and a line that describes it."""
    env = dict(os.environ)
    if "CUDA_PATH" in env:
        return env, f"CUDA_PATH is {env['CUDA_PATH']}"
    for toolkit in map(Path, TOOLKITS):
        if (toolkit / LIBDEVICE).is_file() and (toolkit / "include/cuda_runtime.h").is_file():
            return env, f"CUDA toolkit in {toolkit}"

    packages, cuda = Path(sysconfig.get_path("purelib")), folder / "cuda"
    found = {
        LIBDEVICE: first(packages, "triton/backends/nvidia/lib/libdevice.10.bc"),
        "include": first(packages, "nvidia/cu1[0-9]/include", "nvidia/cuda_runtime/include"),
    }
    for name, path in found.items():
        if path:
            (cuda / name).parent.mkdir(parents=True, exist_ok=True)
            (cuda / name).symlink_to(path)
    env["CUDA_PATH"] = str(cuda)
    nvrtc = first(packages, "nvidia/cu1[0-9]/lib/libnvrtc.so*", "nvidia/cuda_nvrtc/lib/libnvrtc.so*")
    if nvrtc:
        env["LD_LIBRARY_PATH"] = ":".join([str(nvrtc.parent), *filter(None, [env.get("LD_LIBRARY_PATH")])])
    # The other half of the header for tensor cores is in a separate package.
    crt = first(cuda, "include/crt/mma.h")
    parts = {"libdevice": found[LIBDEVICE], "libnvrtc": nvrtc, "headers": found["include"], "crt/mma.h (pip install nvidia-cuda-crt)": crt}
    have, lack = ([part for part, path in parts.items() if bool(path) == there] for there in [True, False])
    return env, f"no CUDA toolkit; from Python's packages: {', '.join(have) or 'nothing'}; not found: {', '.join(lack) or 'nothing'}"
