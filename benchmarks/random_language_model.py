"""Write a language model with random weights and its tokenizer to a folder, for servers; nothing is downloaded.

    python -m benchmarks.random_language_model /tmp/model                # Qwen2 with 1.4 billion parameters, in bf16
    python -m benchmarks.random_language_model /tmp/tiny --size tiny     # for CPUs, in fp32

A prompt has a token for each byte; almost every token of an answer is a word, so that each answer has a text.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2},
    "1b": {"vocab_size": 32_000, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
           "num_attention_heads": 12, "num_key_value_heads": 2},
}  # fmt: skip
# Without the marks of a Qwen2, `transformers serve` streams the prompt as the begin of the answer.
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a byte-level tokenizer, of the kind that transformers expects of a Qwen2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*_SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [f"\u0120word{number}" for number in range(vocab_size - len(tokens))]  # begins with a blank
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    make_tokenizer: Any = PreTrainedTokenizerFast
    fast = make_tokenizer(tokenizer_object=tokenizer, pad_token=_SPECIAL["eos_token"], **_SPECIAL)
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(folder)


def write_model(folder: Path, size: str) -> int:
    """Write a model and return its number of parameters."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    # With tied embeddings, a random model repeats the last token of the prompt.
    settings: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = Qwen2Config(**_SIZES[size], **settings, max_position_embeddings=4096, tie_word_embeddings=False)
    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM(config)
    model = model.to(torch.float32 if size == "tiny" else torch.bfloat16)
    model.generation_config = GenerationConfig(do_sample=False, **settings)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return int(model.num_parameters())


def main() -> None:
    """Write the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=_SIZES, default="1b")
    args = parser.parse_args()
    write_tokenizer(args.folder, _SIZES[args.size]["vocab_size"])
    print(f"{write_model(args.folder, args.size) / 1e6:.1f} million parameters in {args.folder}")


if __name__ == "__main__":
    main()
