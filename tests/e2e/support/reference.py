"""What the tiny target continues a text with, computed by transformers: no cache, no state, no speculation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch  # type: ignore[import-not-found]  # in the base image only
from safetensors.torch import load_file  # type: ignore[import-not-found]
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig  # type: ignore[import-not-found]

from tests.e2e.support.tiny_models import SHAPE, WEIGHTS, Shape, target_config


class Reference:
    """The target of a folder; every tensor but those of the MTP head has its place in it."""

    def __init__(self, folder: Path, shape: Shape = SHAPE) -> None:
        self._model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**target_config(shape)["text_config"])).float().eval()
        tensors = {
            name.replace("model.language_model.", "model."): value
            for name, value in load_file(folder / WEIGHTS).items()
            if not name.startswith("mtp.")
        }
        self._model.load_state_dict(tensors, strict=True)

    def continued(self, prompt: Sequence[int], count: int) -> list[int]:
        """The ``count`` tokens after the prompt, each from the whole text before it."""
        tokens = torch.tensor([list(prompt)])
        with torch.no_grad():
            for _ in range(count):
                best = self._model(tokens, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
                tokens = torch.cat([tokens, best], dim=1)
        found: list[int] = tokens[0, len(prompt) :].tolist()
        return found

    def logprobs(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """Log probability of each token of an answer, after all that stands before it."""
        with torch.no_grad():
            logits = self._model(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0]
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        found: list[float] = rows.gather(1, torch.tensor([list(answer)]).T).flatten().tolist()
        return found
