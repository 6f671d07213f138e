"""The brain: conversations with the controller, which the Go tests read too, and what user code may do wrong."""
import contextlib
import glob
import io
import json
import os
import random
import subprocess
import sys
import unittest

import harness
from hops import brain as brains
from maggy import Searchspace, earlystop
from maggy.optimizer import GP, TPE, AbstractOptimizer, Asha, RandomSearch, constructed, spec_of
from maggy.trial import Trial

CONVERSATIONS = os.path.join(harness.ROOT, "..", "..", "training", "controller", "testdata", "brain")


def talk(exchanges, cwd=CONVERSATIONS):
    """The answers of a brain's process to requests, and its status."""
    lines = "".join(json.dumps(e) + "\n" for e in exchanges)
    done = subprocess.run([sys.executable, "-m", "hops.brain"], input=lines, cwd=cwd, capture_output=True, text=True, timeout=300,
                          env=dict(os.environ, PYTHONPATH=harness.ROOT, PYTHONDONTWRITEBYTECODE="1"))
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode, done.stderr


class Conversations(unittest.TestCase):
    def test_conversations(self):
        paths = sorted(glob.glob(os.path.join(CONVERSATIONS, "*.json")))
        self.assertGreaterEqual(len(paths), 6)
        for path in paths:
            with self.subTest(os.path.basename(path)):
                with open(path) as f:
                    exchanges = json.load(f)["exchanges"]
                answers, status, said = talk([e["request"] for e in exchanges])
                for a in answers:
                    if "error" in a:
                        self.assertTrue(a["error"]["traceback"], said)
                        a["error"]["traceback"] = "…"
                self.assertEqual(answers, [e["answer"] for e in exchanges], said)
                self.assertEqual(status, 1 if "missing" in path else 0, said)

    def test_requests_that_nobody_knows(self):
        answers, status, _ = talk([{"id": 1, "dance": {}}, {"id": 2, "init": {"protocol": 9, "spec": {}}}])
        self.assertEqual([a["error"]["type"] for a in answers], ["BadRequest", "BadRequest"])
        self.assertEqual(status, 1)


def made(optimizer, space=None, **spec):
    """A brain with an optimizer that is there already."""
    brain = brains.Brain()
    brain._make = lambda options, init, instance=True: optimizer
    brain.answer({"init": {"protocol": 1, "spec": {"space": (space or Searchspace(x=("INTEGER", [1, 99]))).spec(), "optimizer": {"type": "external", "entry": "m:o"},
                                                   "direction": "min", "trials": 5, "seed": 3, **spec}}})
    return brain


