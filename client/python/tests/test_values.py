"""Values that JSON, a float32 or UTF-8 does not hold: they cost no trial, except as the metric that is searched."""
import io
import json
import os
import socket
import sys
import tempfile
import threading
import unittest
from unittest import mock

import harness
from hops import _run, _trial, _wire


class Values(harness.ExecutorCase):
    FUNCTIONS = r"""
inf, nan = float("inf"), float("nan")

def reports_infinity(lr, reporter):
    reporter.broadcast(inf, 1)
    return 1.0

def returns_infinity(lr):
    return -inf

def returns_nan(lr):
    return {"accuracy": nan}

def beyond_float32(lr, reporter):
    reporter.broadcast(1e39, 1)
    reporter.broadcast(10 ** 400, 2)
    return 1.0

def surrogate(lr, reporter):
    reporter.log("\udcff end")
    return {"accuracy": 1.0, "name\udcff": "\udcff"}

def outputs(lr, reporter):
    class Odd:
        def __repr__(self):
            return "odd"
    return {"accuracy": 1.0, "loss": inf, "other": nan, "list": [1, nan, (2,)], "map": {1: None}, "odd": Odd(), "long": "x" * 10 ** 6}

def names_a_file_of_its_user(lr):
    return {"accuracy": 1.0, "labels": FILE}

def raises(lr):
    raise RuntimeError("\udcff")

def raises_much(lr):
    raise RuntimeError("first words " + "\u4e2d" * 10 ** 6 + " last words")

def far(lr, reporter):
    reporter.broadcast(1.0, 2 ** 70)

def other_key(lr):
    return {"loss": 1.0}

def other_keys_but_reported(lr, reporter):
    reporter.broadcast(0.5)
    return {"loss": 1.0}
"""

    def final(self, function, mode="fork"):
        c, hdfs, _ = self.run_executor(function, mode)
        self.assertEqual(len(c.finals), 1)
        return c, hdfs, c.finals[0][1]

    def test_a_file_that_the_function_did_not_make_stays_where_it_is(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "labels.csv")
            with open(path, "w") as f:
                f.write("cat")
            self.FUNCTIONS = "FILE = %r\n" % path + self.FUNCTIONS
            _, hdfs, final = self.final("names_a_file_of_its_user")
            self.assertEqual(final["outputs"]["labels"], "labels.csv")
            self.assertIn(b"cat", hdfs.files.values())
            self.assertTrue(os.path.exists(path), "the user's file was removed")

    def test_the_searched_metric_travels_as_it_is(self):
        c, _, final = self.final("reports_infinity")
        self.assertEqual(c.reports, [("0007", 1, {"accuracy": "Infinity"})])
        _, _, final = self.final("returns_infinity")
        self.assertEqual(final["metric"], "-Infinity")
        _, _, final = self.final("returns_nan")
        self.assertEqual(final["error"]["type"], "MetricNotFinite")
        c, _, final = self.final("beyond_float32")
        self.assertEqual([m["accuracy"] for _, _, m in c.reports], [1e39, "Infinity"])
        self.assertEqual(final["status"], "COMPLETED")

    def test_nothing_else_fails_a_trial(self):
        _, hdfs, final = self.final("surrogate")
        self.assertEqual(final["status"], "COMPLETED")
        self.assertIn(b"end", hdfs.files["/e/0007/output.log"])
        _, _, final = self.final("outputs")
        self.assertEqual(final["status"], "COMPLETED")
        self.assertEqual((final["outputs"]["loss"], final["outputs"]["other"], final["outputs"]["list"]), ("Infinity", "NaN", [1, "NaN", [2]]))
        self.assertEqual((final["outputs"]["map"], final["outputs"]["odd"]), ({"1": None}, "odd"))
        self.assertLess(len(final["outputs"]["long"]), 256 << 10)
        _, _, final = self.final("raises")
        self.assertEqual(final["error"]["type"], "RuntimeError")

    def test_an_error_of_any_length_is_told(self):
        _, _, final = self.final("raises_much")
        self.assertEqual(final["error"]["type"], "RuntimeError")
        self.assertIn("first words", final["error"]["message"])
        for words in ("raises_much", "first words", "last words"):
            self.assertIn(words, final["error"]["traceback"])

    def test_a_step_that_no_integer_holds_is_named(self):
        _, _, final = self.final("far")
        self.assertIn("step", final["error"]["message"])

    def test_a_dict_without_the_metric_is_an_error_that_names_its_keys(self):
        _, _, final = self.final("other_key")
        self.assertEqual(final["error"]["type"], "MetricMissing")
        for word in ("loss", "accuracy"):
            self.assertIn(word, final["error"]["message"])
        _, _, final = self.final("other_keys_but_reported")
        self.assertEqual((final["status"], final.get("metric"), final["outputs"]), ("COMPLETED", None, {"loss": 1.0}))


