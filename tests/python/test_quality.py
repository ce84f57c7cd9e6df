# SPDX-License-Identifier: Apache-2.0
"""The benchmark of quality: its codec against the library's, to the bit; rivals against figures of their
papers; training, resumption and the report. tests/python/test-quality.sh runs it with the folder of the
benchmark."""

import ctypes
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import torch

BENCHMARK = sys.argv.pop(1)
sys.path.insert(0, BENCHMARK)

import methods  # noqa: E402
import report  # noqa: E402
import wire  # noqa: E402
from model import Layout  # noqa: E402
from nibble_codec import Cluster, _library, decode  # noqa: E402
from train import Config, Training  # noqa: E402

CPU = torch.device("cpu")
MODES = {"off": 0, "full": 1, "ema": 2}


class Residual(ctypes.Structure):
    """struct nb_ef of include/nibble/codec.h"""

    _fields_ = [
        ("err", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("mode", ctypes.c_int),
        ("beta", ctypes.c_float),
        ("bound", ctypes.c_float),
    ]


def gradient(kind, n, step):
    g = torch.randn(n)
    if kind == "rows":
        g *= torch.exp(2 * torch.randn(n // 32)).repeat_interleave(32)
    elif kind == "heavy":
        g *= torch.exp(3 * torch.randn(n))
    elif kind in ("outliers", "many outliers"):  # escapes, and so many of them that a tile takes 8 bits
        g[torch.rand(n) < (0.001 if kind == "outliers" else 0.02)] *= 3e5
    elif kind == "zeros":
        g[torch.rand(n) < 0.02] = 0
        g[: n // 3] *= step % 2
    elif kind == "wide":
        g *= torch.exp2(torch.randint(-40, 40, (n // 32,)).float()).repeat_interleave(32)
    elif kind == "signs":
        g = g.sign()
    elif kind == "tiny":
        g *= 1e-30
    elif kind == "sparse":
        g[torch.rand(n) < 0.9] *= 1e-4
    elif kind == "not finite":
        g[5], g[9], g[77], g[4000] = 1e31, math.inf, math.nan, -math.inf
    elif kind == "spike":  # the residual is bounded in the step after it
        g *= 1 if step != 2 else 1e-4
    return g


class Wire(unittest.TestCase):
    def test_codec(self):
        """Values, residuals and bytes equal those of the C codec."""
        n = 3 * 4096 + 7 * 32
        room = ctypes.create_string_buffer(5 * n)
        for codec, number in (("int4", 1), ("int6", 5), ("int8", 2)):
            for mode in MODES:
                for kind in (
                    "normal",
                    "rows",
                    "heavy",
                    "outliers",
                    "many outliers",
                    "zeros",
                    "wide",
                    "signs",
                    "tiny",
                    "sparse",
                    "not finite",
                    "spike",
                ):
                    coder = wire.Coder(mode, codec)
                    err, scale = np.zeros(n, np.int8), np.zeros(n // 32, np.uint8)
                    ef = Residual(err.ctypes.data, scale.ctypes.data, MODES[mode], 0.8, 0.2)
                    for step in range(4):
                        g = gradient(kind, n, step)
                        coded = coder(g[None])
                        length = _library.call(
                            "nb_encode",
                            number,
                            0,
                            g.data_ptr(),
                            n,
                            0,
                            ctypes.addressof(ef) if mode != "off" else None,
                            room,
                            len(room),
                            None,
                        )
                        wanted = decode(room.raw[:length], np.empty(n, np.float32), codec)
                        where = f"{codec}, {mode}, {kind}, step {step}"
                        got = wire.decode(coded, n)[0].numpy()
                        self.assertTrue((got.view(np.int32) == wanted.view(np.int32)).all(), where)
                        self.assertEqual(coded.bits, 8 * length, where)
                        if mode != "off":
                            self.assertTrue((coder.err.view(-1)[:n].numpy() == err).all(), where)
                            self.assertTrue((coder.scale.view(-1)[: n // 32].numpy() == scale).all(), where)

    def nibble(self, library, **options):
        methods.Nibble.library = library
        layout = Layout(32, 1, 16, 2048 * 4)
        return layout, methods.Nibble(layout, 4, 2, CPU, **options)

    def test_reduce_scatter(self):
        """The tensors' reduce-scatter is the plugin's, to the bit, step after step."""
        for feedback in MODES:
            layout, by_library = self.nibble(True, feedback=feedback)
            _, by_tensors = self.nibble(False, feedback=feedback)
            self.assertTrue(by_library.clusters)
            self.assertFalse(by_tensors.clusters)
            for step in range(4):
                g = torch.randn(2, 4, layout.size) * torch.exp(torch.randn(layout.size))
                self.assertTrue(torch.equal(by_library.sum(g), by_tensors.sum(g)), f"{feedback}, step {step}")
            by_library.close()

    def test_other_paths(self):
        """Where the plugin cuts windows otherwise, errors have the same size."""
        for options in (
            {"path": "ar"},
            {"path": "ar", "second": "int4"},
            {"path": "ar", "second": "int8"},
            {"path": "two-hop"},
            {"path": "two-hop", "second": "int8"},
        ):
            errors = []
            for library in (True, False):
                torch.manual_seed(3)
                layout, method = self.nibble(library, **options)
                for _ in range(4):
                    g = torch.randn(2, 4, layout.size)
                    error = float((method.sum(g) - g.sum(1)).square().sum() / g.sum(1).square().sum())
                errors.append(error)
                # Headers of the plugin's messages weigh on a model this small.
                bits = {
                    "ar": {"int4": 4.3, "int6": 5.3, "int8": 6.3},
                    "two-hop": {"int6": 4.95, "int8": 5.6},
                }
                self.assertLess(
                    abs(method.bits - bits[options["path"]][options.get("second", "int6")]),
                    0.6 if library else 0.1,
                    options,
                )
                method.close()
            self.assertLess(abs(errors[0] / errors[1] - 1), 0.05, options)


class Rivals(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.layout = Layout(32, 1, 16, 2048 * 4)
        self.g = torch.randn(2, 4, self.layout.size)

    def method(self, arm):
        return methods.ARMS[arm](self.layout, 4, 2, CPU)

    def nmse(self, arm, g=None):
        g = self.g if g is None else g
        exact = g.sum(1)
        return float((self.method(arm).sum(g) - exact).square().sum() / exact.square().sum())

    def test_exact(self):
        self.assertEqual(self.nmse("exact"), 0)

    def test_sdp4bit(self):
        """Theorem 4.1 needs unbiased gradients: the error of the mean of n draws falls as 1 / n. Volumes:
        4 bits, and an FP32 scale for 128 gradients and for 2048 weights. What a difference loses is in the
        next one."""
        method, mean, n = self.method("sdp4bit-both"), torch.zeros(2, self.layout.size), 64
        for _ in range(n):
            mean += method.sum(self.g) / n
        exact = self.g.sum(1)
        self.assertLess(
            float((mean - exact).square().sum() / exact.square().sum()), 1.3 * self.nmse("sdp4bit") / n
        )
        self.assertEqual((method.bits, method.weight_bits), (4.25, 4.015625))
        w, model = torch.randn(2, self.layout.size), torch.zeros(2, self.layout.size)
        for _ in range(5):
            model = method.weights(w, model)
        self.assertLess(float((w - model).abs().max()), 1e-3)

    def test_qgz(self):
        """ZeRO++ states a quarter of FP16's volume. The quantizer's error is that of a uniform one of step
        absmax / 8."""
        self.assertLess(abs(16 / self.method("qgz").bits - 4), 0.02)
        step = self.g.view(-1, 2048).abs().amax(1) / 8
        self.assertLess(abs(self.nmse("qgz") / float((step**2 / 12).mean()) - 1), 0.1)

    def test_loco(self):
        """The sum of what arrived differs from that of the gradients by e / (1 - beta), which stays small."""
        method, arrived = self.method("loco"), torch.zeros(2, self.layout.size)
        for _ in range(50):
            arrived += method.sum(self.g)
        rest = (50 * self.g.sum(1) - arrived).square().sum() / self.g.sum(1).square().sum()
        carried = (method.error.sum(1) / (1 - method.beta)).square().sum() / self.g.sum(1).square().sum()
        self.assertLess(abs(float(rest / carried) - 1), 0.2)
        self.assertLess(float(rest), 50 * self.nmse("qgz"))

    def test_nvfp4(self):
        """NVFP4 rounds Gaussian values to the nearest with a relative squared error of 0.9 %, three of
        four being coded."""
        self.assertLess(abs(self.nmse("nvfp4") / 0.75 / 0.009 - 1), 0.05)

    def test_fp8(self):
        """E4M3 has three bits of mantissa: a normal value is off by at most a sixteenth."""
        x = torch.exp2(6 * torch.rand(1, 1, 4096) - 6)
        method = methods.FP8(self.layout, 4, 1, CPU)
        self.assertLess(float(((method.quantize(x) - x) / x).abs().max()), 1 / 16 + 1e-6)

    def test_powersgd(self):
        """A matrix of low rank arrives exactly in the second step at the latest. A 512 x 4608 matrix is
        compressed 461 times by each rank (Vogels et al. 2019, ResNet18)."""
        g, method = torch.zeros_like(self.g), self.method("powersgd")
        for p in self.layout.parts:
            if len(p.shape) == 2:
                low = torch.randn(2, 1, p.shape[0], 4) @ torch.randn(2, 1, 4, p.shape[1])
                g[:, :, p.first : p.first + p.count] = low.flatten(2)
        for _ in range(2):
            out = method.sum(g)
        self.assertLess(float((out - g.sum(1)).square().sum() / g.sum(1).square().sum()), 1e-6)
        self.assertEqual(
            round(512 * 4608 / (methods.PowerSGD.sent((512, 4608)) / methods.PowerSGD.rank)), 461
        )

    def test_topk(self):
        """The contraction of Stich et al. 2018: what is left has at most 1 - k / d of the energy."""
        method = self.method("topk")
        method.sum(self.g)
        self.assertLess(float(method.error.square().sum() / self.g.square().sum()), 1 - 1 / method.share)

    def test_dynamiq(self):
        """Bits keep to the budget, and large values get more of them."""
        method = self.method("dynamiq")
        energy = torch.exp2(6 * torch.randn(3, 512))
        w = method.widths(energy)
        self.assertLess(float(w.mean(-1).max()) + 0.5 + 16 / 256, 5 + 1e-6)
        self.assertGreater(float(w.mean(-1).min()) + 0.5 + 16 / 256, 4.9)
        self.assertTrue(bool((w.gather(1, energy.argsort(1)).diff(dim=1) >= 0).all()))


class Run(unittest.TestCase):
    def command(self, out, *options):
        return subprocess.run(
            [
                sys.executable,
                os.path.join(BENCHMARK, "quality.py"),
                "--out",
                out,
                "--width",
                "32",
                "--layers",
                "1",
                "--context",
                "16",
                "--batch",
                "1",
                "--steps",
                "20",
                "--raw",
                "4",
                "--text",
                self.text,
                *options,
            ],
            capture_output=True,
            text=True,
        )

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.text = os.path.join(self.folder.name, "text")
        os.mkdir(self.text)
        for i in range(60):
            with open(os.path.join(self.text, f"{i}.txt"), "w") as f:
                f.write("".join(f"{i} times {k} is {i * k}. " for k in range(100)))

    def tearDown(self):
        self.folder.cleanup()

    def test_resume(self):
        """A second call with more seeds adds them. A line that an interruption cut is made again."""
        out = os.path.join(self.folder.name, "out")
        path = os.path.join(out, "results.jsonl")
        run = self.command(out, "--arms", "nibble,sdp4bit-both", "--seeds", "2")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("| nibble, reduce-scatter | 4.", run.stdout)
        with open(path) as f:
            first = f.read()
        self.assertEqual(first.count("\n"), 6)
        with open(path, "w") as f:
            f.write(first[:-9])
        run = self.command(out, "--arms", "nibble,sdp4bit-both", "--seeds", "3")
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(path) as f:
            records = [json.loads(line) for line in f]
        self.assertEqual(
            sorted((r["arm"], r["seed"]) for r in records),
            sorted((a, s) for a in ("exact", "nibble", "sdp4bit-both") for s in (1, 2, 3)),
        )
        for record in records:
            if record["arm"] == "nibble":
                self.assertLess(record["cos"]["matrix"], 0.05)
                self.assertGreater(record["cos"]["matrix"], 1e-5)
        for name in ("summary.csv", "curves.csv"):
            self.assertTrue(os.path.exists(os.path.join(out, name)))

    def test_gpu_form(self):
        """The command for a GPU, small and on the CPU: one node and one seed at a time, bfloat16, the
        codec on tensors. A limit that has passed leaves whole runs only."""
        out = os.path.join(self.folder.name, "gpu")
        options = (
            "--gpu",
            "--device",
            "cpu",
            "--arms",
            "nibble,nibble-ar,loco",
            "--codec",
            "torch",
            "--seeds",
            "2",
        )
        run = self.command(out, *options, "--limit", "0")
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("the same command continues", run.stderr)
        run = self.command(out, *options)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("bfloat16", run.stdout)
        self.assertRegex(run.stdout, r"\| nibble, all-reduce \| \d\.\d+ \| 2 \|")

    def test_mistakes(self):
        for options, words in (
            (("--arms", "nibbel"), "--arms nibbel: it must be one of exact, nibble"),
            (("--optimizer", "adam"), "--optimizer adam"),
            (("--nodes", "1"), "--nodes at least 2"),
        ):
            run = self.command(self.folder.name, *options)
            self.assertEqual(run.returncode, 2)
            self.assertIn(words, run.stderr)
        self.text = os.path.join(self.folder.name, "empty")
        self.assertIn("there are no files in it", self.command(self.folder.name).stderr)

    def test_optimizers_and_nodes(self):
        """Every optimizer learns with every number of nodes, and seeds side by side are what they are
        alone."""
        import text

        data = text.read(self.text)
        for optimizer, nodes in (("adamw", 2), ("muon", 4), ("lion", 8), ("sgd", 16)):
            from optimizers import OPTIMIZERS

            config = Config(
                optimizer, nodes, 30, 32, 1, 16, 1, OPTIMIZERS[optimizer].rate, 4, False, data.digest
            )
            pair = Training(config, "nibble", [1, 2], data, CPU).run()
            alone = Training(config, "nibble", [2], data, CPU, together=1).run()
            self.assertLess(pair[0]["held"][-1][1], 5.3, optimizer)
            self.assertLess(abs(pair[1]["held"][-1][1] / alone[0]["held"][-1][1] - 1), 2e-3, optimizer)


class Report(unittest.TestCase):
    def test_interval(self):
        found = report.interval([1.0, 2.0, 3.0])
        self.assertAlmostEqual(found.mean, 2)
        self.assertAlmostEqual(found.half, 4.30 / 3**0.5)
        self.assertTrue(math.isnan(report.interval([1.0]).half))

    def test_times(self):
        line = [(10, 5.0), (20, 4.0), (30, 3.0), (40, 3.5)]
        self.assertAlmostEqual(report.steps_to(line, 4.5), 15)
        self.assertTrue(math.isnan(report.steps_to(line, 3.2)))  # it does not stay there
        self.assertAlmostEqual(report.seconds(4, 32, 10), 1 + 0.75 * 1.3e9 * 32 / 1e10)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=0)
