"""Compiles the CUDA C++ samples of this folder to PTX with NVRTC.

    pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12
    python3 make.py

A sample's first line may name its target: `// sm_90`. The default is sm_80.
"""

import ctypes
import re
from pathlib import Path

import nvidia.cuda_nvrtc
import nvidia.cuda_runtime

FOLDER = Path(__file__).parent


def compile_ptx(library, include, source):
    """PTX text of one CUDA C++ file."""
    target = re.match(r"// (sm_\w+)", source)
    options = [f"--gpu-architecture={target[1] if target else 'sm_80'}", f"--include-path={include}", "-default-device"]
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"sample.cu", 0, None, None)
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = library.nvrtcCompileProgram(program, len(options), array)
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
    library = ctypes.CDLL(Path(nvidia.cuda_nvrtc.__path__[0]) / "lib/libnvrtc.so.12")
    include = Path(nvidia.cuda_runtime.__path__[0]) / "include"
    for path in sorted(FOLDER.glob("*.cu")):
        path.with_suffix(".ptx").write_text(compile_ptx(library, include, path.read_text()))
        print(path.with_suffix(".ptx").name)


if __name__ == "__main__":
    main()
