"""The names of hops-util-py, Maggy and TensorFlowOnSpark: what they send, what they refuse, what they show. That the searches run is shown in
integration/python."""
import collections
import datetime
import importlib.util
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import unittest
import zipfile
from unittest import mock

import harness
import fakes
from hops import _display, _following, _jobs, _run, _trial, _wrapped, allreduce, devices, experiment, tensorboard, tflauncher, util
from maggy import ablation, callbacks, config, experiment as maggy
from tensorflowonspark import TFCluster


class Sent(unittest.TestCase):
    """What a script sends: its job, and its code as an executor finds it."""

    def send(self, script, status=0):
        hdfs, manager = fakes.FakeHDFS(), fakes.FakeSubmissions()
        self.addCleanup(hdfs.close)
        self.addCleanup(manager.close)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "script.py")
            with open(path, "w") as f:
                f.write(textwrap.dedent(script))
            done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300, cwd=folder,
                                  env=dict(os.environ, PYTHONPATH=harness.ROOT, PYTHONDONTWRITEBYTECODE="1", HOPS_WEBHDFS=hdfs.url, HOPS_RM=manager.url, HADOOP_USER_NAME="ann"))
        self.assertEqual(done.returncode, status, done.stderr)
        self.hdfs, self.said = hdfs, done.stderr
        return [job["experiment"] for job in manager.jobs]

    def call(self, spec, params):
        """Run the function as an executor would; what it returned, as text."""
        with tempfile.TemporaryDirectory() as folder:
            zipfile.ZipFile(io.BytesIO(self.hdfs.files[spec["code"]["uri"]])).extractall(folder)
            program = """
import json, sys
from hops import _local, _run, _trial
setup = {"entry": %r, "code_dir": %r, "arguments": %r}
problem = _trial.prepare(setup)
assert not problem, problem
_run.set_current(_local.Trial(%r, directory=%r))
fn = _trial.find(setup["entry"])
print("RETURNED", fn(**_trial.bind(fn, _run.current(), setup["arguments"])))
""" % (spec["entry"], folder, spec.get("arguments") or {}, params, folder)
            # The script is imported here again; its searches must end the import.
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, cwd=folder,
                                  env=dict(os.environ, PYTHONPATH=harness.ROOT, PYTHONDONTWRITEBYTECODE="1"))
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.split("RETURNED ", 1)[1].strip()

    def test_a_function_with_model_dataset_and_hparams(self):
        [spec] = self.send("""
            import datetime
            from maggy import experiment, Searchspace
            from maggy.config import HyperparameterOptConfig

            class Net:
                def __init__(self, n):
                    self.n = n

            dataset = [datetime.date(2020, 1, 1), {"a": (1, 2)}]

            def train(model, dataset, hparams, extra=5):
                return [model(hparams["n"]).n, dataset[0].year, dataset[1]["a"], extra]

            experiment.lagom(train, HyperparameterOptConfig(2, "randomsearch", Searchspace(n=("INTEGER", [1, 9])), model=Net, dataset=dataset, quiet=True, detach=True))
            """)
        self.assertEqual((spec["entry"], spec["optimizer"], spec["space"]), ("__hops_entry__:function", {"type": "random"}, {"n": {"type": "INTEGER", "range": [1, 9]}}))
        self.assertEqual(self.call(spec, {"n": 4}), "[4, 2020, (1, 2), 5]")

    def test_what_has_no_name_is_refused_without_cloudpickle(self):
        self.send("""
            import datetime, sys
            sys.modules["cloudpickle"] = None
            from maggy import experiment
            from maggy.config import BaseConfig

            def train(dataset):
                return dataset

            try:
                experiment.lagom(train, BaseConfig(dataset=[datetime.date(2020, 1, 1)], quiet=True, detach=True))
            except TypeError as e:
                assert "date" in str(e) and "cloudpickle" in str(e), e
            else:
                raise AssertionError("it was taken")
            """)

    def test_an_ablation(self):
        [spec] = self.send("""
            from maggy import experiment
            from maggy.ablation import AblationStudy
            from maggy.config import AblationConfig

            def data(ablated_feature):
                return ["all but %s" % ablated_feature]

            def base():
                return "base"

            def other():
                return "other"

            def train(dataset_function, model_function, reporter):
                return dataset_function() + [model_function()]

            study = AblationStudy("titanic", 1, "survived", dataset_generator=data)
            study.features.include("sex", ["age"])
            study.model.set_base_model_generator(base)
            study.model.add_custom_model_generator(other, "second")
            study.model.layers.include("dense_2")
            study.model.layers.include_groups(["a", "b"], prefix="conv")
            experiment.lagom(train, AblationConfig(study, repeats=3, quiet=True, detach=True))
            """)
        self.assertEqual(spec["repeats"], 3)
        self.assertEqual([tuple(c.values()) for c in spec["configurations"]], [
            ("None", "None"), ("sex", "None"), ("age", "None"), ("None", "dense_2"), ("None", '["a", "b"]'), ("None", "Layers prefixed conv"), ("None", "Custom model: second")])
        self.assertEqual(self.call(spec, spec["configurations"][1]), "['all but sex', 'base']")
        self.assertEqual(self.call(spec, spec["configurations"][6]), "['all but None', 'other']")

    def test_an_ablator_of_ones_own(self):
        [spec] = self.send("""
            from maggy import experiment, Trial
            from maggy.ablation import AblationStudy, AbstractAblator

            def small():
                return "small"

            class Mine(AbstractAblator):
                def get_number_of_trials(self):
                    return 1

                def initialize(self):
                    self.trial_buffer.append(Trial({"ablated_feature": "None", "ablated_layer": "half", "model_function": small, "dataset_function": None}, "ablation"))

            def train(model_function):
                return model_function()

            experiment.lagom(map_fun=train, experiment_type="ablation", ablation_study=AblationStudy(), ablator=Mine, quiet=True, detach=True)
            """)
        self.assertEqual(spec["configurations"], [{"ablated_feature": "None", "ablated_layer": "half"}])
        self.assertEqual(self.call(spec, spec["configurations"][0]), "small")

    def test_an_optimizer_and_a_rule(self):
        [spec] = self.send("""
            from maggy import experiment, Searchspace
            from maggy.earlystop import AbstractEarlyStop
            from maggy.optimizer import AbstractOptimizer

            class Mine(AbstractOptimizer):
                def __init__(self, step):
                    super().__init__()

            class Rule(AbstractEarlyStop):
                pass

            def train(x):
                return x

            experiment.lagom(train, Searchspace(x=("INTEGER", [1, 9])), optimizer=Mine(3), es_policy=Rule, num_trials=2, quiet=True, detach=True)
            """)
        self.assertEqual(spec["optimizer"], {"type": "external", "entry": "__hops_main__:Mine", "arguments": {"step": 3}})
        self.assertEqual(spec["early_stop"], {"policy": "external", "entry": "__hops_main__:Rule", "es_min": 10, "interval": 1})

    def test_numbers_of_numpy(self):
        [spec] = self.send("""
            from hops import experiment
            class Scalar:  # as of numpy
                def __init__(self, value): self.value = value
                def item(self): return self.value
            def train(a):
                return a
            try:
                experiment.grid_search(train, {"a": [1]}, arguments={"far": {1, 2}}, quiet=True, detach=True)
            except experiment._jobs.JobError as e:
                assert "it holds set {1, 2}; numbers, text" in str(e), e
            experiment.grid_search(train, {"a": [Scalar(3), Scalar("x")]}, arguments={"rate": Scalar(0.5)}, quiet=True, detach=True)
            """)
        self.assertEqual((spec["space"]["a"]["values"], spec["arguments"]), ([3, "x"], {"rate": 0.5}))

    def test_whose_python(self):
        script = """
            from hops import experiment
            def train(a):
                return a
            common = dict(quiet=True, detach=True)
            experiment.grid_search(train, {"a": [1]}, %s**common)
            """
        with mock.patch.dict(os.environ, {"HOPS_PYTHON": "/venvs/torch"}):
            self.assertEqual([self.send(script % more)[0]["python"] for more in ("", 'python="/venvs/mine", ')], ["/venvs/torch", "/venvs/mine"])

    def test_what_the_caller_has_stays_as_it_is(self):
        [first, second] = self.send("""
            import sys
            from hops import experiment
            from maggy.optimizer import AbstractOptimizer
            class Mine(AbstractOptimizer):
                pass
            def train(a):
                return a
            spec = {"optimizer": {"type": "external", "object": Mine}}
            for _ in range(2):
                experiment.search(train, spec, quiet=True, detach=True)
            """)
        self.assertEqual(first["optimizer"], second["optimizer"])

    def test_gangs(self):
        specs = self.send("""
            from hops import experiment
            from maggy import experiment as maggy
            from maggy.config import TorchDistributedConfig

            def train():
                return 1

            common = dict(quiet=True, detach=True)
            experiment.mirrored(train, executors=3, evaluator=True, **common)
            """)
        specs += self.send("""
            from hops import experiment
            def train():
                return 1
            experiment.parameter_server(train, executors=4, num_ps=1, restarts=2, quiet=True, detach=True)
            """)
        specs += self.send("""
            from maggy import experiment
            from maggy.config import TorchDistributedConfig
            def train(module, hparams):
                return 1
            class Net: pass
            experiment.lagom(train, TorchDistributedConfig(module=Net, hparams={"lr": 1}, executors=2, quiet=True, detach=True))
            """)
        specs += self.send("""
            from hops import experiment
            def train():
                return 1
            experiment.mirrored(train, executors=1, quiet=True, detach=True)
            """)
        self.assertEqual([s.get("distributed") for s in specs], [{"framework": "tensorflow", "workers": 2, "evaluator": True},
                                                                {"framework": "parameter_server", "workers": 3, "parameter_servers": 1, "restarts": 2},
                                                                {"framework": "torch", "workers": 2}, None])
        self.assertEqual([s["executors"] for s in specs], [3, 4, 2, 1])
        self.assertEqual(specs[2]["arguments"], {"lr": 1})

    def test_a_notebook(self):
        notebook = {"cells": [{"cell_type": "markdown", "source": ["# no"]}, {"cell_type": "code", "source": ["%matplotlib inline\n", "import sys\n"]},
                              {"cell_type": "code", "source": "%%bash\nls"}, {"cell_type": "code", "source": "if True:\n    !ls\nprint('argument', sys.argv[1])"}]}
        spec, averages, torch = self.send("""
            import json
            from hops import allreduce
            with open("book.ipynb", "w") as f:
                json.dump(%r, f)
            allreduce.launch(None, "book.ipynb", args=[7], executors=2, quiet=True, detach=True)
            with open("averages.py", "w") as f:
                f.write("import horovod.torch as hvd\\nhvd.init()\\n")
            for more in ({}, {"framework": "torch"}):
                allreduce.launch(None, "averages.py", executors=2, quiet=True, detach=True, **more)
            """ % notebook)
        self.assertEqual((spec["name"], spec["distributed"]), ("book", {"framework": "tensorflow", "workers": 2}))
        self.assertEqual((averages["name"], averages["distributed"], torch["distributed"]["framework"]), ("averages", {"framework": "horovod", "workers": 2}, "torch"))
        with zipfile.ZipFile(io.BytesIO(self.hdfs.files[spec["code"]["uri"]])) as z, tempfile.TemporaryDirectory() as folder:
            z.extractall(folder)
            self.assertNotIn("hops/_run.py", z.namelist())
            done = subprocess.run([sys.executable, "-c", "import __hops_entry__ as e; e.function()"], capture_output=True, text=True, cwd=folder, timeout=300,
                                  env=dict(os.environ, PYTHONPATH=harness.ROOT + os.pathsep + folder))
        self.assertEqual(done.stdout, "argument 7\n", done.stderr)

    def test_versioned_resources(self):
        self.send("""
            import os
            from hops import experiment
            os.mkdir("kept"); open("kept/a.txt", "w").write("a")
            def train():
                return 1
            experiment.launch(train, versioned_resources=["kept", __file__], quiet=True, detach=True)
            try:
                experiment.launch(train, versioned_resources="nowhere", quiet=True)
            except FileNotFoundError as e:
                assert "nowhere" in str(e)
            else:
                raise AssertionError
            """)
        self.assertEqual(sorted(p.split("versioned_resources/")[1] for p in self.hdfs.files if "versioned_resources/" in p), ["kept/a.txt", "script.py"])


