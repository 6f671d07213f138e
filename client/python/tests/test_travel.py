"""How functions reach the executors: scripts as people write them, notebooks, the prompt."""
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from unittest import mock

import harness
from harness import ROOT
import fakes
from hops import _code, _run, experiment


class Scripts(harness.ExecutorCase):
    """A script without `if __name__ == "__main__":` is imported by the executors; its searches must not begin again there."""

    FUNCTIONS = """
from hops import experiment
import maggy
from maggy import Searchspace

def train(lr):
    return lr

CALLS = {
    "launch": lambda: experiment.launch(train, {"lr": [0.1, 0.2]}),
    "grid_search": lambda: experiment.grid_search(train, {"lr": [0.1, 0.2]}),
    "random_search": lambda: experiment.random_search(train, {"lr": [0.1, 0.2]}),
    "search": lambda: experiment.search(train, {"optimizer": {"type": "none"}}),
    "lagom": lambda: maggy.experiment.lagom(train, searchspace=Searchspace(lr=("DOUBLE", [0, 1])), optimizer="randomsearch", num_trials=4),
    "maggy.launch": lambda: maggy.experiment.launch(train, Searchspace(lr=("DOUBLE", [0, 1])), "randomsearch"),
}

import os
print(CALLS[os.environ["CALL"]](), "is what it found")
raise AssertionError("the import went on")

def below(lr):
    return lr
"""

    def test_every_call_that_submits_ends_the_import(self):
        for call in ("launch", "grid_search", "random_search", "search", "lagom", "maggy.launch"):
            # In each of the ways in which an executor imports.
            mode, preload = {"lagom": ("spawn", []), "search": ("fork", ["study"])}.get(call, ("fork", []))
            with self.subTest(call=call, mode=mode):
                manager = fakes.FakeSubmissions()
                self.addCleanup(manager.close)
                c, _, _ = self.run_executor("train", mode, env={"CALL": call, "HOPS_RM": manager.url}, setup={"preload": preload})
                self.assertEqual(len(manager.jobs), 0, "the executor submitted the search again")
                self.assertEqual([m["status"] for _, m in c.finals], ["COMPLETED"], c.finals)

    def test_a_function_below_the_search_is_named(self):
        manager = fakes.FakeSubmissions()
        self.addCleanup(manager.close)
        c, _, _ = self.run_executor("below", env={"CALL": "launch", "HOPS_RM": manager.url})
        error = c.finals[0][1]["error"]
        self.assertEqual((len(manager.jobs), error["type"]), (0, "FunctionMissing"))
        self.assertIn("below", error["message"])
        self.assertIn('if __name__ == "__main__"', error["remedy"])


class Nested(harness.ExecutorCase):
    FUNCTIONS = """
from hops import experiment

def again(lr):
    return experiment.launch(again)
"""

    def test_a_trial_does_not_submit_unless_its_job_says_so(self):
        manager = fakes.FakeSubmissions()
        self.addCleanup(manager.close)
        c, _, _ = self.run_executor("again", env={"HOPS_RM": manager.url})
        self.assertEqual(len(manager.jobs), 0)
        self.assertIn("HOPS_MAY_SUBMIT", c.finals[0][1]["error"]["message"])
        self.run_executor("again", env={"HOPS_RM": manager.url, "HOPS_MAY_SUBMIT": "1"})
        self.assertEqual(len(manager.jobs), 1)

    def test_nor_does_the_container_of_a_job(self):
        with mock.patch.dict(os.environ, {"HOPS_CONTAINER_ID": "container_1_0001_01_000002"}):
            with self.assertRaisesRegex(RuntimeError, "called by a job's container.*HOPS_MAY_SUBMIT=1 in the env of the job"):
                experiment.launch(len)
            os.environ["HOPS_MAY_SUBMIT"] = "1"
            _run.submitting("a search")  # raises nothing


PROMPT = """
import json, sys
if %(hide)r:
    sys.modules["cloudpickle"] = None  # as if it were not installed
from hops import _code
%(setup)s
try:
    a = _code.pack(train)
    open(%(file)r, "wb").write(a.data)
    print(json.dumps({"entry": a.entry}))
except _code.CodeError as e:
    print(json.dumps({"error": str(e)}))
"""

