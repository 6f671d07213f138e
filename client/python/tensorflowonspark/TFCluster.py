"""A cluster of TensorFlow nodes that run one function together.

    cluster = TFCluster.run(sc, map_fun, args, num_executors=3, num_ps=1, input_mode=TFCluster.InputMode.SPARK)
    cluster.train(partitions, num_epochs=2)
    cluster.shutdown()

map_fun(args, ctx) runs in every node, on parameter servers too, as in TensorFlowOnSpark.
"""
import argparse
import io
import pickle
import secrets
import time

from hops import _cluster, _following, _jobs, _run, _webhdfs, _wrapped, experiment
from tensorflowonspark import TFNode

# How many rows of a partition lie in one file.
ROWS = 10_000
POLL = 0.2


class InputMode:
    """TENSORFLOW: the nodes read files themselves. SPARK: they are fed by train() and inference()."""

    TENSORFLOW = 0
    SPARK = 1


class TFCluster:
    """A cluster that runs."""

    def __init__(self, following, feed, workers, input_mode, done):
        self._following, self._feed, self._workers, self.input_mode, self._done = following, feed, workers, input_mode, done
        self._written = 0
        self.cluster_id, self.cluster_info, self.cluster_meta = following.experiment, [], {}

    @property
    def id(self):
        return self._following.id

    def train(self, dataRDD, num_epochs=0, feed_timeout=600, qname="input"):
        """Feed the nodes with partitions, num_epochs times (0: once), and wait until they are read. TimeoutError: that takes longer than feed_timeout
        seconds for a partition. Nodes that call terminate() end it early."""
        self._fed()
        for _ in range(max(1, num_epochs)):
            names = [n for p in _partitions(dataRDD) for n in self._write(p, False)]
            for name in names:
                if not self._wait_for(name + ".read", feed_timeout):
                    return

    def inference(self, dataRDD, feed_timeout=600, qname="input"):
        """Feed the nodes with partitions, and return what they made of each with batch_results: a list of results, in the order of the rows. Results
        are of Python's own types, or numpy's. TypeError: one is not."""
        self._fed()
        results = []
        names = [n for p in _partitions(dataRDD) for n in self._write(p, True)]
        for name in names:
            if not self._wait_for(name + ".out", feed_timeout):
                raise RuntimeError("a node ended the feed before all rows were read")
            results.extend(_results(self._following.fs.read(name + ".out")))
        return results

    def shutdown(self, ssc=None, grace_secs=0, timeout=259200):
        """Tell the nodes that no more data come, and wait until they have ended. ExperimentError: the function has failed. Returns the directory of the
        run. TimeoutError: it takes longer; the nodes are stopped then."""
        if self._following is None:
            return None
        time.sleep(grace_secs)
        try:
            if self.input_mode == InputMode.SPARK:
                self._following.fs.create(self._feed + "/end", b"", overwrite=True)
            until = time.monotonic() + timeout
            while self._following.state() not in _jobs.FINAL:
                if time.monotonic() > until:
                    self._following.stop("the shutdown took longer than %d s" % timeout)
                    raise TimeoutError("the nodes of %s have not ended within %d s" % (self.cluster_id, timeout))
                time.sleep(POLL)
            return self._following.wait()["directory"]
        finally:
            self._release()

    def tensorboard_url(self):
        """The command that shows the event files of the chief."""
        from hops import tensorboard
        return tensorboard.visualize(self._following.directory() or "")

    def _release(self):
        done, self._done = self._done, None
        if done:
            done()

    def _fed(self):
        if self.input_mode != InputMode.SPARK:
            raise ValueError("train() and inference() feed nodes that run with input_mode=InputMode.SPARK")

    def _write(self, rows, answered):
        """Write a partition; the paths of its files. Node k of n reads the files whose number is k modulo n."""
        rows, names = list(rows), []
        for at in range(0, len(rows), ROWS):
            name = "%s/%08d" % (self._feed, self._written)
            self._written += 1
            temporary = name + ".tmp"
            self._following.fs.create(temporary, pickle.dumps({"rows": rows[at:at + ROWS], "answered": answered}, protocol=4), overwrite=True)
            self._following.fs.rename(temporary, name + ".in")
            names.append(name)
        return names

    def _wait_for(self, path, timeout):
        until = time.monotonic() + timeout
        while not self._following.fs.exists(path):
            state = self._following.state()
            if state in _jobs.FINAL:
                self._following.wait()  # raises, if it has failed
                return False
            if self._following.fs.exists(self._feed + "/terminated"):
                return False
            if time.monotonic() > until:
                raise TimeoutError("the nodes have not read a partition within %d s" % timeout)
            time.sleep(POLL)
        return True


