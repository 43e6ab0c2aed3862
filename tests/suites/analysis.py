# SPDX-License-Identifier: Apache-2.0
"""cppcheck over all C of the product, held at zero. A planted fault must be found first: a set-up that
finds nothing anywhere would pass for ever. What is left in on purpose has its reason beside the
`cppcheck-suppress` in the source."""
import os
import subprocess
import tempfile

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


# Loops of jansson, whose header cppcheck does not read.
MACROS = ("#define json_array_foreach(array, i, value) "
          "for (i = 0; (value = json_array_get(array, i)); i++)\n"
          "#define json_object_foreach(object, key, value) "
          "for (; json_iterate(object, &key, &value);)\n")


def analysis():
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
    files = subprocess.run(["git", "ls-files", "libfabricmgr/*.c", "engine/*.c", "tools/*.c"], cwd=TOP,
                           capture_output=True, text=True, check=True).stdout.split()
    status, text, took = run([*CPPCHECK, f"--cppcheck-build-dir={TOP}/build/analysis", *files], 900)
    report(f"analysis/cppcheck ({len(files)} files)", int(status == 0), int(status != 0), 0, took, text)