class Outputs(unittest.TestCase):
    """What a function returns is cut to what the controller takes, in time and without a word for each."""

    def test_sizes(self):
        for outputs, kept in (({"k%d" % i: i for i in range(100000)}, _wire.MAX_ITEMS), ({"k%d" % i: "x" * 100 for i in range(20000)}, None),
                              ({"k%d" % i: "\U0001f600" * 4000 for i in range(150)}, None), ({"n" * (1 << 20): 1, "m": 2}, None), ({"large": "x" * (1 << 20), "m": 2}, 2), ({"k": 1}, 1)):
            said = io.StringIO()
            with mock.patch("sys.stderr", said):
                cut = _trial._shortened(dict(outputs))
            self.assertLessEqual(len(_wire.encode({"final": {"outputs": cut}})), _trial.MAX_OUTPUTS + 100)
            self.assertIsInstance(_wire.plain({"final": {"outputs": cut}})["final"]["outputs"], dict)
            self.assertLess(len(said.getvalue().splitlines()), 102)
            if kept:
                self.assertEqual(len(cut), kept)


class Threads(unittest.TestCase):
    def test_all_may_report(self):
        ours, theirs = socket.socketpair()
        trial = _run.Trial({"trial": "1", "attempt": 1, "params": {}, "dirs": {"checkpoints": "", "tensorboard": ""}}, _run.Channel(ours), None)
        threads = [threading.Thread(target=lambda: [trial.broadcast(1.0) for _ in range(50)]) for _ in range(4)]
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        with ours, theirs:
            for t in threads:
                t.start()
            lines = theirs.makefile("rb")
            steps = [json.loads(lines.readline())["step"] for _ in range(200)]
            for t in threads:
                t.join()
            lines.close()
        self.assertEqual(steps, list(range(1, 201)))


class Vectors(unittest.TestCase):
    """The other side reads and writes the same: training/controller/protocol_test.go."""

    def test_what_the_seam_writes_is_the_golden_vector(self):
        inf, nan = float("inf"), float("nan")
        for name, body in (
            ("report", {"events": [{"seq": 1, "step": 4, "t": 1700000100001, "metrics": {"accuracy": 0.8125, "loss": 0.5}},
                                   {"seq": 2, "step": 5, "t": 1700000100002, "metrics": {"accuracy": 0.83, "loss": inf}}], "log_bytes": 2048}),
            ("report-nan", {"events": [{"seq": 3, "step": 6, "t": 1700000100003, "metrics": {"accuracy": nan}}]}),
            ("final-infinite", {"seq": 6, "status": "COMPLETED", "metric": -inf,
                                "outputs": {"accuracy": -inf, "losses": [0.5, inf, nan], "note": "\ufffd", "none": None}}),
        ):
            with self.subTest(name):
                self.assertEqual(json.loads(_wire.encode(body)), harness.vector(name)["request"]["body"])

    def test_the_seam_never_fails(self):
        deep = []
        for _ in range(100000):
            deep = [deep]
        cycle = []
        cycle.append(cycle)
        for value in (deep, cycle, {object(): object()}, "\udcff", b"\xff", 10 ** 5000, {1: float("nan")}, float("-inf")):
            _wire.encode({"v": value})

    def test_steps_and_metrics_of_other_libraries(self):
        class Index:
            def __index__(self):
                return 3
        self.assertEqual(_run.whole_number(Index()), 3)
        self.assertEqual(_run.number(10 ** 400), float("inf"))


if __name__ == "__main__":
    unittest.main()
