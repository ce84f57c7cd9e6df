# SPDX-License-Identifier: Apache-2.0
"""Compare delivered gradients with exact ones, by parameter and by step: as a table, as CSV files, and as plots with matplotlib
(without it as files for gnuplot).

    1 - cos   distance in direction of the delivered sum from the exact one; about half the square of the angle
    NMSE      energy of the difference over energy of the exact sum
    bits      on the wire a value, headers included
"""
import csv
import math
import os

from ._arrays import is_tensor


def _moments(exact, delivered):
    """Energies of both and of their difference, and their product, in double precision."""
    if is_tensor(exact):
        a, b = exact.detach().double().reshape(-1), delivered.detach().double().reshape(-1)
        d = a - b
        return (a @ a).item(), (b @ b).item(), (d @ d).item(), (a @ b).item()
    import numpy
    a, b = numpy.asarray(exact, dtype=float).ravel(), numpy.asarray(delivered, dtype=float).ravel()
    d = a - b
    return float(a @ a), float(b @ b), float(d @ d), float(a @ b)


def _figures(m):
    """1 - cos and NMSE. 1 - cos comes from the difference: with the product alone it would drown in rounding."""
    aa, bb, dd, _ = m
    if not aa > 0 or not bb > 0:
        return float(not aa == bb), float("nan") if dd > 0 else 0.0
    norms = math.sqrt(aa * bb)
    return max(0.0, (dd - (math.sqrt(aa) - math.sqrt(bb)) ** 2) / (2 * norms)), dd / aa


