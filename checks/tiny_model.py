"""A random GPT-2 of a few hundred KiB, made on the spot: a model that every build of SGLang can serve without kernels.

GPT-2, because its positions are learned: rotary embedding on a CPU takes a package that images do not hold.
"""

import json
from pathlib import Path
from typing import Any

CONTEXT = 8192
END = "<|endoftext|>"


def write(folder: Path) -> None:
    """A checkpoint folder: config, byte-level tokenizer, weights in float32 from a fixed seed."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # type: ignore[import-not-found]

    folder.mkdir()
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), END]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(vocabulary)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    _json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": CONTEXT},
    )
    config = {
        "vocab_size": len(vocabulary),
        "n_positions": CONTEXT,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 2,
        "bos_token_id": len(vocabulary) - 1,
        "eos_token_id": len(vocabulary) - 1,
    }
    _json(
        folder / "config.json",
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "dtype": "float32", **config},
    )
    _weights(config, folder / "model.safetensors")


def _weights(config: dict[str, int], path: Path) -> None:
    import torch  # type: ignore[import-not-found]
    from safetensors.torch import save_file  # type: ignore[import-not-found]
    from transformers import GPT2Config, GPT2LMHeadModel  # type: ignore[import-not-found]

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**config))
    for parameter in model.parameters():
        if parameter.dim() > 1:  # wider than the usual start, so that the most likely token is no near tie
            torch.nn.init.normal_(parameter, std=0.3)
    tensors = {name: value.clone() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, str(path))


def _json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
