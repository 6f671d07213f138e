"""A search that is interrupted goes on; stopped it keeps what it found; resumed it comes to its end."""
import _thread
import os
import threading
import time

from hops import checkpoint, experiment, hdfs

options = {"project": "resumed", "executors": 1, "memory": "256MiB", "stop_grace": "5s"}


def slow(x, reporter):
    saved = checkpoint.load()
    step = saved[0] if saved else 0
    while step < 3 or not hdfs.exists("/Projects/resumed/go"):
        step += 1
        reporter.broadcast(x * step, step)
        checkpoint.save(step, step)
        time.sleep(0.1)
    return x


def interrupt_when_saved():
    """What Ctrl-C does, once a checkpoint is committed: the next one is begun after that."""
    while True:
        time.sleep(0.2)
        for run in hdfs.ls("/Projects/resumed/Experiments") if hdfs.exists("/Projects/resumed/Experiments") else []:
            saved = run + "/0001/checkpoints/1"
            if hdfs.exists(saved) and any(not os.path.basename(c).startswith("step-1.") and os.path.basename(c) != "step-1" for c in hdfs.ls(saved)):
                return _thread.interrupt_main()


if __name__ == "__main__":  # a trial's process imports this file as well: there it would interrupt the trial
    threading.Thread(target=interrupt_when_saved, daemon=True).start()
try:
    experiment.grid_search(slow, {"x": [1, 2]}, **options)
    raise AssertionError("the search ended by itself")
except KeyboardInterrupt:
    pass
run = os.path.basename(hdfs.ls("/Projects/resumed/Experiments")[0].rstrip("/"))
try:
    experiment.resume(run)
    raise AssertionError("an experiment that runs was resumed")
except experiment.ExperimentError as e:
    assert "runs" in str(e), e

experiment.stop(run, "lunch")
try:
    experiment.wait(run)
    raise AssertionError("a stopped experiment has a result like any other")
except experiment.ExperimentError as e:
    assert "KILLED" in str(e) and "lunch" in str(e), e
try:
    experiment.stop(run)
    raise AssertionError("an experiment was stopped twice")
except experiment.ExperimentError as e:
    assert "does not run" in str(e), e

hdfs.dump("", "/Projects/resumed/go")
result = experiment.resume(run)
assert result["state"] == "FINISHED" and result["best_val"] == 2 and result["num_trials"] == 2, result
first = result["trials"][0]
assert first["attempt"] == 2 and first["resumed"] == 1, first
print("ok", run)
