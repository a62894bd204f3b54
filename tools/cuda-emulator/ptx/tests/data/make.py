"""Compiles the CUDA C++ kernels of this folder to PTX with NVRTC.

    pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12 nvidia-cuda-nvcc-cu12
    python3 make.py

The first line of a kernel's file names its target: `// sm_80`. The last package has a header that `mma.h` includes, and `ptxas`,
which has to assemble what was compiled.
"""

import ctypes
import re
import subprocess
from pathlib import Path

import nvidia.cuda_nvcc
import nvidia.cuda_nvrtc
import nvidia.cuda_runtime

FOLDER = Path(__file__).parent
NVCC, NVRTC, RUNTIME = (
    Path(package.__path__[0]) for package in (nvidia.cuda_nvcc, nvidia.cuda_nvrtc, nvidia.cuda_runtime)
)


def compile_ptx(library, source, target):
    """PTX text of one CUDA C++ file."""
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = [f"--gpu-architecture={target.replace('sm', 'compute')}"]
    options += [f"--include-path={package / 'include'}" for package in (NVCC, RUNTIME)]
    failed = library.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    )
    kind = "ProgramLog" if failed else "PTX"
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{kind}")(program, text)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise SystemExit(text.value.decode())
    return text.value.decode()


def main():
    library = ctypes.CDLL(NVRTC / "lib/libnvrtc.so.12")
    for path in sorted(FOLDER.glob("*.cu")):
        source, to = path.read_text(), path.with_suffix(".ptx")
        target = re.match(r"// (sm_\w+)", source)[1]
        to.write_text(compile_ptx(library, source, target))
        subprocess.run([NVCC / "bin/ptxas", f"--gpu-name={target}", "--output-file=/dev/null", to], check=True)
        print(to.name)


if __name__ == "__main__":
    main()
