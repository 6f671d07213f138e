"""hops: run Python training functions on a hops cluster, from its own files. Standard library only.

    from hops import experiment
    experiment.grid_search(train, {"lr": [0.1, 0.01]})

Modules: experiment, data, hdfs, tensorboard, checkpoint, preemption, devices. The names are those of hops-util-py; `maggy` is beside it.
"""
VERSION = "0.1.0"
__version__ = VERSION
