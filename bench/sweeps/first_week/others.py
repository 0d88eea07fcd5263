"""What does not fit the mould: packed sequences, two optimizers, draws inside a model, policy gradients, graphs."""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import dovetail as dt

VOCABULARY, LENGTH = 128, 32


def _tokens(count: int = 256) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (count, LENGTH), generator=torch.Generator().manual_seed(1))


def padded_lstm(learning_rate=1e-3, seed=0) -> dt.Training:
    """Sequences of unlike lengths, packed."""
    draw = torch.Generator().manual_seed(2)
    lengths = torch.randint(4, LENGTH, (256,), generator=draw)
    examples = list(zip(_tokens(), lengths, lengths % 2, strict=True))
    model = Lengths()
    return dt.Training(
        model=model,
        batches=DataLoader(examples, batch_size=16, shuffle=True),
        loss=lambda model, batch: F.cross_entropy(model(batch[0], batch[1]), batch[2]),
        optimizer=torch.optim.Adam(model.parameters(), lr=learning_rate),
    )


class Lengths(nn.Module):
    """Tells whether a sequence has an even length."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.memory = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return self.head(self.memory(packed)[1][0][-1])


class Adversaries(nn.Module):
    """A generator and a discriminator."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


def gan(learning_rate=1e-3, seed=0) -> dt.Training:
    """Two networks, two optimizers, a step of its own."""
    model = Adversaries()
    circle = torch.linspace(0, 6.28, 1024)
    points = torch.stack([circle.cos(), circle.sin()], dim=1)
    return dt.Training(
        model=model,
        batches=DataLoader(points, batch_size=64, shuffle=True),
        optimizer={
            name: torch.optim.Adam(getattr(model, name).parameters(), lr=learning_rate, betas=(0.5, 0.999))
            for name in ("generator", "discriminator")
        },
        step=adversarial_step,
    )


def adversarial_step(training: dt.Training, real: torch.Tensor) -> dict[str, torch.Tensor]:
    """The discriminator's step, then the generator's."""
    model, optimizers = training.model, training.optimizer
    fake = model.generator(torch.randn(len(real), 8, device=real.device))
    ones, zeros = torch.ones(len(real), 1, device=real.device), torch.zeros(len(real), 1, device=real.device)
    judged = F.binary_cross_entropy_with_logits(model.discriminator(real), ones)
    judged = judged + F.binary_cross_entropy_with_logits(model.discriminator(fake.detach()), zeros)
    optimizers["discriminator"].zero_grad()
    judged.backward()
    optimizers["discriminator"].step()
    fooled = F.binary_cross_entropy_with_logits(model.discriminator(fake), ones)
    optimizers["generator"].zero_grad()
    fooled.backward()
    optimizers["generator"].step()
    return {"loss": judged.detach(), "fooled": fooled.detach()}


class Variational(nn.Module):
    """A variational autoencoder."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, spread = self.encoder(rows).chunk(2, dim=1)
        return self.decoder(mean + torch.randn_like(mean) * (spread / 2).exp()), mean, spread


def vae(learning_rate=1e-3, seed=0) -> dt.Training:
    """Draws inside its forward pass; two metrics beside its loss."""
    model = Variational()

    def loss(model: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        found, mean, spread = model(rows)
        apart = F.mse_loss(found, rows)
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).mean()
        return apart + 0.1 * divergence, {"apart": apart.detach(), "divergence": divergence.detach()}

    rows = torch.randn(1024, 64, generator=torch.Generator().manual_seed(3)).cumsum(1) / 8
    return dt.Training(
        model=model,
        batches=DataLoader(rows, batch_size=64, shuffle=True),
        loss=loss,
        optimizer=torch.optim.Adam(model.parameters(), lr=learning_rate),
    )


class Average:
    """A running average of returns, which checkpoints hold."""

    def __init__(self) -> None:
        self.value = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


def reinforce(learning_rate=1e-2, seed=0) -> dt.Training:
    """Policy gradients on a corridor: walk right; the baseline is declared state."""
    policy, baseline = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2)), Average()

    def step(training: dt.Training, starts: torch.Tensor) -> dict[str, float]:
        place, chances, rewards = starts.clone(), [], []
        for _ in range(10):
            choice = torch.distributions.Categorical(logits=training.model(place))
            move = choice.sample()
            chances.append(choice.log_prob(move))
            place = place + (2.0 * move[:, None] - 1.0) / 10
            rewards.append(place[:, 0])
        returns = torch.stack(rewards).sum(0)
        loss = -(torch.stack(chances).sum(0) * (returns - baseline.value)).mean()
        baseline.value = 0.9 * baseline.value + 0.1 * float(returns.mean())
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        return {"loss": float(loss.detach()), "return": float(returns.mean())}

    return dt.Training(
        model=policy,
        batches=[torch.zeros(16, 1)] * 20,
        optimizer=torch.optim.Adam(policy.parameters(), lr=learning_rate),
        step=step,
        state={"baseline": baseline},
    )


class GraphNet(nn.Module):
    """Two rounds of messages between neighbours."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            found = layer(nodes)
            nodes = F.relu(torch.zeros_like(found).index_add(0, edges[1], found[edges[0]]) + found)
        return self.head(nodes.mean(0, keepdim=True))


class Graphs(Dataset):
    """Graphs of unlike sizes, one a batch."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(place)
        nodes = int(torch.randint(5, 20, (), generator=draw))
        edges = torch.randint(0, nodes, (2, 3 * nodes), generator=draw)
        return torch.randn(nodes, 8, generator=draw), edges, torch.tensor([nodes % 2])


def graph(learning_rate=1e-3, seed=0) -> dt.Training:
    """Batches whose shapes differ from one to the next."""
    model = GraphNet()
    return dt.Training(
        model=model,
        batches=DataLoader(Graphs(), batch_size=None, shuffle=True),
        loss=lambda model, batch: F.cross_entropy(model(batch[0], batch[1]), batch[2]),
        optimizer=torch.optim.Adam(model.parameters(), lr=learning_rate),
    )


def _six(program, *, steps: int) -> dt.Workload:
    steps = int(os.environ.get("DOVETAIL_BENCH_STEPS", steps))
    return dt.grid(program, learning_rate=[3e-4, 1e-3, 3e-3], seed=[0, 1], steps=steps)


padded_lstms = _six(padded_lstm, steps=300)
gans = _six(gan, steps=800)
vaes = _six(vae, steps=1500)
reinforces = _six(reinforce, steps=300)
graphs = _six(graph, steps=1500)
