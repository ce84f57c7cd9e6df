# SPDX-License-Identifier: Apache-2.0
"""Tables with confidence intervals, CSV files and plots from the records of quality.py."""

from __future__ import annotations

import csv
import math
import os
import shutil
import subprocess
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from methods import ARMS
from train import Config

Record = Dict[str, Any]
# 97.5 % quantiles of Student's t, by degrees of freedom from 1 on.
T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
# The job of the reckoned times: values of the model, seconds of compute a step (without overlap), and Gbit/s
# of a node's link.
VALUES, COMPUTE, RATES = 1.3e9, 1.0, (1, 10, 25, 100)
WEIGHT_BITS = 16.0  # of weights that a method sends as they are


class Interval(NamedTuple):
    mean: float
    half: float  # nan with one value

    def text(self, form: str = "+.3f") -> str:
        return f"{self.mean:{form}}" + (
            f" ± {self.half:{form.lstrip('+')}}" if math.isfinite(self.half) else ""
        )


def interval(values: Sequence[float]) -> Interval:
    """Return the mean and half the width of its 95 % confidence interval."""
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return Interval(mean, math.nan)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    t = T[n - 2] if n - 2 < len(T) else 1.96 + 2.5 / (n - 1)
    return Interval(mean, t * deviation / math.sqrt(n))


class Row(NamedTuple):
    """One arm beside the exact one."""

    arm: str
    bits: float  # a value of the gradients
    weight_bits: Optional[float]
    seeds: int
    loss: Interval  # held out
    gap: Interval  # % of the exact loss, by pairs
    cos: Dict[str, float]  # 1 - cos of the update, by class
    norm: Dict[str, float]
    nmse: float
    times: List[float]  # to the target loss, of the exact arm's with BF16, by RATES; nan if not reached


def groups(records: List[Record]) -> List[Tuple[Config, Dict[str, Dict[int, Record]]]]:
    """Return the records by configuration, arm and seed."""
    found: Dict[Config, Dict[str, Dict[int, Record]]] = {}
    for r in records:
        config = Config(*(r[name] for name in Config._fields))
        found.setdefault(config, {}).setdefault(r["arm"], {})[r["seed"]] = r
    return list(found.items())


def curve(runs: Sequence[Record]) -> List[Tuple[int, float]]:
    """Return the mean held-out loss by step, without the last one, which is of more text."""
    return [
        (step, sum(r["held"][i][1] for r in runs) / len(runs))
        for i, (step, _) in enumerate(runs[0]["held"][:-1])
    ]


def steps_to(line: List[Tuple[int, float]], target: float) -> float:
    """Return the step from which on the curve stays at or below the target, nan if it does not."""
    for i in range(len(line) - 1, -1, -1):
        if line[i][1] > target:
            if i + 1 == len(line):
                return math.nan
            (s0, l0), (s1, l1) = line[i], line[i + 1]
            return s0 + (s1 - s0) * (l0 - target) / (l0 - l1)
    return float(line[0][0])


def second_bits(arm: str, bits: float, weight_bits: Optional[float]) -> float:
    """Return bits a value of the second half: results of an all-reduce, or weights."""
    return bits if ARMS[arm].all_reduce else weight_bits or WEIGHT_BITS


def seconds(nodes: int, bits: float, rate: float) -> float:
    """Return the reckoned time of a step whose two halves take `bits` a value together."""
    return COMPUTE + (nodes - 1) / nodes * VALUES * bits / (rate * 1e9)


def rows(config: Config, arms: Dict[str, Dict[int, Record]]) -> List[Row]:
    found: List[Row] = []
    exact = arms.get("exact", {})
    for arm in (a for a in ARMS if a in arms):
        pairs = [(exact[s], r) for s, r in sorted(arms[arm].items()) if s in exact]
        if not pairs:
            continue
        base, runs = [p[0] for p in pairs], [p[1] for p in pairs]
        line = curve(base)
        target = line[int(0.9 * len(line))][1] if line else math.nan
        bits, weight_bits = sum(r["bits"] for r in runs) / len(runs), runs[0]["weight_bits"]
        both = bits + second_bits(arm, bits, weight_bits)
        need = [steps_to(curve(x), target) if line else math.nan for x in (base, runs)]
        times = [
            need[1] * seconds(config.nodes, both, r) / need[0] / seconds(config.nodes, 32.0, r) for r in RATES
        ]

        def mean(name: str) -> Dict[str, float]:
            kinds = runs[0].get(name, {})
            return {k: sum(r[name][k] for r in runs) / len(runs) for k in kinds}

        found.append(
            Row(
                arm,
                bits,
                weight_bits,
                len(runs),
                interval([r["held"][-1][1] for r in runs]),
                interval([100 * (r["held"][-1][1] / b["held"][-1][1] - 1) for b, r in pairs]),
                mean("cos"),
                mean("norm"),
                sum(r.get("nmse", math.nan) for r in runs) / len(runs),
                times,
            )
        )
    return found


