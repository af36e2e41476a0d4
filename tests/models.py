# The folder of a model that does not exist: a small byte-level byte-pair tokenizer, trained here on invented
# words, with special tokens and a chat template.

"""train_tokenizer and write_model: a tokenizer.json, and a folder with a chat template around it."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from invention import invent_text
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from loadshape.passage import NEUTRAL

SPECIAL = ["<s>", "<|begin|>", "<|end|>"]
CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ '<|begin|>' + m.role + '\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|begin|>assistant\\n' }}{% endif %}"
)
STRIPPING = CHAT.replace("m.content", "m.content | trim")


def train_tokenizer(path: Path, *, vocabulary: int = 600) -> Path:
    """Write a tokenizer.json with about so many tokens; completions begin with <s>."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False, special_tokens=SPECIAL
    )
    words = [f"{word} {word}" for word in NEUTRAL]  # with a blank before it and without
    tokenizer.train_from_iterator([invent_text(number, 30) for number in range(50)] + 5 * words, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(path))
    return path


def write_model(folder: Path, template: str | None = CHAT) -> Path:
    """Write a folder with a tokenizer and, unless None, a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    train_tokenizer(folder / "tokenizer.json")
    config = {"bos_token": {"content": "<s>"}, "eos_token": "<|end|>"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
