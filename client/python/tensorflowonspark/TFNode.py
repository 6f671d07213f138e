"""What map_fun(args, ctx) uses in a node."""
import argparse
import json
import os
import pickle
import posixpath
import sys
import time

from hops import _run, hdfs

POLL = 0.1


class TFNodeContext:
    """Where this node stands: job_name (chief, worker, ps, evaluator) and task_index in it, executor_id, cluster_spec ({job: [host:port]}), num_workers."""

    def __init__(self, feed=None, workers=1, log_dir=None):
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        task = config.get("task") or {}
        self.job_name, self.task_index = task.get("type", "chief"), int(task.get("index", 0))
        self.cluster_spec = config.get("cluster") or {}
        self.executor_id = int(os.environ.get("HOPS_RANK") or 0)
        self.worker_num = self.executor_id
        self.num_workers = workers
        self.user_name = hdfs.project_user()
        self.working_dir = os.getcwd()
        self.log_dir = log_dir
        self._feed = feed

    @property
    def defaultFS(self):
        from hops import _cluster
        return _cluster.default_fs()

    def absolute_path(self, path):
        return hdfs_path(self, path)

    def start_cluster_server(self, num_gpus=1, rdma=False):
        return start_cluster_server(self, num_gpus, rdma)

    def get_data_feed(self, train_mode=True, qname_in="input", qname_out="output", input_mapping=None):
        return DataFeed(self, train_mode, qname_in, qname_out, input_mapping)

    def export_saved_model(self, model, export_dir, *args, **kwargs):
        return export_saved_model(model, export_dir, ctx=self)

    def release_port(self):
        """The port of this node is free for the server that the function starts; nothing is to be done."""


def hdfs_path(ctx, path):
    """An absolute path of the cluster: with a scheme as it is, an absolute one in the filesystem, a relative one in the user's directory."""
    if "://" in path:
        return path
    if not path.startswith("/"):
        path = "/user/%s/%s" % (hdfs.project_user(), path)
    return ctx.defaultFS.rstrip("/") + path


def start_cluster_server(ctx, num_gpus=1, rdma=False):
    """(cluster, server) of TensorFlow for this node."""
    if rdma:
        raise NotImplementedError("not supported: rdma, which TensorFlow does not have any more")
    try:
        import tensorflow as tf
    except ImportError:
        raise ImportError("TensorFlow is not installed for %s: pip install tensorflow, or name another interpreter (python=...)" % sys.executable) from None
    if not ctx.cluster_spec:
        raise RuntimeError("a single node has no cluster: run with more than one executor")
    cluster = tf.train.ClusterSpec(ctx.cluster_spec)
    return cluster, tf.distribute.Server(cluster, job_name=ctx.job_name, task_index=ctx.task_index)


def export_saved_model(model, export_dir, ctx=None, *args, **kwargs):
    """Save a Keras model, or a tf.Module, as SavedModel into a directory of the cluster. Only the chief writes; the others save into their own directory, as
    multi-worker training wants it. Returns the directory, None on others."""
    if args or kwargs:
        raise NotImplementedError("not supported: sessions and signatures of TensorFlow 1; give a Keras model or a tf.Module")
    import tempfile
    local = os.path.join(tempfile.mkdtemp(prefix="saved-model-"), "model")
    if hasattr(model, "export"):
        model.export(local)
    else:
        import tensorflow as tf
        tf.saved_model.save(model, local)
    if ctx is not None and not (ctx.job_name in ("chief", "master") or ctx.job_name == "worker" and ctx.task_index == 0 and "chief" not in ctx.cluster_spec):
        return None
    target = hdfs.abs_path(export_dir)
    hdfs.put(local, target, True)
    return target


class DataFeed:
    """The rows that TFCluster.train() or inference() feed this node with. input_mapping ({column: tensor}) makes next_batch return a dict of lists, by tensor: rows are dicts by column
    then, or tuples in the order of the sorted columns."""

    def __init__(self, ctx, train_mode=True, qname_in="input", qname_out="output", input_mapping=None):
        if ctx._feed is None:
            raise RuntimeError("this node is not fed: TFCluster.run(..., input_mode=InputMode.SPARK)")
        self.ctx, self.train_mode = ctx, train_mode
        self.input_tensors = [input_mapping[c] for c in sorted(input_mapping)] if input_mapping else None
        self._columns = sorted(input_mapping) if input_mapping else None
        workers = sorted((job, index) for job, hosts in ctx.cluster_spec.items() if job in ("chief", "master", "worker") for index in range(len(hosts)))
        self._index = workers.index((ctx.job_name, ctx.task_index)) if (ctx.job_name, ctx.task_index) in workers else 0
        self._step = max(1, len(workers))
        self._number = self._index
        self._fs = hdfs.get_fs()
        self._rows, self._name, self._results, self._expected = [], None, [], 0
        self._done = False

    def _next_part(self):
        """Read the next file of this node; False when there is none any more. Waits for it."""
        while not self._done:
            name = "%s/%08d" % (self.ctx._feed, self._number)
            try:
                part = pickle.loads(self._fs.read(name + ".in"))  # of this user's own program
                self._number += self._step
                self._name, self._rows = name, part["rows"]
                self._expected, self._results = (len(part["rows"]) if part["answered"] else 0), []
                return True
            except FileNotFoundError:
                pass
            if self._fs.exists(self.ctx._feed + "/end") and not self._fs.exists(name + ".in"):
                self._done = True
            else:
                time.sleep(POLL)
        return False

    def next_batch(self, batch_size):
        """At most batch_size rows, fewer at the end of a partition, none at the end of the feed. With input_mapping a dict of lists."""
        if not self._rows and not self._next_part():
            rows = []
        else:
            rows, self._rows = self._rows[:batch_size], self._rows[batch_size:]
            if not self._rows and not self._expected:
                self._fs.create(self._name + ".read", b"", overwrite=True)
        if self.input_tensors is None:
            return rows
        out = {tensor: [] for tensor in self.input_tensors}
        for row in rows:
            for i, tensor in enumerate(self.input_tensors):
                out[tensor].append(row[self._columns[i]] if isinstance(row, dict) else row[i])
        return out

    def should_stop(self):
        """Whether no row will come any more."""
        return self._done

    def batch_results(self, results):
        """The results of a batch, one for each row, in their order."""
        if not self._expected:
            raise RuntimeError("nobody waits for results: they are for TFCluster.inference()")
        self._results.extend(results)
        if len(self._results) > self._expected:
            raise ValueError("%d results for %d rows" % (len(self._results), self._expected))
        if len(self._results) == self._expected:
            self._fs.create(self._name + ".out", pickle.dumps(self._results, protocol=4), overwrite=True)
            self._expected = 0

    def terminate(self):
        """End the feed: what has not been read is not wanted, and train() returns."""
        self._done, self._rows = True, []
        self._fs.create(self.ctx._feed + "/terminated", b"", overwrite=True)


def node(map_fun, tf_args, namespace, feed, workers, log_dir):
    """What runs in a node: map_fun(args, ctx). What it returns is kept if it is a number or a dict."""
    ctx = TFNodeContext(feed, workers, log_dir or posixpath.dirname(_run.current().logdir))
    found = map_fun(argparse.Namespace(**tf_args) if namespace else tf_args, ctx)
    return found if isinstance(found, (dict, int, float)) and not isinstance(found, bool) else None


# Parameter servers call the function too, as in TensorFlowOnSpark.
node.hops_every_role = True
