# SPDX-License-Identifier: Apache-2.0
"""The Python module with NumPy: the arrays that it passes to the library and gets back. tests/emulate compares the
library's nodes with the plugin. Here the test makes a sum from the codec alone. tests/python/test-numpy.sh runs it."""
import os
import re
import signal
import subprocess
import sys
import unittest

import numpy as np

import nibble_codec as nc

RANDOM = np.random.default_rng(5)


def normal(n, dtype=np.float32):
    return RANDOM.normal(size=n).astype(dtype)


class Codec(unittest.TestCase):
    def test_there_and_back(self):
        for codec, bits, nmse in (("int4", 4.5, 0.01), ("int6", 6.6, 1.5e-3), ("int8", 8.6, 1e-4),
                                  ("raw", 32, 0)):
            x = normal(10000)
            coded = nc.encode(x, codec)
            out = np.empty_like(x)
            self.assertIs(nc.decode(coded, out, codec), out)
            self.assertLessEqual(8 * len(coded) / x.size, bits)
            self.assertLessEqual(np.sum((x - out) ** 2), nmse * np.sum(x * x))
            self.assertLessEqual(len(coded), nc.encode_bound(codec, "float32", x.size))

    def test_bfloat16(self):
        x = (normal(4096).view(np.uint32) >> 16).astype(np.uint16)
        out = nc.decode(nc.encode(x, "raw", type="bfloat16"), np.empty_like(x), "raw", type="bfloat16")
        self.assertTrue((out == x).all())
        with self.assertRaises(TypeError):
            nc.encode(x)

    def test_byte_order(self):
        """The library reads and writes values of this machine's byte order. The module refuses other arrays."""
        for dtype, type_name in ((np.float32, None), (np.float16, None), (np.uint16, "bfloat16")):
            x = np.linspace(1, 2, 64).astype(dtype)
            other = x.astype(x.dtype.newbyteorder())
            with self.assertRaisesRegex(TypeError, "byte order"):
                nc.encode(other, type=type_name)
            with self.assertRaisesRegex(TypeError, "byte order"):
                nc.decode(nc.encode(x, type=type_name), other, type=type_name)
            back = other.astype(other.dtype.newbyteorder("="))
            self.assertEqual(nc.encode(back, type=type_name), nc.encode(x, type=type_name))
        with nc.Cluster(2) as cluster, self.assertRaisesRegex(TypeError, "byte order"):
            cluster.all_reduce([normal(10).astype(">f4"), normal(10).astype("<f4")])

    def test_damaged(self):
        with self.assertRaises(OSError):
            nc.decode(nc.encode(normal(5000))[:-3], np.empty(5000, np.float32))


