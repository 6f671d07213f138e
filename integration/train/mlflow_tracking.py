"""MLflow's own client against `hops mlflow serve`, which is killed on the way.

    mlflow_tracking.py HOPS CONF    the program, and the configuration directory of a running cluster

Needs mlflow-skinny (3.17.2 was used). Prints a table; exits with 1 if anything was lost or is not as with MLflow.
"""
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid

hops, conf = sys.argv[1:3]
project = "mlflow" + uuid.uuid4().hex[:8]
rows, failed = [], []


def check(what, ok, detail=""):
    rows.append((what, "ok" if ok else "FAILED", str(detail)))
    if not ok:
        failed.append(what)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, port, *more):
        self.url = "http://127.0.0.1:%d" % port
        self.process = subprocess.Popen([hops, "mlflow", "serve", "--conf", conf, "--project", project, "--listen", "127.0.0.1:%d" % port, *more])
        deadline = time.monotonic() + 60
        while True:
            try:
                request = urllib.request.Request(self.url + "/health", headers={"Authorization": "Bearer " + os.environ.get("MLFLOW_TRACKING_TOKEN", "")})
                urllib.request.urlopen(request, timeout=2).read()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise SystemExit("the server does not begin")
                time.sleep(0.05)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


port = free_port()
server = Server(port)
os.environ.update(MLFLOW_TRACKING_URI=server.url, MLFLOW_HTTP_REQUEST_MAX_RETRIES="7", MLFLOW_DISABLE_TELEMETRY="true", GIT_PYTHON_REFRESH="quiet")

import mlflow  # noqa: E402
from mlflow.entities import Metric, Param, RunTag, ViewType  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402

client = mlflow.MlflowClient()


def refused(what, code, call, *args, **kw):
    try:
        call(*args, **kw)
    except MlflowException as e:
        check(what, e.error_code == code, e.error_code)
    else:
        check(what, False, "was taken")


# What people write.
experiment = mlflow.set_experiment("digits")
check("set_experiment", experiment.experiment_id != "0" and experiment.name == "digits", experiment.experiment_id)
with mlflow.start_run(run_name="first") as run:
    mlflow.log_param("lr", 0.1)
    mlflow.log_params({"layers": 2, "act": "relu"})
    for step in range(5):
        mlflow.log_metric("acc", 0.5 + step / 10, step=step)
    mlflow.log_metrics({"loss": 0.25, "odd/name": 1}, step=4)
    mlflow.log_metric("nan", math.nan)
    mlflow.log_metric("inf", math.inf)
    mlflow.set_tag("team", "vision")
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "notes.txt"), "w") as f:
            f.write("hello")
        mlflow.log_artifact(os.path.join(d, "notes.txt"), "docs")
        with open(os.path.join(d, "big.bin"), "wb") as f:
            f.write(os.urandom(3 << 20))
            f.flush()
        big = open(os.path.join(d, "big.bin"), "rb").read()
        mlflow.log_artifacts(d, "all")
    mlflow.log_dict({"a": 1}, "config.json")
    mlflow.log_text("text", "some/text.txt")
first = run.info.run_id
batch_run = client.create_run(experiment.experiment_id, tags={"kind": "batch"})
batch = batch_run.info.run_id
now = int(time.time() * 1000)
client.log_batch(batch, [Metric("m", i / 1000, now + i, i) for i in range(990)], [Param("p%d" % i, str(i)) for i in range(5)], [RunTag("t%d" % i, "v") for i in range(5)])

server.kill()
server = Server(port)

