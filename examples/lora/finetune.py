"""LoRA fine-tune with transformers.Trainer, started by torchrun; safe to interrupt.

Trainer's checkpoint folders hold adapter, optimizer, schedule, random state and step, so `--resume` goes on exactly.
On SIGTERM the step that is under way is finished, one more checkpoint is written, and the exit code says so.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

PROMPT = "### Instruction:\n{instruction}\n\n### Response:\n{output}"
SAVE_STEPS = 200
MAX_TOKENS = 512


class SaveWhenAskedToEnd(TrainerCallback):
    """Turns SIGTERM into a save and a stop at the next step's end."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True

    def on_step_end(self, args, state, control, **_):
        if self.asked:
            control.should_save = control.should_training_stop = True

    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero and logs and "loss" in logs:
            print(f"step={state.global_step} loss={logs['loss']}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="JSON lines with instruction and output")
    parser.add_argument("--ckpt-dir", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", help="a checkpoint folder to go on from")
    parser.add_argument("--max-steps", type=int, default=2000)
    args = parser.parse_args()

    name = os.environ["MODEL"]
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(name, torch_dtype="bfloat16")
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, lora_dropout=0.05))
    model.enable_input_require_grads()  # with gradient checkpointing the frozen base would else pass none on

    def tokens(row: dict[str, str]) -> dict[str, list[int]]:
        return tokenizer(PROMPT.format(**row) + tokenizer.eos_token, truncation=True, max_length=MAX_TOKENS)

    rows = load_dataset("json", data_files=args.data, split="train")
    rows = rows.map(tokens, remove_columns=rows.column_names)
    saver = SaveWhenAskedToEnd()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=args.ckpt_dir,
            max_steps=args.max_steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            gradient_checkpointing=True,
            learning_rate=2e-4,
            bf16=True,
            logging_steps=10,
            save_steps=SAVE_STEPS,
            save_total_limit=3,
            report_to=[],
        ),
        train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        callbacks=[saver],
    )
    trainer.train(resume_from_checkpoint=args.resume)
    if saver.asked:
        return 128 + signal.SIGTERM
    if trainer.is_world_process_zero():
        trainer.save_model(str(args.out / "adapter"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
