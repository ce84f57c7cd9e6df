# SPDX-License-Identifier: Apache-2.0
"""Compare delivered gradients with exact ones, by parameter and by step: as a table, as CSV files, as dictionaries for
Weights & Biases or TensorBoard, and as plots with matplotlib (without it as files for gnuplot).

    1 - cos   distance in direction of the delivered sum from the exact one; about half the square of the angle
    NMSE      energy of the difference over energy of the exact sum
    bits      on the wire a value, headers included
    update    1 - cos of the update that AdamW makes of the delivered sums, beside that of the exact ones
    norm      its norm over that of the exact update: noise in the sums shrinks it
"""
from __future__ import annotations

import csv
import math
import os
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ._arrays import Array, is_tensor
from .cluster import Figures

Point = Tuple[int, float]             # step, value
Row = Tuple[int, float, float, float]  # step, 1 - cos of all values, NMSE, bits a value

# 97.5 % quantiles of Student's t, by degrees of freedom from 1 on.
T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


COLORS = ("#c9d1d9", "#0b7285", "#e8590c", "#5f3dc4")  # of loss curves, the exact one first
STYLES = ("-", "-", "--", ":", "-.")  # of the curves: a curve shows through those drawn over it


class Verdict(NamedTuple):
    """What coding does to a final loss, beside what the seed does to it."""
    mean: float    # of coded less exact, over the seeds
    half: float    # half the width of its 95 % interval; nan with one seed
    spread: float  # standard deviation of the exact loss between seeds; nan with one seed
    seeds: int

    @property
    def seen(self) -> bool:
        """Whether the interval excludes 0."""
        return self.seeds > 1 and abs(self.mean) > self.half

    def __str__(self) -> str:
        if self.seeds < 2:
            return f"coding changes the loss by {self.mean:+.4f} with one seed: two and more tell whether that means anything"
        text = (f"coding changes the loss by {self.mean:+.4f} +- {self.half:.4f} (95 %, {self.seeds} seeds), "
                f"seeds by {self.spread:.4f}: ")
        if not self.seen:
            return text + "no difference seen"
        size = "less than seeds do" if abs(self.mean) < self.spread else "more than seeds do"
        return text + ("worse, by " if self.mean > 0 else "better, by ") + size


def verdict(exact: Sequence[float], coded: Sequence[float]) -> Verdict:
    """Compare final losses of pairs of runs, exact and coded, each pair from a seed of its own."""
    if len(exact) != len(coded) or not exact:
        raise ValueError(f"{len(exact)} exact losses and {len(coded)} coded ones are no pairs")
    n, differences = len(exact), [c - e for e, c in zip(exact, coded)]
    mean = sum(differences) / n
    if n == 1:
        return Verdict(mean, math.nan, math.nan, 1)
    return Verdict(mean, T[min(n - 1, len(T)) - 1] * _deviation(differences) / math.sqrt(n), _deviation(exact), n)


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else math.nan


def exact_sum(parts: Sequence[Array]) -> Array:
    """Return the sum of tensors in double precision, in their order."""
    total = parts[0].double()
    for part in parts[1:]:
        total = total + part.double()
    return total


def _moments(exact: Array, delivered: Array) -> Tuple[float, float, float, float]:
    """Energies of both and of their difference, and their product, in double precision."""
    if is_tensor(exact):
        a, b = exact.detach().double().reshape(-1), delivered.detach().double().reshape(-1)
        d = a - b
        return (a @ a).item(), (b @ b).item(), (d @ d).item(), (a @ b).item()
    import numpy
    a, b = numpy.asarray(exact, dtype=float).ravel(), numpy.asarray(delivered, dtype=float).ravel()
    d = a - b
    return float(a @ a), float(b @ b), float(d @ d), float(a @ b)


def _figures(m: Sequence[float]) -> Tuple[float, float]:
    """1 - cos and NMSE. 1 - cos comes from the difference: with the product alone it would drown in rounding."""
    aa, bb, dd, _ = m
    if not aa > 0 or not bb > 0:
        return float(not aa == bb), float("nan") if dd > 0 else 0.0
    norms = math.sqrt(aa * bb)
    return max(0.0, (dd - (math.sqrt(aa) - math.sqrt(bb)) ** 2) / (2 * norms)), dd / aa


