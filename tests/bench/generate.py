# SPDX-License-Identifier: Apache-2.0
"""Prompts and generation against llama.cpp: the same GGUF file, threads and token counts.

Ours is `fabric-engine bench` (pool, sealing and sampling included), theirs llama-bench and
llama-batched-bench (no sampling) with the best of a sweep of flash attention and ubatch that runs
first, at the same load. The test "busy" is generation beside a process that keeps one processor
busy.
"""
import contextlib
import json
import os
import subprocess
import sys

import frame

STEPS = 64
BATCH = 16
BATCH_DEPTH = 1024
# name: (tokens of the prompt, steps, depth)
TESTS = {"pp512": (512, 0, 0), "pp2048": (2048, 0, 0),
         "tg_at_128": (0, STEPS, 128), "tg_at_4096": (0, STEPS, 4096), "busy": (0, STEPS, 128)}
ALL = [*TESTS, "batch"]
MANY_THREADS = ("busy", "batch")  # tests that one thread does not have
# Of two threads; "gemma" where the file's name says so.
GOALS = {"": {"pp512": 5, "pp2048": 5, "tg_at_128": 2.5, "tg_at_4096": 7, "batch": 8, "busy": 3},
         "gemma": {"pp512": 3, "pp2048": 3, "tg_at_128": 1.9, "tg_at_4096": 2, "batch": 4,
                   "busy": 3}}
ONE_THREAD = ("pp512",)  # whose goal holds for one thread, too


@contextlib.contextmanager
def load_of(name):
    """Of "busy": a loop on the last of the processors that this process may use."""
    if name != "busy":
        yield
        return
    cpu = max(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{cpu}}})\n"
                           "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE) as loop:
        try:
            loop.stdout.readline()
            yield
        finally:
            loop.kill()


def run(command):
    out = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if out.returncode:
        sys.exit(f"{' '.join(command)}: status {out.returncode}:\n{out.stderr[-2000:]}")
    return [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]


class Ours:
    def __init__(self, options, threads):
        self.base = [f"{options.bin}/fabric-engine", "bench", "--json", "-m", options.model,
                     "-t", str(threads), "-r", "1", "--pool-size", "1G"]

    def measure(self, name):
        prompt, steps, depth = TESTS[name]
        with load_of(name):
            row, = run([*self.base, "-p", str(prompt), "-n", str(steps), "-d", str(depth)])
        return row["tokens_per_s"]

    def batch(self):
        row, = run([*self.base, "-p", "0", "-n", str(STEPS), "-d", str(BATCH_DEPTH), "-b",
                    str(BATCH)])
        return row["tokens_per_s"]


class Theirs:
    def __init__(self, options, threads):
        self.threads = str(threads)
        self.bench = [f"{options.peers}/bin/llama-bench", "-m", options.model, "-t", self.threads,
                      "-o", "jsonl"]
        self.batched = [f"{options.peers}/bin/llama-batched-bench", "-m", options.model, "-t",
                        self.threads, "-tb", self.threads, "-npp", str(BATCH_DEPTH), "-ntg",
                        str(STEPS), "-npl", str(BATCH), "-c", str(BATCH * (BATCH_DEPTH + STEPS)),
                        "--output-format", "jsonl"]
        self.best = {}

    def arguments(self, name):
        prompt, steps, depth = TESTS[name]
        return ["-p", str(prompt), "-n", str(steps), "-d", str(depth)]

    def sweep(self, wanted, note):
        for name in wanted:
            if name not in TESTS:
                continue
            ubatch = "128,512" if name.startswith("pp") else "512"
            with load_of(name):
                rows = run([*self.bench, *self.arguments(name), "-r", "1", "-fa", "0,1", "-ub",
                            ubatch])
            row = max(rows, key=lambda row: row["avg_ts"])
            self.best[name] = {"-fa": str(int(row["flash_attn"])), "-ub": str(row["n_ubatch"])}
            note(f"  llama.cpp, {name}, {self.threads} threads: " + ", ".join(
                f"fa {int(row['flash_attn'])} ub {row['n_ubatch']}: {row['avg_ts']:.1f}"
                for row in rows))
        if "batch" not in wanted:
            return
        rows = {on: self.batch(on)["speed_tg"] for on in ("off", "on")}
        self.best["batch"] = max(rows, key=rows.get)
        note(f"  llama.cpp, {BATCH} sequences: " + ", ".join(
            f"fa {on}: {rate:.1f}" for on, rate in rows.items()))

    def measure(self, name):
        flags = [part for pair in self.best[name].items() for part in pair]
        with load_of(name):
            row, = run([*self.bench, *self.arguments(name), "-r", "1", *flags])
        prompt, steps, depth = TESTS[name]
        if (row["n_prompt"], row["n_gen"], row["n_depth"]) != (prompt, steps, depth):
            sys.exit(f"llama-bench ran another test: {row}")
        return row["avg_ts"]

    def batch(self, flash=None):
        row, = run([*self.batched, "-fa", flash or self.best["batch"]])
        return row


def main():
    parser = frame.arguments(__doc__.splitlines()[0], peers=True)
    parser.add_argument("--threads", default="2,1", help="numbers of threads (default 2,1)")
    parser.add_argument("--only", default="", help="these tests, of " + ", ".join(ALL))
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else ALL
    if set(wanted) - set(ALL):
        parser.error(f"--only {options.only}: give some of {', '.join(ALL)}")
    goals = GOALS["gemma" if "gemma" in os.path.basename(options.model).lower() else ""]
    bench = frame.Frame("generate")
    for threads in (int(text) for text in options.threads.split(",")):
        ours, theirs = Ours(options, threads), Theirs(options, threads)
        tests = [name for name in wanted if name not in MANY_THREADS or threads > 1]
        theirs.sweep(tests, bench.note)
        for name in tests:
            if name == "batch":
                metric = f"tg_of_{BATCH}"
                bench.pairs(lambda: {metric: ours.batch()},
                            lambda: {metric: theirs.batch()["speed_tg"]},
                            {metric: frame.Metric("tokens/s", goal=goals["batch"])},
                            peer="llama-batched-bench", n=options.pairs, threads=threads,
                            fa=theirs.best["batch"])
                continue
            flags = theirs.best[name]
            goal = goals[name] if threads == 2 or name in ONE_THREAD else None
            bench.pairs(lambda: {name: ours.measure(name)}, lambda: {name: theirs.measure(name)},
                        {name: frame.Metric("tokens/s", goal=goal)},
                        peer="llama-bench", n=options.pairs, threads=threads, fa=flags["-fa"],
                        ub=flags["-ub"])
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
