"""Shuffled epochs over small files of the cluster's filesystem by PyTorch's DataLoader and by tf.data: every file once in each.

    python examples/small_files.py

Needs torch and tensorflow here; no executors take part.
"""
from hops import data, hdfs

DIRECTORY = "/Projects/examples/small"
FILES = 600


def decode(name, content):
    return int(name.rsplit("/", 1)[-1].split(".")[0]), len(content)


if __name__ == "__main__":
    import torch

    if not hdfs.exists(DIRECTORY):
        for i in range(FILES):
            hdfs.dump(b"%06d" % i * 100, "%s/%d.bin" % (DIRECTORY, i))
    dataset = data.Dataset(DIRECTORY, suffixes=(".bin",))
    orders = []
    for workers in (0, 2):
        loaded = dataset.torch_dataset(seed=1, decode=decode)
        for epoch in range(2):
            loaded.set_epoch(epoch)
            seen = [int(n) for numbers, _ in torch.utils.data.DataLoader(loaded, batch_size=32, num_workers=workers) for n in numbers]
            assert sorted(seen) == list(range(FILES)), (workers, len(seen))
            orders.append(seen)
    assert orders[0] != orders[1], "two epochs in the same order"

    seen = [int(name.numpy().decode().rsplit("/", 1)[-1].split(".")[0]) for name, _ in dataset.tf_dataset(seed=1)]
    assert sorted(seen) == list(range(FILES)), len(seen)
    print("OK small_files", FILES)
