"""Keras callbacks that report to a trial. Keras is imported when they are made."""


def _callback(reporter, metric, hook):
    import keras

    class Report(keras.callbacks.Callback):
        def _report(self, logs):
            if metric not in (logs or {}):
                raise KeyError("Keras reports %s, not %r" % (", ".join(sorted(logs or {})), metric))
            reporter.broadcast(logs[metric])

    setattr(Report, hook, lambda self, number, logs=None: self._report(logs))
    return Report()


def KerasBatchEnd(reporter, metric="loss"):
    """Reports a metric after each batch."""
    return _callback(reporter, metric, "on_batch_end")


def KerasEpochEnd(reporter, metric="val_loss"):
    """Reports a metric after each epoch."""
    return _callback(reporter, metric, "on_epoch_end")