class Refused(unittest.TestCase):
    def test_arguments(self):
        def f(a):
            pass
        for call, error, what in (
                (lambda: experiment.launch(f, {"a": [1, 2], "b": [1]}), ValueError, "grid_search"),
                (lambda: experiment.launch(f, {"a": "text"}), ValueError, "not a list"),
                (lambda: experiment.launch(f, [1, 2]), TypeError, "args_dict is a list, not a dict"),
                (lambda: experiment.grid_search(f, [("a", [1])]), TypeError, "grid_dict is a list"),
                (lambda: experiment.random_search(f, 3), TypeError, "boundary_dict is a int"),
                (lambda: experiment.search(f, "random"), TypeError, "is a dict, not 'random'"),
                (lambda: experiment.random_search(f, {"a": [1, 2, 3]}), ValueError, r"\[low, high\]"),
                (lambda: experiment.random_search(f, {"a": ["x", "y"]}), ValueError, "two numbers"),
                (lambda: experiment.differential_evolution(f, {"a": [1, 2]}, population=3), ValueError, "more than 3"),
                (lambda: experiment.differential_evolution(f, {"a": [1, 2]}, generations=1), ValueError, "more than 1"),
                (lambda: experiment.grid_search(f, {"a": [1]}, direction="up"), ValueError, "neither"),
                (lambda: experiment.parameter_server(f, executors=2, num_ps=2), ValueError, "and a worker"),
                (lambda: experiment.parameter_server(f, executors=3, num_ps=1, evaluator=True), ValueError, "at least 3"),
                (lambda: experiment.launch(f, excutors=3), TypeError, "did you mean executors"),
                (lambda: experiment.launch(), TypeError, "missing"),
                (lambda: tflauncher.launch(f), TypeError, "the second"),
                (lambda: maggy.lagom(f, 3), TypeError, "second argument"),
                (lambda: maggy.lagom(f, config.BaseConfig), TypeError, "call it"),
                (lambda: maggy.lagom(f, optimizer="randomsearch"), TypeError, "searchspace is missing"),
                (lambda: maggy.lagom(f, experiment_type="ablation"), TypeError, "ablation_study is missing"),
                (lambda: maggy.lagom(f, experiment_type="x"), ValueError, "experiment_type"),
                (lambda: config.TorchDistributedConfig(backend="deepspeed"), NotImplementedError, "deepspeed.initialize"),
                (lambda: config.TorchDistributedConfig(f, zero_lvl=4), ValueError, "zero_lvl is 4"),
                (lambda: config.TorchDistributedConfig(zero_lvl=2), ValueError, "none is given"),
                (lambda: config.AblationConfig(None, repeats=0), ValueError, "repeats"),
                (lambda: config.HyperparameterOptConfig(0, "x", None), ValueError, "num_trials"),
                (lambda: tensorboard.interactive_debugger(), NotImplementedError, "enable_check_numerics"),
                (lambda: TFCluster.run(None, f, [], 2, num_ps=2), ValueError, "none to train"),
                (lambda: util.grid_params({"a": 3}), ValueError, "not a list"),
                (lambda: allreduce.program(__file__ + ".ipynb"), Exception, "")):
            with self.assertRaisesRegex(error, what):
                call()

    def test_a_run_of_the_program_ends_once(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)
        with mock.patch.dict(os.environ, {"HOPS_WEBHDFS": hdfs.url, "HADOOP_USER_NAME": "ann"}):
            for metric, error in ((0.5, None), (float("nan"), ValueError)):
                experiment.begin(project="lab")
                if error:
                    with self.assertRaises(error):
                        experiment.end(metric)
                    self.assertTrue(experiment._running.locked(), "it can be ended with another metric")
                experiment.end(0.5)
                self.assertFalse(experiment._running.locked())
            with experiment._running, self.assertRaisesRegex(RuntimeError, "without begin"):
                experiment.end()

    def test_one_at_a_time(self):
        with experiment._running:
            with self.assertRaisesRegex(RuntimeError, "one at a time"):
                experiment._alone(lambda: None)
            with self.assertRaisesRegex(RuntimeError, "one at a time"):
                experiment.begin()

    def test_keras_is_named(self):
        if importlib.util.find_spec("keras"):
            self.skipTest("keras is there")
        with self.assertRaisesRegex(ImportError, "Keras is not installed"):
            callbacks.KerasEpochEnd(None)