class Comparison:
    """skip: number of first steps that the table leaves out (steps of the warm-up are exact). A step ends with step(), or when
    add() gets a name that the step has already."""

    def __init__(self, skip=0):
        self.skip = skip
        self.parameters = {}  # name: [values, steps, sum of 1 - cos, largest, sum of NMSE]
        self.steps = []       # (step, 1 - cos of all values, NMSE, bits a value) of each ended step
        self.losses = {}      # name: [(step, loss)]
        self._now = [0.0] * 4
        self._names = set()   # of the current step
        self._sent = None, 4  # figures and bytes a value, of the last add()
        self._before = (0, 0)

    def add(self, name, exact, delivered, figures=None, value_bytes=4):
        """Add a parameter of the current step: its exact sum, and the delivered one. figures: as for step(), where nothing calls
        step()."""
        if name in self._names:
            self.step(*self._sent)
        self._names.add(name)
        self._sent = figures, value_bytes
        m = _moments(exact, delivered)
        self._now = [a + b for a, b in zip(self._now, m)]
        if len(self.steps) < self.skip:
            return
        cos, nmse = _figures(m)
        p = self.parameters.setdefault(name, [exact.numel() if is_tensor(exact) else exact.size, 0, 0.0, 0.0, 0.0])
        p[1] += 1
        p[2] += cos
        p[3] = max(p[3], cos)
        p[4] += nmse

    def step(self, figures=None, value_bytes=4):
        """End the step. figures: the Cluster's, for the bits per value."""
        self.steps.append(self._row(figures, value_bytes))
        if figures:
            self._before = (figures.bytes, figures.wire_bytes)
        self._now = [0.0] * 4
        self._names = set()

    def _row(self, figures, value_bytes):
        bits = float("nan")
        if figures:
            sent, wire = figures.bytes - self._before[0], figures.wire_bytes - self._before[1]
            bits = 8.0 * value_bytes * wire / sent if sent else float("nan")
        return (len(self.steps), *_figures(self._now), bits)

    def all_steps(self):
        """Return the rows of `steps`, and a row of the current step if it has any values."""
        return self.steps + ([self._row(*self._sent)] if self._names else [])

    def loss(self, name, step, value):
        """Add a point to a loss curve: "exact", "nibble", ..."""
        self.losses.setdefault(name, []).append((step, float(value)))

    def rows(self):
        """Return (name, values, mean of 1 - cos, largest, mean NMSE) of each parameter, the worst first."""
        rows = [(name, n, c / s, worst, e / s) for name, (n, s, c, worst, e) in self.parameters.items()]
        return sorted(rows, key=lambda row: -row[2])

    def summary(self):
        """Return the means over the counted steps: {"1 - cos", "NMSE", "bits"}."""
        counted = self.all_steps()[self.skip:]
        if not counted:
            return {}
        mean = [sum(row[i] for row in counted) / len(counted) for i in (1, 2, 3)]
        return dict(zip(("1 - cos", "NMSE", "bits"), mean))

    def table(self, most=None):
        rows = self.rows()
        width = max([len(row[0]) for row in rows] + [9])
        lines = [f"{'parameter':{width}}  {'values':>10}  {'1 - cos':>9}  {'largest':>9}  {'NMSE':>9}"]
        for name, n, cos, worst, nmse in rows[:most]:
            lines.append(f"{name:{width}}  {n:10d}  {cos:9.2e}  {worst:9.2e}  {nmse:9.2e}")
        if most is not None and len(rows) > most:
            lines.append(f"... and {len(rows) - most} more")
        s = self.summary()
        if s:
            lines.append(f"{'all values':{width}}  {sum(row[1] for row in rows):10d}  {s['1 - cos']:9.2e}  {'':9}  "
                         f"{s['NMSE']:9.2e}  {s['bits']:.2f} bits a value, {len(self.all_steps()) - self.skip} steps")
        for name, curve in self.losses.items():
            tail = [v for _, v in curve[-max(1, len(curve) // 10):]]
            lines.append(f"loss, {name}: {curve[0][1]:.4f} at first, {sum(tail) / len(tail):.4f} over the last "
                         f"{len(tail)} of {len(curve)} points")
        return "\n".join(lines)

    def write(self, folder):
        """Write parameters.csv, steps.csv, loss.csv, report.txt and plots into `folder`. Return the files."""
        os.makedirs(folder, exist_ok=True)

        def put(name, head, rows):
            with open(os.path.join(folder, name), "w", newline="", encoding="utf-8") as f:
                writer = csv.writer(f)
                writer.writerow(head)
                writer.writerows(rows)
            return name

        files = [put("parameters.csv", ("parameter", "values", "1-cos", "largest", "nmse"), self.rows()),
                 put("steps.csv", ("step", "1-cos", "nmse", "bits"), self.all_steps()),
                 put("loss.csv", ("curve", "step", "loss"),
                     [(name, *point) for name, curve in self.losses.items() for point in curve])]
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

    def _matplotlib(self, folder):
        import matplotlib.pyplot as plt
        rows = self.rows()[:24][::-1]
        figure, axes = plt.subplots(2, 2, figsize=(12, 8))
        (bars, steps), (losses, difference) = axes
        if rows:
            bars.barh([row[0] for row in rows], [row[2] for row in rows])
        bars.set_title("1 - cos by parameter, the largest")
        bars.tick_params(axis="y", labelsize=6)
        for column, name in ((1, "1 - cos"), (2, "NMSE")):
            rows = self.all_steps()
            steps.semilogy([s[0] for s in rows], [max(s[column], 1e-17) for s in rows], label=name)
        steps.set_title("all values")
        steps.legend()
        for name, curve in self.losses.items():
            losses.plot(*zip(*curve), label=name, linewidth=1)
        losses.set_title("loss")
        if self.losses:
            losses.legend()
            first, *others = self.losses
            base = dict(self.losses[first])
            for name in others:
                pairs = [(step, loss - base[step]) for step, loss in self.losses[name] if step in base]
                difference.plot(*zip(*pairs), label=f"{name} - {first}", linewidth=1)
            if others:
                difference.legend()
        difference.set_title("loss, difference")
        for axis in (steps, losses, difference):
            axis.set_xlabel("step")
        figure.tight_layout()
        figure.savefig(os.path.join(folder, "report.png"), dpi=80)
        plt.close(figure)
        return ["report.png"]

    def _gnuplot(self, folder):
        curves = ", ".join(f"'loss.csv' using (strcol(1) eq '{name}' ? $2 : NaN):3 with lines title '{name}'"
                           for name in self.losses)
        with open(os.path.join(folder, "report.gp"), "w", encoding="utf-8") as f:
            f.write("# gnuplot report.gp\nset datafile separator ','\nset terminal pngcairo size 1200,500\n"
                    "set output 'report.png'\nset multiplot layout 1,2\nset logscale y\nset xlabel 'step'\n"
                    "plot 'steps.csv' every ::1 using 1:2 with lines title '1 - cos', "
                    "'' every ::1 using 1:3 with lines title 'NMSE'\nunset logscale y\n"
                    + (f"plot {curves}\n" if curves else "") + "unset multiplot\n")
        return ["report.gp"]
