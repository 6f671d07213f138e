import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import types
import unittest
import zipfile
import io
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [ROOT, HERE]

import fakes  # noqa: E402
import harness  # noqa: E402
from harness import PROTOCOL  # noqa: E402
from hops import _code, _events, _jobs, _run, _signature, _webhdfs, hdfs  # noqa: E402
from maggy import Searchspace  # noqa: E402
from maggy.optimizer import Asha, spec_of  # noqa: E402

class Events(unittest.TestCase):
    def test_checksum(self):
        self.assertEqual(_events.crc32c(b"123456789"), 0xE3069283)

    def test_record_layout(self):
        data = _events.header(1.5)
        self.assertEqual(data[:8], (24).to_bytes(8, "little"))
        self.assertIn(b"brain.Event:2", data)


class Code(unittest.TestCase):
    def test_module_function_travels_with_its_files(self):
        with tempfile.TemporaryDirectory() as d:
            with open(os.path.join(d, "mymodule.py"), "w") as f:
                f.write("import helper_of_mine\ndef train(x):\n    return x\n")
            with open(os.path.join(d, "helper_of_mine.py"), "w") as f:
                f.write("Y = 1\n")
            sys.path.insert(0, d)
            try:
                import mymodule
                a = _code.pack(mymodule.train)
            finally:
                sys.path.remove(d)
            names = zipfile.ZipFile(io.BytesIO(a.data)).namelist()
            self.assertEqual((a.entry, names), ("mymodule:train", ["manifest.json", "helper_of_mine.py", "mymodule.py"]))
            self.assertEqual(a.sha256, _code.pack(mymodule.train).sha256)

    def test_script_function_is_imported_under_another_name(self):
        with tempfile.TemporaryDirectory() as d:
            script = os.path.join(d, "study.py")
            with open(script, "w") as f:
                f.write("from hops import _code\ndef train(x):\n    return x\nif __name__ == '__main__':\n    print(_code.pack(train).entry)\n")
            out = subprocess.run([sys.executable, script], env=dict(os.environ, PYTHONPATH=ROOT), capture_output=True, text=True)
            self.assertEqual(out.stdout.strip(), "__hops_main__:train", out.stderr)

    def test_what_cannot_travel_is_named(self):
        outside = 3
        sys.modules["cloudpickle"] = None  # as if it were not installed
        self.addCleanup(sys.modules.pop, "cloudpickle")

        def closure():
            return outside

        for fn, want in ((closure, "'outside'"), (lambda: 1, "lambda"), (self.setUp, "bound"), (len, "not a function")):
            with self.assertRaises(_code.CodeError) as e:
                _code.pack(fn)
            self.assertIn(want, str(e.exception))


