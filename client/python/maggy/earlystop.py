"""When a trial that does badly is to end. The median rule runs in the controller; a rule of your own, a subclass of
AbstractEarlyStop, beside it."""
import inspect
import statistics


class AbstractEarlyStop:
    """Base of stopping rules written in Python. earlystop_check is asked about a trial that runs, after each es_interval-th report, once more than
    es_min trials have ended. It needs no object: it may be a static method."""

    @staticmethod
    def earlystop_check(to_check, finalized_trials, direction):
        """The trial_id of to_check, a Trial, if it is to stop; None if it is to go on. finalized_trials is a list of Trials; direction "max" or
        "min". (In Maggy 0.0 it was called early_check and returned a list; both work.)"""
        raise NotImplementedError("a stopping rule needs earlystop_check(to_check, finalized_trials, direction)")


class NoStoppingRule(AbstractEarlyStop):
    """Every trial goes on."""

    @staticmethod
    def earlystop_check(to_check, finalized_trials, direction):
        return None


class MedianStoppingRule(AbstractEarlyStop):
    """Stops a trial whose best value is worse than the median of the others' means up to the same number of reports. As es_policy it is the
    controller's own rule."""

    @staticmethod
    def earlystop_check(to_check, finalized_trials, direction):
        n = len(to_check.metric_history)
        means = [statistics.fmean(t.metric_history[:n]) for t in finalized_trials if n and len(t.metric_history) >= n]
        if not means:
            return None
        median = statistics.median(means)
        best = max(to_check.metric_history) if direction == "max" else min(to_check.metric_history)
        return to_check.trial_id if (best < median if direction == "max" else best > median) else None


NAMES = {"median": MedianStoppingRule, "none": NoStoppingRule}


def check(rule, trial, finalized, direction):
    """Whether the rule, a class or object, stops the trial."""
    method = getattr(rule, "earlystop_check", None)
    if method is None or _overridden(rule, "early_check"):
        method = getattr(rule, "early_check", method)
    if isinstance(rule, type) and not isinstance(inspect.getattr_static(rule, method.__name__), (staticmethod, classmethod)):
        if len(inspect.signature(method).parameters) > 3:
            method = getattr(rule(), method.__name__)  # written with self
    answer = method(trial, finalized, direction)
    if isinstance(answer, (list, tuple, set)):
        return trial.trial_id in answer or trial in answer
    return answer is not None and answer is not False and (answer is True or answer is trial or answer == trial.trial_id)


def _overridden(rule, name):
    return hasattr(rule, name) and not hasattr(AbstractEarlyStop, name) and getattr(rule, "earlystop_check", None) is AbstractEarlyStop.earlystop_check


def spec_of(policy, sent):
    """{"policy", ...} of a specification. policy is a name, a class or an object."""
    if policy is None:
        return {"policy": "none"}
    if isinstance(policy, str):
        return {"policy": policy.lower()}
    cls = policy if isinstance(policy, type) else type(policy)
    if cls is MedianStoppingRule or cls is NoStoppingRule:
        return {"policy": "median" if cls is MedianStoppingRule else "none"}
    if not issubclass(cls, AbstractEarlyStop):
        raise TypeError('%r is no stopping rule: es_policy is "median", "none", "threshold", "percentile" or derived from maggy.earlystop.AbstractEarlyStop' % (policy,))
    return {"policy": "external", **sent(policy)}
