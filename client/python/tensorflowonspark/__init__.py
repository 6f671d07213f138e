"""TensorFlowOnSpark's calls on a hops cluster: `from tensorflowonspark import TFCluster, TFNode`.

There is no Spark: executors come from the resource manager, and a data set is a list of partitions, each an iterable of rows (a flat list of rows is one
partition; an RDD is collected). Rows travel through the filesystem, as pickles that only the nodes of the same user read.
"""
from tensorflowonspark import TFCluster, TFNode

__all__ = ["TFCluster", "TFNode"]