class _Adam:
    """AdamW's moments of a parameter, of exact and of delivered sums, without weight decay."""

    def __init__(self) -> None:
        self.step = 0
        self.moments: List[Tuple[Array, Array]] = []

    def update(self, exact: Array, delivered: Array) -> Tuple[float, float, float, float]:
        """Take in both sums and return the energies of their updates (see _moments)."""
        self.step += 1
        before, made = self.moments or [(0.0, 0.0)] * 2, []
        self.moments = []
        for g, (m, v) in zip((exact, delivered), before):
            g = g.detach().float() if is_tensor(g) else g.astype("float32")
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
            self.moments.append((m, v))
            made.append(m / (1 - 0.9 ** self.step) / ((v / (1 - 0.95 ** self.step)) ** 0.5 + 1e-8))
        return _moments(*made)


class Comparison:
    """skip: number of first steps that the table leaves out (steps of the warm-up are exact). A step ends with step(), or when
    add() gets a name that the step has already."""

    def __init__(self, skip: int = 0) -> None:
        self.skip = skip
        self.parameters: Dict[str, List[float]] = {}  # name: [values, steps, sum of 1 - cos, largest, sum of NMSE]
        self.steps: List[Row] = []                    # of each ended step
        self.losses: Dict[str, Dict[int, List[Point]]] = {}  # by name, and by seed
        self.final: Dict[str, List[float]] = {}       # final losses by name, one a seed
        self.updates: Dict[str, List[float]] = {}     # name: [steps, sum of 1 - cos, sum of norm ratios]
        self._adam: Dict[str, _Adam] = {}
        self._updated = [0.0] * 4                     # energies of all updates
        self._now = [0.0] * 4
        self._names: set[str] = set()                 # of the current step
        self._sent: Tuple[Optional[Figures], int] = (None, 4)  # figures and bytes a value, of the last add()
        self._before = (0, 0)
        self._run_at = 0                              # steps of earlier runs
        self.arms: Dict[str, Comparison] = {}         # see arm()

    def add(self, name: str, exact: Array, delivered: Array, figures: Optional[Figures] = None, value_bytes: int = 4) -> None:
        """Add a parameter of the current step: its exact sum, and the delivered one. figures: as for step(), where nothing calls
        step()."""
        if name in self._names:
            self.step(*self._sent)
        self._names.add(name)
        self._sent = figures, value_bytes
        m = _moments(exact, delivered)
        self._now = [a + b for a, b in zip(self._now, m)]
        u = self._adam.setdefault(name, _Adam()).update(exact, delivered)
        if len(self.steps) - self._run_at < self.skip:
            return
        cos, nmse = _figures(m)
        p = self.parameters.setdefault(name, [exact.numel() if is_tensor(exact) else exact.size, 0, 0.0, 0.0, 0.0])
        p[1] += 1
        p[2] += cos
        p[3] = max(p[3], cos)
        p[4] += nmse
        self._updated = [a + b for a, b in zip(self._updated, u)]
        if u[0] > 0:
            q = self.updates.setdefault(name, [0, 0.0, 0.0])
            q[0] += 1
            q[1] += _figures(u)[0]
            q[2] += math.sqrt(u[1] / u[0])

    def step(self, figures: Optional[Figures] = None, value_bytes: int = 4) -> None:
        """End the step. figures: the Cluster's, for the bits per value."""
        self.steps.append(self._row(figures, value_bytes))
        if figures:
            self._before = (figures.bytes, figures.wire_bytes)
        self._now = [0.0] * 4
        self._names = set()

    def _row(self, figures: Optional[Figures], value_bytes: int) -> Row:
        bits = float("nan")
        if figures:
            sent, wire = figures.bytes - self._before[0], figures.wire_bytes - self._before[1]
            bits = 8.0 * value_bytes * wire / sent if sent else float("nan")
        return (len(self.steps) - self._run_at, *_figures(self._now), bits)

    def all_steps(self) -> List[Row]:
        """Return the rows of `steps`, and a row of the current step if it has any values."""
        return self.steps + ([self._row(*self._sent)] if self._names else [])

    def loss(self, name: str, step: int, value: float, seed: int = 1) -> None:
        """Add a point to a loss curve: "exact", "nibble", ..."""
        self.losses.setdefault(name, {}).setdefault(seed, []).append((step, float(value)))

    def finish(self, name: str, value: float) -> None:
        """Note the final loss of a run, for verdict(): pairs of "exact" and "nibble" in the order of seeds."""
        self.final.setdefault(name, []).append(float(value))

    def begin_run(self) -> None:
        """Begin another run with another cluster. Its steps count from 0 again."""
        if self._names:
            self.step(*self._sent)
        self._before, self._run_at, self._adam = (0, 0), len(self.steps), {}

    def arm(self, name: str) -> Comparison:
        """Return the comparison of another arm's sums, such as a run without feedback. The report gives its
        error beside that of "nibble". Its losses come through this comparison's loss(name, ...) and
        finish(name, ...)."""
        return self.arms.setdefault(name, Comparison(self.skip))

    def verdict(self, name: str = "nibble") -> Optional[Verdict]:
        """Return what an arm's coding does to the final loss, or None without pairs of finish()."""
        exact, coded = self.final.get("exact", []), self.final.get(name, [])
        n = min(len(exact), len(coded))
        return verdict(exact[:n], coded[:n]) if n else None

    def scalars(self, prefix: str = "nibble/") -> Dict[str, float]:
        """Return the last step's figures, and the last points of the loss curves, by name: for wandb.log(...), or for
        add_scalar of TensorBoard's SummaryWriter, one after the other."""
        found: Dict[str, float] = {}
        rows = self.all_steps()
        if rows:
            found = {"1-cos": rows[-1][1], "nmse": rows[-1][2], "bits": rows[-1][3]}
        for name, curves in self.losses.items():
            found[f"loss/{name}"] = list(curves.values())[-1][-1][1]
        return {prefix + name: value for name, value in found.items() if math.isfinite(value)}

    def rows(self) -> List[Tuple[str, int, float, float, float]]:
        """Return (name, values, mean of 1 - cos, largest, mean NMSE) of each parameter, the worst first."""
        rows = [(name, int(n), c / s, worst, e / s) for name, (n, s, c, worst, e) in self.parameters.items()]
        return sorted(rows, key=lambda row: -row[2])

    def _counted(self) -> List[Row]:
        return [row for row in self.all_steps() if row[0] >= self.skip]

    def summary(self) -> Dict[str, float]:
        """Return the means over the counted steps: {"1 - cos", "NMSE", "bits", "update", "norm"}."""
        counted = self._counted()
        if not counted:
            return {}
        mean = [sum(row[i] for row in counted) / len(counted) for i in (1, 2, 3)]
        if self._updated[0] > 0:
            mean += [_figures(self._updated)[0], math.sqrt(self._updated[1] / self._updated[0])]
        return dict(zip(("1 - cos", "NMSE", "bits", "update", "norm"), mean))

    def update_of(self, name: str) -> Tuple[float, float]:
        """Return the means of 1 - cos and of the norm ratio of a parameter's updates, nan without any."""
        n, cos, norm = self.updates.get(name, [0, math.nan, math.nan])
        return cos / max(n, 1), norm / max(n, 1)

    def table(self, most: Optional[int] = None) -> str:
        rows = self.rows()
        width = max([len(row[0]) for row in rows] + [9])
        lines = [f"{'parameter':{width}}  {'values':>10}  {'1 - cos':>9}  {'largest':>9}  {'NMSE':>9}"
                 f"  {'update':>9}  {'norm':>6}"]
        for name, n, cos, worst, nmse in rows[:most]:
            update, norm = self.update_of(name)
            lines.append(f"{name:{width}}  {n:10d}  {cos:9.2e}  {worst:9.2e}  {nmse:9.2e}  {update:9.2e}"
                         f"  {norm:6.4f}")
        if most is not None and len(rows) > most:
            lines.append(f"... and {len(rows) - most} more")
        s = self.summary()
        if s:
            lines.append(f"{'all values':{width}}  {sum(row[1] for row in rows):10d}  {s['1 - cos']:9.2e}"
                         f"  {'':9}"
                         f"  {s['NMSE']:9.2e}  {s.get('update', math.nan):9.2e}"
                         f"  {s.get('norm', math.nan):6.4f}")
            lines.append(f"{s['bits']:.2f} bits a value, {len(self._counted())} steps")
            lines += [self._beside(name, s, other.summary()) for name, other in self.arms.items()]
        for name in self.losses:
            curve = self._mean_curve(name)
            tail = [v for _, v in curve[-max(1, len(curve) // 10):]]
            lines.append(f"loss, {name}: {curve[0][1]:.4f} at first, {sum(tail) / len(tail):.4f} over the last "
                         f"{len(tail)} of {len(curve)} points")
        for name in ("nibble", *self.arms):
            judged = self.verdict(name)
            if judged:
                lines.append(f"{name}: {judged}")
        return "\n".join(lines)

    @staticmethod
    def _beside(name: str, mine: Dict[str, float], other: Dict[str, float]) -> str:
        """Compare an arm's errors with those of "nibble"."""
        if not mine.get("update") or not other.get("update"):
            return f"{name}: nothing to compare"
        times = other["update"] / mine["update"]
        return (f"{name}: NMSE {other['NMSE']:.2e}, update {other['update']:.2e}, norm {other['norm']:.4f}: "
                "nibble's update is "
                + (f"{times:.1f} times closer" if times >= 1 else f"{1 / times:.1f} times as far off"))

    def write(self, folder: str) -> List[str]:
        """Write parameters.csv, steps.csv, loss.csv, report.txt and plots into `folder`. Return the files."""
        os.makedirs(folder, exist_ok=True)

        def put(name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
            with open(os.path.join(folder, name), "w", newline="", encoding="utf-8") as f:
                writer = csv.writer(f)
                writer.writerow(head)
                writer.writerows(rows)
            return name

        files = [put("parameters.csv",
                     ("parameter", "values", "1-cos", "largest", "nmse", "update 1-cos", "norm"),
                     [(*row, *self.update_of(row[0])) for row in self.rows()]),
                 put("steps.csv", ("step", "1-cos", "nmse", "bits"), self.all_steps()),
                 put("loss.csv", ("curve", "seed", "step", "loss"),
                     [(name, seed, *point) for name, curves in self.losses.items() for seed, curve in curves.items()
                      for point in curve])]
        with open(os.path.join(folder, "report.txt"), "w", encoding="utf-8") as f:
            f.write(self.table() + "\n")
        files.append("report.txt")
        try:
            import matplotlib
        except ImportError:
            files += self._gnuplot(folder)
        else:
            matplotlib.use("Agg")
            files += self._matplotlib(folder)
        return [os.path.join(folder, name) for name in files]

    def _mean_curve(self, name: str) -> List[Point]:
        """Return the mean over the seeds at each step that all of them have."""
        by_step: Dict[int, List[float]] = {}
        for curve in self.losses[name].values():
            for step, value in curve:
                by_step.setdefault(step, []).append(value)
        return [(step, sum(v) / len(v)) for step, v in sorted(by_step.items()) if len(v) == len(self.losses[name])]

    def _differences(self, name: str, base: str) -> Dict[int, List[float]]:
        """Return the losses of one curve less another's, by step, a value a seed."""
        found: Dict[int, List[float]] = {}
        for seed, curve in self.losses[name].items():
            under = dict(self.losses[base].get(seed, []))
            for step, value in curve:
                if step in under:
                    found.setdefault(step, []).append(value - under[step])
        return found

    def _band(self, base: str) -> Tuple[float, str]:
        """Return the size of differences that mean nothing, and its name: of the last tenth of the exact losses, the
        deviation between seeds, or with one seed from step to step."""
        curves = list(self.losses[base].values())
        tails = [[v for _, v in curve[-max(2, len(curve) // 10):]] for curve in curves]
        if len(curves) > 1:
            return _deviation([sum(tail) / len(tail) for tail in tails]), f"{len(curves)} seeds of the exact run"
        return _deviation(tails[0]), "steps of the exact run"

    def _matplotlib(self, folder: str) -> List[str]:
        import matplotlib.pyplot as plt
        figure, axes = plt.subplots(2, 2, figsize=(12, 7.5))
        (losses, difference), (steps, bars) = axes
        self._plot_losses(losses, difference)
        self._plot_errors(steps, bars)
        judged = self.verdict()
        figure.suptitle(str(judged) if judged else "coded beside exact", fontsize=11)
        figure.tight_layout()
        figure.savefig(os.path.join(folder, "report.png"), dpi=80)
        plt.close(figure)
        return ["report.png"]

    def _plot_losses(self, losses: Any, difference: Any) -> None:
        """On the left the curves, the first one wide and light so that it shows behind the others. On the right their
        difference, beside the noise."""
        for color, style, name in zip(COLORS, STYLES, self.losses):
            losses.plot(*zip(*self._mean_curve(name)), style, label=name, color=color,
                        linewidth=1.3 if color != COLORS[0] else 6.0)
        losses.set(title="loss", xlabel="step", ylabel="loss")
        difference.set(title="loss: coded less exact", xlabel="step", ylabel="difference of loss")
        if not self.losses:
            return
        losses.legend(frameon=False)
        base, *others = self.losses
        band, of = self._band(base)
        if math.isfinite(band) and band > 0:
            difference.axhspan(-band, band, color="#e9ecef", label=f"noise: +- one deviation of {of}")
        difference.axhline(0, color="#868e96", linewidth=0.8)
        for color, style, name in zip(COLORS[1:], STYLES[1:], others):
            found = self._differences(name, base)
            window = max(1, len(found) // 20)
            means = [sum(v) / len(v) for _, v in sorted(found.items())]
            smooth = [sum(means[max(0, i - window + 1):i + 1]) / len(means[max(0, i - window + 1):i + 1])
                      for i in range(len(means))]
            difference.plot(sorted(found), smooth, style, linewidth=1.5, color=color,
                            label=f"{name}, mean of {window} steps" if window > 1 else name)
        low, high = difference.get_ylim()
        difference.set_ylim(low, high + 0.25 * (high - low))  # room for the legend above the band
        difference.legend(frameon=False, fontsize=8, loc="upper left")

    def _plot_errors(self, steps: Any, bars: Any) -> None:
        """Raw steps have an error of rounding only, fourteen decades lower: they are a shade, not points."""
        errors: Dict[int, List[float]] = {}
        for row in self.all_steps():
            errors.setdefault(row[0], []).append(100 * row[2])
        coded = {step: values for step, values in sorted(errors.items()) if max(values) > 1e-7}
        first = min(coded, default=len(errors))
        if first > 0:
            steps.axvspan(0, first, color="#e9ecef", label="sent raw")
        if max(map(len, coded.values()), default=0) > 1:
            steps.fill_between(list(coded), [min(v) for v in coded.values()], [max(v) for v in coded.values()],
                               color="#c5e1e6", label="coded, range of the seeds")
        steps.plot(list(coded), [sum(v) / len(v) for v in coded.values()], color="#0b7285", linewidth=1.2,
                   label="coded, mean" if len(self.final.get("nibble", [])) > 1 else "coded")
        s = self.summary()
        bits = f", {s['bits']:.2f} bits a value" if s and math.isfinite(s["bits"]) else ""
        steps.set(title="error of a step's sums" + bits, xlabel="step", ylabel="NMSE, % of the sum's energy")
        steps.set_ylim(bottom=0)
        steps.legend(frameon=False, fontsize=8)
        worst = sorted(self.rows(), key=lambda row: -row[4])[:10][::-1]
        bars.barh([row[0] for row in worst], [100 * row[4] for row in worst], color="#74b9c4")
        if s:
            bars.axvline(100 * s["NMSE"], color="#0b7285", linewidth=1.2, label="all values")
            bars.legend(fontsize=8, loc="lower right")
        bars.set(title=f"the worst {len(worst)} of {len(self.rows())} parameters", xlabel="mean NMSE, % of the sum's energy")
        bars.tick_params(axis="y", labelsize=7)

    def _gnuplot(self, folder: str) -> List[str]:
        """loss.csv has the columns curve, seed, step, loss. `smooth unique` draws the mean of the seeds."""
        styles = [f"lw {1.5 if i else 6} dt {max(1, i)} lc rgb '{color}'" for i, color in enumerate(COLORS)]
        curves = ", ".join(f"'loss.csv' using (strcol(1) eq '{name}' ? $3 : NaN):4 smooth unique with lines {style} title '{name}'"
                           for style, name in zip(styles, self.losses))
        with open(os.path.join(folder, "report.gp"), "w", encoding="utf-8") as f:
            f.write("# gnuplot report.gp\nset datafile separator ','\nset datafile missing NaN\n"
                    "set terminal pngcairo size 1200,500\n"
                    "set output 'report.png'\nset multiplot layout 1,2\nset xlabel 'step'\n"
                    "set ylabel 'NMSE, % of the energy of the sum'\nset yrange [0:*]\n"
                    "plot 'steps.csv' every ::1 using ($3 > 1e-9 ? $1 : NaN):(100 * $3) smooth unique with lines lw 1.5 "
                    "lc rgb '#0b7285' title 'error of a step'\nset ylabel 'loss'\nset yrange [*:*]\n"
                    + (f"plot {curves}\n" if curves else "") + "unset multiplot\n")
        return ["report.gp"]
