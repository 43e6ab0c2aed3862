# SPDX-License-Identifier: Apache-2.0
"""cppcheck and clang-tidy over all C of the product, held at zero. A planted fault must be found first by
each: a set-up that finds nothing anywhere would pass for ever. What is left in on purpose has its reason
beside the `cppcheck-suppress` or `NOLINTNEXTLINE` in the source; clang-tidy's checks are in `.clang-tidy`."""
import concurrent.futures
import os
import re
import subprocess
import tempfile
import time

from house.layers import SEARCHED
from suites.common import TOP, report, run

CPPCHECK = ["cppcheck", "-q", "-j2", "--enable=warning,portability", "--inline-suppr", "--std=c11",
            "--error-exitcode=9", "--suppress=missingInclude",
            "--suppress=arrayIndexThenCheck",  # style; takes the order of keys for a limit
            # Where cppcheck 2.10 itself gives up: vector literals.
            "--suppress=cppcheckError", "-D__x86_64__", "-D__BYTE_ORDER__=1",
            "-D__ORDER_LITTLE_ENDIAN__=1", '-DFM_VERSION="x"', "-DOPENSSL_API_COMPAT=10100",
            f"--include={TOP}/build/analysis/macros.h",
            "-Ilibfabricmgr/include", "-Ikmod/uapi", "-Ilibfabricmgr", "-Ikernels", "-Iengine",
            "-Itools"]
PLANTED = "int f(void);\nint f(void)\n{\n\tint a[2] = {0, 1};\n\n\treturn a[2];\n}\n"
# Endless where a long is longer than a short: a fault that neither compiler warns of.
PLANTED_LOOP = ("long f(const char *text, long n);\nlong f(const char *text, long n)\n{\n\tlong found = 0;\n\n"
                "\tfor (short i = 0; i < n; i++)\n\t\tfound += text[i] == 'x';\n\treturn found;\n}\n")
TIDY = ["clang-tidy-14", "--quiet", f"--config-file={TOP}/.clang-tidy"]
TIDY_FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-D_GNU_SOURCE", '-DFM_VERSION="x"']

# Loops of jansson, whose header cppcheck does not read.
MACROS = ("#define json_array_foreach(array, i, value) "
          "for (i = 0; (value = json_array_get(array, i)); i++)\n"
          "#define json_object_foreach(object, key, value) "
          "for (; json_iterate(object, &key, &value);)\n")


def sources(*folders):
    return subprocess.run(["git", "ls-files", *(f"{folder}/*.c" for folder in folders)], cwd=TOP,
                          capture_output=True, text=True, check=True).stdout.split()


def cppcheck():
    os.makedirs(f"{TOP}/build/analysis", exist_ok=True)
    with open(f"{TOP}/build/analysis/macros.h", "w", encoding="utf-8") as file:
        file.write(MACROS)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/planted.c"
        with open(path, "w", encoding="utf-8") as file:
            file.write(PLANTED)
        status, text, took = run([*CPPCHECK, path], 60)
    is_found = status == 9 and "arrayIndexOutOfBounds" in text
    report("analysis/cppcheck finds a planted fault", int(is_found), int(not is_found), 0, took, text)
    files = sources("libfabricmgr", "engine", "tools")
    status, text, took = run([*CPPCHECK, f"--cppcheck-build-dir={TOP}/build/analysis", *files], 900)
    report(f"analysis/cppcheck ({len(files)} files)", int(status == 0), int(status != 0), 0, took, text)


def instruction_set(path):
    """ISA_avx2, ISA_avx512 and ISA_amx of the Makefile, which has each kernel's flags."""
    name = re.search(r"amx|avx512|avx2|$", path)[0]
    if not name:
        return []
    with open(f"{TOP}/Makefile", encoding="utf-8") as file:
        flags = re.search(rf"^ISA_{name} := (.*)$", file.read(), re.M)[1].split()
    return [flag for flag in flags if not flag.startswith("-mprefer")]


def tidy_file(path):
    folders = SEARCHED[path.split("/")[0]]
    return run([*TIDY, path, "--", *TIDY_FLAGS, *(f"-I{folder}" for folder in folders),
                *instruction_set(path)], 120)


def clang_tidy():
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/planted.c"
        with open(path, "w", encoding="utf-8") as file:
            file.write(PLANTED_LOOP)
        status, text, took = run([*TIDY, path, "--", *TIDY_FLAGS], 60)
    is_found = status == 1 and "bugprone-too-small-loop-variable" in text
    report("analysis/clang-tidy finds a planted fault", int(is_found), int(not is_found), 0, took, text)
    files = sources("libfabricmgr", "kernels", "engine", "tools")
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(tidy_file, files))
    texts = [text for status, text, _ in results if status != 0]
    report(f"analysis/clang-tidy ({len(files)} files)", int(not texts), int(bool(texts)), 0,
           time.monotonic() - start, "\n".join(texts))


def analysis():
    cppcheck()
    clang_tidy()