class Small(unittest.TestCase):
    def test_grid_params(self):
        self.assertEqual(util.grid_params({"a": [1, 2], "b": ["x", "y"]}), {"a": [1, 1, 2, 2], "b": ["x", "y", "x", "y"]})

    def test_environment(self):
        with mock.patch.dict(os.environ, {"NUM_TF_PS": "2", "EXECUTOR_GPUS": "3"}):
            self.assertEqual((util.num_param_servers(), devices.get_num_gpus()), (2, 3))
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}):
            self.assertEqual(devices.get_num_gpus(), 2)

    def test_torch_callback(self):
        seen = []

        class Reporter:
            def broadcast(self, value, step):
                seen.append((value, step))
        done = callbacks.TorchEpochEnd(Reporter(), "acc")
        done(0.5)
        done({"acc": 0.75})
        with mock.patch.object(_run, "_current", mock.Mock(resume_step=7)):
            callbacks.TorchEpochEnd(Reporter())(1.0)
        self.assertEqual(seen, [(0.5, 1), (0.75, 2), (1.0, 8)])

    def test_here(self):
        def train(model_gen, hparams, data_gen, dist_strategy, lr, **more):
            with dist_strategy.scope():
                return model_gen, hparams, data_gen, lr, more
        with tempfile.TemporaryDirectory() as folder:
            got = experiment.local(train, {"lr": 1, "x": 2}, directory=folder, model="m", dataset="d", hparams={"z": 3})
        self.assertEqual(got, ("m", {"z": 3, "lr": 1, "x": 2}, "d", 1, {"x": 2}))

    def test_partitions(self):
        self.assertEqual(TFCluster._partitions([[1, 2], [3]]), [[1, 2], [3]])
        good = [1, "x", 0.5, None, (1, {"a": {2}}), 3j, b"x", datetime.date(2020, 1, 2), collections.OrderedDict(a=1)]
        self.assertEqual(TFCluster._results(pickle.dumps(good, protocol=4)), good)
        for bad in (print, mock.Mock, os.system):
            with self.assertRaisesRegex(TypeError, "give it numbers"):
                TFCluster._results(pickle.dumps([bad], protocol=4))
        self.assertEqual(TFCluster._partitions([(1, 2), (3, 4)]), [[(1, 2), (3, 4)]])
        self.assertEqual(TFCluster._partitions(range(3)), [[0, 1, 2]])

    def test_signature(self):
        def train(model_function, dataset, reporter, lr=1):
            pass
        f = _wrapped.Function(train, {}, "ablation")

        class Trial:
            params, budget, id, seed = {"ablated_feature": "a", "ablated_layer": "b"}, {}, "1", 0
        self.assertEqual(sorted(_trial.bind(f, Trial, {})), ["ablated_feature", "ablated_layer", "reporter"])


