"""Runs a CUDA program of one file on the driver API and NVRTC, without nvcc and NVIDIA's runtime library.

    bash scripts/emulated-cuda.sh python tools/cuda-emulator/truth/cuda/run.py PROGRAM.cu [--set B=2]... [-D NAME]... [--run ARGUMENTS]...

The file is cut into its declarations. Kernels and device functions go to NVRTC as they are, when the program launches them first. The rest
goes to the C++ compiler with `k<<<grid, block>>>(...)` as a call of a stub, `runtime.h` for the runtime library and `include/cublas_v2.h` for cuBLAS
(on the host, slowly). `--set B=2` makes `int B = 8;` smaller in the file, `--leave-out NAME` drops a host function.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What NVRTC has, or takes from the toolkit's headers.
DEVICE_HEADERS = ("cooperative_groups", "cuda_bf16.h", "cuda_fp16.h", "cuda/", "mma.h")
DEVICE_PRELUDE = """
#include <cuda/std/type_traits>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
namespace std { using cuda::std::bool_constant; }
#define M_PI 3.14159265358979323846
#define FLT_MAX 3.402823466e+38f
#define FLT_EPSILON 1.1920928955078125e-07f
#define INFINITY __int_as_float(0x7f800000)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;
#define assert(x) ((x) ? (void)0 : __trap())
"""


def inline(path, seen):
    """The text with the files that it includes by a relative path; each once."""
    text = []
    for line in path.read_text().splitlines():
        found = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if found and (path.parent / found[1]).exists():
            if found[1] not in seen:
                seen.add(found[1])
                text.append(inline(path.parent / found[1], seen))
        else:
            text.append(line)
    return "\n".join(text)


def without_comments(text):
    literal = r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\\n])+\''
    return re.sub(rf"({literal})|//[^\n]*|/\*.*?\*/", lambda m: m[1] or " ", text, flags=re.S)


def items(text):
    """Declarations and directives of the file's top level."""
    at = start = depth = 0
    while at < len(text):
        c = text[at]
        if c == "#" and depth == 0 and not text[start:at].strip():
            end = at
            while True:
                end = text.find("\n", end)
                end = len(text) if end < 0 else end
                if end == len(text) or text[end - 1] != "\\":
                    break
                end += 1
            yield text[at:end]
            at = start = end
            continue
        if c in "\"'":
            # 1'000 has no second quote.
            end = re.compile(r"(?:\\.|[^\\" + c + r"\n])*" + c).match(text, at + 1)
            at = end.end() if end else at + 1
            continue
        depth += c in "{(["
        depth -= c in "})]"
        at += 1
        ends = c == ";" or c == "}" and not re.match(r"\s*[;,=]", text[at:])
        # `if (x) {...}` at the top level does not exist; a struct or an initialiser ends with its semicolon.
        if depth == 0 and ends:
            if re.match(r"\s*(extern\s+\"C\"|namespace\s+\w*)\s*\{", text[start:at]):
                raise SystemExit("namespaces are not cut")
            yield text[start:at].strip()
            start = at


def head(item):
    return re.split(r"[{;]", item, maxsplit=1)[0]


def split(text):
    """The parts between commas that no bracket encloses."""
    parts, depth = [""], 0
    for c in text:
        depth += c in "(<[{"
        depth -= c in ")>]}"
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def declared(parameter):
    """The name of a parameter of a function or template; None if it has none."""
    found = re.search(r"[\s*&](\w+)\s*$", parameter.split("=")[0].split("[")[0])
    return found and found[1]


def stub(signature):
    """What the host calls for a kernel: it hands its arguments to the launch, as nvcc has it."""
    signature = re.sub(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)", "", signature)
    signature = re.sub(r"\b(__global__|static|inline)\b|extern\s+\"C\"", "", signature).strip()
    template, rest = re.fullmatch(r"(template\s*<(?:[^<>]|<[^<>]*>)*>)?(.*)", signature, re.S).groups()
    name = re.search(r"(\w+)\s*\(", rest)[1]
    parameters = split(rest[rest.index("(") + 1 : rest.rindex(")")])
    parameters = [p if declared(p) else f"{p} unnamed{i}" for i, p in enumerate(parameters)]
    rest = f"{rest[: rest.index('(')]}({', '.join(parameters)})"
    text = f'std::string("{name}")'
    if template:
        shown = []
        for parameter in split(template[template.index("<") + 1 : template.rindex(">")]):
            of_type = re.match(r"(typename|class)\b", parameter)
            shown.append(f"cuda_text<{declared(parameter)}>()" if of_type else f"std::to_string((long long){declared(parameter)})")
        text += ' + "<" + ' + ' + "," + '.join(shown) + ' + ">"'
    values = "".join(f"(void *)&{declared(parameter)}, " for parameter in parameters)
    body = f"static CUfunction function = cuda_compile({text}); void *values[] = {{{values}nullptr}}; cuda_launch(function, values);"
    return f"{template or ''} inline {rest.strip()} {{ {body} }}"


