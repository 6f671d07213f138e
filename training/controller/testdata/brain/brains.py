"""Optimizers and stopping rules for the conversations in this directory."""
from maggy.earlystop import AbstractEarlyStop
from maggy.optimizer import AbstractOptimizer


class Steps(AbstractOptimizer):
    """x = 1, 2, 3, …, one at a time: idle while one runs."""

    def __init__(self, first=1):
        super().__init__()
        self.first = first

    def initialize(self):
        self.made = 0
        print("initialized")  # must not get between the lines of the protocol

    def get_suggestion(self, trial=None):
        if self.trial_store:
            return "IDLE"
        if self.made == self.num_trials:
            return None
        self.made += 1
        return self.create_trial({"x": self.first + self.made - 1}, sample_type="random")


class Learns(AbstractOptimizer):
    """Doubles x for as long as that helps."""

    def initialize(self):
        self.x = 1

    def get_suggestion(self, trial=None):
        if trial is not None and trial.final_metric is not None:
            self.x = 2 * trial.params["x"]
        if len(self.final_store) + len(self.trial_store) >= self.num_trials:
            return None
        return self.create_trial({"x": self.x}, sample_type="model", run_budget=3)


class Raises(AbstractOptimizer):
    def initialize(self):
        pass

    def get_suggestion(self, trial=None):
        raise ValueError("no idea")


class Below(AbstractEarlyStop):
    """Stops what is below 0.5 after two steps."""

    @staticmethod
    def earlystop_check(to_check, finalized_trials, direction):
        if len(to_check.metric_history) >= 2 and max(to_check.metric_history) < 0.5:
            return to_check.trial_id
        return None
