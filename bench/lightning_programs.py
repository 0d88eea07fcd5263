"""Three Lightning modules of different kinds, each as a program for Dovetail and as `Trainer.fit` trains it: the
autoencoder of Lightning's own tutorial, an adversarial pair with manual optimization, and a classifier with a data
module, a schedule, accumulation and clipping. The data are scikit-learn's digits; nothing is downloaded.
"""

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
import torchmetrics
from sklearn.datasets import load_digits
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

import dovetail as dt

QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "devices": 1,
}
Parts = tuple[L.LightningModule, Any, L.Trainer]


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    return torch.tensor(found.images).float() / 16, torch.tensor(found.target)


# As in "Lightning in 15 minutes".
class LitAutoEncoder(L.LightningModule):
    def __init__(self, encoder, decoder, learning_rate=1e-3):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.learning_rate = learning_rate

    def training_step(self, batch, batch_idx):
        # training_step defines the train loop.
        # it is independent of forward
        x, _ = batch
        x = x.view(x.size(0), -1)
        z = self.encoder(x)
        x_hat = self.decoder(z)
        loss = nn.functional.mse_loss(x_hat, x)
        # Logging to TensorBoard (if installed) by default
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return optim.Adam(self.parameters(), lr=self.learning_rate)


def autoencoder_parts(learning_rate: float = 1e-3, **flags: Any) -> Parts:
    encoder = nn.Sequential(nn.Linear(8 * 8, 64), nn.ReLU(), nn.Linear(64, 3))
    decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 8 * 8))
    loader = DataLoader(TensorDataset(*digits()), batch_size=64, shuffle=True)
    return LitAutoEncoder(encoder, decoder, learning_rate), loader, L.Trainer(**QUIET, **flags)


class Adversaries(L.LightningModule):
    """Its noise is part of the data: what a step draws is keyed under Dovetail, and would be other noise."""

    def __init__(self, learning_rate=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())
        self.discriminator = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, z):
        return self.generator(z)

    def training_step(self, batch):
        images, noise = batch
        for_generator, for_discriminator = self.optimizers()
        self.toggle_optimizer(for_generator)
        generated = self.discriminator(self(noise))
        g_loss = F.binary_cross_entropy_with_logits(generated, torch.ones_like(generated))
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        for_generator.step()
        for_generator.zero_grad()
        self.untoggle_optimizer(for_generator)
        self.toggle_optimizer(for_discriminator)
        real, fake = self.discriminator(images.flatten(1)), self.discriminator(self(noise).detach())
        d_loss = F.softplus(-real).mean() + F.softplus(fake).mean()
        self.log("d_loss", d_loss, prog_bar=True)
        self.manual_backward(d_loss)
        self.clip_gradients(for_discriminator, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        for_discriminator.step()
        for_discriminator.zero_grad()
        self.untoggle_optimizer(for_discriminator)
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def configure_optimizers(self):
        rate = self.hparams.learning_rate
        both = [
            optim.Adam(part.parameters(), lr=rate, betas=(0.5, 0.999)) for part in (self.generator, self.discriminator)
        ]
        return both, [optim.lr_scheduler.ExponentialLR(each, 0.99) for each in both]


def adversaries_parts(learning_rate: float = 2e-3, **flags: Any) -> Parts:
    images, _ = digits()
    noise = torch.randn(len(images), 8, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(images, noise), batch_size=100, shuffle=True)
    return Adversaries(learning_rate), loader, L.Trainer(**QUIET, **flags)


class DigitsModule(L.LightningDataModule):
    def __init__(self, batch_size=50):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        self.train, self.val = random_split(TensorDataset(*digits()), [1497, 300])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=128)


class Classifier(L.LightningModule):
    def __init__(self, width=32, learning_rate=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        self.val_accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=10)

    def forward(self, images):
        return self.layers(images)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        scores = self(images)
        loss = F.cross_entropy(scores, labels)
        self.log_dict({"loss": loss, "right": (scores.argmax(1) == labels).float().mean()}, on_epoch=True)
        return {"loss": loss, "scores": scores}

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        scores = self(images)
        self.val_accuracy(scores, labels)
        self.log("val_accuracy", self.val_accuracy)
        self.log("val_loss", F.cross_entropy(scores, labels), on_step=True, on_epoch=True)

    def configure_optimizers(self):
        optimizer = optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)
        steps = int(self.trainer.estimated_stepping_batches)
        cycle = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.hparams.learning_rate, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


def classifier_parts(learning_rate: float = 1e-2, **flags: Any) -> Parts:
    """Thirty batches an epoch and four a step: the last step of an epoch has two."""
    flags = {"accumulate_grad_batches": 4, "gradient_clip_val": 0.3, "max_epochs": 30, **flags}
    return Classifier(learning_rate=learning_rate), DigitsModule(), L.Trainer(**QUIET, **flags)


KINDS: dict[str, Callable[..., Parts]] = {
    "autoencoder": autoencoder_parts,
    "adversaries": adversaries_parts,
    "classifier": classifier_parts,
}


def autoencoder(learning_rate: float = 1e-3, seed: int = 0) -> dt.Training:
    return from_parts("autoencoder", learning_rate, seed)


def adversaries(learning_rate: float = 2e-3, seed: int = 0) -> dt.Training:
    return from_parts("adversaries", learning_rate, seed)


def classifier(learning_rate: float = 1e-2, seed: int = 0) -> dt.Training:
    return from_parts("classifier", learning_rate, seed)


def from_parts(kind: str, learning_rate: float, seed: int, **flags: Any) -> dt.Training:
    with quiet():
        L.seed_everything(seed, verbose=False)
        module, data, trainer = KINDS[kind](learning_rate, **flags)
        return dt.from_lightning(module, data, trainer=trainer)


class quiet(warnings.catch_warnings):
    """Without what Lightning says of a machine's cores and devices."""

    def __enter__(self) -> Any:
        found = super().__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        return found


class StepLosses(L.Callback):
    """The loss of each step as the optimizer saw it."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.losses: list[float] = []
        self._parts: list[Tensor] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self._parts.append(outputs["loss"] if outputs else trainer.callback_metrics["g_loss"].clone())
        if not trainer.fit_loop._should_accumulate():
            self.losses.append(float(torch.stack(self._parts).sum()))
            self._parts = []
        trainer.should_stop = len(self.losses) >= self._steps


def fit_losses(kind: str, learning_rate: float, seed: int, *, steps: int, **flags: Any) -> tuple[list[float], Any]:
    """What `Trainer.fit` itself gives: the losses of so many steps, and the module afterwards."""
    with quiet():
        L.seed_everything(seed, verbose=False)
        seen = StepLosses(steps)
        module, data, trainer = KINDS[kind](learning_rate, callbacks=[seen], **flags)
        trainer.fit(module, data)
    return seen.losses, module