def title(c: Config) -> str:
    return (
        f"{c.optimizer}, {c.nodes} nodes, {c.steps} steps, width {c.width}, {c.layers} layers, "
        f"{c.batch} sequences of {c.context} bytes a node, rate {c.rate:g}, the first {c.raw} steps raw"
        f"{', bfloat16' if c.bf16 else ''}"
    )


def tables(records: List[Record]) -> str:
    lines: List[str] = []
    for run, (config, arms) in enumerate(groups(records), 1):
        lines += [
            "",
            f"Run {run}: {title(config)}.",
            "",
            "| arm | bits a value | seeds | held-out loss against exact, % | 1 - cos, matrices | head | "
            "norm ratio | NMSE of sums | " + "time at 1 Gbit/s | " + " | ".join(map(str, RATES[1:])) + " |",
            "|---" * (8 + len(RATES)) + "|",
        ]
        for r in rows(config, arms):
            bits = f"{r.bits:.2f}" + (f", weights {r.weight_bits:.2f}" if r.weight_bits else "")
            gap = f"(loss {r.loss.text('.4f')})" if r.arm == "exact" else r.gap.text()
            update = (
                [f"{r.cos[k]:.5f}" for k in ("matrix", "head")] + [f"{r.norm['matrix']:.4f}", f"{r.nmse:.4f}"]
                if r.cos and r.cos["all"] > 0
                else ["0", "0", "1", "0"]
            )
            times = [f"{t:.2f}" if math.isfinite(t) else "-" for t in r.times]
            lines.append(
                "| " + " | ".join([ARMS[r.arm].title, bits, str(r.seeds), gap, *update, *times]) + " |"
            )
    return "\n".join(lines[1:])


def write(records: List[Record], out: str) -> List[str]:
    """Write summary.csv, curves.csv and, where gnuplot is installed, plots. Return the files."""
    files = [os.path.join(out, name) for name in ("summary.csv", "curves.csv")]
    with open(files[0], "w", newline="", encoding="utf-8") as f:
        w = csv.writer(f)
        kinds = ("matrix", "embedding", "layernorm", "bias", "head")
        w.writerow(
            [
                "run",
                *Config._fields,
                "arm",
                "bits",
                "weight_bits",
                "seeds",
                "loss",
                "gap_percent",
                "gap_half",
                "nmse",
                *(f"1-cos {k}" for k in kinds),
                *(f"norm {k}" for k in kinds),
                *(f"time {r} Gbit/s" for r in RATES),
            ]
        )
        for run, (config, arms) in enumerate(groups(records), 1):
            for r in rows(config, arms):
                w.writerow(
                    [
                        run,
                        *config,
                        r.arm,
                        f"{r.bits:.3f}",
                        r.weight_bits or "",
                        r.seeds,
                        f"{r.loss.mean:.6f}",
                        f"{r.gap.mean:.4f}",
                        f"{r.gap.half:.4f}",
                        f"{r.nmse:.6f}",
                        *(f"{d.get(k, math.nan):.6f}" for d in (r.cos, r.norm) for k in kinds),
                        *(f"{t:.4f}" for t in r.times),
                    ]
                )
    with open(files[1], "w", newline="", encoding="utf-8") as f:
        w = csv.writer(f)
        w.writerow(["run", "arm", "step", "held_out", "gap_percent", "gap_half", "megabytes"])
        for run, (config, arms) in enumerate(groups(records), 1):
            exact = arms.get("exact", {})
            for arm in (a for a in ARMS if a in arms):
                pairs = [(exact[s], r) for s, r in sorted(arms[arm].items()) if s in exact]
                for i in range(len(pairs[0][1]["held"]) - 1 if pairs else 0):
                    step = pairs[0][1]["held"][i][0]
                    gap = interval([100 * (r["held"][i][1] / b["held"][i][1] - 1) for b, r in pairs])
                    bits = pairs[0][1]["bits"]
                    both = bits + second_bits(arm, bits, pairs[0][1]["weight_bits"])
                    sent = (min(step, config.raw) * 32.0 + max(0, step - config.raw) * both) / 8e6
                    sent *= (config.nodes - 1) / config.nodes * values(config)
                    w.writerow(
                        [
                            run,
                            arm,
                            step,
                            f"{sum(r['held'][i][1] for _, r in pairs) / len(pairs):.6f}",
                            f"{gap.mean:.4f}",
                            f"{gap.half:.4f}",
                            f"{sent:.3f}",
                        ]
                    )
    return files + plots(records, out)


def values(c: Config) -> int:
    """Return the number of the model's parameters."""
    w = c.width
    return 256 * w + c.context * w + c.layers * (12 * w * w + 13 * w) + 2 * w + 256 * w


