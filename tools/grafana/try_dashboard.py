#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Try the dashboard and the alerts on a real Prometheus: try_dashboard.py FOLDER [PICTURE.png SECONDS]

FOLDER is where jobs write their metrics (NIBBLE_METRICS) while this runs. Starts Prometheus, which reads them every second as
it would from a node exporter, and evaluates each expression of the dashboard as Grafana would ask it. Prints a line for each.
With PICTURE.png the panels are drawn from what Prometheus has after SECONDS more, by draw.py (needs matplotlib).
Status 0: Prometheus takes all of them, and all whose metrics are in the folder have values; 1: not so; 77: no Prometheus here.
"""

import functools
import glob
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 60  # seconds until all have values
VARIABLES = {"$__rate_interval": "10s", "$job": ".*", "$node": ".*"}  # as Grafana fills them in
CONFIG = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: ['%s']
scrape_configs:
  - job_name: nibble
    honor_labels: true
    static_configs: [{targets: ['127.0.0.1:%d']}]
"""


class Metrics(http.server.BaseHTTPRequestHandler):
    """All files of a folder as one page, with each comment once, as a node exporter shows them."""

    def __init__(self, folder, *args):
        self.folder = folder
        super().__init__(*args)

    def do_GET(self):
        lines = samples(self.folder)
        seen = set()
        page = "".join(l for l in lines if not l.startswith("#") or not (l in seen or seen.add(l))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *args):
        pass


def samples(folder):
    lines = []
    for path in sorted(glob.glob(os.path.join(folder, "*.prom"))):
        with open(path, encoding="utf-8") as file:
            lines += file.readlines()
    return lines


def ask(port, path, **arguments):
    """The data of an answer of Prometheus; an exception with its reason where it refuses."""
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as err:
        raise ValueError(json.load(err).get("error", str(err))) from err


def panels():
    """The dashboard's, with Grafana's variables filled in."""
    with open(os.path.join(HERE, "nibble.json"), encoding="utf-8") as file:
        text = file.read()
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    return json.loads(text)["panels"]


def expressions():
    """(what it is called, expression) of each curve."""
    for panel in panels():
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def values(port, text):
    """How many series it has that are numbers."""
    return sum(series["value"][1] != "NaN" for series in ask(port, "query", query=text)["result"])


def judge(port, folder):
    """A line for each expression, and whether all is well."""
    lines, well = [], True
    there = {re.match(r"\w+", line).group() for line in samples(folder) if re.match(r"\w", line)}
    for title, text in expressions():
        missing = sorted(set(re.findall(r"\bnibble_\w+", text)) - there)
        try:
            found = values(port, text)
        except ValueError as err:
            lines.append(f"{title}: refused: {err}")
            well = False
            continue
        if found:
            lines.append(f"{title}: {found} series")
        elif missing:
            lines.append(f"{title}: nothing; no job writes {', '.join(missing)}")
        else:
            lines.append(f"{title}: NOTHING, though its metrics are written: {text}")
            well = False
    for label in "slurm_job_id", "node":
        found = ask(port, f"label/{label}/values", **{"match[]": "nibble_info"})
        lines.append(f"variable {label}: {len(found)} values")
        well = well and bool(found)
    for group in ask(port, "rules")["groups"]:
        for rule in group["rules"]:
            lines.append(f"alert {rule['name']}: {rule['health']} {rule.get('lastError', '')}".rstrip())
            well = well and rule["health"] == "ok"
    return lines, well


def picture(draw, port, file, seconds):
    """Let SECONDS pass, and draw what Prometheus has of them; draw: the module."""
    begin = time.time()
    time.sleep(seconds)

    def curve(text):
        return ask(port, "query_range", query=text, start=begin, end=begin + seconds, step=1)["result"]

    draw.dashboard(file, panels(), curve, begin)


def main():
    if len(sys.argv) not in (2, 4) or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    if not shutil.which("prometheus"):
        print("prometheus is not installed")
        return 77
    draw = None
    if len(sys.argv) == 4:
        try:
            import draw
        except ImportError as err:
            print(f"no picture can be drawn: {err}")
            return 77
    folder = sys.argv[1]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Metrics, folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as unused:
        port = unused.server_port  # free a moment ago
    with tempfile.TemporaryDirectory(prefix="nibble-prometheus-") as tmp:
        config = os.path.join(tmp, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG % (os.path.join(HERE, "nibble-alerts.yml"), server.server_port))
        with open(os.path.join(tmp, "log"), "w+", encoding="utf-8") as log:
            prometheus = subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp}/data", f"--web.listen-address=127.0.0.1:{port}"],
                stdout=log, stderr=log)  # fmt: skip
            lines, well, end = [], False, time.monotonic() + PATIENCE
            try:
                while not well and time.monotonic() < end and prometheus.poll() is None:
                    time.sleep(0.5)
                    try:
                        lines, well = judge(port, folder)
                    except OSError as err:  # it has not begun to listen
                        lines = [str(err)]
                if well and draw:
                    picture(draw, port, sys.argv[2], float(sys.argv[3]))
            finally:
                prometheus.terminate()
                prometheus.wait()
            if not well:
                log.seek(0)
                lines.append(log.read())
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end as other programs do when nobody reads on
    print("\n".join(lines))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
