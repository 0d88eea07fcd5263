"""A Hugging Face model, trained as it comes: a small Llama on the bytes of Python's manual.

    dovetail run recipes/finetune.py

The model is built from a config, so nothing is downloaded; `LlamaForCausalLM.from_pretrained(...)` in its
place is all that fine-tuning takes. The text differs between versions of Python (see text.py).
"""

import math

import torch
from text import manual
from torch import nn
from torch.utils.data import DataLoader, default_collate
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

import dovetail as dt

HELD_OUT_WINDOWS = 32


def finetune(width=64, depth=2, context=128, batch=8, learning_rate=1e-3, schedule_steps=100, seed=0) -> dt.Training:
    """The learning rate reaches zero at `schedule_steps`: give it what the task stops at."""
    train, held_out = (_windows(text, context) for text in manual())
    model = LlamaForCausalLM(_config(width=width, depth=depth, context=context))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    return dt.Training(
        model=model,
        # Dovetail keys torch's generator by seed and epoch, so a shuffling DataLoader resumes exactly.
        batches=DataLoader(train, batch_size=batch, shuffle=True, drop_last=True),
        loss=_loss,
        optimizer=optimizer,
        schedule=get_cosine_schedule_with_warmup(optimizer, schedule_steps // 10, schedule_steps),
        evaluate=lambda model: _evaluate(model, held_out[:HELD_OUT_WINDOWS]),
        evaluate_every=50,
        accumulate=2,
        clip_norm=1.0,
    )


def _config(*, width: int, depth: int, context: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=depth,
        num_attention_heads=width // 32,
        max_position_embeddings=context,
        bos_token_id=None,  # bytes leave no room for marks of beginning and end
        eos_token_id=None,
        use_cache=False,  # keys and values are kept for generation only
    )


def _windows(text: str, context: int) -> list[dict[str, torch.Tensor]]:
    """Windows of bytes under the names that the model's forward takes; it shifts the labels by itself."""
    tokens = torch.tensor(list(text.encode()))
    return [{"input_ids": window, "labels": window} for window in tokens.unfold(0, context, context)]


def _loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch).loss


def _evaluate(model: nn.Module, windows: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    batch = {name: tensor.to(model.device) for name, tensor in default_collate(windows).items()}
    loss = _loss(model, batch).item()
    return {"held_out_loss": loss, "bits_per_byte": loss / math.log(2)}


workload = dt.grid(finetune, width=[32, 64], learning_rate=[1e-2, 3e-3], schedule_steps=100, steps=100, name="finetune")