FIND = """
import json, sys
sys.path.insert(0, sys.argv[1])
from hops import _trial
_trial._setup = {"code_dir": sys.argv[1]}
entry = sys.argv[2]
problem = _trial.prepare({"code_dir": sys.argv[1], "entry": entry})
assert problem is None, problem
print(json.dumps(_trial.find(entry)()))
"""


class Prompt(unittest.TestCase):
    """Functions typed at a prompt: they live in no file."""

    def pack(self, setup, hide=True):
        with tempfile.TemporaryDirectory() as d:
            file = os.path.join(d, "artifact.zip")
            text = PROMPT % {"hide": hide, "setup": setup, "file": file}
            run = subprocess.run([sys.executable, "-c", "import sys, linecache; t = sys.stdin.read(); " + "linecache.cache['<cell>'] = (len(t), None, t.splitlines(True), '<cell>'); "
                                  "exec(compile(t, '<cell>', 'exec'), __import__('__main__').__dict__)"],
                                 input=text, env=dict(os.environ, PYTHONPATH=ROOT), capture_output=True, text=True, cwd=d)
            self.assertEqual(run.returncode, 0, run.stderr)
            answer = json.loads(run.stdout)
            if "error" in answer:
                return answer["error"]
            code = os.path.join(d, "code")
            zipfile.ZipFile(file).extractall(code)
            env = dict(os.environ, PYTHONPATH=ROOT)
            run = subprocess.run([sys.executable, "-c", FIND, code, answer["entry"]], env=env, capture_output=True, text=True, cwd=code)
            self.assertEqual(run.returncode, 0, run.stderr)
            return json.loads(run.stdout)

    def test_globals_come_back_as_they_were_or_are_refused(self):
        values = ["(1, 2)", "{1: 'a', 2: 'b'}", "{1, 2}", "b'x'", "[(1, None), {'k': 1.5}]", "-3", "'text'", "1j"]
        setup = "".join("G%d = %s\n" % pair for pair in enumerate(values))
        got = self.pack(setup + "def train():\n    return [[type(v).__name__, repr(v)] for v in (%s,)]\n" % ", ".join("G%d" % i for i in range(len(values))))
        self.assertEqual(got, [[type(v).__name__, repr(v)] for v in map(eval, values)])
        for value, word in (("float('inf')", "float"), ("__import__('collections').OrderedDict(a=1)", "OrderedDict"), ("[object()]", "list")):
            with self.subTest(value):
                error = self.pack("G = %s\ndef train():\n    return G\n" % value)
                self.assertIsInstance(error, str)
                for want in ("'G'", word, "cloudpickle"):
                    self.assertIn(want, error)

    def test_what_has_no_source_is_refused_by_name(self):
        error = self.pack("exec('class Net: pass')\ndef train():\n    return Net.__name__\n")
        self.assertIn("Net", error)
        self.assertIn("cloudpickle", error)
        error = self.pack("exec('def train(): return 1')\n")
        self.assertIn("train", error)
        self.assertIn("cloudpickle", error)

    @unittest.skipUnless(importlib.util.find_spec("cloudpickle"), "cloudpickle is not installed")
    def test_with_cloudpickle_everything_travels(self):
        self.assertEqual(self.pack("exec('class Net:\\n  n = (1, 2)')\nexec('def train(): return [str(Net.n), str(G)]')\nG = {1: (2,)}", hide=False), ["(1, 2)", "{1: (2,)}"])

    def test_a_function_typed_after_a_script_has_run_does_not_travel_as_the_script(self):
        with tempfile.TemporaryDirectory() as d:
            script = os.path.join(d, "study.py")
            with open(script, "w") as f:
                f.write("import sys\nsys.modules['cloudpickle'] = None\nfrom hops import _code\nexec(compile('def train(): return 1', '<stdin>', 'exec'))\n"
                        "try:\n    print(_code.pack(train).entry)\nexcept _code.CodeError as e:\n    print(e)\n")
            run = subprocess.run([sys.executable, script], env=dict(os.environ, PYTHONPATH=ROOT), capture_output=True, text=True)
            self.assertIn("cloudpickle", run.stdout, run.stderr)


if __name__ == "__main__":
    unittest.main()
