"""Models of `transformers` as they come, dropout included."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import dovetail as dt

VOCABULARY, LENGTH = 128, 32


def _tokens(count: int = 256) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (count, LENGTH), generator=torch.Generator().manual_seed(1))


def _language(model: nn.Module, learning_rate: float) -> dt.Training:
    return dt.Training(
        model=model,
        batches=DataLoader(_tokens(), batch_size=8, shuffle=True, drop_last=True),
        loss=lambda model, batch: model(input_ids=batch, labels=batch).loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=learning_rate),
        clip_norm=1.0,
    )


def bert(learning_rate=1e-4, seed=0) -> dt.Training:
    """Classifies sequences by their first token's parity."""
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    model = BertForSequenceClassification(config)
    return dt.Training(
        model=model,
        batches=DataLoader(_tokens(), batch_size=8, shuffle=True, drop_last=True),
        loss=lambda model, batch: model(input_ids=batch, labels=batch[:, 0] % 2).loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=learning_rate),
    )


def gpt2(learning_rate=1e-3, seed=0) -> dt.Training:
    """A small GPT-2."""
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return _language(GPT2LMHeadModel(config), learning_rate)


def llama(learning_rate=1e-3, seed=0) -> dt.Training:
    """A small Llama."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _language(LlamaForCausalLM(config), learning_rate)


def t5_lora(learning_rate=1e-3, seed=0) -> dt.Training:
    """A small T5 of which low-rank adapters alone are trained."""
    from peft import LoraConfig, get_peft_model

    config = T5Config(
        vocab_size=VOCABULARY, d_model=64, d_kv=32, d_ff=128, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q", "v"], lora_dropout=0.05)
    return _language(get_peft_model(T5ForConditionalGeneration(config), lora), learning_rate)


def _six(program, *, steps: int) -> dt.Workload:
    steps = int(os.environ.get("DOVETAIL_BENCH_STEPS", steps))
    return dt.grid(program, learning_rate=[3e-4, 1e-3, 3e-3], seed=[0, 1], steps=steps)


berts = _six(bert, steps=200)
gpt2s = _six(gpt2, steps=200)
llamas = _six(llama, steps=200)
t5_loras = _six(t5_lora, steps=150)