class Nodes(unittest.TestCase):
    def test_two_nodes_by_hand(self):
        """Node 0 gets its own block and the other node's block as coded. The residual is the coding's loss."""
        n, x = 20000, [normal(40000), normal(40000)]
        with nc.Cluster(2, {"WARMUP_STEPS": 0}) as cluster:
            for step in range(3):
                before = cluster.residual(1, n, function="reduce_scatter")
                self.assertEqual(before is None, step == 0)
                out = cluster.reduce_scatter(x)
                after = cluster.residual(1, n, function="reduce_scatter")
                sent = out[0].astype(float) - x[0][:n]  # Q(h)
                # h = g + e. The bound does not act on errors this small.
                wanted = x[1][:n] + (0 if before is None else before)
                lost = wanted - sent
                self.assertLess(np.abs(lost).max(), 0.6)
                # e' = h - Q(h), rounded to 8 bits of its group's scale
                self.assertLess(np.abs(after - lost).max(), 0.02)
                self.assertGreater(np.abs(after).max(), 0.01)
            figures = cluster.figures("reduce_scatter", node=1)
            self.assertEqual((figures.operations, figures.coded, figures.with_feedback), (3, 3, 3))
            self.assertLess(abs(figures.ratio * 32 - 4.4), 0.3)

    def test_without_feedback_by_hand(self):
        n, x = 20000, [normal(40000), normal(40000)]
        with nc.Cluster(2, ["NIBBLE_WARMUP_STEPS=0", "NIBBLE_EF=off"]) as cluster:
            out = cluster.reduce_scatter(x)
            self.assertIsNone(cluster.residual(1, n, function="reduce_scatter"))
        for own in (0, 1):
            block = slice(own * n, own * n + n)
            other = nc.decode(nc.encode(x[1 - own][block]), np.empty(n, np.float32))
            self.assertTrue((out[own] == other + x[own][block]).all())

    def test_without_copies(self):
        """Results go into the array that the caller names, also into the sent array."""
        with nc.Cluster(3, {"RS": "raw", "AR": "raw"}, channels=2, buffer_bytes=1 << 18) as cluster:
            x = [normal(5000) for _ in range(3)]
            total = x[0] + x[1] + x[2]
            addresses = [a.ctypes.data for a in x]
            out = cluster.all_reduce(x, x)
            self.assertEqual([a.ctypes.data for a in out], addresses)
            for a in out:
                self.assertTrue(np.allclose(a, total, atol=1e-5))
            whole = [np.zeros(15000, np.float16) for _ in range(3)]
            own = [whole[i][5000 * i:5000 * i + 5000] for i in range(3)]
            for i in range(3):
                own[i][:] = i + 1
            cluster.all_gather(own, whole)
            for a in whole:
                self.assertTrue((a == np.repeat([1, 2, 3], 5000)).all())

    def test_types(self):
        with nc.Cluster(2, {"WARMUP_STEPS": 0}) as cluster:
            half = [normal(30000, np.float16) for _ in range(2)]
            out = cluster.all_reduce(half)
            error = out[0].astype(float) - half[0] - half[1]
            self.assertLess(np.sum(error ** 2), 0.03 * np.sum(out[0].astype(float) ** 2))
            self.assertTrue((out[0] == out[1]).all())
            self.assertEqual(cluster.figures().coded, 2)

    def test_mistakes(self):
        with nc.Cluster(2) as cluster:
            read_only = normal(100)
            read_only.flags.writeable = False
            for wrong, error in ((lambda: cluster.all_reduce([normal(10)]), ValueError),
                                 (lambda: cluster.all_reduce([normal(10), normal(11)]), ValueError),
                                 (lambda: cluster.all_reduce([normal(10), normal(10, np.float16)]), ValueError),
                                 (lambda: cluster.all_reduce([normal(10, np.float64)] * 2), TypeError),
                                 (lambda: cluster.all_reduce([normal(20)[::2]] * 2), ValueError),
                                 (lambda: cluster.all_reduce([normal(100)] * 2, [read_only] * 2), ValueError),
                                 (lambda: cluster.all_reduce([[1.0], [2.0]]), TypeError),
                                 (lambda: cluster.reduce_scatter([normal(11)] * 2), ValueError),
                                 (lambda: cluster.all_reduce([normal(10)] * 2, buffer=-2), ValueError)):
                with self.assertRaises(error):
                    wrong()
        with self.assertRaises(ValueError):
            cluster.all_reduce([normal(10)] * 2)
        with self.assertRaises(ValueError):
            cluster.all_gather([normal(10)] * 2)

    def test_mistakes_of_settings(self):
        """The exception says what the library writes: the setting, its value and what is allowed. None is ignored."""
        for settings, words in (({"RS": "int5"}, ("NIBBLE_RS", "int5", "raw, int4, int8 or auto")),
                                (["NIBBLE_WARMUP_STEPS=many"], ("NIBBLE_WARMUP_STEPS", "many", "integer from 0")),
                                ({"GRAD": "all,reduce_scatter:bfloat61:8"}, ("NIBBLE_GRAD", "bfloat61", "bfloat16 or")),
                                ({"warmup_steps": 0}, ("NIBBLE_warmup_steps", "NIBBLE_WARMUP_STEPS?")),
                                ({"Nibble_RS": "raw"}, ("unknown setting NIBBLE_Nibble_RS",)),
                                ({"LEARNING_RATE": 1}, ("unknown setting NIBBLE_LEARNING_RATE",)),
                                (["WARMUP_STEPS"], ("NIBBLE_WARMUP_STEPS has no value",)),
                                ({"RS": "int5", "SPEED": 9}, ("NIBBLE_RS", "int5", "NIBBLE_SPEED"))):
            with self.assertRaises(ValueError) as caught:
                nc.Cluster(2, settings)
            for word in words:
                self.assertIn(word, str(caught.exception))
        for arguments, word in (({"nodes": 1}, "nodes"), ({"nodes": 2, "channels": -1}, "channels"),
                                ({"nodes": 2, "buffer_bytes": 5}, "buffer_bytes"),
                                ({"nodes": 2, "chunk_bytes": 5}, "chunk_bytes")):
            with self.assertRaisesRegex(ValueError, word + " must be"):
                nc.Cluster(**arguments)
        with nc.Cluster(2, {"RS": "raw"}) as cluster:  # works after all that
            for ask in (lambda: cluster.figures("bogus"), lambda: cluster.residual(0, 4, function="bogus")):
                with self.assertRaisesRegex(ValueError, "no function 'bogus': reduce_scatter, all_"):
                    ask()
        with self.assertRaisesRegex(ValueError, "is closed"):
            cluster.figures()