class Ablation(unittest.TestCase):
    def test_features(self):
        for data in ({"a": [1], "b": [2]}, [{"a": 1, "b": 2}], ({"a": [1], "b": [2]}, [0])):
            out = ablation.remove_feature(data, "a")
            self.assertNotIn("'a'", str(out))
            with self.assertRaisesRegex(KeyError, "'c'.*a, b"):
                ablation.remove_feature(data, "c")
        with self.assertRaisesRegex(TypeError, "ablated_feature"):
            ablation.remove_feature(iter([]), "a")

    def test_a_study_checks_what_it_is_told(self):
        s = ablation.AblationStudy()
        for call, what in ((lambda: s.features.exclude("x"), "not included"), (lambda: s.features.include(3), "named by text"),
                           (lambda: s.model.layers.include_groups(), "name a group"), (lambda: s.model.layers.include_groups(["one"]), "at least two"),
                           (lambda: s.model.layers.exclude_groups(prefix="x"), "not included")):
            with self.assertRaisesRegex(ValueError, what):
                call()
        s.model.layers.include_groups(["a", "b"], prefix=["c", "d"])
        s.model.layers.exclude_groups(prefix="c")
        self.assertEqual(s.to_dict()["included_groups"], ['["a", "b"]', "Layers prefixed d"])

    def test_layers_by_name(self):
        names = ["conv_1", "conv_2", "dense"]
        self.assertEqual(ablation._chosen("Layers prefixed conv", names), ["conv_1", "conv_2"])
        self.assertEqual(ablation._chosen('["conv_2", "dense"]', names), ["conv_2", "dense"])
        for bad in ("nope", "Layers prefixed x"):
            with self.assertRaisesRegex(ValueError, "conv_1, conv_2, dense"):
                ablation._chosen(bad, names)

    def test_functional_models_are_rewired(self):
        def history(layer):
            return {"class_name": "__keras_tensor__", "config": {"shape": [None, 4], "dtype": "float32", "keras_history": [layer, 0, 0]}}
        config = {"layers": [{"name": "b", "inbound_nodes": [{"args": [history("a")], "kwargs": {}}]}, {"name": "c", "inbound_nodes": [{"args": [[history("b"), history("a")]], "kwargs": {}}]}],
                  "output_layers": [["c", 0, 0]]}
        self.assertEqual(ablation._histories(config["layers"][0]["inbound_nodes"]), [["a", 0, 0]])
        ablation._rewire(config, {"b": ["a", 0, 0]})
        self.assertEqual(ablation._histories(config["layers"][1]["inbound_nodes"]), [["a", 0, 0]])

    def test_intervals(self):
        mean, half = ablation.interval([1.0, 2.0, 3.0])
        self.assertEqual(mean, 2.0)
        self.assertAlmostEqual(half, 4.303 / 3 ** 0.5)
        self.assertEqual(ablation.interval([1.0]), (1.0, None))
        # More than the table has: Student's t for 40 degrees of freedom is 2.021.
        n = 41
        mean, half = ablation.interval([float(i) for i in range(n)])
        deviation = (sum((i - mean) ** 2 for i in range(n)) / (n - 1)) ** 0.5
        self.assertAlmostEqual(half / (deviation / n ** 0.5), 2.021, delta=0.003)

    def test_table(self):
        def trial(feature, metric, state="COMPLETED"):
            return {"params": {"ablated_feature": feature, "ablated_layer": "None"}, "metric": metric, "state": state}
        t = ablation.table([trial("None", 0.8), trial("None", 0.82), trial("sex", 0.6), trial("sex", None, "FAILED"), trial("age", None, "FAILED")])
        self.assertEqual([(r["component"], r["trials"]) for r in t], [("None", 2), ("sex", 1), ("age", 0)])
        self.assertAlmostEqual(t[1]["effect"], -0.21)
        self.assertEqual(str(t).splitlines()[0].split(), ["component", "trials", "mean", "±", "95", "%", "effect"])
        self.assertIn("<td>sex</td>", t._repr_html_())

    def test_stored_data(self):
        with mock.patch("hops.hdfs.load", return_value=b"sex,age,survived\nmale,22,0\nfemale,38.5,1\n"):
            data = ablation.dataset_function(ablation.given(ablation.AblationStudy("titanic", 1, "survived")), "age")()
        self.assertEqual(data, {"sex": ["male", "female"], "survived": [0, 1]})


