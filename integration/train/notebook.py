"""A search in a real Jupyter kernel: its function is typed into a cell and uses what other cells have made, and what the kernel shows is one picture in HTML
that is painted over. A second search fails, and one is waited for after its cell was interrupted."""
import nbclient
import nbformat

CELLS = ["""
import math, time
from hops import experiment as hops_experiment
from maggy import Searchspace, experiment
hops_experiment.defaults.update(executors=2, memory="512MiB")
peak = 0.3
def height(x):
    return 1.0 - (x - peak) ** 2
""", """
def train(x, reporter):
    for step in range(1, 4):
        time.sleep(0.3)
        reporter.broadcast(height(x) * step / 3, step)
    return height(x)
result = experiment.lagom(train, name="notebook", optimizer="randomsearch", searchspace=Searchspace(x=("DOUBLE", [0.0, 1.0])), num_trials=6, direction="max")
""", """
print("BEST %.6f" % (height(result["best_config"]["x"]) - result["best_val"]), len(result["metric_list"]))
""", """
def fails(x):
    return undefined + x
try:
    hops_experiment.grid_search(fails, {"x": [1]}, name="fails")
except hops_experiment.ExperimentError as e:
    print("FAILED", str(e))
""", """
import os, signal, threading
threading.Timer(5, os.kill, (os.getpid(), signal.SIGINT)).start()  # the button of the notebook
def slow(x):
    time.sleep(15)
    return x
try:
    hops_experiment.grid_search(slow, {"x": [2]}, name="slow")
except KeyboardInterrupt:
    print("INTERRUPTED")
""", """
import re
print("WAITED", hops_experiment.wait(EXPERIMENT)["best_val"])
"""]


class Client(nbclient.NotebookClient):
    updates = 0

    def process_message(self, msg, cell, cell_index):
        self.updates += msg["msg_type"] == "update_display_data"
        return super().process_message(msg, cell, cell_index)


def text(cell):
    return "".join(o["text"] for o in cell.outputs if o.output_type == "stream")


def main():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c.strip()) for c in CELLS])
    client = Client(notebook, timeout=600, kernel_name="python3")
    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells[:-1]):
            client.execute_cell(cell, number)
        interrupted = text(notebook.cells[4])
        assert "INTERRUPTED" in interrupted and "the search goes on; to end it: hops experiment stop application_" in interrupted, interrupted
        found = interrupted.split("experiment stop ")[1].split()[0]
        notebook.cells[5].source = notebook.cells[5].source.replace("EXPERIMENT", repr(found))
        client.execute_cell(notebook.cells[5], 5)
    pictures = [o for o in notebook.cells[1].outputs if o.output_type == "display_data"]
    assert len(pictures) == 1 and client.updates >= 3, (len(pictures), client.updates)
    page = pictures[0].data["text/html"]
    for word in ("trials 6/6", "<table>", "COMPLETED", "best metric"):
        assert word in page, (word, page)
    assert "BEST 0.000000 6" in text(notebook.cells[2]), text(notebook.cells[2])
    failed = text(notebook.cells[3])
    for word in ("trial 0001", "NameError: name 'undefined' is not defined", "(log: /Projects/"):
        assert word in failed, (word, failed)
    assert "WAITED 2" in text(notebook.cells[5]), text(notebook.cells[5])
    print("RESULT one picture, painted %d times; typed functions travel; interrupted and waited for" % client.updates)


main()