class Report(unittest.TestCase):
    def test_figures(self):
        from nibble_codec.report import Comparison
        c = Comparison(skip=1)
        a = np.array([3.0, 4.0])
        c.add("same", a, a * 0)  # skipped
        c.step()
        c.add("turned", a, np.array([-4.0, 3.0]))
        c.add("same", a, a)
        c.add("longer", a, 2 * a)
        c.step()
        rows = {row[0]: row for row in c.rows()}
        self.assertAlmostEqual(rows["turned"][2], 1)
        self.assertAlmostEqual(rows["turned"][4], 2)
        self.assertEqual(rows["same"][2:], (0, 0, 0))
        self.assertAlmostEqual(rows["longer"][2], 0)
        self.assertAlmostEqual(rows["longer"][4], 1)
        self.assertAlmostEqual(c.summary()["NMSE"], (50 + 0 + 25) / 75)
        small = a + np.array([0, 1e-9])  # an angle that the product alone cannot show
        c.add("near", a, small)
        self.assertAlmostEqual({row[0]: row for row in c.rows()}["near"][2] / (0.5 * (0.6e-9 / 5) ** 2), 1, places=3)

    def test_update(self):
        """AdamW's updates of exact and of delivered sums. Noise turns the update and shrinks it."""
        from nibble_codec.report import Comparison
        c, exact = Comparison(skip=2), np.array([1.0, -2.0, 0.5, 0.0], np.float32)
        sums, cos, norm = np.zeros((2, 2, 4)), [], []  # m and v of both
        for step in range(1, 9):
            noise = np.array([0.9, -0.3, -0.7, 0.0], np.float32) * (-1) ** step
            updates = []
            for i, g in enumerate((exact, exact + noise)):
                sums[i] = 0.9 * sums[i, 0] + 0.1 * g, 0.95 * sums[i, 1] + 0.05 * g ** 2
                second = np.sqrt(sums[i, 1] / (1 - 0.95 ** step) + 1e-20)
                updates.append(sums[i, 0] / (1 - 0.9 ** step) / second)
            c.add("matrix", exact, exact + noise)
            c.step()
            if step > 2:
                a, b = updates
                cos.append(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b))
                norm.append(np.linalg.norm(b) / np.linalg.norm(a))
        found = c.update_of("matrix")
        self.assertAlmostEqual(found[0] / np.mean(cos), 1, places=3)
        self.assertAlmostEqual(found[1], np.mean(norm), places=4)
        self.assertLess(found[1], 0.95)
        self.assertAlmostEqual(c.summary()["norm"], np.mean(norm), places=2)
        self.assertTrue(all(np.isnan(c.update_of("unknown"))))
        self.assertIn(f"{found[0]:9.2e}  {found[1]:6.4f}", c.table())
        c.begin_run()  # of other weights: moments begin anew
        for _ in range(3):
            c.add("matrix", exact, exact)
            c.step()
        self.assertLess(c.update_of("matrix")[0], found[0])

    def test_a_name_again_begins_a_step(self):
        """FSDP's hooks see modules, but not the end of a step. The report must be the same as with step()."""
        from nibble_codec.report import Comparison
        implied, ended = Comparison(skip=2), Comparison(skip=2)
        a = np.array([3.0, 4.0])
        with nc.Cluster(2, {"WARMUP_STEPS": 2}) as cluster:
            for step in range(6):
                for number, name in enumerate(("root", "block")):
                    cluster.all_reduce([normal(60000)] * 2, buffer=number)
                    delivered = a * (1 + 0.01 * step + 0.1 * number)
                    implied.add(name, a, delivered, cluster.figures(), 4)
                    ended.add(name, a, delivered)
                ended.step(cluster.figures(), 4)
        self.assertEqual([row[0] for row in implied.rows()], [row[0] for row in ended.rows()])
        self.assertEqual(len(implied.rows()), 2)
        self.assertEqual(implied.all_steps(), ended.steps)
        self.assertEqual(implied.summary(), ended.summary())
        self.assertEqual(implied.table(), ended.table())
        self.assertIn("4 steps", implied.table())
        self.assertLess(implied.all_steps()[5][3], 6)      # coded
        self.assertGreater(implied.all_steps()[2][3], 31)  # the warm-up

    def test_verdict(self):
        """Paired differences against their interval, and against the deviation between seeds."""
        from nibble_codec.report import Comparison, verdict
        exact = [2.60, 2.64, 2.68]
        near = verdict(exact, [2.61, 2.63, 2.69])
        self.assertFalse(near.seen)
        self.assertAlmostEqual(near.mean, 0.01 / 3)
        self.assertAlmostEqual(near.half, 4.30 * (0.04 / 3 ** 0.5 / 2) / 3 ** 0.5, places=3)
        self.assertAlmostEqual(near.spread, 0.04)
        self.assertRegex(str(near), r"by \+0\.0033 \+- 0\.0287 \(95 %, 3 seeds\), seeds by 0\.0400: no difference seen$")
        self.assertRegex(str(verdict(exact, [e + 0.01 for e in exact])), "worse, by less than seeds do$")
        self.assertRegex(str(verdict(exact, [e - 0.1 for e in exact])), "better, by more than seeds do$")
        self.assertRegex(str(verdict([2.6], [2.7])), "with one seed: two and more tell")
        with self.assertRaises(ValueError):
            verdict(exact, exact[1:])
        c = Comparison()
        self.assertIsNone(c.verdict())
        for e in exact:
            c.finish("exact", e)
            c.finish("nibble", e + 0.01)
        self.assertIn("nibble: coding changes the loss by +0.0100 +- 0.0000 (95 %, 3 seeds)", c.table())

    def test_arms(self):
        """Another arm's error stands beside nibble's, with a verdict of its own."""
        from nibble_codec.report import Comparison
        c, exact, draw = Comparison(skip=1), np.array([1.0, -2.0, 0.5], np.float32), np.random.default_rng(2)
        for seed in (1, 2):
            c.finish("exact", 2.6 + seed / 100)
            for size, arm, name in ((0.1, c, "nibble"), (0.4, c.arm("no feedback"), "no feedback")):
                arm.begin_run()
                for _ in range(5):
                    arm.add("matrix", exact, exact + np.float32(size) * draw.standard_normal(3, np.float32))
                    arm.step()
                c.finish(name, 2.6 + seed / 100 + size)
        mine, other = c.summary(), c.arm("no feedback").summary()
        self.assertGreater(other["update"], 2 * mine["update"])
        times = other["update"] / mine["update"]
        self.assertIn(f"no feedback: NMSE {other['NMSE']:.2e}, update {other['update']:.2e}, "
                      f"norm {other['norm']:.4f}: nibble's update is {times:.1f} times closer\n", c.table())
        self.assertIn("nibble: coding changes the loss by +0.1000", c.table())
        self.assertIn("no feedback: coding changes the loss by +0.4000", c.table())
        self.assertEqual(len(c.rows()), 1)

    def test_threads(self):
        """The number of codec threads changes no bit."""
        g, results = [normal(300000) for _ in range(3)], []
        for threads in (0, 3):
            with nc.Cluster(3, {"WARMUP_STEPS": 0, "HOST_THREADS": threads}) as cluster:
                results.append([cluster.all_reduce(g) for _ in range(2)][1] + [cluster.residual(1, 300000)])
        self.assertTrue(all(np.array_equal(a, b) for a, b in zip(*results)))

    def test_runs_and_scalars(self):
        """Each run's warm-up is left out, and curves of several seeds have a mean. Trackers get the last step."""
        from nibble_codec.report import Comparison
        c, a = Comparison(skip=2), np.array([3.0, 4.0])
        for seed in (1, 2):
            c.begin_run()
            for step in range(4):
                c.loss("exact", step, 5 - step + seed, seed)
                c.loss("nibble", step, 5 - step + seed + 0.5, seed)
                c.add("p", a, a * (1.5 if step < 2 else 1.1))
        self.assertEqual([row[0] for row in c.all_steps()], [0, 1, 2, 3] * 2)
        self.assertAlmostEqual(c.summary()["NMSE"], 0.01)
        self.assertAlmostEqual(c.rows()[0][4], 0.01)
        self.assertIn("4 steps", c.table())
        self.assertIn("loss, exact: 6.5000 at first, 3.5000 over the last 1 of 4 points", c.table())
        found = c.scalars()
        self.assertEqual(set(found), {"nibble/1-cos", "nibble/nmse", "nibble/loss/exact", "nibble/loss/nibble"})
        self.assertAlmostEqual(found["nibble/nmse"], 0.01)
        self.assertEqual(found["nibble/loss/nibble"], 4.5)

    def test_version(self):
        """The module has the library's version, and so has its project file."""
        with open(os.path.join(os.path.dirname(nc.__file__), "..", "pyproject.toml"), encoding="utf-8") as f:
            self.assertIn(f'version = "{nc.__version__}"', f.read())
        self.assertTrue(nc.version().startswith(nc.__version__ + " "))
        done = subprocess.run([sys.executable, "-m", "nibble_codec"], capture_output=True, text=True, check=True)
        self.assertRegex(done.stdout, rf"nibble_codec {re.escape(nc.__version__)}, library (.|\n)*int4: 4\.\d+ bits a value, NMSE 0\.00\d+\n")
        self.assertIn("all-reduce between 4 nodes: 5.3", done.stdout)

    def test_nobody_reads(self):
        """`python -m nibble_codec | head -1` ends quietly."""
        unread, out = os.pipe()
        os.close(unread)
        done = subprocess.run([sys.executable, "-m", "nibble_codec"], stdout=out, stderr=subprocess.PIPE)
        os.close(out)
        self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""))


if __name__ == "__main__":
    unittest.main()
