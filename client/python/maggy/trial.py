"""A trial as optimizers and stopping rules written in Python see it."""
import hashlib
import json


class Trial:
    """One configuration and what came of it. trial_id follows from the parameters, as in Maggy; number is what the rest of the
    platform calls the trial, known once it was suggested.

    metric_history has the reported values, step_history their steps; final_metric is None until the trial has ended, and stays
    so if it failed. info_dict is for whoever made the trial; of it "sample_type" is shown to people."""

    PENDING, SCHEDULED, RUNNING, ERROR, FINALIZED = "PENDING", "SCHEDULED", "RUNNING", "ERROR", "FINALIZED"

    def __init__(self, params, trial_type="optimization", info_dict=None):
        self.trial_type = trial_type
        self.params = params
        self.trial_id = Trial._compute_id(params)
        self.info_dict = info_dict if info_dict is not None else {}
        self.number = None
        self.status = Trial.PENDING
        self.early_stop = False
        self.final_metric = None
        self.metric_history, self.step_history, self.metric_dict = [], [], {}
        self.start = self.duration = None

    @staticmethod
    def _compute_id(params):
        """The first 16 hexadecimal digits of the MD5 of the parameters as JSON."""
        if not isinstance(params, dict) or not all(isinstance(k, str) for k in params):
            raise ValueError("the parameters of a trial are a dict by name, not %r" % (params,))
        return hashlib.md5(json.dumps(params, sort_keys=True, default=str).encode("utf-8")).hexdigest()[:16]

    def get_early_stop(self):
        return self.early_stop

    def set_early_stop(self):
        self.early_stop = True

    def append_metric(self, metric_data):
        """Add {"value", "step"}; a step that is there is replaced."""
        value, step = metric_data["value"], metric_data["step"]
        if step in self.metric_dict:
            self.metric_history[self.step_history.index(step)] = value
        else:
            self.metric_history.append(value)
            self.step_history.append(step)
        self.metric_dict[step] = value

    def to_json(self):
        return json.dumps({"__class__": "Trial", **self.to_dict()}, default=str)

    def to_dict(self):
        return {"trial_id": self.trial_id, "params": self.params, "trial_type": self.trial_type, "status": self.status, "early_stop": self.early_stop,
                "final_metric": self.final_metric, "metric_history": self.metric_history, "step_history": self.step_history, "start": self.start,
                "duration": self.duration, "info_dict": self.info_dict}

    @classmethod
    def from_json(cls, json_str):
        """A trial from the text that to_json made."""
        found = json.loads(json_str)
        if not isinstance(found, dict) or found.get("__class__") != "Trial":
            raise ValueError("this is not a trial in JSON")
        trial = cls(found["params"], found.get("trial_type", "optimization"), found.get("info_dict"))
        for name in ("trial_id", "status", "early_stop", "final_metric", "metric_history", "step_history", "start", "duration"):
            if name in found:
                setattr(trial, name, found[name])
        trial.metric_dict = dict(zip(trial.step_history, trial.metric_history))
        return trial

    def __repr__(self):
        return "Trial(%r, %s, %s)" % (self.params, self.status, self.final_metric)
