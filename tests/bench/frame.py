# SPDX-License-Identifier: Apache-2.0
"""The frame of the benchmarks: pairs in the same minute (A B A B …), medians, and the two outputs.

A benchmark makes one Frame, calls pairs() for each comparison and ends with finish(). Standard output
carries one JSON object a line and nothing else; the table goes to standard error. Invariant: a ratio
is of two runs next to each other in time, and larger is better whatever the unit.
"""
import argparse
import datetime
import json
import os
import re
import resource
import statistics
import sys
import time

TICKS = os.sysconf("SC_CLK_TCK")


def arguments(description, peers=False):
    """The command line that every benchmark shares (see bench-% in the Makefile)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bin", required=True, help="folder of our programs")
    parser.add_argument("--model", required=True, help="a GGUF file")
    if peers:
        parser.add_argument("--peers", required=True, help="folder of the peers' programs")
    parser.add_argument("--pairs", type=int, default=5, help="counted pairs (default 5)")
    return parser


def machine():
    """This machine in words."""
    def read(path, pattern):
        with open(path, encoding="utf-8") as file:
            found = re.search(pattern, file.read(), re.M)
        return found[1].strip() if found else "unknown"

    memory = int(read("/proc/meminfo", r"^MemTotal:\s+(\d+)")) >> 20
    return (f"{len(os.sched_getaffinity(0))} CPUs of {read('/proc/cpuinfo', r'^model name.*: (.*)')}, "
            f"{memory} GiB, Linux {os.uname().release}")


def _own_seconds():
    """CPU seconds of this process, of its children that ended, and of its descendants that live."""
    own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF,
                                                          resource.RUSAGE_CHILDREN))
    parents, used = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(pid)], used[int(pid)] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        if not more:
            break
        family |= more
    return own + sum(used[pid] for pid in family - {os.getpid()} if pid in used) / TICKS


def _busy_seconds():
    """CPU seconds of everything on the machine, and of its CPUs in all."""
    with open("/proc/stat", encoding="utf-8") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / TICKS, sum(ticks) / TICKS


class Others:
    """What share of the machine's CPU time other work takes: the noise of a measurement."""

    def __init__(self):
        self.own, (self.busy, self.total) = _own_seconds(), _busy_seconds()

    def share(self):
        busy, total = _busy_seconds()
        other = (busy - self.busy) - (_own_seconds() - self.own)
        return round(min(1.0, max(0.0, other / max(total - self.total, 1e-9))), 2)


class Metric:
    """How a figure is read: its unit, whether smaller is better, and the ratio that is aimed at."""

    def __init__(self, unit, goal=None, smaller=False, **args):
        self.unit, self.goal, self.smaller, self.args = unit, goal, smaller, args

    def ratio(self, ours, theirs):
        return theirs / ours if self.smaller else ours / theirs


class Frame:
    def __init__(self, name, out=sys.stdout, err=sys.stderr, strict=None):
        self.name, self.out, self.err = name, out, err
        self.strict = os.environ.get("STRICT", "0") not in ("", "0") if strict is None else strict
        self.rows = []
        self.started, self.others = time.monotonic(), Others()

    def note(self, text):
        print(text, file=self.err, flush=True)

    def pairs(self, ours, theirs, metrics, peer, n=5, warm_up=1, rung=None, **args):
        """Runs ours() and theirs() in turn; each returns {metric: value}. Emits a line a metric.

        What of @args is callable is asked once the pairs have run."""
        if n < 1:
            raise ValueError("at least one pair")
        values, others = {name: [] for name in metrics}, None
        for i in range(warm_up + n):
            if i == warm_up:
                others = Others()
            a, b = ours(), theirs()
            if i >= warm_up:
                for name in metrics:
                    values[name].append((a[name], b[name]))
        share = others.share()
        args = {key: value() if callable(value) else value for key, value in args.items()}
        for name, metric in metrics.items():
            self.emit(name, metric, values[name], peer, rung, share, {**args, **metric.args})

    def emit(self, name, metric, pairs, peer, rung, others, args):
        ratios = [metric.ratio(a, b) for a, b in pairs]
        ratio = statistics.median(ratios)
        row = {"bench": self.name, "metric": name, "unit": metric.unit,
               "ours": statistics.median(a for a, _ in pairs), "peer": peer,
               "theirs": statistics.median(b for _, b in pairs), "ratio": ratio,
               "goal_ratio": metric.goal, "runs": len(pairs),
               "spread": (max(ratios) - min(ratios)) / ratio, "rung": rung, "args": args,
               "others_cpu": others, "date": datetime.date.today().isoformat()}
        row = {key: float(f"{value:.4g}") if isinstance(value, float) else value
               for key, value in row.items()}
        self.rows.append(row)
        print(json.dumps(row), file=self.out, flush=True)

    def missed(self):
        return [row for row in self.rows if row["goal_ratio"] and row["ratio"] < row["goal_ratio"]]

    def finish(self):
        """Prints the table; returns the exit status."""
        lines = [("metric", "ours", "theirs", "unit", "ratio", "goal", "spread", "peer")]
        for row in self.rows:
            args = " ".join(f"{key}={value}" for key, value in row["args"].items())
            lines.append((f"{row['metric']} {args}".strip(), f"{row['ours']:g}", f"{row['theirs']:g}",
                          row["unit"], f"{row['ratio']:.3g}",
                          f"{row['goal_ratio']:g}" if row["goal_ratio"] else "-",
                          f"{row['spread']:.2f}", row["peer"]))
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        self.note(f"{self.name}: {machine()}, {datetime.date.today()}, "
                  f"{time.monotonic() - self.started:.0f} s, other work took "
                  f"{self.others.share():.0%} of the CPUs")
        for line in lines:
            cells = [cell.ljust(width) if i in (0, 3, 7) else cell.rjust(width)
                     for i, (cell, width) in enumerate(zip(line, widths))]
            self.note("  " + "  ".join(cells).rstrip())
        for row in self.missed():
            self.note(f"  below the goal: {row['metric']}: {row['ratio']:.3g} < {row['goal_ratio']:g}")
        return 1 if self.strict and self.missed() else 0
