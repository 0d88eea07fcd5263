"""Decoder and encoder models of transformers, unmodified, from small configurations."""

import pytest
import torch

from dovetail.train.cutting import capture_call, cut, equal, loss_given
from dovetail.vocabulary import TechniqueRefused
from tests.train.cutting.chains import check, check_apart, equal_names

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}


def gpt2(**knobs):
    config = transformers.GPT2Config(vocab_size=31, n_embd=16, n_layer=3, n_head=2, n_positions=32, **knobs)
    return transformers.GPT2LMHeadModel(config)


def llama(**knobs):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, num_key_value_heads=1, **knobs))


def bert(**knobs):
    config = transformers.BertConfig(**SMALL, max_position_embeddings=32, **knobs)
    return transformers.BertForSequenceClassification(config)


def t5(**knobs):
    config = transformers.T5Config(
        vocab_size=31, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0, **knobs
    )
    return transformers.T5ForConditionalGeneration(config)


def words(model, batch):
    """The next word's loss, computed by the model itself."""
    return model(input_ids=batch["words"], attention_mask=batch["mask"], labels=batch["words"]).loss


def logits(model, batch):
    """A loss of the program's own."""
    found = model(batch["words"]).logits
    return torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), batch["words"][:, 1:].flatten())


def classes(model, batch):
    return model(input_ids=batch["words"], attention_mask=batch["mask"], labels=batch["classes"]).loss


def batch_of(rows=2, length=7):
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, -2:] = 0
    return {"words": torch.randint(1, 31, (rows, length)), "mask": mask, "classes": torch.randint(2, (rows,))}


CASES = {
    "gpt2": (gpt2, words),
    "gpt2 own loss": (gpt2, logits),
    "gpt2 eager": (lambda: gpt2(attn_implementation="eager"), words),
    "llama": (llama, words),
    "llama own loss": (llama, logits),
    "bert": (bert, classes),
    "t5": (t5, words),
}

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "gpt2 eager", "bert", "t5")]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", CASES)
def test_cut_in_three(name):
    build, loss = CASES[name]
    model, batch = build().train(), batch_of()
    check(model, loss, batch, equal(model, capture_call(loss, model, batch), 3))


@pytest.mark.parametrize("name", ["llama", *SLOW])
def test_cut_after_every_layer(name):
    build, loss = CASES[name]
    model, batch = build().train(), batch_of()
    names = equal_names(model, capture_call(loss, model, batch))
    check(model, loss, batch, [[name] for name in names])


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_pieces_use_nothing_but_their_own(name):
    build, loss = CASES[name]
    check_apart(build().train(), loss, batch_of(), 4)


def test_sizes_may_vary_by_step():
    for build, loss in ((gpt2, words), (bert, classes)):
        model, example = build().train(), batch_of()
        stages = equal(model, capture_call(loss, model, example), 3)
        check(model, loss, batch_of(rows=3, length=9), stages, example=example)


def test_gradient_checkpointing():
    model, batch = llama().train(), batch_of()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    blocks = ["model.layers.0", "model.layers.1"], ["model.layers.2", "lm_head"]
    check(model, words, batch, blocks)


def test_a_cache_that_several_stages_filled_is_withheld():
    def loss(model, batch):
        found = model(batch["words"])
        return found.logits.sum() + found.past_key_values.layers[0].keys.sum()

    model, batch = gpt2().train(), batch_of()
    call = capture_call(loss, model, batch)
    made = cut(model, call, stages=[["transformer.h.0"], ["transformer.h.1", "transformer.h.2", "lm_head"]])
    output = made.pieces[1](made.pieces[0](made.inputs(call)))["output"]
    with pytest.raises(TechniqueRefused, match="reads 'layers' of a DynamicCache"):
        loss_given(loss, model, batch, output)