r = client.get_run(first)
check("params after kill -9", r.data.params == {"lr": "0.1", "layers": "2", "act": "relu"}, r.data.params)
check("metrics after kill -9", r.data.metrics["acc"] == 0.9 and r.data.metrics["loss"] == 0.25 and math.isnan(r.data.metrics["nan"]) and math.isinf(r.data.metrics["inf"]))
check("history", [(m.step, round(m.value, 3)) for m in client.get_metric_history(first, "acc")] == [(i, round(0.5 + i / 10, 3)) for i in range(5)])
check("status, name, tags", (r.info.status, r.info.run_name, r.data.tags["team"]) == ("FINISHED", "first", "vision"), r.info.status)
check("batch of 1,000", len(client.get_metric_history(batch, "m")) == 990 and len(client.get_run(batch).data.params) == 5)
check("artifacts listed", sorted(f.path for f in client.list_artifacts(first)) == ["all", "config.json", "docs", "some"])
check("artifacts in a folder", [(f.path, f.file_size) for f in client.list_artifacts(first, "docs")] == [("docs/notes.txt", 5)])
check("artifact read", mlflow.artifacts.load_text("runs:/%s/docs/notes.txt" % first) == "hello" and mlflow.artifacts.load_dict("runs:/%s/config.json" % first) == {"a": 1})
with tempfile.TemporaryDirectory() as d:
    got = mlflow.artifacts.download_artifacts(run_id=first, artifact_path="all", dst_path=d)
    check("folder downloaded", open(os.path.join(got, "big.bin"), "rb").read() == big)

# Searching.
for i in range(12):
    with mlflow.start_run(run_name="s%02d" % i):
        mlflow.log_param("i", i)
        mlflow.log_metric("score", i % 5)
        mlflow.set_tag("even", str(i % 2 == 0))


def names(filter_string, **kw):
    return [r.info.run_name for r in client.search_runs([experiment.experiment_id], filter_string, **kw)]


check("filter by metric, ordered", names("metrics.score >= 3", order_by=["metrics.score DESC", "params.i ASC"]) == ["s04", "s09", "s03", "s08"], names("metrics.score >= 3"))
check("filter by tag and param", names("tags.even = 'True' and params.i != '4' and metrics.score = 4") == [])
check("filter by name", sorted(names("attributes.run_name LIKE 's0%' AND status = 'FINISHED'")) == ["s%02d" % i for i in range(10)])
check("filter IN, quoted key", names("run_name IN ('first')") == ["first"] and names('metrics."odd/name" = 1') == ["first"])
check("IS NULL", "first" in names("params.i IS NULL") and "s01" not in names("params.i IS NULL"))
pages, token = [], None
while True:
    p = client.search_runs([experiment.experiment_id], max_results=5, page_token=token)
    pages.append(len(p))
    token = p.token
    if not token:
        break
check("pages", pages == [5, 5, 4], pages)
try:
    import pandas  # noqa: F401
    frame = mlflow.search_runs(experiment_names=["digits"], filter_string="metrics.score > 2")
    check("search_runs as a DataFrame", len(frame) == 4)
except ImportError:
    check("search_runs as a list", len(mlflow.search_runs(experiment_names=["digits"], filter_string="metrics.score > 2", output_format="list")) == 4)
refused("bad filter", "INVALID_PARAMETER_VALUE", client.search_runs, [experiment.experiment_id], "metrics.acc > 'x' OR 1")

# Rules.
refused("a param is not changed", "INVALID_PARAMETER_VALUE", client.log_param, first, "lr", "0.2")
client.log_param(first, "lr", "0.1")
refused("a param of 6,001 characters", "INVALID_PARAMETER_VALUE", client.log_batch, first, params=[Param("long", "x" * 6001)])
refused("a run that is not there", "RESOURCE_DOES_NOT_EXIST", client.get_run, "0" * 32)
refused("a name twice", "RESOURCE_ALREADY_EXISTS", client.create_experiment, "digits")
client.delete_tag(first, "team")
check("tag deleted", "team" not in client.get_run(first).data.tags)
client.delete_run(batch)
check("run deleted", batch not in [r.info.run_id for r in client.search_runs([experiment.experiment_id])] and
      batch in [r.info.run_id for r in client.search_runs([experiment.experiment_id], run_view_type=ViewType.DELETED_ONLY)])
client.restore_run(batch)
client.update_run(batch, status="KILLED", name="renamed")
check("run restored and renamed", (client.get_run(batch).info.status, client.get_run(batch).info.run_name) == ("KILLED", "renamed"))
other = client.create_experiment("other", tags={"a": "b"})
client.rename_experiment(other, "another")
client.set_experiment_tag(other, "k", "v")
check("experiment tags, rename", client.get_experiment(other).tags == {"a": "b", "k": "v"} and client.get_experiment_by_name("another").experiment_id == other)
client.delete_experiment(other)
check("experiments searched", [e.name for e in client.search_experiments(filter_string="name LIKE 'dig%'")] == ["digits"] and
      "another" not in [e.name for e in client.search_experiments()] and
      "another" in [e.name for e in client.search_experiments(view_type=ViewType.ALL)])

