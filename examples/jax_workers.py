"""Data parallel training with JAX in two processes.

    python examples/jax_workers.py

Needs jax.
"""
import os

from hops import experiment


def train(reporter):
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    jax.distributed.initialize()  # who the others are is in the environment
    rank, world = jax.process_index(), jax.process_count()
    x = jax.random.normal(jax.random.PRNGKey(1), (512, 8))
    y = x.sum(axis=1)
    mine = slice(rank * 512 // world, (rank + 1) * 512 // world)
    weights = jnp.zeros(8)
    gradient = jax.jit(jax.value_and_grad(lambda w, a, b: ((a @ w - b) ** 2).mean()))
    for epoch in range(1, 21):
        loss, change = gradient(weights, x[mine], y[mine])
        everybody = multihost_utils.process_allgather(jnp.append(change, loss)).reshape(world, -1).mean(axis=0)
        weights = weights - 0.1 * everybody[:-1]
        reporter.broadcast(float(everybody[-1]), step=epoch)
    jax.distributed.shutdown()
    return {"loss": float(everybody[-1]), "processes": world}


result = experiment.search(train, {
    "optimizer": {"type": "none"}, "distributed": {"framework": "jax", "workers": 2}, "metric": "loss", "direction": "min", "env": {"JAX_PLATFORMS": "cpu"},
}, "jax", executors=2, memory="2GiB", executor_mode="spawn", python=os.environ.get("HOPS_PYTHON", ""))
outputs = result["best_outputs"]
assert outputs["processes"] == 2 and outputs["loss"] < 0.5, outputs
print("RESULT %d processes, loss %.5f" % (outputs["processes"], outputs["loss"]))
