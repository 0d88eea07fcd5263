"""Lightning modules train as `Trainer.fit` trains them, go on, and can be fused; what cannot be kept is named."""

import lightning as L
import lightning_programs as programs
import pytest
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dovetail as dt
from dovetail.train import FUSE, SessionMember
from dovetail.vocabulary import DovetailError, ProgramError
from tests.adapters.sessions import furthest, furthest_weights, fused, losses_of, opened, resumed, taken

RATES = {"autoencoder": 1e-3, "adversaries": 2e-3, "classifier": 1e-2}


@pytest.fixture(autouse=True)
def silence():
    with programs.quiet():
        yield


@pytest.mark.parametrize("kind", RATES)
def test_losses_and_weights_are_those_of_fit_over_several_epochs(kind):
    theirs, module = programs.fit_losses(kind, RATES[kind], 3, steps=60)
    training = programs.from_parts(kind, RATES[kind], 3)
    ours = taken(training, 60, seed=3)
    assert furthest(theirs, ours) <= 1e-6
    assert furthest_weights(module, training.model) <= 1e-6


@pytest.mark.parametrize("kind", RATES)
def test_a_stopped_training_goes_on_bit_by_bit(kind):
    def build():
        return programs.from_parts(kind, RATES[kind], 0)

    # Within the second epoch: the order of the first must have been passed.
    whole = taken(build(), 40)
    assert resumed(build, 40, stop=33) == whole


@pytest.mark.parametrize("kind", ["autoencoder", "classifier"])
def test_tasks_of_several_rates_are_one_program(kind):
    rates = [RATES[kind], RATES[kind] / 3]
    alone = [taken(programs.from_parts(kind, rate, 0), 10) for rate in rates]
    together = fused([programs.from_parts(kind, rate, 0) for rate in rates], 10)
    assert max(map(furthest, alone, together)) <= 1e-5


def test_evaluation_gives_what_validation_logs_as_lightning_averages_it():
    with programs.quiet():
        L.seed_everything(0)
        module, data, trainer = programs.classifier_parts()
        (theirs,) = trainer.validate(module, data, verbose=False)
    training = programs.from_parts("classifier", 1e-2, 0)
    with opened(training) as session:
        ours = session.evaluate()
        assert ours["val_loss"] == pytest.approx(theirs["val_loss_epoch"], abs=1e-6)
        assert ours["val_accuracy"] == pytest.approx(theirs["val_accuracy"], abs=1e-6)
        assert session.evaluate() == ours  # metrics have begun anew


class Plain(L.LightningModule):
    """What the tests below change one thing of."""

    def __init__(self, learning_rate=0.1):
        super().__init__()
        self.layer, self.learning_rate = nn.Linear(4, 1), learning_rate

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.log("squares", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def loader(rows=24, batch=4, **flags):
    return DataLoader(torch.randn(rows, 4, generator=torch.Generator().manual_seed(0)), batch_size=batch, **flags)


def trainer(**flags):
    return L.Trainer(**programs.QUIET, **flags)


def compare(kind, data, steps=20, **flags):
    """The losses of `fit`, and ours, for one module class."""
    seen = programs.StepLosses(steps)
    L.seed_everything(5)
    trainer(callbacks=[seen], **flags).fit(kind(), *(data() if isinstance(data(), tuple) else [data()]))
    L.seed_everything(5)
    training = dt.from_lightning(kind(), data(), trainer=trainer(**flags))
    assert furthest(seen.losses, taken(training, len(seen.losses), seed=5)) <= 1e-6
    return training


def test_schedulers_step_at_their_intervals_and_frequencies():
    class Scheduled(Plain):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [
                {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9), "interval": "step", "frequency": 4},
                {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8), "frequency": 2, "name": "slow"},
            ]

    training = compare(Scheduled, lambda: loader(shuffle=True), steps=40)
    assert list(training.schedules) == ["scheduler_0", "slow"]
    compare(Scheduled, lambda: loader(rows=28), steps=20, accumulate_grad_batches=2)


class Validated(Plain):
    def validation_step(self, batch, batch_idx):
        self.log("val", self.layer(batch).abs().mean())


