"""Assembles the code written by crates/moe/examples/compile_kernels.rs, and prints the GPU resources of each kernel.

    python3 scripts/check_kernels.py TOOLS CODE

TOOLS is where scripts/check-kernels.sh put NVRTC, ptxas and nvdisasm. Fails, naming the kernel, if there is no code,
if registers spill (cubek's product and attention may spill a little), if the machine code lacks an instruction that
the kernel is written for, or if a tile without rows does not end at once.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HEADER = ["kernel", "compiler", "target", "registers", "shared", "stack", "spills", "instructions"]

# Kernels that find their rows in a table of tiles, some without rows. A cube of such a tile must end before doing any
# work.
TILED = ("grouped_gemm simt", "grouped_gemm multi_level", "grouped_gemm wgmma")
# Loads of a table entry: expert, first row, end.
ENTRY = 3
# Bytes of registers that may spill. cubek chooses the tiles of its product, and with them its registers: on an A100 a
# few of them spill. Some attention kernels spill a few although they are far below 255 registers: the assembler makes
# room for one more cube, and CubeCL has no option to prevent it.
MAY_SPILL = {"grouped_gemm multi_level": 128, "attention": 96}


class Broken(Exception):
    """Why a kernel has no machine code."""


class Nvrtc:
    """The library that compiles CUDA C++ to PTX, called as CubeCL calls it."""

    def __init__(self, nvidia):
        self.library = ctypes.CDLL(nvidia / "cuda_nvrtc/lib/libnvrtc.so.12")
        folders = [nvidia / package / "include" for package in ("cuda_runtime", "cuda_cccl", "cuda_nvcc")]
        self.options = ["-lineinfo", *(f"--include-path={folder}" for folder in folders)]

    def compile(self, source, target):
        program = ctypes.c_void_p()
        options = [option.encode() for option in [f"--gpu-architecture={target}", *self.options]]
        array = (ctypes.c_char_p * len(options))(*options)
        self.library.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None)
        try:
            if self.library.nvrtcCompileProgram(program, len(options), array) != 0:
                raise Broken(self.output(program, "ProgramLog").decode())
            return self.output(program, "PTX")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def output(self, program, what):
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, text)
        return text.value


class Assembler:
    def __init__(self, tools, code):
        nvidia = tools / "nvidia"
        self.nvrtc = Nvrtc(nvidia)
        self.ptxas = nvidia / "cuda_nvcc/bin/ptxas"
        self.nvdisasm = next(nvidia.glob("*/bin/nvdisasm"))
        self.code = code

    def check(self, entry):
        """A row of the table, and what is wrong with the kernel."""
        # Features specific to Hopper, such as TMA and wgmma, need the target with an `a`.
        target = f"sm_{entry['sm']}" + ("a" if entry["sm"] >= 90 else "")
        row = [entry["kernel"], entry["compiler"], target]
        try:
            cells, faults = self.assemble(entry, target)
            row += cells
        except Broken as broken:
            faults = [f"no code: {broken}".strip()]
        return row, [f"{' '.join(row[:3])}: {fault}" for fault in faults]

    def assemble(self, entry, target):
        if "file" not in entry:
            raise Broken(entry["error"])
        path = self.code / entry["file"]
        if entry["compiler"] == "cpp":
            ptx = self.nvrtc.compile(path.read_bytes(), target)
            path = path.with_suffix(".ptx")
            path.write_bytes(ptx)
        cubin = path.with_suffix(".cubin")
        report = run(self.ptxas, "--verbose", f"--gpu-name={target}", path, "--output-file", cubin)
        registers = max(numbers(r"Used (\d+) registers", report))
        shared = entry["shared_memory"] + sum(numbers(r"(\d+) bytes smem", report))
        stack = max(numbers(r"(\d+) bytes stack frame", report))
        spills = sum(numbers(r"(\d+) bytes spill", report))
        tiled = entry["kernel"].startswith(TILED)
        # Disassembled only if needed, because that takes longer than everything else.
        machine_code = run(self.nvdisasm, "--print-code", cubin) if tiled or entry["instructions"] else ""
        counts = {name: len(re.findall(rf"\b{name}\b", machine_code)) for name in entry["instructions"]}

        faults = [f"no {instruction} in the machine code" for instruction, count in counts.items() if count == 0]
        faults += [line for line in report.splitlines() if "warning" in line or "serialized" in line]
        if tiled and not leaves_early(machine_code):
            faults.append("a tile without rows does not end at once")
        if spills > sum(limit for name, limit in MAY_SPILL.items() if entry["kernel"].startswith(name)):
            faults.append(f"{spills} bytes of spills")
        return [registers, shared, stack, spills, ", ".join(f"{count} {name}" for name, count in counts.items())], faults


def leaves_early(machine_code):
    """Whether a cube can end after reading an entry of the table of tiles, before it loads, shares or waits for
    anything else.
    """
    start = machine_code.split("EXIT")[0]
    return len(re.findall(r"\bLDG\b", start)) <= ENTRY and not re.search(r"\b(STS|BAR|UTMALDG)\b", start)


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Broken(done.stdout)
    return done.stdout


def numbers(pattern, text):
    return [int(number) for number in re.findall(pattern, text)]


def print_table(rows):
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(HEADER))]
    for row in rows:
        cells = (cell.rjust(width) if 3 <= i < 7 else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())


def main():
    tools, code = map(Path, sys.argv[1:])
    entries = json.loads((code / "manifest.json").read_text())
    assembler = Assembler(tools, code)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(assembler.check, entries))
    print_table([HEADER, *(row for row, _ in results)])
    faults = [fault for _, faults in results for fault in faults]
    if not entries:
        faults = ["there are no kernels"]
    for fault in faults:
        print(f"FAILED: {fault}")
    kernels = len({entry["kernel"] for entry in entries})
    print(f"{kernels} kernels, compiled {len(entries)} times: {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
