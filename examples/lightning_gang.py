"""PyTorch Lightning in a gang of two: it finds the others by torchrun's variables, as on any other platform.

    python examples/lightning_gang.py

Needs torch and lightning.
"""
import os

from hops import experiment


def train(reporter):
    import torch
    from lightning.pytorch import LightningModule, Trainer

    class Sum(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch, _):
            x, y = batch
            loss = ((self.layer(x) - y) ** 2).mean()
            self.log("loss", loss, sync_dist=True, on_epoch=True)
            return loss

        def on_train_epoch_end(self):
            reporter.broadcast(float(self.trainer.callback_metrics["loss"]), step=self.current_epoch + 1)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(1)
    x = torch.randn(512, 8)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32)
    world = int(os.environ["WORLD_SIZE"])
    trainer = Trainer(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=world // int(os.environ["LOCAL_WORLD_SIZE"]),
                      strategy="ddp", max_epochs=4, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Sum(), data)
    return {"loss": float(trainer.callback_metrics["loss"]), "world": trainer.world_size}


result = experiment.search(train, {
    "optimizer": {"type": "none"}, "distributed": {"framework": "torch", "workers": 2}, "metric": "loss", "direction": "min",
}, "lightning", executors=2, memory="2GiB", executor_mode="spawn")
outputs = result["best_outputs"]
assert outputs["world"] == 2 and outputs["loss"] < 1.0, outputs
print("RESULT world of %d, loss %.4f" % (outputs["world"], outputs["loss"]))
