"""Data parallel training with JAX: each process has its part of a batch, and the gradient is the mean over all."""
from hops import dist


def train(lr, reporter, epochs=5):
    ctx = dist.context()
    jax = ctx.initialize_jax()
    import numpy
    from jax.experimental import multihost_utils

    numpy.random.seed(1)
    x = numpy.random.randn(512, 16).astype("float32")[ctx.rank::ctx.world]
    y = x.sum(1)
    w = numpy.zeros(16, "float32")
    gradient = jax.jit(jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean()))
    for epoch in range(1, int(epochs) + 1):
        loss, g = gradient(w)
        loss, g = jax.tree.map(lambda a: numpy.asarray(a).mean(0), multihost_utils.process_allgather((loss.reshape(1), g.reshape(1, -1)), tiled=True)) if ctx.world > 1 else (loss, g)
        w = w - lr * numpy.asarray(g)
        reporter.broadcast(float(loss), epoch)
    print("processes %d, loss %.6f" % (jax.process_count(), float(loss)))
    return float(loss)


if __name__ == "__main__":
    from hops.experiment import Reporter

    print("loss %.6f" % train(0.05, Reporter()))
