"""Approximate steps are those of their recurrence, near exact ones, and go on from checkpoints wherever they were."""

import pytest
import torch
from torch import nn

from dovetail.feeds.keys import key
from dovetail.train import INTERLEAVE, RESIDENT, SPILL, SessionMember, Training, checkpoint
from dovetail.train.numeric import approximate_training, approximations_of, open_session
from dovetail.train.numeric.blockwise import decode, encode
from dovetail.train.numeric.stochastic import round_by_chance
from dovetail.vocabulary import CheckpointError, ProgramError, TechniqueRefused

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 computes it another way

CPU = torch.device("cpu")
EIGHT = {"approximate": "state-8bit"}
HALF = {"approximate": "state-bf16"}
WEIGHTS = {"approximate": "weights-bf16"}
BOTH = {"approximate": "state-8bit+weights-bf16"}


def batches():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 32, (4, 9), generator=generator) for _ in range(4)]


class Words(nn.Module):
    """A small language model: an embedding, a large layer, a small one."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 32)
        self.wide = nn.Linear(32, 160)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(160, 32)

    def forward(self, tokens):
        return self.out(self.drop(torch.relu(self.wide(self.embedding(tokens)))))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
}


def training(optimizer="adamw", **fields):
    torch.manual_seed(0)
    model = Words()
    made = OPTIMIZERS[optimizer](model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(made, 3, gamma=0.5)
    return Training(model=model, batches=batches(), loss=loss, optimizer=made, schedule=schedule, **fields)


def opened(technique, knobs=EIGHT, **how):
    members = [
        SessionMember(training=training(**how), seed=seed) for seed in range(2 if technique is INTERLEAVE else 1)
    ]
    return open_session(technique, members, device=CPU, threads=1, knobs=knobs)


def steps(session, count):
    return [float(session.advance([0])[0].loss) for _ in range(count)]


WAYS = [(EIGHT, "fp32"), (HALF, "fp32"), (WEIGHTS, "bf16"), (WEIGHTS, "bf16-pure"), (BOTH, "bf16")]


@pytest.mark.parametrize(("knobs", "precision"), WAYS, ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_near_the_exact_ones(optimizer, knobs, precision):
    how = {"optimizer": optimizer, "precision": precision}
    exact, coded = (steps(opened(RESIDENT, each, **how), 30) for each in ({}, knobs))
    assert coded[0] == exact[0]
    assert coded != exact
    assert coded == pytest.approx(exact, rel=0.05)


def test_the_recurrence_of_adamw_as_it_is_written():
    """Step for step, with no code of the optimizer's."""
    weight = nn.Parameter(torch.randn(64, 65, generator=torch.Generator().manual_seed(1)))
    optimizer = torch.optim.AdamW([weight], lr=1e-2, weight_decay=0.1)
    model = nn.Module()
    model.weight = weight
    approximate_training(Training(model=model, batches=[], loss=print, optimizer=optimizer), "state-8bit")
    expected, m, v = weight.detach().clone().flatten(), torch.zeros(4160), torch.zeros(4160)
    for t in range(1, 4):
        gradient = torch.randn(64, 65, generator=torch.Generator().manual_seed(t))
        weight.grad = gradient.clone()
        optimizer.step()
        g = gradient.flatten()
        expected = expected * (1 - 1e-2 * 0.1)
        m = m * 0.9 + g * (1 - 0.9)
        v = v * 0.999 + g * g * (1 - 0.999)
        expected = expected - m / (v.double().sqrt().float() * (1 / (1 - 0.999**t) ** 0.5) + 1e-8) * (
            1e-2 / (1 - 0.9**t)
        )
        m, v = (decode(*encode(each, signed=signed), signed=signed) for each, signed in ((m, True), (v, False)))
        assert torch.equal(weight.detach().flatten(), expected)


def test_small_tensors_and_embeddings_stay_in_32_bits():
    session = opened(RESIDENT)
    steps(session, 1)
    tensors = session.state().tensors
    kinds = {name.split("/", 2)[2]: tensor.dtype for name, tensor in tensors.items() if name.startswith("optimizer//")}
    assert kinds["exp_avg/wide.weight"] == kinds["exp_avg_sq/wide.weight"] == torch.uint8
    assert kinds["exp_avg/embedding.weight"] == kinds["exp_avg/wide.bias"] == torch.float32
    assert tensors["optimizer//exp_avg_sq_scale/wide.weight"].numel() == 160 * 32 // 256


@pytest.mark.parametrize(("knobs", "precision"), WAYS, ids=str)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_moves_keep_every_bit(optimizer, accumulate, knobs, precision, tmp_path):
    how = {"optimizer": optimizer, "accumulate": accumulate, "clip_norm": 1.0, "precision": precision}
    way = [RESIDENT, SPILL, INTERLEAVE, RESIDENT]
    home = opened(RESIDENT, knobs, **how)
    expected, losses, path = steps(home, 3 * len(way)), [], None
    for number, technique in enumerate(way):
        session = opened(technique, knobs, **how)
        if path is not None:
            session.load(checkpoint.read(path))
        losses += steps(session, 3)
        path, _ = checkpoint.write(tmp_path, session.state(), task="words", attempt=number + 1)
        session.close()
    assert losses == expected
    found = checkpoint.read(path).tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in home.state().tensors.items())