class Display(unittest.TestCase):
    job = {"id": "application_1_0001", "phase": "RUNNING"}
    live = {"ended": 3, "planned": 12, "metric": "accuracy", "started": 1000, "best": {"metric": 0.75, "trial": "0002", "params": {"lr": 0.125, "act": "relu"}},
            "counters": {"early_stopped": 1}}

    def trials(self):
        t = _display.Trials()
        t.add("reset", {"trials": [{"trial": "0001", "state": "COMPLETED", "params": {"lr": 1}, "epochs": 3, "metric": 0.5}, {"trial": "0002", "state": "RUNNING", "params": {"lr": 2}, "epochs": 1}]})
        t.add("trial", {"trial": "0003", "state": "STOPPED", "params": {"lr": 3}, "epochs": 2, "metric": 0.25, "reason": "median: 0.25 is below 0.5"})
        t.add("report", {"trial": "0002", "points": [[2, 0.625]]})
        return t

    def test_terminal(self):
        text = "\n".join(_display.lines(self.job, self.live, self.trials(), 62))
        for part in ("trials 3/12", "best accuracy 0.75 (trial 0002)", "25 %", "0:01:01", "1 stopped early (1 median)", "lr=0.125 act=relu", "STOPPED: median: 0.25 is below 0.5", "0.625"):
            self.assertIn(part, text)
        self.assertTrue(all(len(line) < 60 for line in _display.lines(self.job, self.live, self.trials(), 62, 60)))

    def test_page(self):
        t = self.trials()
        t.add("trial", {"trial": "0004", "state": "FAILED", "params": {"x": "<b>"}, "error": {"message": "<script>"}})
        page = _display.page(self.job, self.live, t, 62)
        self.assertIn("&lt;script&gt;", page)
        self.assertNotIn("<script>", page)

    def test_thousands_of_trials(self):
        t = _display.Trials()
        t.add("reset", {"trials": [{"trial": "%05d" % n, "state": "RUNNING" if n % 1000 == 0 else "COMPLETED", "params": {}} for n in range(1, 5001)]})
        rows = t.rows()
        self.assertEqual(len(rows), _display.ROWS)
        self.assertEqual(sum(r["state"] == "RUNNING" for r in rows), 5)

    def test_plain_lines_only_when_something_changed(self):
        out = io.StringIO()
        plain = _display.Plain(out)
        for live in (None, self.live, self.live):
            plain.show(self.job, live, None)
        self.assertEqual(len(out.getvalue().splitlines()), 2)

    def test_terminal_is_painted_over(self):
        out = io.StringIO()
        terminal = _display.Terminal(out)
        terminal.show(self.job, self.live, self.trials())
        n = out.getvalue().count("\n")
        terminal.say("a line of a log")
        self.assertIn("\x1b[%dF\x1b[Ja line of a log\n" % n, out.getvalue())

    def test_logs(self):
        t = _display.Trials()
        t.add("reset", {"trials": [{"trial": "0001", "state": "RUNNING", "params": {}, "log": "/l"}]})
        text, said = [b"one\ntw"], []

        class Files:
            def read(self, path, at, length):
                return text[0][at:at + length]
        logs = _display.Logs(Files(), said.append)
        logs.follow(t)
        text[0] = b"one\ntwo\nthree\x1b[2J"
        logs.follow(t)
        logs.follow(t, last=True)
        self.assertEqual(said, ["0001| one", "0001| two", "0001| three [2J"])

    def test_jupyter(self):
        shown, updates = [], []

        class Handle:
            def update(self, html):
                updates.append(html)

        class Shell:
            pass
        Shell.__name__ = "ZMQInteractiveShell"
        ipython = mock.Mock(get_ipython=Shell)
        display = mock.Mock(HTML=lambda text: text, display=lambda html, display_id: shown.append(html) or Handle())
        with mock.patch.dict(sys.modules, {"IPython": ipython, "IPython.display": display}):
            notebook = _display.chosen(False)
            self.assertIsInstance(notebook, _display.Notebook)
            for _ in range(2):
                notebook.show(self.job, self.live, self.trials())
        self.assertEqual((len(shown), len(updates)), (1, 1))
        self.assertIn("<table>", shown[0])