class Space(unittest.TestCase):
    def test_spec(self):
        s = Searchspace(lr=("DOUBLE", [1e-4, 1], "log"), n=("INTEGER", [2, 8]), act=("CATEGORICAL", ["a", "b"]))
        self.assertEqual(s.spec()["lr"], {"type": "DOUBLE", "range": [1e-4, 1], "log": True})
        scalar = type("int64", (), {"item": lambda self: 7})()  # as of numpy
        self.assertEqual(json.dumps(Searchspace(n=("DISCRETE", [scalar, 8])).spec()["n"]["values"]), "[7, 8]")
        for p in s.get_random_parameter_values(20, seed=1):
            self.assertTrue(1e-4 <= p["lr"] <= 1 and 2 <= p["n"] <= 8 and p["act"] in "ab")

    def test_mistakes_are_named(self):
        for value, want in ((("DOUBLE", [1, 1]), "empty"), (("DOUBLE", [1]), "needs [low, high]"), (("TRIPLE", [1, 2]), "unknown type"),
                            (("CATEGORICAL", []), "empty"), (("DOUBLE", [0, 1], "log"), "above 0"), (("INTEGER", [1.5, 3]), "whole"), (("DOUBLE", 5), "want (type, list)"), (("CATEGORICAL", "ab"), "want (type, list)")):
            with self.assertRaises(ValueError) as e:
                Searchspace(x=value)
            self.assertIn(want, str(e.exception))

    def test_optimizers(self):
        self.assertEqual(spec_of(Asha(3, 1, 9)), {"type": "asha", "eta": 3, "r_min": 1, "r_max": 9})
        for default in ("asha", Asha, Asha()):  # its options are the controller's to fill in, as for a study
            self.assertEqual(spec_of(default), {"type": "asha"})
        self.assertEqual(spec_of("RandomSearch"), {"type": "random"})
        with self.assertRaises(ValueError):
            spec_of("magic")

    def test_asha_of_which_nothing_is_said_has_the_rungs_of_maggy(self):
        from maggy.experiment import experiment
        from maggy.experiment_config import OptimizationConfig
        for given, options, want in (("asha", {}, {"eta": 2, "r_min": 1, "r_max": 4}), (Asha(3), {}, {"eta": 3, "r_min": 1, "r_max": 4}),
                                     (Asha(3, 2, 18), {}, {"eta": 3, "r_min": 2, "r_max": 18}), ("asha", {"max_epochs": 27}, {})):
            with mock.patch("hops.experiment.search") as search:
                experiment.lagom(lambda x: x, OptimizationConfig(4, given, Searchspace(x=("DOUBLE", [0, 1])), **options))
            self.assertEqual(search.call_args.args[1]["optimizer"], {"type": "asha", **want})

    def test_modules_by_the_names_that_they_have_in_maggy(self):
        script = """
            from maggy import experiment, tensorboard
            import maggy.tensorboard
            from maggy.ablation.ablator import AbstractAblator
            from maggy.ablation.ablator.loco import LOCO
            from maggy.ablation.ablationstudy import AblationStudy
            from maggy.experiment_config import AblationConfig, OptimizationConfig
            from maggy.optimizer.bayes import GP, TPE
            import maggy, hops.tensorboard
            assert maggy.AblationStudy is AblationStudy and maggy.optimizer.GP is GP and maggy.ablation.LOCO is LOCO
            assert maggy.tensorboard.logdir is tensorboard.logdir is hops.tensorboard.logdir and maggy.OptimizationConfig is OptimizationConfig
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, env={**os.environ, "PYTHONPATH": ROOT})


class Metrics(unittest.TestCase):
    def test_only_numbers(self):
        self.assertEqual(_run.number(3), 3.0)
        for bad in ("0.5", None, True, float("nan"), [1]):
            with self.assertRaises(ValueError):
                _run.number(bad)


class Files(unittest.TestCase):
    def setUp(self):
        self.fake = fakes.FakeHDFS()
        self.fs = _webhdfs.WebHDFS([self.fake.url], "ann")
        self.addCleanup(self.fake.close)

    def test_round_trip(self):
        self.fs.create("/d/f", b"hello")
        self.assertEqual(self.fs.read("/d/f", 1, 3), b"ell")
        self.assertEqual([s["pathSuffix"] for s in self.fs.list("/d")], ["f"])
        with self.assertRaises(FileExistsError):
            self.fs.create("/d/f", b"")
        with self.assertRaises(FileNotFoundError):
            self.fs.status("/nowhere")
        self.assertTrue(self.fs.rename("/d/f", "/d/g"))
        self.assertTrue(self.fs.rename("/d/f", "/d/g"), "a rename that has happened is done")
        self.assertTrue(self.fs.rename("/d/g", "/d/h", options="NONE"))
        self.fs.create("/d/g", b"")
        with self.assertRaises(FileExistsError):
            self.fs.rename("/d/g", "/d/h", options="NONE")
        with self.assertRaises(FileNotFoundError):
            self.fs.rename("/nowhere", "/d/i", options="NONE")

    def test_what_is_not_there_is_not_renamed(self):
        self.fs.create("/d/f", b"1")
        with mock.patch.object(hdfs, "get_fs", lambda: self.fs):
            with self.assertRaises(FileExistsError):
                hdfs.rename("/d/none", "/d/f")
            with self.assertRaises(FileExistsError):
                hdfs.rename("/d/f", "/d/f")
            hdfs.rename("/d/f", "/d/g")
        self.assertEqual(self.fake.files, {"/d/g": b"1"})

    def test_a_copy_of_nothing_takes_nothing_away(self):
        self.fs.create("/d/f", b"0123456789")
        with mock.patch.object(hdfs, "get_fs", lambda: self.fs), tempfile.TemporaryDirectory() as here:
            kept = os.path.join(here, "none")
            with open(kept, "w") as f:
                f.write("kept")
            with self.assertRaises(FileNotFoundError):
                hdfs.copy_to_local("/d/none", here, overwrite=True)
            with open(kept) as f:
                self.assertEqual(f.read(), "kept")
            os.symlink(here, os.path.join(here, "f"))
            with open(hdfs.copy_to_local("/d/f", here, overwrite=True)) as f:
                self.assertEqual(f.read(), "0123456789")
            with mock.patch.object(hdfs, "PIECE", 4), self.assertRaises(shutil.SameFileError):
                hdfs.cp("/d/f", "/d/../d/f", overwrite=True)
        self.assertEqual(self.fake.files, {"/d/f": b"0123456789"})

    def test_fsspec_moves_by_renames_alone(self):
        spec = types.ModuleType("fsspec.spec")
        spec.AbstractFileSystem = type("AbstractFileSystem", (), {"_strip_protocol": staticmethod(lambda path: path)})
        spec.AbstractBufferedFile = object
        with mock.patch.dict(sys.modules, {"fsspec": types.ModuleType("fsspec"), "fsspec.spec": spec}):
            from hops import _fsspec
        with mock.patch.object(_webhdfs, "WebHDFS", lambda: self.fs):
            fs = _fsspec.HopsFileSystem()
        self.fs.create("/d/f", b"old")
        self.fs.create("/d/g", b"new")
        with self.assertRaises(FileNotFoundError):
            fs.mv("/d/none", "/d/f")
        fs.mv("/d/g", "/d/f")
        self.assertEqual(self.fake.files, {"/d/f": b"new"})
        with self.assertRaises(OSError):
            fs.mv("/d", "/d/f")
        self.assertEqual(self.fake.files, {"/d/f": b"new"})

    def test_an_interrupted_append_is_completed_not_repeated(self):
        self.fs.create("/log", b"0123")
        self.fake.broken_appends = 2
        self.fs.append("/log", b"abcdefgh")
        self.assertEqual(self.fake.files["/log"], b"0123abcdefgh")

    def test_a_publish_is_asked_for_under_one_identity(self):
        self.fake.lost_publishes = 2
        with mock.patch.object(hdfs, "get_fs", lambda: self.fs):
            with hdfs.publish("p") as p:
                p.delete("old", recursive=True, if_there=True)
                p.rename("next", "/data/current", overwrite=True)
                p.set_xattr("/data/current", "user.version", "7\u00e4", replace=False)
                p.remove_xattr("/data/current", "user.draft")
                p.snapshot("/data", "v7")
            self.assertEqual(p.snapshot_path, "/data/.snapshot/v7")
            (asked,), steps = self.fake.published.values(), [
                {"delete": {"path": "/Projects/p/old", "recursive": True, "ifThere": True}},
                {"rename": {"source": "/Projects/p/next", "destination": "/data/current", "overwrite": True}},
                {"setXAttr": {"path": "/data/current", "name": "user.version", "value": "0sN8Ok", "flag": "CREATE"}},
                {"removeXAttr": {"path": "/data/current", "name": "user.draft"}},
                {"createSnapshot": {"path": "/data", "name": "v7"}},
            ]
            self.assertEqual(asked, [steps] * 3)
            with self.assertRaises(ZeroDivisionError), hdfs.publish() as p:
                p.delete("/data")
                1 / 0
            with self.assertRaises(FileNotFoundError) as e, hdfs.publish() as p:
                p.delete("/none")
            self.assertIn("step 1 of 1", str(e.exception))
            with self.assertRaises(ValueError):
                p.set_xattr("/data", "user.a", b"1", create=False, replace=False)
            self.assertEqual(len(self.fake.published), 1)
            self.fake.old = True
            with self.assertRaises(OSError) as e, hdfs.publish() as p:
                p.delete("/data")
            self.assertIn("not supported until all namenodes", str(e.exception))

    def test_standby_and_dead_namenodes_are_passed_over(self):
        standby = fakes.FakeHDFS()
        standby.standby = True
        self.addCleanup(standby.close)
        fs = _webhdfs.WebHDFS(["http://127.0.0.1:1", standby.url, self.fake.url], "ann")
        fs.create("/x", b"1")
        self.assertEqual(self.fake.files["/x"], b"1")

    def test_nobody_answers(self):
        fs = _webhdfs.WebHDFS(["http://127.0.0.1:1"], "ann", timeout=0.2)
        with self.assertRaises(TimeoutError) as e:
            fs.status("/x")
        self.assertIn("127.0.0.1:1", str(e.exception))

    def test_appender_keeps_what_could_not_be_written(self):
        a = _webhdfs.Appender(_webhdfs.WebHDFS(["http://127.0.0.1:1"], "ann", timeout=0.05), "/log")
        a.add(b"one")
        with self.assertRaises(OSError):
            a.flush()
        a.fs = self.fs
        a.add(b"two")
        a.flush()
        self.assertEqual(self.fake.files["/log"], b"onetwo")


class Cluster(unittest.TestCase):
    """The cluster is found as the command hops finds it."""

    def find(self, cache, **environment):
        program = "from hops import _cluster as c\ntry:\n    print(c.webhdfs(), c.resource_managers(), c.default_fs())\nexcept c.ClusterError as e:\n    print(e)\n"
        env = {k: v for k, v in os.environ.items() if not k.startswith("HOPS_") and k != "HADOOP_CONF_DIR"}
        env.update(PYTHONPATH=harness.ROOT, XDG_CACHE_HOME=cache, **environment)
        return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout.strip()

    def site(self, directory, **files):
        os.makedirs(directory, exist_ok=True)
        for name, properties in files.items():
            with open(os.path.join(directory, name + "-site.xml"), "w") as f:
                f.write("<configuration>%s</configuration>" % "".join(
                    "<property><name>%s</name><value>%s</value></property>" % p for p in properties.items()))

    def test_the_dev_cluster_that_runs(self):
        with tempfile.TemporaryDirectory() as cache:
            self.assertIn("start one with `hops dev`, log in to one (`hops login`), or set HADOOP_CONF_DIR", self.find(cache))
            dev = os.path.join(cache, "hops", "dev")
            self.site(os.path.join(dev, "conf"), core={"fs.defaultFS": "hdfs://127.0.0.1:33001"}, hdfs={"dfs.namenode.http-address": "127.0.0.1:33002"},
                      yarn={"yarn.resourcemanager.webapp.address": "127.0.0.1:33003"})
            found = "['http://127.0.0.1:33002'] ['http://127.0.0.1:33003'] hdfs://127.0.0.1:33001"
            with open(os.path.join(dev, "lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.assertEqual(self.find(cache), found)
            self.assertEqual(self.find(cache), "cluster: %s, not running: start it with `hops dev`" % dev)

    def test_the_configuration_of_hadoop(self):
        with tempfile.TemporaryDirectory() as d:
            conf = os.path.join(d, "conf")
            self.assertIn("which holds none of core-site.xml", self.find(d, HADOOP_CONF_DIR=conf))
            self.site(conf, core={"fs.defaultFS": "hdfs://nn.example:8020"})
            self.assertIn("does not say yarn.resourcemanager.webapp.address", self.find(d, HADOOP_CONF_DIR=conf))
            self.site(conf, yarn={"yarn.resourcemanager.hostname": "rm.example"})
            self.assertEqual(self.find(d, HADOOP_CONF_DIR=conf), "['http://nn.example:9870'] ['http://rm.example:8088'] hdfs://nn.example:8020")
            self.site(conf, core={"fs.defaultFS": "file:///"})
            self.assertIn("neither dfs.namenode.http-address nor a host in fs.defaultFS", self.find(d, HADOOP_CONF_DIR=conf))

    def test_a_person_is_told_what_is_waited_for(self):
        program = ("import harness\nfrom hops import _http, _webhdfs\n_http.QUIET, _http.time = 0, harness.Pauses()\n"
                   "try:\n    _webhdfs.WebHDFS(['http://127.0.0.1:1'], 'ann', timeout=20).status('/')\nexcept TimeoutError as e:\n    print('gave up')\n")
        for inside in (False, True):
            env = {k: v for k, v in os.environ.items() if not k.startswith("HOPS_")}
            env.update(PYTHONPATH=harness.ROOT + os.pathsep + harness.HERE, **({"HOPS_CONTAINER_ID": "container_1_0001_01_000002"} if inside else {}))
            run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
            self.assertEqual(run.stdout, "gave up\n")
            self.assertEqual(run.stderr.count("waiting for the cluster, Ctrl-C ends it: http://127.0.0.1:1: "), 0 if inside else 1, run.stderr)


class Jobs(unittest.TestCase):
    def test_only_a_whole_answer_is_success(self):
        for first in ((200, b""), (200, b"{"), (503, {"detail": "no leader"}), (504, {"detail": "unknown"})):
            with self.subTest(first):
                manager = fakes.FakeManager([first, (201, {"id": "application_1_0001"})])
                self.addCleanup(manager.close)
                self.assertEqual(_jobs.Jobs([manager.url], "ann").submit({"argv": ["true"]}, "key"), "application_1_0001")
                self.assertEqual(manager.keys, ["key", "key"])

    def test_a_refusal_is_final(self):
        manager = fakes.FakeManager([(400, {"detail": "no such queue"})])
        self.addCleanup(manager.close)
        with self.assertRaisesRegex(_jobs.JobError, "no such queue"):
            _jobs.Jobs([manager.url], "ann").submit({}, "key")
        self.assertEqual(len(manager.keys), 1)


FUNCTIONS = """
import os, time
from hops import checkpoint, tensorboard

