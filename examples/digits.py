"""Handwritten digits with a small network, in plain Python: what `hops demo` searches.

The data is read from the cluster's filesystem. Each epoch reports the accuracy on held-out images and saves a
checkpoint; a trial that is resumed goes on from it.
"""
import csv
import gzip
import io
import math
import random

from hops import checkpoint, hdfs

IMAGES = {}


def load(path, train=1200, test=500):
    """(training images, test images), each ([(index, intensity), ...] of the dark pixels, digit)."""
    if path not in IMAGES:
        text = gzip.decompress(hdfs.load(path)).decode("ascii")
        rows = [[int(float(v)) for v in row] for row in csv.reader(io.StringIO(text))]
        random.Random(1).shuffle(rows)
        images = [([(i, v / 16.0) for i, v in enumerate(row[:64]) if v], row[64]) for row in rows]
        IMAGES[path] = images[:train], images[train:train + test]
    return IMAGES[path]


def forward(pixels, w1, b1, w2, b2):
    """(hidden activations, class probabilities)."""
    hidden = []
    for row, bias in zip(w1, b1):
        total = bias
        for i, v in pixels:
            total += row[i] * v
        hidden.append(total if total > 0.0 else 0.0)
    logits = [bias + sum(map(float.__mul__, row, hidden)) for row, bias in zip(w2, b2)]
    top = max(logits)
    exps = [math.exp(x - top) for x in logits]
    norm = sum(exps)
    return hidden, [e / norm for e in exps]


def accuracy(images, weights):
    right = 0
    for pixels, digit in images:
        probabilities = forward(pixels, *weights)[1]
        right += probabilities.index(max(probabilities)) == digit
    return right / len(images)


def epoch(images, weights, velocity, lr, momentum, batch, rng):
    """One pass of stochastic gradient descent with momentum over the images, in place."""
    w1, b1, w2, b2 = weights
    v1, c1, v2, c2 = velocity
    order = list(range(len(images)))
    rng.shuffle(order)
    for start in range(0, len(order), batch):
        chosen = order[start:start + batch]
        rate = lr / len(chosen)
        for block in v1 + v2:
            for i in range(len(block)):
                block[i] *= momentum
        for block in (c1, c2):
            for i in range(len(block)):
                block[i] *= momentum
        for k in chosen:
            pixels, digit = images[k]
            hidden, probabilities = forward(pixels, w1, b1, w2, b2)
            probabilities[digit] -= 1.0
            back = [0.0] * len(hidden)
            for j, g in enumerate(probabilities):
                row, step = w2[j], v2[j]
                for h, a in enumerate(hidden):
                    if a:
                        back[h] += g * row[h]
                        step[h] -= rate * g * a
                c2[j] -= rate * g
            for h, g in enumerate(back):
                if g and hidden[h]:
                    step = v1[h]
                    for i, v in pixels:
                        step[i] -= rate * g * v
                    c1[h] -= rate * g
        for block, change in zip(w1 + w2, v1 + v2):
            for i, c in enumerate(change):
                block[i] += c
        for block, change in ((b1, c1), (b2, c2)):
            for i, c in enumerate(change):
                block[i] += c


def zeros(weights):
    return [[[0.0] * len(row) for row in block] if isinstance(block[0], list) else [0.0] * len(block) for block in weights]


def train(lr, momentum, batch, hidden, budget, reporter, seed, data="/data/digits.csv.gz"):
    training, held_out = load(data)
    saved = checkpoint.load()
    if saved:
        done, state = saved
        weights, velocity = state["weights"], state["velocity"]
        print("resumed after epoch %d" % done)
    else:
        done, rng = 0, random.Random(seed)
        weights = [[[rng.gauss(0.0, 0.18) for _ in range(64)] for _ in range(hidden)], [0.0] * hidden,
                   [[rng.gauss(0.0, 1.0 / math.sqrt(hidden)) for _ in range(hidden)] for _ in range(10)], [0.0] * 10]
        velocity = zeros(weights)
    for n in range(done + 1, budget + 1):
        epoch(training, weights, velocity, lr, momentum, batch, random.Random(seed + n))
        result = accuracy(held_out, weights)
        print("epoch %d: accuracy %.4f" % (n, result))
        reporter.broadcast(result, step=n)
        checkpoint.save({"weights": weights, "velocity": velocity}, step=n)
    return {"accuracy": result if budget > done else accuracy(held_out, weights)}
