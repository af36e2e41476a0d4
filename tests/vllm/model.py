# The smallest model that vLLM serves like any other: a Llama of two layers with random weights. What it says means
# nothing, and nobody looks at it; what it counts, caches and streams is what a large one does.
#
# Run by the interpreter of that vLLM, which has torch and transformers. The tokenizer is trained on the text of the
# standard library, which lies on every host.

"""Make a tiny Llama, its tokenizer and its chat template: python model.py FOLDER"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 4096
CONTEXT_TOKENS = 8192
START, END, NOTHING = "<|start|>", "<|end|>", "<|nothing|>"
TEMPLATE = (
    "{%- for it in messages %}{{ '<|start|>' + it.role + '\\n' + it.content + '<|end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{%- endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=[NOTHING, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(sorted(map(str, Path(os.__file__).parent.glob("*.py"))), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=NOTHING, chat_template=TEMPLATE)


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    words = make_tokenizer()
    words.save_pretrained(sys.argv[1])
    make_model(words).save_pretrained(sys.argv[1])