class Optimizers(unittest.TestCase):
    def test_stores(self):
        class Mine(AbstractOptimizer):
            def get_suggestion(self, trial=None):
                handed.append(trial)
                return self.create_trial({"x": 3})

        handed = []
        o = Mine()
        b = made(o)
        said = b.answer({"ask": {"n": 2, "next": 1}})["suggest"]
        self.assertEqual([s["trial"] for s in said], [1, 2])
        self.assertEqual(len(o.trial_store), 2, "the same parameters twice are two trials")
        b.answer({"event": {"kind": "finished", "trial": 2, "value": 4.0, "curve": [[1, 5.0], [2, 4.0]], "epochs": 2}})
        b.answer({"event": {"kind": "failed", "trial": 1, "curve": [], "epochs": 0}})
        self.assertEqual((len(o.trial_store), [t.number for t in o.final_store]), (0, [2, 1]))
        self.assertEqual(list(o.get_metrics_array()), [4.0])
        self.assertEqual(list(o.get_metrics_array(interim_metrics=True, interim_metrics_interval=1)), [5.0, 4.0, 4.0])
        self.assertEqual((o.ybest(), o.yworst(), o.ymean()), (4.0, 4.0, 4.0))
        self.assertTrue(o.hparams_exist(Trial({"x": 3})))
        b.answer({"ask": {"n": 1, "next": 3}})
        self.assertEqual([t and t.number for t in handed], [None, None, 2])

    def test_a_search_of_random_numbers_is_replayed(self):
        class Mine(RandomSearch):
            pass

        first = made(Mine())
        said = [first.answer({"ask": {"n": 1, "next": n}})["suggest"][0] for n in (1, 2, 3)]
        again = made(Mine())
        self.assertEqual(again.answer({"replay": [{"suggested": s} for s in said]}), {"ok": True, "differs": 0})
        self.assertEqual(first.answer({"ask": {"n": 2, "next": 4}}), again.answer({"ask": {"n": 2, "next": 4}}))
        self.assertEqual(again.answer({"ask": {"n": 2, "next": 6}}), {"done": True})

    def test_what_comes_back_is_checked(self):
        for bad, what in (({"x": 3}, "returned dict"), (Trial({"x": [1]}), "a parameter is a number"), (Trial({"x": 1, "budget": 1.5}), "not a whole number of epochs")):
            o = AbstractOptimizer()
            o.get_suggestion = lambda trial=None, bad=bad: bad
            with self.assertRaisesRegex((TypeError, ValueError), what):
                made(o).answer({"ask": {"n": 1, "next": 1}})

    def test_what_was_suggested_before_an_exception_counts(self):
        class Mine(AbstractOptimizer):
            def get_suggestion(self, trial=None):
                handed.append(trial and trial.number)
                if len(handed) in (2, 4):
                    raise RuntimeError("not now")
                return self.create_trial({"x": len(handed)})

        handed = []
        b = made(Mine())
        with contextlib.redirect_stderr(io.StringIO()) as said:
            answer = b.answer({"ask": {"n": 3, "next": 1}})
        self.assertEqual([s["trial"] for s in answer["suggest"]], [1])
        self.assertIn("RuntimeError: not now", said.getvalue())
        self.assertEqual([s["trial"] for s in b.answer({"ask": {"n": 1, "next": 2}})["suggest"]], [2])
        b.answer({"event": {"kind": "finished", "trial": 1, "value": 4.0, "curve": [], "epochs": 0}})
        with self.assertRaises(RuntimeError):
            b.answer({"ask": {"n": 1, "next": 3}})
        self.assertEqual([s["trial"] for s in b.answer({"ask": {"n": 1, "next": 3}})["suggest"]], [3])
        self.assertEqual(handed, [None, None, None, 1, 1], "a trial that ended is handed over once more")
        self.assertEqual(sorted(t.number for t in b.optimizer.trial_store.values()), [2, 3])

    def test_a_promotion(self):
        class Mine(AbstractOptimizer):
            def get_suggestion(self, trial=None):
                if trial is None:
                    t = self.create_trial({"x": 1}, run_budget=2)
                    t.info_dict["last"] = False
                    return t
                trial.params["budget"], trial.info_dict["last"] = 4, True
                return trial

        b = made(Mine())
        self.assertEqual(b.answer({"ask": {"n": 1, "next": 1}})["suggest"], [{"trial": 1, "params": {"x": 1}, "budget": 2, "last": False, "label": "random"}])
        b.answer({"event": {"kind": "finished", "trial": 1, "value": 1.0, "curve": [[2, 1.0]], "epochs": 2}})
        self.assertEqual(b.answer({"ask": {"n": 1, "next": 2}})["suggest"], [{"trial": 1, "budget": 4, "last": True, "label": "random"}])
        self.assertEqual(len(b.optimizer.final_store), 0)

    def test_specifications(self):
        self.assertEqual(spec_of("tpe"), {"type": "tpe"})
        self.assertEqual(spec_of("BOHB"), {"type": "bohb"})
        self.assertEqual(spec_of(Asha(3, 1, 9)), {"type": "asha", "eta": 3, "r_min": 1, "r_max": 9})
        self.assertEqual(spec_of(RandomSearch), {"type": "random"})
        self.assertEqual(spec_of(RandomSearch(pruner="hyperband", pruner_kwargs={"min_budget": 1, "max_budget": 9, "eta": 3})),
                         {"type": "hyperband", "r_min": 1, "r_max": 9, "eta": 3})
        self.assertEqual(spec_of(TPE(gamma=0.2, pruner="hyperband")), {"type": "bohb"})
        self.assertEqual(spec_of(TPE(0.2, 24, num_warmup_trials=4)), {"type": "tpe", "gamma": 0.2, "candidates": 24, "startup": 4})
        self.assertEqual(spec_of(GP("asy_ts", acq_fun="EI")), {"type": "gp", "strategy": "thompson", "acquisition": "ei"})
        for wrong, error in ((lambda: GP("x"), ValueError), (lambda: TPE(bw_factor=2), NotImplementedError), (lambda: spec_of(3), TypeError),
                             (lambda: spec_of("nope"), ValueError), (lambda: spec_of(GP(pruner="hyperband")), NotImplementedError)):
            with self.assertRaises(error):
                wrong()

    def test_how_it_was_made(self):
        class Mine(AbstractOptimizer):
            def __init__(self, a, b=2, **more):
                super().__init__(**more)

        self.assertEqual(constructed(Mine(1)), {"a": 1})
        self.assertEqual(constructed(Mine(1, b=[3], seed=4)), {"a": 1, "b": [3], "seed": 4})
        self.assertIsNone(constructed(Mine(object())))
        self.assertIsNone(constructed(Mine((1, 2))), "a tuple would come back as a list")