class _Results(pickle.Unpickler):
    """What comes over the network calls nothing here but what makes data."""

    DATA = {"builtins": {"complex", "set", "frozenset", "bytearray", "range", "slice"}, "collections": {"OrderedDict"},
            "datetime": {"date", "datetime", "time", "timedelta", "timezone"}, "decimal": {"Decimal"}, "numpy": {"dtype", "ndarray"},
            **{"numpy.%s.multiarray" % core: {"_reconstruct", "scalar"} for core in ("core", "_core")}}

    def find_class(self, module, name):
        if name not in self.DATA.get(module, ()):
            raise TypeError("a node has given batch_results a %s of %s: give it numbers, text, lists, dicts or arrays of numpy" % (name, module))
        return super().find_class(module, name)


def _results(data):
    return _Results(io.BytesIO(data)).load()


def run(sc, map_fun, tf_args, num_executors, num_ps=0, tensorboard=False, input_mode=InputMode.TENSORFLOW, log_dir=None, driver_ps_nodes=False, master_node=None,
        reservation_timeout=600, queues=None, eval_node=False, release_port=True, name="tensorflow", **options):
    """Start num_executors nodes, num_ps of them parameter servers, one an evaluator if eval_node is set. sc is not used. tf_args is handed to map_fun: a list, a dict or an
    argparse.Namespace. Returns a TFCluster; at most one runs at a time. Event files of the chief are in the run's directory, whether tensorboard is set or not."""
    if driver_ps_nodes:
        raise NotImplementedError("not supported: driver_ps_nodes; parameter servers run in executors")
    if master_node not in (None, "chief", "master"):
        raise ValueError("master_node is %r; the first node is the chief" % (master_node,))
    if num_executors <= num_ps + bool(eval_node):
        raise ValueError("%d executors with %d parameter servers%s leave none to train" % (num_executors, num_ps, " and an evaluator" if eval_node else ""))
    _run.submitting("TFCluster.run()")
    fs = _webhdfs.WebHDFS()
    feed = "/user/%s/.hops/feeds/%s" % (fs.user, secrets.token_hex(8))
    workers = num_executors - num_ps - bool(eval_node)
    given = {"map_fun": map_fun, "tf_args": vars(tf_args) if isinstance(tf_args, argparse.Namespace) else tf_args, "namespace": isinstance(tf_args, argparse.Namespace),
             "feed": feed if input_mode == InputMode.SPARK else None, "workers": workers, "log_dir": log_dir}
    fn = _wrapped.Function(TFNode.node, given)
    spec = {"kind": "EXPERIMENT", "optimizer": {"type": "none"}, "executors": num_executors, "metric": "metric"}
    if num_executors > 1:
        spec["distributed"] = {"framework": "parameter_server" if num_ps else "tensorflow", "workers": workers}
        if num_ps:
            spec["distributed"]["parameter_servers"] = num_ps
        if eval_node:
            spec["distributed"]["evaluator"] = True
    if not experiment._running.acquire(blocking=False):
        raise RuntimeError("an experiment is already running in this process: one at a time")
    try:
        if input_mode == InputMode.SPARK:
            fs.mkdirs(feed, "700")
        following = _following.Following.submit(fn, spec, name, None, {"quiet": True, **options})
    except BaseException:
        experiment._running.release()
        raise

    def done():
        experiment._running.release()
        try:
            fs.delete(feed, recursive=True)
        except (OSError, _cluster.ClusterError):
            pass

    return TFCluster(following, feed, workers, input_mode, done)


def _partitions(data):
    """Partitions of what stands for an RDD."""
    if hasattr(data, "glom") and hasattr(data, "collect"):
        return data.glom().collect()
    data = list(data)
    # Rows are tuples, numbers, text or dicts; a list of lists of those is one of partitions. A list of lists of numbers is ambiguous: then the inner lists are partitions.
    if data and all(isinstance(p, list) or (hasattr(p, "__iter__") and not isinstance(p, (tuple, str, bytes, dict)) and not hasattr(p, "shape")) for p in data):
        return data
    return [data]