def test_a_scheduler_that_monitors_steps_with_the_evaluation():
    class Plateau(Validated):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=0.5)
            return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val"}

    seen = programs.StepLosses(24)
    fitted = Plateau()
    start = {name: value.clone() for name, value in fitted.state_dict().items()}
    trainer(callbacks=[seen]).fit(fitted, loader(), loader(batch=8))
    module = Plateau()
    module.load_state_dict(start)
    training = dt.from_lightning(module, (loader(), loader(batch=8)))
    with opened(training) as session:
        ours = []
        for _ in range(4):
            ours += losses_of(session, 6)
            session.observe(session.evaluate())
    assert furthest(seen.losses, ours) <= 1e-6
    assert training.optimizer.param_groups[0]["lr"] < 0.05


@pytest.mark.parametrize("flags", [{"val_check_interval": 0.5}, {"check_val_every_n_epoch": 2}, {}])
def test_the_order_is_that_of_fit_with_validations_in_between(flags):
    compare(Validated, lambda: (loader(shuffle=True), loader(batch=8, shuffle=True)), steps=24, **flags)


def test_limits_clipping_by_value_and_hooks_of_the_step():
    class Warmed(Plain):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            optimizer.step(closure=optimizer_closure)
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * min(1.0, (self.trainer.global_step + 1) / 8)

        def on_before_optimizer_step(self, optimizer):
            self.log("norm", self.layer.weight.grad.norm())

    compare(Plain, lambda: loader(shuffle=True), limit_train_batches=4)
    compare(Plain, lambda: loader(), gradient_clip_val=0.01, gradient_clip_algorithm="value")
    training = compare(Warmed, lambda: loader(shuffle=True))
    with opened(training) as session:
        (report,) = session.advance()
    assert report.metrics.keys() == {"squares", "norm"}


def test_lbfgs_and_steps_that_know_where_they_are():
    class Closing(Plain):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.05, max_iter=3)

    class Placed(Plain):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * (
                1 + batch_idx + 10 * self.current_epoch + self.global_step
            )

    compare(Closing, loader, steps=8)
    compare(Placed, lambda: loader(shuffle=True), steps=14)
    compare(Placed, lambda: loader(), steps=9, accumulate_grad_batches=2)


def test_modules_of_the_other_package_will_do():
    import pytorch_lightning

    class Made(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch):
            return {"loss": self.layer(batch).square().mean()}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.warns(UserWarning, match="Made logs nothing, so of its training only the loss is recorded"):
        assert taken(dt.from_lightning(Made(), loader()), 2)


def test_metrics_of_torchmetrics_are_those_of_the_step():
    class Measured(Plain):
        def __init__(self):
            super().__init__()
            self.error = torchmetrics.MeanSquaredError()

        def training_step(self, batch, batch_idx):
            found = self.layer(batch)[:, 0]
            self.error(found, torch.zeros_like(found))
            self.log("error", self.error, on_step=True, on_epoch=True)
            return found.square().mean()

    training = dt.from_lightning(Measured(), loader())
    with opened(training) as session:
        for _ in range(3):
            (report,) = session.advance()
            assert float(report.metrics["error"]) == pytest.approx(float(report.loss))


class Seen(L.Callback):
    def __init__(self):
        self.calls = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.calls.append((trainer.current_epoch, batch_idx, float(outputs["loss"])))

    def on_train_epoch_end(self, trainer, pl_module):
        self.calls.append("epoch")

    def on_validation_epoch_end(self, trainer, pl_module):
        self.calls.append("validated")


def test_callbacks_that_read_are_called_and_checkpoints_become_the_best_one():
    from lightning.pytorch.callbacks import ModelCheckpoint

    seen = Seen()
    made = L.Trainer(
        **{**programs.QUIET, "enable_checkpointing": True}, callbacks=[seen, ModelCheckpoint(monitor="val")]
    )
    training = dt.from_lightning(Validated(), (loader(rows=8), loader(rows=8)), trainer=made)
    assert (training.keep_best, training.goal) == ("val", "min")
    with opened(training) as session:
        losses = losses_of(session, 3)
        session.evaluate()
    assert seen.calls == [(0, 0, losses[0]), (0, 1, losses[1]), "epoch", (1, 0, losses[2]), "validated"]


def refusal(module=None, data=None, **flags):
    with pytest.raises(ProgramError) as error:
        dt.from_lightning(module or Plain(), data if data is not None else loader(), trainer=trainer(**flags))
    return str(error.value)


