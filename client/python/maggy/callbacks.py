"""Callbacks that report to a trial. Keras is imported when one is made."""
from hops import _run


def _callback(reporter, metric, hook):
    try:
        import keras
    except ImportError:
        raise ImportError("Keras is not installed: pip install keras, with a backend (tensorflow, jax or torch)") from None

    class Report(_base(keras)):
        def _report(self, logs):
            found = logs or {}
            name = metric if metric in found else next((n for n in _SAME.get(metric, ()) if n in found), None)
            if name is None:
                raise KeyError("Keras reports %s, not %r" % (", ".join(sorted(found)), metric))
            reporter.broadcast(found[name])

    setattr(Report, hook, lambda self, number, logs=None: self._report(logs))
    return Report()


# Keras has had two names for one metric.
_SAME = {"acc": ("accuracy",), "accuracy": ("acc",), "val_acc": ("val_accuracy",), "val_accuracy": ("val_acc",)}


def _base(keras):
    """The class of callbacks; tf_keras has its own, and takes no other, where TF_USE_LEGACY_KERAS says that it is used."""
    import os
    if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
        try:
            import tf_keras
            return tf_keras.callbacks.Callback
        except ImportError:
            pass
    return keras.callbacks.Callback


def KerasBatchEnd(reporter, metric="loss"):
    """Reports a metric after each batch."""
    return _callback(reporter, metric, "on_batch_end")


def KerasEpochEnd(reporter, metric="val_loss"):
    """Reports a metric after each epoch."""
    return _callback(reporter, metric, "on_epoch_end")


class TorchEpochEnd:
    """For loops of PyTorch: call it after each epoch with the metric, a number or a tensor of one.

        done = TorchEpochEnd(reporter)
        for epoch in range(epochs):
            ...
            done(accuracy)
    """

    def __init__(self, reporter, metric="metric"):
        # A trial that is resumed goes on counting.
        self.reporter, self.metric, self.epoch = reporter, metric, _run._current.resume_step if _run._current else 0

    def __call__(self, value, step=None):
        """Report a value, or that of self.metric in a dict of values."""
        self.epoch += 1
        value = value[self.metric] if isinstance(value, dict) else value
        self.reporter.broadcast(value.item() if hasattr(value, "item") else value, self.epoch if step is None else step)


class TorchBatchEnd(TorchEpochEnd):
    """The same after each batch."""
