"""hops: run Python training functions on a hops cluster, from its own files. Standard library only.

    from hops import experiment
    experiment.grid_search(train, {"lr": [0.1, 0.01]})

Modules: experiment, data, hdfs, model, tensorboard, checkpoint, preemption, dist, devices, util, tflauncher, allreduce, optuna. The names are those of
hops-util-py; `maggy` and `tensorflowonspark` are beside it. docs/reference/python.md lists what there is.
"""
VERSION = "0.1.0"
__version__ = VERSION