# Inputs, models.
with mlflow.start_run(run_name="model") as run:
    mlflow.log_metric("acc", 0.75)
    source = mlflow.get_artifact_uri("weights")
    mlflow.log_text("1 2 3", "weights/w.txt")
client.create_registered_model("digits", tags={"task": "images"}, description="numbers")
version = client.create_model_version("digits", source, run.info.run_id, description="first")
check("model version", (version.version, version.status, version.run_id) in [("1", "READY", run.info.run_id), (1, "READY", run.info.run_id)], version.version)
client.set_registered_model_alias("digits", "champion", version.version)
client.set_model_version_tag("digits", version.version, "checked", "yes")
check("alias", str(client.get_model_version_by_alias("digits", "champion").version) == "1")
check("models searched", [m.name for m in client.search_registered_models("name = 'digits'")] == ["digits"] and
      [v.tags for v in client.search_model_versions("name = 'digits'")] == [{"checked": "yes"}])
with tempfile.TemporaryDirectory() as d:
    got = mlflow.artifacts.download_artifacts("models:/digits@champion", dst_path=d)
    check("model downloaded", open(os.path.join(got, "w.txt")).read() == "1 2 3")
shown = subprocess.run([hops, "model", "show", "digits", "--conf", conf, "--project", project], capture_output=True, text=True)
check("hops model shows it", "acc=0.75" in shown.stdout, shown.stderr)
try:
    import mlflow.pyfunc  # needs numpy and pandas

    class Twice(mlflow.pyfunc.PythonModel):
        def predict(self, context, model_input, params=None):
            return [2 * x for x in model_input]

    with mlflow.start_run():
        info = mlflow.pyfunc.log_model(name="twice", python_model=Twice(), registered_model_name="twice", pip_requirements=[])
    check("log_model and load_model", mlflow.pyfunc.load_model("models:/twice/1").predict([1, 2]) == [2, 4])
except ImportError as e:
    rows.append(("log_model and load_model", "skipped", "needs " + str(e.name)))

# Many at once: batches share the disk's time, and kill -9 loses nothing that was acknowledged.
acked, stop = {}, threading.Event()
runs = [client.create_run(experiment.experiment_id).info.run_id for _ in range(8)]


def log(run_id):
    c, n = mlflow.MlflowClient(), 0
    while not stop.is_set():
        c.log_metric(run_id, "x", n, step=n)
        n += 1
        acked[run_id] = n


threads = [threading.Thread(target=log, args=(r,)) for r in runs]
began = time.monotonic()
for t in threads:
    t.start()
for kill in range(3):
    time.sleep(2)
    server.kill()
    server = Server(port)
time.sleep(1)
stop.set()
for t in threads:
    t.join()
elapsed = time.monotonic() - began
lost, twice = 0, 0
for r in runs:
    steps = [m.step for m in client.get_metric_history(r, "x")]
    lost += len(set(range(acked[r])) - set(steps))
    twice += len(steps) - len(set(steps))
check("3 x kill -9 under load: lost", lost == 0, "%d of %d acknowledged, %d twice, %.0f/s with restarts" % (lost, sum(acked.values()), twice, sum(acked.values()) / elapsed))

# A second server takes over; the first one ends with the first thing it would write.
second = Server(free_port())
try:
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    client.log_metric(first, "late", 1)
    late = "was taken"
except Exception as e:
    late = type(e).__name__
check("superseded server refuses and ends", late != "was taken" and server.process.wait(30) != 0, late)
code = second.end()
check("SIGTERM", code == 0, code)

width = max(len(r[0]) for r in rows)
for what, result, detail in rows:
    print("%-*s  %s  %s" % (width, what, result, detail if len(detail) < 100 else detail[:97] + "..."))
sys.exit(1 if failed else 0)
