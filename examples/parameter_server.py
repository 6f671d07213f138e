"""Asynchronous training with a parameter server: the chief calls train, the other members serve TensorFlow until it returns."""
import tensorflow as tf

from hops import dist

# What speaks with other processes lives as long as this one: TensorFlow may hang when it takes such objects down while they still serve.
ALIVE = []


def train(lr, reporter, epochs=5):
    strategy = dist.context().strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        w = tf.Variable(tf.zeros([16, 1]))
        count = tf.Variable(0)

    def dataset():
        def batches():
            generator = tf.random.Generator.from_seed(1)
            while True:
                x = generator.normal([64, 16])
                yield x, tf.reduce_sum(x, 1, keepdims=True)
        return tf.data.Dataset.from_generator(batches, output_signature=(tf.TensorSpec([64, 16]), tf.TensorSpec([64, 1])))

    @tf.function
    def step(iterator):
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w - y) ** 2)
        w.assign_sub(lr * tape.gradient(loss, w))
        count.assign_add(1)
        return loss

    batches = iter(coordinator.create_per_worker_dataset(dataset))
    ALIVE.extend([strategy, coordinator, w, count, dataset, step, batches])
    for epoch in range(1, int(epochs) + 1):
        losses = [coordinator.schedule(step, args=(batches,)) for _ in range(8)]
        coordinator.join()
        loss = sum(float(r.fetch()) for r in losses) / len(losses)
        reporter.broadcast(loss, epoch)
    print("loss %.6f after %d steps" % (loss, int(count)))
    return loss