COLORS = ("#0b7285", "#e8a33d", "#c2255c", "#5f3dc4", "#2b8a3e", "#868e96", "#d9480f", "#1864ab")


def plots(records: List[Record], out: str) -> List[str]:
    """Draw the first configuration: gap against bits, gap along the run, loss against bytes, reckoned
    times."""
    if not shutil.which("gnuplot"):
        return []
    config, arms = groups(records)[0]
    table = [r for r in rows(config, arms) if r.arm != "exact"]
    if not table:
        return []
    by_gap = sorted(table, key=lambda r: -r.gap.mean)
    data = [
        "$gap << E\n"
        + "".join(f'{r.gap.mean} {i} {r.gap.half} "{r.arm}, {r.bits:.1f}"\n' for i, r in enumerate(by_gap))
        + "E\n"
    ]
    shown = [
        r.arm
        for r in table
        if r.arm in ("nibble", "nibble-ar", "nibble-ar8", "sdp4bit", "loco", "nvfp4", "dynamiq", "topk")
    ]
    where = os.path.join(out, "curves.csv").replace("'", "''")

    def pick(arm: str, y: str, x: str) -> str:
        return f"'{where}' using ($1 == 1 && strcol(2) eq '{arm}' ? {x} : NaN):({y})"

    # The first one's interval as a band: lines within it are not told apart.
    lines = [
        f"{pick(shown[0], '$5-$6):($5+$6', '$3')} with filledcurves lc rgb '#d0e7ea' "
        f"title '95 % of {shown[0]}'"
    ]
    lines += [
        f"{pick(a, '$5', '$3')} with lines lw 1.5 lc rgb '{c}' title '{a}'" for a, c in zip(shown, COLORS)
    ]
    by_bytes = [
        f"{pick(a, '$4', '$7')} with lines lw {w} lc rgb '{c}' title '{a}'"
        for a, c, w in zip(["exact", *shown], ("#c9d1d9", *COLORS), (4, *[1.5] * 8))
    ]
    times = [r for r in table if r.arm in shown]
    data.append(
        "$times << E\n"
        + "".join(
            f"{rate} "
            + " ".join(f"{r.times[i]}" if math.isfinite(r.times[i]) else "NaN" for r in times)
            + "\n"
            for i, rate in enumerate(RATES)
        )
        + "E\n"
    )
    bars = [
        f"$times using 1:{i + 2} with linespoints pt 7 ps 0.5 lw 1.5 lc rgb '{c}' title '{r.arm}'"
        for i, (r, c) in enumerate(zip(times, COLORS))
    ]
    script = "".join(data) + f"""set terminal svg size 980,760 font 'sans-serif,13' background '#ffffff'
set output '{os.path.join(out, "quality.svg").replace("'", "''")}'
set datafile missing 'NaN'
set grid ytics lc rgb '#dddddd'
set border 3 lc rgb '#888888'
set tics nomirror textcolor rgb '#333333'
unset key
set multiplot layout 2,2
set title 'held-out loss less exact, by arm and bits a value'
set xlabel '% of the exact loss'
set format x '%+.2f'
set yrange [-1:{len(by_gap)}]
set tics font ',10'
set arrow 1 from 0, graph 0 to 0, graph 1 nohead lc rgb '#868e96'
plot $gap using 1:2:3:ytic(4) with xerrorbars pt 7 ps 0.5 lc rgb '#0b7285'
unset arrow 1
set tics font ',12'
set yrange [*:*]
set ytics auto
set format x '%.0f'
set format y '%+.2f'
set ylabel '% of the exact loss'
set datafile separator ','
set title 'held-out loss less exact, along the run'
set xlabel 'step'
set key bmargin center horizontal Left reverse samplen 2 font ',10'  # for the panels below, too
plot 0 lc rgb '#868e96' notitle, {", ".join(lines)}
set title 'held-out loss and bytes (grey: exact)'
unset key
set xlabel 'MB that a node has sent'
set ylabel 'loss, nats a byte'
set format y '%.2f'
plot {", ".join(by_bytes)}
set datafile separator
set title 'reckoned time to the same loss'
set xlabel 'Gbit/s of a link'
set ylabel "time, part of exact BF16's"
set logscale x
set yrange [0:*]
set xtics (1, 10, 25, 100)
plot 1 lc rgb '#868e96' notitle, {", ".join(bars)}
unset multiplot
"""
    path = os.path.join(out, "quality.gp")
    with open(path, "w", encoding="utf-8") as f:
        f.write(script)
    run = subprocess.run(["gnuplot", path], capture_output=True, text=True, check=False)
    if run.returncode:
        print(run.stderr)
        return [path]
    return [path, os.path.join(out, "quality.svg")]
