"""Train a small GPT-2 with the transformers Trainer: a TokenDataset is a map-style dataset like any other.

    python examples/train_trainer.py STORE/DATASET@TAG_OR_VERSION [--resume]

Set `labels="same"`, because transformers models shift labels themselves. Set `loss_type`, which GPT-2 lacks: without
it, the Trainer divides the loss by T labels per sample instead of T - 1. The order is the Trainer's: its sampler
shuffles the sample numbers. When it resumes, it iterates over them again up to its position, without reading data.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torch.utils.data import Subset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from tokenloom import TokenDataset
from tokenloom.examples.data_options import DEFAULTS, DataOptions


def make_model(data: TokenDataset) -> GPT2LMHeadModel:
    """Return a GPT-2 of two layers for a dataset's vocabulary, with the same initial weights each time."""
    tokenizer = data.manifest["tokenizer"]
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=tokenizer["vocab_size"],
            bos_token_id=tokenizer["eot_id"],
            eos_token_id=tokenizer["eot_id"],
            n_positions=data.seq_len,
            n_layer=2,
            n_head=2,
            n_embd=64,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
        )
    )
    model.loss_type = "ForCausalLM"
    return model


def train(
    reference: str, folder: Path, steps: int, resume: bool = False, data: DataOptions = DEFAULTS, **options: Any
) -> Trainer:
    """Train up to a step, optionally from the newest checkpoint in `folder`; return the evaluated trainer.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        folder: Folder of the checkpoints.
        steps: Last step.
        resume: Continue from the newest checkpoint.
        data: Which samples to read.
        options: Options of TrainingArguments that override those below.
    """
    train_data, (validation_data,) = data.open(reference, "validation", labels="same")
    chosen: dict[str, Any] = {
        "max_steps": steps,
        "per_device_train_batch_size": data.batch_size,
        "per_device_eval_batch_size": data.batch_size,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 10,
        "save_steps": 100,
        "report_to": "none",
    }
    arguments = TrainingArguments(str(folder), **chosen | options)
    trainer = Trainer(make_model(train_data), arguments, train_dataset=train_data)
    trainer.train(resume_from_checkpoint=resume)
    if validation_data is not None:
        num_samples = data.batch_size * (data.evaluation_batches or len(validation_data))
        few = range(min(num_samples, len(validation_data)))
        trainer.evaluate(Subset(validation_data, few))  # type: ignore[arg-type]  # it is a Dataset by its methods
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small GPT-2 with the transformers Trainer.")
    DataOptions.add_to(parser)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="folder (default: checkpoints)")
    parser.add_argument("--steps", type=int, default=1000, help="the last step (default: 1000)")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint")
    given = parser.parse_args()
    train(given.reference, given.checkpoints, given.steps, given.resume, DataOptions.of(given))
