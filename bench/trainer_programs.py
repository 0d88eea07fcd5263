"""Trainers of different kinds, each as a program for Dovetail and as `Trainer.train` trains it: fine-tuning a
classifier as transformers' own tutorial does, a `compute_loss` of one's own with accumulation, LoRA of peft, and TRL's
`SFTTrainer`. Models are small and built from their configs; nothing is downloaded.
"""

import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

import dovetail as dt

WORDS = [f"word{number}" for number in range(60)]


def tokenizer() -> PreTrainedTokenizerFast:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[EOS]"]
    inner = Tokenizer(WordLevel({word: number for number, word in enumerate(special + WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]")


def reviews(count: int = 320) -> Dataset:
    """Sentences of unlike length, of which those with more early words than late ones are good."""
    draws = np.random.default_rng(0)
    rows = [draws.integers(0, len(WORDS), size=draws.integers(4, 14)) for _ in range(count)]
    text = [" ".join(WORDS[number] for number in row) for row in rows]
    return Dataset.from_dict({"text": text, "label": [int((row < 30).mean() > 0.5) for row in rows]})


def arguments(learning_rate: float, seed: int, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": tempfile.gettempdir(),
        "learning_rate": learning_rate,
        "seed": seed,
        "per_device_train_batch_size": 16,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 1,
        **more,
    }


# As in "Fine-tuning": tokenize, load a model, compute_metrics, Trainer.
def finetuning_parts(learning_rate: float = 5e-4, seed: int = 0, **more: Any) -> Trainer:
    words = tokenizer()
    data = reviews().map(lambda examples: words(examples["text"], truncation=True), batched=True)
    data = data.train_test_split(test_size=64, seed=0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(words), num_labels=2, **shape, **without))

    def compute_metrics(eval_pred):
        logits, labels = eval_pred
        predictions = np.argmax(logits, axis=-1)
        return {"accuracy": float((predictions == labels).mean())}

    training_args = TrainingArguments(
        **arguments(learning_rate, seed, eval_strategy="epoch", num_train_epochs=10, **more)
    )
    return Trainer(
        model=model,
        args=training_args,
        train_dataset=data["train"],
        eval_dataset=data["test"],
        processing_class=words,
        data_collator=DataCollatorWithPadding(words),
        compute_metrics=compute_metrics,
    )


class WeightedTrainer(Trainer):
    """A `compute_loss` of one's own, as the documentation of `Trainer` shows it."""

    def __init__(self, *arguments: Any, class_weights: Any = (1.0, 3.0), **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.class_weights = class_weights

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weights = torch.tensor(self.class_weights, device=outputs.logits.device)
        loss = F.cross_entropy(outputs.logits, labels, weight=weights)
        return (loss, outputs) if return_outputs else loss


def weighted_parts(learning_rate: float = 5e-4, seed: int = 0, **more: Any) -> Trainer:
    """Sixteen batches an epoch and three a step, warmed up, decayed, clipped."""
    made = finetuning_parts(learning_rate, seed)
    more = {"gradient_accumulation_steps": 3, "warmup_steps": 10, "weight_decay": 0.1, "max_grad_norm": 0.5, **more}
    return WeightedTrainer(
        model=made.model,
        args=TrainingArguments(**arguments(learning_rate, seed, max_steps=200, lr_scheduler_type="cosine", **more)),
        train_dataset=made.train_dataset,
        eval_dataset=made.eval_dataset,
        processing_class=made.processing_class,
        data_collator=made.data_collator,
        compute_metrics=made.compute_metrics,
    )


def causal_model() -> GPT2LMHeadModel:
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer()), n_positions=32, n_embd=32, n_layer=2, n_head=2, **drops)
    )


def lora_parts(learning_rate: float = 5e-3, seed: int = 0, **more: Any) -> Trainer:
    """Tokens of unlike count in each batch, of which a step of four batches averages all."""
    words = tokenizer()
    model = get_peft_model(causal_model(), LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    ids = [words(text)["input_ids"] for text in reviews()["text"]]
    rows = [{"input_ids": row + [0] * (16 - len(row)), "labels": row + [-100] * (16 - len(row))} for row in ids]
    more = {"gradient_accumulation_steps": 4, "max_steps": 200, **more}
    return Trainer(model=model, args=TrainingArguments(**arguments(learning_rate, seed, **more)), train_dataset=rows)


def sft_parts(learning_rate: float = 2e-3, seed: int = 0, **more: Any) -> Trainer:
    from trl import SFTConfig, SFTTrainer

    data = Dataset.from_dict({"text": reviews()["text"]})
    more = {"max_length": 16, "max_steps": 200, "gradient_checkpointing": False, "bf16": False, **more}
    return SFTTrainer(
        model=causal_model(),
        args=SFTConfig(**arguments(learning_rate, seed, **more)),
        train_dataset=data,
        processing_class=tokenizer(),
    )


KINDS: dict[str, Callable[..., Trainer]] = {
    "finetuning": finetuning_parts,
    "weighted": weighted_parts,
    "lora": lora_parts,
    "sft": sft_parts,
}


def finetuning(learning_rate: float = 5e-4, seed: int = 0) -> dt.Training:
    return from_parts("finetuning", learning_rate, seed)


def weighted(learning_rate: float = 5e-4, seed: int = 0) -> dt.Training:
    return from_parts("weighted", learning_rate, seed)


def lora(learning_rate: float = 5e-3, seed: int = 0) -> dt.Training:
    return from_parts("lora", learning_rate, seed)


def sft(learning_rate: float = 2e-3, seed: int = 0) -> dt.Training:
    return from_parts("sft", learning_rate, seed)


def trainer(kind: str, learning_rate: float, seed: int, **more: Any) -> Trainer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        set_seed(seed)
        return KINDS[kind](learning_rate, seed, **more)


def from_parts(kind: str, learning_rate: float, seed: int, **more: Any) -> dt.Training:
    return dt.from_trainer(trainer(kind, learning_rate, seed, **more))


class StopAfter(TrainerCallback):
    """Ends after so many steps, with the schedule as if there were more to come."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self._steps


def train_losses(kind: str, learning_rate: float, seed: int, *, steps: int, **more: Any) -> tuple[list[float], Any]:
    """What `Trainer.train` itself gives: the loss of each step, and the model afterwards."""
    made = trainer(kind, learning_rate, seed, **more)
    made.add_callback(StopAfter(steps))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.train()
    return [each["loss"] for each in made.state.log_history if "loss" in each], made.model
