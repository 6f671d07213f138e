"""The brain of a search: optimizers and stopping rules that a user wrote in Python, beside the controller.

    python3 -m hops.brain

Requests come on standard input, answers go to standard output, a JSON object a line: docs/reference/brain-protocol.md. What user code
prints goes to standard error. Nothing is kept: a new brain is told everything again.
"""
import json
import os
import random
import sys
import traceback

from hops import _trial, _wire, _zygote
from maggy import earlystop
from maggy.optimizer import IDLE, AbstractOptimizer
from maggy.searchspace import Searchspace
from maggy.trial import Trial

PROTOCOL = 1
MAX_SUGGESTIONS = 1000
MAX_TRACEBACK = 32 << 10


class BadRequest(Exception):
    """The controller wrote what this version does not know."""


class Brain:
    """The objects that the user wrote, and what they are told."""

    def __init__(self):
        self.optimizer = self.rule = None
        self.trials = {}  # by number
        self.unseen = []  # trials that ended, and were not handed to get_suggestion yet

    def answer(self, request):
        """The answer to a request, without its id. Raises what user code raises."""
        kinds = [k for k in ("init", "replay", "ask", "event", "check", "finish") if k in request]
        if len(kinds) != 1:
            raise BadRequest("a request has one of init, replay, ask, event, check, finish; this one has %s" % sorted(request))
        return getattr(self, "_" + kinds[0])(request[kinds[0]])

    # -- requests

    def _init(self, init):
        if init.get("protocol") != PROTOCOL:
            raise BadRequest("protocol %r is not %d" % (init.get("protocol"), PROTOCOL))
        spec = init["spec"]
        self.spec, self.direction = spec, str(spec.get("direction") or "max").lower()
        space = Searchspace.from_spec(spec.get("space") or {})
        seed = spec.get("seed") or 0
        random.seed(seed)
        chooser, stopper = spec.get("optimizer") or {}, spec.get("early_stop") or {}
        if chooser.get("type") == "external":
            self.optimizer = o = self._make(chooser, init)
            if not callable(getattr(o, "get_suggestion", None)):
                raise TypeError("%s made a %s, which has no get_suggestion: it must be a maggy.optimizer.AbstractOptimizer" % (chooser["entry"], type(o).__name__))
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(seed % (1 << 32))
            o.searchspace, o.num_trials, o.direction = space, spec.get("trials") or 1, self.direction
            o.trial_store, o.final_store = {}, []
            if getattr(o, "seed", 0) is None:
                o.seed = seed
            getattr(o, "initialize", lambda: None)()
        if stopper.get("policy") == "external":
            self.rule = self._make(stopper, init, instance=False)
        return {"ready": {"protocol": PROTOCOL, "optimizer": self.optimizer is not None, "early_stop": self.rule is not None,
                          "reports": bool(getattr(self.optimizer, "reports", False))}}

    def _make(self, options, init, instance=True):
        """The object of an entry. A class stays one unless it is to be an instance or has arguments."""
        setup = {"entry": options["entry"], "code_dir": os.path.abspath(init.get("code_dir") or "code")}
        problem = _trial.prepare(setup)
        if problem:
            raise _Described(problem)
        made, arguments = _trial.find(options["entry"]), options.get("arguments") or {}
        if isinstance(made, type):
            return made(**arguments) if instance or arguments else made
        if callable(made) and not isinstance(made, (AbstractOptimizer, earlystop.AbstractEarlyStop)) and not hasattr(made, "get_suggestion"):
            return made(**arguments)
        return made

    def _replay(self, entries):
        differs = 0
        for entry in entries:
            if "suggested" in entry:
                differs += self._again(entry["suggested"])
            else:
                self._event(entry["event"])
        return {"ok": True, "differs": differs}

    def _again(self, record):
        """Take a suggestion over from the record; True if the optimizer would have made another one."""
        params = dict(record.get("params") or {})
        if record["trial"] in self.trials:  # a promotion
            self._begin(self.trials[record["trial"]])
            if self.optimizer is not None:
                self._suggestion()
            return False
        if record.get("budget") and "budget" not in params and self._budgeted():
            params["budget"] = record["budget"]
        trial = self._suggestion() if self.optimizer is not None else None
        differs = self.optimizer is not None and (not isinstance(trial, Trial) or trial.params != params)
        if not isinstance(trial, Trial):
            trial = Trial(params, info_dict={"sample_type": record.get("label") or ""})
        elif differs:
            trial.params = params
        trial.number = record["trial"]
        self._begin(trial)
        return differs

    def _budgeted(self):
        return "budget" not in (self.spec.get("space") or {})

    def _suggestion(self):
        found = self.optimizer.get_suggestion(self.unseen[0] if self.unseen else None)
        del self.unseen[:1]  # not if it raised: it is asked again
        return found

    def _ask(self, ask):
        if self.optimizer is None:
            raise BadRequest("this search has no optimizer in Python")
        n, number, found = min(int(ask["n"]), MAX_SUGGESTIONS), int(ask["next"]), []
        end = {"idle": True}
        while len(found) < n:
            try:
                trial = self._suggestion()
                if trial is None:
                    end = {"done": True}
                    break
                if isinstance(trial, str) and trial.upper() == IDLE:
                    break
                if not isinstance(trial, Trial):
                    raise TypeError("get_suggestion returned %s %.100r; it returns a Trial (create_trial), \"IDLE\" or None" % (type(trial).__name__, trial))
                promoted = trial.number is not None
                said = self._said(trial, promoted, number)
            except BaseException:  # noqa: B902 - user code may raise anything
                if not found:
                    raise
                traceback.print_exc()  # what it suggested before that runs; it is asked again then
                break
            if not promoted:
                trial.number = number
                number += 1
            found.append(said)
            self._begin(trial)
        return {"suggest": found} if found else end

    def _said(self, trial, promoted, number):
        params, budget = dict(trial.params), trial.info_dict.get("run_budget", 0)
        if self._budgeted() and "budget" in params:
            budget = params.pop("budget")
        for name, value in params.items():
            plain = _wire.plain(value)
            if not isinstance(plain, (bool, int, float, str)):
                raise TypeError("get_suggestion: the parameter %s is %.100r; a parameter is a number, text, or a truth value" % (name, value))
            params[name] = plain
        if isinstance(budget, bool) or budget != int(budget) or budget < 0:
            raise ValueError("get_suggestion: the budget is %r, not a whole number of epochs" % (budget,))
        said = {"trial": trial.number if promoted else number, "params": params, "budget": int(budget), "last": bool(trial.info_dict.get("last", True)),
                "label": _wire.text(str(trial.info_dict.get("sample_type") or ""))[:100]}
        if promoted:
            del said["params"]
        return said

    def _begin(self, trial):
        self.trials[trial.number] = trial
        trial.status = Trial.RUNNING
        if self.optimizer is not None:
            running = self.optimizer.trial_store
            if running.get(trial.trial_id, trial) is not trial:  # the same parameters twice
                trial.trial_id = "%s-%d" % (trial.trial_id, trial.number)
            running[trial.trial_id] = trial
            if trial in self.optimizer.final_store:
                self.optimizer.final_store.remove(trial)

    def _event(self, event):
        trial = self.trials.get(event["trial"])
        if trial is None:  # of the controller's own optimizer
            trial = self.trials[event["trial"]] = Trial(event.get("params") or {})
            trial.number = event["trial"]
        if event["kind"] == "reported":
            trial.append_metric({"value": _number(event.get("value")), "step": event["step"]})
            return {"ok": True}
        if "curve" in event:
            self._curve(trial, event["curve"])
        trial.start, ended = event.get("started"), event.get("ended")
        trial.duration = ended - trial.start if trial.start and ended else None
        trial.status = Trial.ERROR if event["kind"] == "failed" else Trial.FINALIZED
        trial.early_stop = event["kind"] == "stopped"
        trial.final_metric = None if event["kind"] == "failed" else _number(event.get("value"))
        if "values" in event:
            trial.info_dict["values"] = [_number(v) for v in event["values"]]
        if self.optimizer is not None:
            self.optimizer.trial_store.pop(trial.trial_id, None)
            self.optimizer.final_store.append(trial)
            self.unseen.append(trial)
        return {"ok": True}

    @staticmethod
    def _curve(trial, curve):
        trial.step_history = [int(step) for step, _ in curve]
        trial.metric_history = [_number(value) for _, value in curve]
        trial.metric_dict = dict(zip(trial.step_history, trial.metric_history))

    def _check(self, check):
        trial = self.trials.get(check["trial"])
        if trial is None:
            trial = Trial(check.get("params") or {})
            trial.number, trial.status = check["trial"], Trial.RUNNING
            trial.trial_id = "%s-%d" % (trial.trial_id, trial.number)
            self.trials[trial.number] = trial
        self._curve(trial, check["curve"])
        finals = [t for t in self.trials.values() if t.status == Trial.FINALIZED]
        if self.rule is None or not earlystop.check(self.rule, trial, finals, self.direction):
            return {"stop": None}
        name = self.rule.__name__ if isinstance(self.rule, type) else type(self.rule).__name__
        return {"stop": {"trial": trial.number, "reason": "stopped by %s" % name}}

    def _finish(self, _):
        end = getattr(self.optimizer, "finalize_experiment", None)
        if end is not None:
            end([t for t in self.optimizer.final_store])
        return {"ok": True}