class Stopping(unittest.TestCase):
    def test_every_way_to_write_a_rule(self):
        class Static(earlystop.AbstractEarlyStop):
            @staticmethod
            def earlystop_check(to_check, finalized_trials, direction):
                return to_check.trial_id if to_check.metric_history[-1] < 1 else None

        class Plain(earlystop.AbstractEarlyStop):
            def earlystop_check(to_check, finalized_trials, direction):
                return to_check.metric_history[-1] < 1

        class Bound(earlystop.AbstractEarlyStop):
            def earlystop_check(self, to_check, finalized_trials, direction):
                return to_check if to_check.metric_history[-1] < 1 else None

        class Old(earlystop.AbstractEarlyStop):
            def early_check(to_check, trials, direction):
                return [to_check.trial_id] if to_check.metric_history[-1] < 1 else []

        for rule in (Static, Static(), Plain, Bound, Bound(), Old):
            for value in (0.5, 1.5):
                t = Trial({"x": 1})
                t.append_metric({"value": value, "step": 1})
                self.assertEqual(earlystop.check(rule, t, [], "max"), value < 1, rule)

    def test_median(self):
        def trial(*values):
            t = Trial({"x": len(values)})
            for step, v in enumerate(values):
                t.append_metric({"value": v, "step": step})
            return t
        finals = [trial(1, 2, 3), trial(2, 3, 4), trial(3, 4, 5)]
        rule = earlystop.MedianStoppingRule
        self.assertTrue(earlystop.check(rule, trial(1, 1), finals, "max"))
        self.assertFalse(earlystop.check(rule, trial(1, 9), finals, "max"))
        self.assertFalse(earlystop.check(rule, trial(1, 1), finals, "min"))
        self.assertFalse(earlystop.check(rule, trial(1, 1, 1, 1), finals, "max"))


class Spaces(unittest.TestCase):
    space = Searchspace(lr=("DOUBLE", [1e-4, 1], "log"), units=("INTEGER", [8, 64]), batch=("DISCRETE", [16, 32, 64]), opt=("CATEGORICAL", ["sgd", "adam"]),
                        momentum=("DOUBLE", [0, 0.9], {"when": {"opt": "sgd"}}))

    def test_transform_and_back(self):
        random.seed(1)
        for p in self.space.get_random_parameter_values(50):
            self.assertEqual("momentum" in p, p["opt"] == "sgd")
            for normalize in (False, True):
                t = self.space.transform(self.space.dict_to_list(p), normalize)
                back = self.space.list_to_dict(self.space.inverse_transform(t, normalize))
                self.assertEqual(set(back), set(p))
                self.assertAlmostEqual(back.pop("lr"), p["lr"])
                self.assertAlmostEqual(back.pop("momentum", 0), p.get("momentum", 0))
                self.assertEqual(back, {k: v for k, v in p.items() if k not in ("lr", "momentum")})

    def test_spec_and_back(self):
        self.assertEqual(Searchspace.from_spec(json.loads(json.dumps(self.space.spec()))).spec(), self.space.spec())
        self.assertEqual(self.space.spec()["momentum"], {"type": "DOUBLE", "range": [0, 0.9], "when": {"opt": ["sgd"]}})

    def test_grid_with_conditions(self):
        space = Searchspace(opt=("CATEGORICAL", ["sgd", "adam"]), n=("DISCRETE", [1, 2], {"when": {"opt": "sgd"}}))
        self.assertEqual(space.grid(), [{"opt": "sgd", "n": 1}, {"opt": "sgd", "n": 2}, {"opt": "adam"}])

    def test_mistakes(self):
        for kw, what in (({"when": {"nope": 1}}, "does not stand before"), ({"when": {"opt": "rms"}}, "never is"), ({"when": {"lr": 1}}, "only DISCRETE")):
            with self.assertRaisesRegex(ValueError, what):
                Searchspace.from_spec(self.space.spec()).add("x", ("DOUBLE", [0, 1]), **kw)


if __name__ == "__main__":
    unittest.main()