@pytest.mark.parametrize("precision", ["bf16", "bf16-pure"])
def test_no_weight_that_is_read_in_bf16_is_kept_in_more(precision):
    for technique in (RESIDENT, SPILL):
        session = opened(technique, WEIGHTS, precision=precision)
        steps(session, 2)
        kinds = {name: tensor.dtype for name, tensor in session.state().tensors.items()}
        assert kinds["model/wide.weight"] == kinds["model/out.bias"] == torch.bfloat16
        is_pure = precision == "bf16-pure"  # autocast leaves embeddings alone
        assert kinds["model/embedding.weight"] == (torch.bfloat16 if is_pure else torch.float32)
        assert kinds["optimizer//exp_avg/wide.weight"] == torch.float32
        if technique is SPILL:  # what travels is the weight itself
            entries = [entry for segment in session.segments for entry in segment.entries]
            assert {e.master.untyped_storage().data_ptr() for e in entries} == {
                segment.travel.untyped_storage().data_ptr() for segment in session.segments
            }
        else:
            assert all(p.dtype == kinds[f"model/{name}"] for name, p in session._training.model.named_parameters())
        session.close()


def test_the_recurrence_of_weights_in_bf16_as_it_is_written():
    """Step for step, with no code of the optimizer's."""
    start = torch.randn(64, 65, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(65, 64, bias=False)
    model.weight.data = start.clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    made = Training(model=model, batches=[], loss=print, optimizer=optimizer, precision="bf16")
    approximate_training(made, "weights-bf16", seed=7)
    weight, m, v = start.flatten().bfloat16(), torch.zeros(4160), torch.zeros(4160)
    for t in range(1, 4):
        model.weight.grad = torch.randn(64, 65, generator=torch.Generator().manual_seed(t))
        g = model.weight.grad.flatten().clone()
        optimizer.step()
        w = weight.float() * (1 - 1e-2 * 0.1)
        m = m * 0.9 + g * (1 - 0.9)
        v = v * 0.999 + g * g * (1 - 0.999)
        root = v.double().sqrt().float() * (1 / (1 - 0.999**t) ** 0.5)
        w = w - m / (root + 1e-8) * (1e-2 / (1 - 0.9**t))
        chance = key(key(7, "moments", "weight"), "weight", t)
        weight = round_by_chance(w, key=chance)
        assert torch.equal(model.weight.detach().flatten(), weight)
        below, above = (w.view(torch.int32) & -65536), (w.view(torch.int32) & -65536) + 65536
        assert ((weight.float().view(torch.int32) == below) | (weight.float().view(torch.int32) == above)).all()


def test_weights_that_are_read_in_full_stay_so():
    with pytest.raises(ProgramError, match="'weights-bf16' must have weights that are read in bf16 alone: precision"):
        training(allow={"weights-bf16"})
    assert "weights-bf16" in approximations_of(training(precision="bf16"))


def test_chances_follow_from_the_seed():
    one, same, other = (
        open_session(RESIDENT, [SessionMember(training=training(), seed=seed)], device=CPU, threads=1, knobs=HALF)
        for seed in (5, 5, 6)
    )
    found = []
    for session in (one, same, other):
        session.advance()
        found.append(session.state().tensors["optimizer//exp_avg/wide.weight"])
    assert found[0].dtype == torch.bfloat16
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


NAMES = [EIGHT, HALF, WEIGHTS]


@pytest.mark.parametrize("way", NAMES, ids=str)
def test_a_task_goes_on_as_it_began(way, tmp_path):
    for knobs, other, said in (({}, way, "exact steps"), (way, {}, f"{way['approximate']}=1")):
        session = opened(RESIDENT, knobs, precision="bf16")
        steps(session, 1)
        path, _ = checkpoint.write(tmp_path / said[:5], session.state(), task="words", attempt=1)
        with pytest.raises(CheckpointError, match=rf"goes on with the mathematics it began with; the .* has {said}"):
            opened(RESIDENT, other, precision="bf16").load(checkpoint.read(path))


@pytest.mark.parametrize("way", NAMES, ids=str)
def test_a_newer_recurrence_is_refused(way):
    session, name = opened(RESIDENT, way, precision="bf16"), way["approximate"]
    steps(session, 1)
    state = session.state()
    group = dict(state.values["optimizers"][""]["groups"][0]["rest"]["__dict__"])
    assert group["approximate"] == f"{name}=1"
    for pair in state.values["optimizers"][""]["groups"][0]["rest"]["__dict__"]:
        pair[1] = f"{name}=2" if pair[0] == "approximate" else pair[1]
    with pytest.raises(CheckpointError, match=f"knows, '{name}=1'; it has '{name}=2'"):
        opened(RESIDENT, way, precision="bf16").load(state)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize(("way", "slot"), [(EIGHT, "exp_avg_scale"), (HALF, "exp_avg"), (WEIGHTS, "exp_avg")], ids=str)
def test_state_that_is_no_number_is_refused(way, slot, number):
    session = opened(RESIDENT, way, precision="bf16")
    steps(session, 1)
    session.state().tensors[f"optimizer//{slot}/wide.weight"].view(-1)[3] = number
    with pytest.raises(CheckpointError, match=r"must be finite to go on from; exp_avg of 'wide\.weight' has"):
        opened(RESIDENT, way, precision="bf16").load(session.state())


def make(optimizer, **fields):
    model = nn.Linear(2, 2)
    return Training(model=model, batches=[], loss=print, optimizer=optimizer(model.parameters()), **fields)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "must have moments to keep; SGD has none without momentum"),
        (lambda p: torch.optim.RMSprop(p), "must have one of torch's optimizers Adam, AdamW, SGD, got RMSprop"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "must have an optimizer without amsgrad"),
        (lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)), "must have a learning rate that is a number"),
    ],
)
def test_what_an_optimizer_cannot_have(optimizer, message):
    with pytest.raises(ProgramError, match=f"names what this training cannot have: 'state-8bit' {message}"):
        make(optimizer, allow={"state-8bit"})
    assert "state-8bit" not in approximations_of(make(optimizer))
    with pytest.raises(TechniqueRefused, match=message):
        approximate_training(make(optimizer), "state-8bit")
