"""Waits for a search that does not end; Ctrl-C must stop the job."""
import time

from hops import experiment


def endless(x, reporter):
    step = 0
    while True:
        step += 1
        reporter.broadcast(step, step)
        time.sleep(0.05)


if __name__ == "__main__":
    experiment.grid_search(endless, {"x": [1]}, project="interrupted", executors=1, memory="256MiB")