class Followed(unittest.TestCase):
    """What is shown last is the end, not what was heard before it."""

    def test_the_end_is_shown(self):
        f, shown = object.__new__(_following.Following), []
        result = {"trials": [{"trial": "0001", "state": "COMPLETED", "params": {"x": 1}, "epochs": 2, "metric": 0.5}], "best_id": "0001", "best_val": 0.5, "best_config": {"x": 1},
                  "metric": "acc", "counters": {}, "duration_ms": 1500}
        f.id = f.experiment = "application_1_0001"
        f.directory = lambda: "/e"
        f.fs = mock.Mock(read=lambda path: json.dumps(result).encode())
        f.jobs = mock.Mock(get=lambda job: {"state": "FINISHED", "phase": "SUCCEEDED"})
        display = mock.Mock(live=True, show=lambda job, live, trials: shown.append(_display.lines(job, live, trials, live["started"] / 1000 + 1.5)))
        trials = _display.Trials()
        trials.add("reset", {"trials": [{"trial": "0001", "state": "RUNNING", "params": {"x": 1}}]})
        f._follow(display, trials, None)
        self.assertIn("SUCCEEDED  trials 1/1  best acc 0.5 (trial 0001)", shown[-1][0])
        self.assertIn("COMPLETED", shown[-1][-1])
        f.fs.read = mock.Mock(side_effect=FileNotFoundError)
        f._follow(display, trials, None)  # nothing was left: what was shown stays
        self.assertEqual(len(shown), 1)