class _Described(Exception):
    """An error that was described already, as one of the imports of the user's module."""


def _number(value):
    return float(value) if isinstance(value, str) else value  # "Infinity", "-Infinity", "NaN"


def _error(e):
    if isinstance(e, _Described):
        found = e.args[0]
    else:
        found = _trial._describe(e)
    return {"type": found["type"], "message": found["message"], "traceback": found.get("traceback", "")[-MAX_TRACEBACK:]}


def serve(source, sink):
    """Answer the requests of source, a binary file, until it ends. Returns the exit status."""
    brain = Brain()
    for line in source:
        request = json.loads(line.decode("utf-8"))
        try:
            answer, fatal = brain.answer(request), False
        except BaseException as e:  # noqa: B902 - user code may raise anything, SystemExit too
            traceback.print_exc()
            answer, fatal = {"error": _error(e)}, "init" in request or "replay" in request
        sys.stdout.flush()
        sink.write(_wire.encode({"id": request.get("id"), **answer}) + b"\n")
        sink.flush()
        if fatal:
            return 1
    return 0


def main():
    _zygote.die_with_parent()
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # user code that reads or prints must not get between the lines
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)
    status = serve(source, sink)
    sys.stdout.flush()
    os._exit(status)  # threads of user code hold nothing up


if __name__ == "__main__":
    main()
