# An optimizer and a stopping rule written in Python: they run beside the controller.
import time

from maggy import Searchspace, experiment
from maggy.earlystop import AbstractEarlyStop
from maggy.optimizer import AbstractOptimizer


class CustomOptimizer(AbstractOptimizer):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def initialize(self):
        self.x = 0

    def get_suggestion(self, trial=None):
        if trial is not None and trial.final_metric is not None:
            self.x = max(self.x, trial.params["x"])
        if len(self.final_store) + len(self.trial_store) >= self.num_trials:
            return None
        if self.trial_store:
            return "IDLE"
        return self.create_trial({"x": self.x + self.step})

    def finalize_experiment(self, trials):
        print("finalized", len(trials))


class CustomEarlyStop(AbstractEarlyStop):
    @staticmethod
    def earlystop_check(to_check, finalized_trials, direction):
        return to_check.trial_id if to_check.metric_history[-1] < 0 else None


def train(x, reporter):
    for step in range(1, 6 if x < 6 else 12000):  # the latter are to be stopped, sooner or later
        reporter.broadcast(x if x < 6 else -x, step)
        time.sleep(0.01)
    return x


result = experiment.lagom(train, searchspace=Searchspace(x=("INTEGER", [1, 99])), optimizer=CustomOptimizer(2), num_trials=4, direction="max", es_policy=CustomEarlyStop, es_min=0,
                          executors=2, memory="192MiB", quiet=True, project="deck")
print("CUSTOM", [t["params"]["x"] for t in result["trials"]], [t["state"] for t in result["trials"]])