class Interrupted(unittest.TestCase):
    """Ctrl-C on a terminal asks; elsewhere it ends the waiting."""

    def interrupted(self, answer, terminal=True):
        f = object.__new__(_following.Following)
        f.experiment, f.stopped = "application_1_0001_1", []
        f.stop = f.stopped.append
        stdin, stderr = io.StringIO(answer), io.StringIO()
        stdin.isatty = stderr.isatty = lambda: terminal
        with mock.patch("sys.stdin", stdin), mock.patch("sys.stderr", stderr):
            return f._interrupted(_display.Silent()), f.stopped, stderr.getvalue()

    def test_answers(self):
        for answer, again, stopped in (("d\n", False, 0), ("\n", False, 0), ("", False, 0), ("w\n", True, 0), ("s\n", True, 1)):
            got, calls, said = self.interrupted(answer)
            self.assertEqual((got, len(calls)), (again, stopped), answer)
            self.assertIn("stop the search [s]", said)

    def test_without_a_terminal_nobody_is_asked(self):
        got, calls, said = self.interrupted("s\n", False)
        self.assertEqual((got, calls), (False, []))
        self.assertIn("hops experiment stop application_1_0001\n", said)


class Events(unittest.TestCase):
    def test_stream(self):
        text = b": hello\n\nevent: reset\ndata: {\"trials\": []}\nid: 3\n\nevent: trial\ndata: {\"trial\":\ndata: \"0001\"}\n\n"
        seen = []

        class Server(fakes.Fake):
            def serve(self, h):
                seen.append((h.path, h.headers.get("Last-Event-ID")))
                h.answer(200, text)
        server = Server()
        self.addCleanup(server.close)
        found = list(_jobs.Jobs([server.url], "ann").events("application_1_0001", "/v1/experiments/x/events", 2))
        self.assertEqual(found, [("3", "reset", {"trials": []}), (None, "trial", {"trial": "0001"})])
        self.assertEqual(seen, [("/proxy/application_1_0001/v1/experiments/x/events?user.name=ann", "2")])


if __name__ == "__main__":
    unittest.main()
