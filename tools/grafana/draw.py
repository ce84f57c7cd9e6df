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
    return f"{value / 1000**thousands:.3g} {PREFIXES[thousands]}{UNITS.get(unit, unit)}".rstrip()


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
    for target in panel["targets"]:
        for series in curve(target["expr"]):
            times, values = points(series)
            axes.plot([t - begin for t in times], values, linewidth=1.2, label=name(series, target.get("legendFormat")))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, unit)))
    axes.tick_params(labelsize=7)
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.grid(True, linewidth=0.3)
    if axes.lines:
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