def calls(text):
    """`name<<<shape>>>(...)` as a call after the shape is set."""
    while (at := text.find("<<<")) >= 0:
        start, depth = len(text[:at].rstrip()), 0
        end_of_name = start
        # Back over the template's arguments and the name.
        while depth or text[start - 1] == ">" or text[start - 1].isalnum() or text[start - 1] in "_:":
            depth += (text[start - 1] == ">") - (text[start - 1] == "<")
            start -= 1
            while depth == 0 and text[start] == "<" and text[start - 1].isspace():
                start -= 1
        end = text.index(">>>", at)
        text = f"{text[:start]}cuda_configure({text[at + 3 : end]}), {text[start:end_of_name]}{text[end + 3 :]}"
    return text


def cut(text, left_out):
    host, device = [], [DEVICE_PRELUDE]
    for item in items(without_comments(text)):
        first = head(item)
        if item.startswith("#"):
            included = re.match(r"#\s*include\s*[<\"]([^>\"]+)", item)
            on_device = not included or included[1].startswith(DEVICE_HEADERS)
            on_host = not included or not included[1].startswith(("cooperative_groups", "mma.h", "omp.h"))
            device += [item] * on_device
            host += [item] * on_host
        elif "__global__" in first:
            device.append(item)
            host.append(stub(first))
        elif "cg::" in first or "cooperative_groups" in first:
            device.append(item)
        elif re.search(r"\b__(device|constant|shared)__", first) and "__host__" not in first:
            device.append(item)
        elif "__host__" in first or re.match(r"(template\s*<[^>]*>\s*)?(struct|class|enum|typedef|using|union)\b", first):
            device.append(item)
            host.append(item)
        else:
            name = re.search(r"(\w+)\s*\(", first)
            if name and name[1] in left_out:
                host.append(f'template <class... T> void {name[1]}(T...) {{ puts("left out"); exit(3); }}')
                continue
            host.append(item)
    return "\n".join(host), "\n".join(device)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("program", type=Path)
    arguments.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    arguments.add_argument("--leave-out", action="append", default=[], metavar="FUNCTION")
    arguments.add_argument("-D", action="append", default=[], metavar="NAME")
    arguments.add_argument("--keep", type=Path, help="folder for what is made")
    arguments.add_argument("--run", action="append", metavar="ARGUMENTS", help="one run of the program; several of them for several runs")
    given = arguments.parse_args()
    toolkit = os.environ.get("CUDA_PATH") or sys.exit("CUDA_PATH is not set: run this by scripts/emulated-cuda.sh")
    text = inline(given.program, set())
    for change in given.set:
        name, value = change.split("=")
        text, count = re.subn(rf"(\b(?:int|int64_t|size_t) {name} = )[^;]*;", rf"\g<1>{value};", text)
        if not count:
            sys.exit(f"--set {change}: the program has no 'int {name} = ...;'")
    host, device = cut(text, given.leave_out)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        (folder / "device.cu").write_text(device)
        (folder / "host.cpp").write_text(f'#include "{HERE}/runtime.h"\n' + calls(host))
        command = ["g++", "-std=c++17", "-O2", "-w", "-fopenmp", f"-I{HERE}/include", f"-I{toolkit}/include", f"-I{toolkit}/include/cccl"]
        command += [f"-D{define}" for define in given.D]
        command += [f'-DCUDA_DEVICE_SOURCE="{folder}/device.cu"', f'-DCUDA_DEFINES="{" ".join(given.D)}"']
        libraries = os.environ["LD_LIBRARY_PATH"].split(":")
        command += [str(folder / "host.cpp"), "-o", str(folder / "program"), *[f"-L{path}" for path in libraries], "-l:libcuda.so.1", "-l:libnvrtc.so.12"]
        subprocess.run(command, check=True)
        failed = 0
        for run in given.run or [""]:
            code = subprocess.run([str(folder / "program"), *run.split()], timeout=900).returncode
            print(f"{given.program.name} {run}: {'passed' if code == 0 else f'exit status {code}'}", flush=True)
            failed += code != 0
        sys.exit(failed != 0)


main()