def train(lr, budget, reporter, data):
    saved = checkpoint.load()
    start = saved[0] if saved else 0
    print("lr", lr, data)
    for epoch in range(start + 1, budget + 1):
        reporter.broadcast(lr * epoch, step=epoch)
        checkpoint.save({"epoch": epoch}, step=epoch)
    tensorboard.scalar("own", 1.0, 1)
    with open("model.txt", "w") as f:
        f.write("m")
    return {"accuracy": lr * budget, "model": "model.txt"}

def raises(lr):
    raise RuntimeError("no such luck")

def dies(lr):
    os.kill(os.getpid(), 9)

def endless(lr, reporter):
    step = 0
    while True:
        step += 1
        reporter.broadcast(1.0, step)
        time.sleep(0.01)

def deaf(lr, reporter):
    try:
        reporter.broadcast(1.0, 9)
    except BaseException:  # on a slow machine the stop may come as early as this
        pass
    time.sleep(600)

def backwards(lr, reporter):
    reporter.broadcast(1.0, 2)
    reporter.broadcast(1.0, 1)
"""


class Executor(harness.ExecutorCase):
    FUNCTIONS = FUNCTIONS

    def test_a_trial_reports_checkpoints_and_ends(self):
        for mode in ("fork", "spawn"):
            with self.subTest(mode):
                c, hdfs, facts = self.run_executor("train", mode, unavailable=3)
                self.assertEqual(c.reports, [("0007", 1, {"accuracy": 0.5}), ("0007", 2, {"accuracy": 1.0}), ("0007", 3, {"accuracy": 1.5})])
                self.assertEqual([m["step"] for _, m in c.checkpoints], [1, 2, 3])
                self.assertEqual(c.finals[0][1]["status"], "COMPLETED")
                self.assertEqual(c.finals[0][1]["outputs"], {"accuracy": 1.5, "model": "model.txt"})
                self.assertEqual(hdfs.files["/e/0007/model.txt"], b"m")
                self.assertIn(b"lr 0.5 /d", hdfs.files["/e/0007/output.log"])
                self.assertEqual(sum(p.startswith("/e/0007/events.out") for p in [*hdfs.files]), 2)
                for _, m in c.checkpoints:  # beside them may lie what a call that was given up, as on a busy machine, has made late
                    manifest = json.loads(hdfs.files[m["uri"] + "/MANIFEST.json"].decode())
                    self.assertEqual([(f["name"], f["size"]) for f in manifest["files"]], [(f["name"], len(hdfs.files[m["uri"] + "/" + f["name"]])) for f in m["files"]])
                self.assertEqual([(f["kind"], f.get("step")) for f in facts].count(("metric", 3)), 1)
                self.assertEqual(sum(f["kind"] == "checkpoint" for f in facts), 3)

    def test_a_resumed_trial_goes_on_after_its_checkpoint(self):
        c, _, _ = self.run_executor("train", resume={"step": 2, "uri": "/e/0007/checkpoints/1/step-2"})
        self.assertEqual([step for _, step, _ in c.reports], [3], c.finals)

    def test_an_answer_without_a_word_acknowledges_nothing(self):
        c, _, facts = self.run_executor("train", empty=2)
        self.assertEqual([step for _, step, _ in c.reports], [1, 2, 3])
        self.assertEqual([m["step"] for _, m in c.checkpoints], [1, 2, 3])
        self.assertEqual([m["status"] for _, m in c.finals], ["COMPLETED"])
        self.assertEqual([f["step"] for f in facts if f["kind"] == "metric"], [1, 2, 3])

    def test_what_a_stranger_answers_does_not_count(self):
        c, _, _ = self.run_executor("train", strangers=3)
        self.assertEqual([m["status"] for _, m in c.finals], ["COMPLETED"])
        self.run_executor("train", status=1, constants={"PATIENCE": 0.5}, strangers=1 << 30)
        self.assertIn("has not shown to be the controller", self.said)

    def test_signatures_are_those_of_the_other_side(self):
        with open(os.path.join(PROTOCOL, "..", "signature.json")) as f:
            v = json.load(f)
        key = _signature.key(v["token"], v["purpose"])
        self.assertEqual(_signature.sign(key, v["method"], v["target"], v["host"], v["container"], v["number"], v["body"].encode()), v["authorization"])
        a = v["answer"]
        self.assertTrue(_signature.proven(key, v["number"], a["status"], a["body"].encode(), a["proof"]))
        for proof in (None, "", a["proof"][::-1], "\xe9" * 64):
            self.assertFalse(_signature.proven(key, v["number"], a["status"], a["body"].encode(), proof))

    def test_an_executor_whose_controller_is_gone_ends_while_its_trial_runs(self):
        self.run_executor("endless", status=1, constants={"PATIENCE": 0.5}, gone=True)
        self.assertIn("no controller answered", self.said)

    def test_a_stop_is_obeyed(self):
        c, _, _ = self.run_executor("endless", stop_at=5)
        self.assertEqual(c.finals[0][1]["status"], "STOPPED")

    def test_a_function_that_does_not_listen_is_killed(self):
        c, _, _ = self.run_executor("deaf", stop_at=5, grace_ms=300)
        self.assertEqual((c.finals[0][1]["status"], c.finals[0][1]["error"]["type"]), ("STOPPED", "StopTimeout"))

    def test_failures_are_named(self):
        for function, kind, text in (("raises", "RuntimeError", "no such luck"), ("dies", "ProcessDied", "SIGKILL"),
                                     ("backwards", "StepBackwards", "backwards"), ("missing", "FunctionMissing", "missing")):
            with self.subTest(function):
                c, _, _ = self.run_executor(function)
                final = c.finals[0][1]
                self.assertEqual((final["status"], final["error"]["type"]), ("FAILED", kind))
                self.assertIn(text, final["error"]["message"])


if __name__ == "__main__":
    unittest.main()