def test_callbacks_that_change_training_are_refused_by_name():
    from lightning.pytorch import callbacks

    class Scaling(L.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            pass

    assert "Scaling has on_before_optimizer_step" in refusal(callbacks=[Scaling()])
    assert "StochasticWeightAveraging changes training" in refusal(callbacks=[callbacks.StochasticWeightAveraging(0.1)])
    scheduler = callbacks.GradientAccumulationScheduler({0: 1})
    assert "accumulate_grad_batches=...) one number" in refusal(callbacks=[scheduler])
    words = refusal(callbacks=[callbacks.EarlyStopping(monitor="val", patience=4, mode="max")])
    assert "dt.grid(..., metric='val', patience=4, goal='max')" in words


def test_a_callback_that_said_it_reads_and_writes_is_found_out():
    class Writing(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            with torch.no_grad():
                pl_module.layer.weight.mul_(0.5)

    training = dt.from_lightning(Plain(), loader(), trainer=trainer(callbacks=[Writing()]))
    with (
        opened(training) as session,
        pytest.raises(ProgramError, match="Writing must only read; its on_train_batch_end"),
    ):
        session.advance()


def test_what_a_step_changes_is_refused_unless_it_is_a_buffer():
    class Gathering(Plain):
        def __init__(self):
            super().__init__()
            self.outputs = []

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.outputs.append(loss.detach())
            return loss

    class Buffered(Plain):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.mask = None

        def training_step(self, batch, batch_idx):
            self.count += 1
            self.mask = torch.ones(4) if self.mask is None else self.mask  # a cache
            return super().training_step(batch * self.mask, batch_idx) / self.count

    training = dt.from_lightning(Gathering(), loader())
    with opened(training) as session, pytest.raises(ProgramError, match=r"it changed self\.outputs"):
        session.advance()

    def build():
        torch.manual_seed(0)
        return dt.from_lightning(Buffered(), loader())

    assert resumed(build, 6, stop=3) == taken(build(), 6)


def test_what_a_step_reads_parts_tasks():
    class Scaled(Plain):
        def __init__(self, learning_rate, scale):
            super().__init__(learning_rate)
            self.scale = scale

        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * self.scale

    def members(*arguments):
        return [SessionMember(training=dt.from_lightning(Scaled(*each), loader())) for each in arguments]

    assert FUSE.refuse(members((0.1, 2.0), (0.2, 2.0))) is None
    assert "scale is 2.0 against 3.0" in FUSE.refuse(members((0.1, 2.0), (0.1, 3.0)))


def test_what_cannot_be_kept_is_named():
    class Several(Plain):
        def configure_optimizers(self):
            return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

    class Without(Plain):
        def configure_optimizers(self):
            return None

    class Saving(Plain):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["more"] = 1

    class Normed(Plain):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

    assert "must have one optimizer; Several has 2" in refusal(Several())
    assert "it returned None" in refusal(Without())
    assert "Saving.on_save_checkpoint cannot be kept" in refusal(Saving())
    assert "limit_train_batches=4" in refusal(Normed(), loader(rows=20), accumulate_grad_batches=4)
    assert "Trainer(fast_dev_run=" in refusal(fast_dev_run=True)
    assert "Trainer(precision='bf16-true') cannot be kept" in refusal(precision="bf16-true")
    assert "must be one loader" in refusal(data=[loader(), loader()])
    assert "got int" in refusal(data=3)


def test_a_step_without_a_loss_is_told():
    class Silent(Plain):
        def training_step(self, batch, batch_idx):
            self.log("squares", self.layer(batch).mean())

    training = dt.from_lightning(Silent(), loader())
    with opened(training) as session, pytest.raises(ProgramError, match="training_step must return the loss"):
        session.advance()


def test_a_plain_module_and_a_wrong_version_are_refused(monkeypatch):
    with pytest.raises(ProgramError, match="must be given a LightningModule, got Linear"):
        dt.from_lightning(nn.Linear(1, 1), loader())
    monkeypatch.setattr(L, "__version__", "1.9.5")
    with pytest.raises(DovetailError, match=r"lightning must be of version 2.4 or newer; found 1.9.5. Install it: pip"):
        dt.from_lightning(Plain(), loader())


def test_a_pair_of_tensors_is_a_batch_and_batches_may_be_any_iterable():
    class Paired(Plain):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch[0] + batch[1], batch_idx)

    pairs = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 4)), batch_size=4)
    assert len(taken(dt.from_lightning(Paired(), pairs), 4)) == 4
    assert len(taken(dt.from_lightning(Paired(), list(pairs)), 4)) == 4
