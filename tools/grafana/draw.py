# SPDX-License-Identifier: Apache-2.0
"""The dashboard's panels as a picture, from what Prometheus has: where Grafana would put them, with its titles, legends and units.
It shows what the panels say, not how Grafana draws them.
"""

import math
import re

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402 (the backend is chosen first)
from matplotlib.ticker import FuncFormatter  # noqa: E402

COLUMNS = 24  # of Grafana's grid
PREFIXES = ["", "k", "M", "G", "T"]
UNITS = {"Bps": "B/s", "bytes": "B", "ops": "/s", "s": "s", "percentunit": "%", "short": ""}


def number(value, unit):
    """As Grafana shows it: three digits, with a prefix where it is large."""
    if math.isnan(value):
        return "no data"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    thousands = min(int(math.log10(abs(value)) / 3), len(PREFIXES) - 1) if abs(value) >= 1000 else 0
    after = unit.partition("suffix:")[2].strip() or UNITS.get(unit, unit)
    return f"{value / 1000**thousands:.3g} {PREFIXES[thousands]}{after}".rstrip()


def name(series, legend):
    return re.sub(r"{{(\w+)}}", lambda found: series["metric"].get(found.group(1), ""), legend or "") or "value"


def points(series):
    times, values = zip(*[(float(t), float(v)) for t, v in series["values"]])
    return times, values


def stat(axes, panel, defaults, curve):
    results = [series for target in panel["targets"] for series in curve(target["expr"])]
    value = points(results[0])[1][-1] if results else math.nan
    color = "black"
    for step in defaults.get("thresholds", {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    axes.text(0.5, 0.45, number(value, defaults.get("unit", "short")), ha="center", va="center", fontsize=22, color=color, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def timeseries(axes, panel, defaults, curve, begin):
    unit = defaults.get("unit", "short")
    custom = defaults.get("custom", {})
    below = {} if custom.get("stacking", {}).get("mode") == "normal" else None  # tops of the stack so far, by time
    for target in panel["targets"]:
        for series in curve(target["expr"]):
            times, values = points(series)
            shown, label = [t - begin for t in times], name(series, target.get("legendFormat"))
            if below is None:
                axes.plot(shown, values, linewidth=1.2, label=label, clip_on=False)
                continue
            bottoms = [below.get(t, 0.0) for t in times]
            tops = [v + b for v, b in zip(values, bottoms)]
            axes.fill_between(shown, bottoms, tops, alpha=0.6, label=label)
            below.update(zip(times, tops))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, unit)))
    axes.tick_params(labelsize=7)
    axes.xaxis.set_major_formatter("{x:.0f} s")
    low, high = axes.get_ylim()
    axes.set_ylim(defaults.get("min", min(0, low)), max(high, custom.get("axisSoftMax", high)))
    if custom.get("thresholdsStyle", {}).get("mode") == "dashed":
        for step in defaults["thresholds"]["steps"][1:]:
            if step["value"] <= axes.get_ylim()[1]:  # as Grafana, which does not widen the axis for it
                axes.axhline(step["value"], color="red", linestyle="--", linewidth=0.8)
    axes.grid(True, linewidth=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=6, loc="best", framealpha=0.7)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", transform=axes.transAxes)


def dashboard(file, panels, curve, begin):
    """curve(EXPRESSION): its series over the time that is drawn, from `begin` on, as Prometheus' query_range gives them."""
    shown = [panel for panel in panels if panel["type"] in ("stat", "timeseries")]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shown)
    figure = pyplot.figure(figsize=(14, 0.38 * rows))
    for panel in shown:
        at = panel["gridPos"]  # from the top, in units of the grid; room for a title above, and for ticks below and on the left
        axes = figure.add_axes((
            (at["x"] + 1.2) / COLUMNS, 1 - (at["y"] + at["h"] - 0.8) / rows, (at["w"] - 1.4) / COLUMNS, (at["h"] - 1.8) / rows,
        ))  # fmt: skip
        axes.set_title(panel["title"], fontsize=8, loc="left")
        defaults = panel.get("fieldConfig", {}).get("defaults", {})
        if panel["type"] == "stat":
            stat(axes, panel, defaults, curve)
        else:
            timeseries(axes, panel, defaults, curve, begin)
    figure.savefig(file, dpi=80)
