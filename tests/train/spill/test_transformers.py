"""Models of the transformers library, as they come: all that trains moves, and as it does when resident."""

from typing import Any

import pytest
import torch
from torch import nn

from dovetail.train import Training
from tests.train.spill.towers import Build, assert_same, resident, run, spilled

transformers = pytest.importorskip("transformers")
WORDS, LENGTH = 16, 6


def language(model: nn.Module) -> Training:
    held_out = torch.randint(WORDS, (2, LENGTH))
    return Training(
        model=model,
        batches=[torch.randint(WORDS, (2, LENGTH)) for _ in range(3)],
        loss=lambda model, words: model(input_ids=words, labels=words).loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        evaluate=lambda model: {"loss": float(model(input_ids=held_out, labels=held_out).loss)},
    )


def gpt2(**options: Any) -> Training:
    """Its output layer is its embedding; dropout is on."""
    sizes = {"vocab_size": WORDS, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=1, **options)
    model = transformers.GPT2LMHeadModel(config)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert config.resid_pdrop > 0
    return language(model)


def llama(*, tied: bool, checkpoints: bool = False) -> Training:
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8,
        attention_dropout=0.1,
        tie_word_embeddings=tied,
    )
    model = transformers.LlamaForCausalLM(config)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    if checkpoints:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return language(model)


def bert(*, frozen: bool = False) -> Training:
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=8,
        num_labels=3,
    )
    model = transformers.BertForSequenceClassification(config)
    if frozen:
        model.bert.embeddings.requires_grad_(False)
        model.bert.encoder.layer[0].requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    held_out = torch.randint(WORDS, (2, LENGTH)), torch.randint(3, (2,))
    return Training(
        model=model,
        batches=[(torch.randint(WORDS, (2, LENGTH)), torch.randint(3, (2,))) for _ in range(3)],
        loss=lambda model, batch: model(input_ids=batch[0], labels=batch[1]).loss,
        optimizer=torch.optim.AdamW(trained, lr=1e-2),
        evaluate=lambda model: {"loss": float(model(input_ids=held_out[0], labels=held_out[1]).loss)},
    )


BUILDS: dict[str, Build] = {
    "gpt2": gpt2,
    "llama": lambda: llama(tied=False),
    "llama tied": lambda: llama(tied=True),
    "bert": bert,
    "bert frozen": lambda: bert(frozen=True),
}
KNOBS: dict[str, dict[str, Any]] = {
    "tight": {"depth": 1},
    "recomputed": {"depth": 2, "recompute": True},
}


@pytest.mark.parametrize("knobs", sorted(KNOBS))
@pytest.mark.parametrize("build", sorted(BUILDS))
def test_all_that_trains_moves_and_as_when_resident(build: str, knobs: str) -> None:
    whole, session = resident(BUILDS[build]), spilled(BUILDS[build], **KNOBS[knobs])
    assert all(segment.kept == segment.fixed for segment in session.segments)
    assert sum(not segment.kept for segment in session.segments) > 8
    before = {name: tensor.clone() for name, tensor in session.state().tensors.items()}
    trains = {name: p.requires_grad for name, p in session._training.model.named_parameters()}
    assert session.evaluate() == whole.evaluate()
    expected, losses = run(whole, 3), run(session, 3)
    assert losses[0] == expected[0]
    assert_same(losses[1], expected[1])
    assert session.evaluate() == whole.evaluate()
    for name, is_trained in trains.items():
        assert torch.equal(losses[1].tensors[f"model/{name}"], before[f"model/{name}"]) != is_trained, name
    session.close()


def test_checkpoints_of_the_librarys_own_get_the_room_they_hold() -> None:
    def build() -> Training:
        return llama(tied=False, checkpoints=True)

    session = spilled(build, device_bytes=6 << 10)
    assert session.room.depth == 1
    expected, found = run(resident(build), 3), run(session, 3)
    assert found[0] == expected[0]
    assert_same(found[1], expected[1])
    session.close()


def test_it_generates_while_it_trains() -> None:
    def build() -> Training:
        made, start = gpt2(), torch.tensor([[2, 3]])
        made.evaluate = lambda model: {
            "words": float(model.generate(start, max_new_tokens=3, do_sample=False, pad_token_id=1)[0, -1])
        }
        return made

    whole, session = resident(build), spilled(build, depth=2)
    for _ in range(2):
        assert session.evaluate() == whole.evaluate()
        assert float(session.advance()[0].loss) == float(whole.advance()[0].loss)
    session.close()
