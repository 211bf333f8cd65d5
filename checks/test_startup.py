"""The image's own start-up refuses a draft that is not whole or not the one that is meant, and starts the others.

Tiny checkpoints go through the loader as a model runner calls it, and through the resolution of launch flags. The
process plays rank 0 of one, without process groups; no model runs.
"""

import contextlib
import importlib
import inspect
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from checks import drafts
from checks.drafts import Trial
from checks.given import Given
from checks.verdict import Verdict

MODULES = {
    "torch": "torch",
    "safetensors": "safetensors.torch",
    "load_config": "sglang.srt.configs.load_config",
    "model_config": "sglang.srt.configs.model_config",
    "rotary": "sglang.srt.layers.rotary_embedding.base",
    "loading": "sglang.srt.model_executor.model_runner_components.load_model_utils",
    "context": "sglang.srt.runtime_context",
    "parallel_state": "sglang.srt.distributed.parallel_state",
    "arguments": "sglang.srt.server_args",
    "resolution": "sglang.srt.arg_groups.speculative_hook",
}
EXPECTATION = "SGLANG_DFLASH_EXPECTED_ARCHITECTURE"
GROUPS = ("tp", "pp", "attn_tp", "attn_cp", "attn_dp", "moe_tp", "moe_ep", "moe_dp")


def test_startup(given: Given, verdict: Verdict) -> None:
    """Each draft class of the manifest that is known here meets its trials, and so does the draft that it expects."""
    loads = [trial for name in given.architectures for trial in drafts.LOADS.get(name, ())]
    expected = given.defaults[EXPECTATION].value if EXPECTATION in given.defaults else ""
    launches = [*drafts.LAUNCHES.get(expected, ())]
    if loads or launches:
        try:
            sglang = SimpleNamespace(**{name: importlib.import_module(module) for name, module in MODULES.items()})
        except (Exception, SystemExit) as error:
            verdict.problem(f"the modules that load a draft cannot be imported: {_line(error)}")
        else:
            for trial in loads:
                _judge(trial, _error(_load, sglang, trial), verdict)
            for trial in launches:
                _judge(trial, _error(_launch, sglang, trial), verdict)
    refused = sum(bool(trial.refused) for trial in loads + launches)
    verdict.conclude(f"{len(loads + launches) - refused} whole drafts start; {refused} others are refused by reason")


def _judge(trial: Trial, error: str, verdict: Verdict) -> None:
    if trial.refused and not error:
        verdict.problem(f"{trial.name}: expected a refusal with {trial.refused!r}, found that it starts")
    elif trial.refused not in error or (error and not trial.refused):
        expected = f"a refusal with {trial.refused!r}" if trial.refused else "that it starts"
        verdict.problem(f"{trial.name}: expected {expected}, found {error}")


def _error(start: Any, sglang: Any, trial: Trial) -> str:
    """What start-up says to a draft; nothing when it goes through."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            start(sglang, trial, Path(folder))
        except (Exception, SystemExit) as error:
            return _line(error)
    return ""


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _config(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


@contextlib.contextmanager
def _one_rank(sglang: Any) -> Iterator[None]:
    group = SimpleNamespace(is_first_rank=True, is_last_rank=True, world_size=1, rank_in_group=0)
    ranks = {f"{name}_rank": 0 for name in GROUPS} | {f"{name}_size": 1 for name in GROUPS}
    with (
        sglang.context.get_context().override_server_args(device="cpu"),
        sglang.context.get_parallel().override(pp_group=group, **ranks),
        # Where models of 0.5.18 ask for their groups.
        mock.patch.multiple(sglang.parallel_state, _PP=group, _MOE_DP=group),
        # On a machine without its device, RotaryEmbedding would import another device's kernel when it is built.
        mock.patch.object(sglang.rotary, "_is_xpu", True),
    ):
        yield


def _load(sglang: Any, trial: Trial, folder: Path) -> None:
    _config(folder, trial.config)
    tensors = {
        name: sglang.torch.full(shape, float(name != trial.zero), dtype=sglang.torch.bfloat16)
        for name, shape in trial.tensors.items()
    }
    sglang.safetensors.save_file(tensors, folder / "model.safetensors")
    with _one_rank(sglang):
        load = sglang.loading.load_model_with_memory_saver
        asked = inspect.signature(load).parameters  # 0.5.18 is handed its arguments, 0.5.23 asks the context for them
        load(
            **({"server_args": sglang.context.get_context().server_args} if "server_args" in asked else {}),
            model_config=sglang.model_config.ModelConfig(str(folder), is_draft_model=True, dtype="bfloat16"),
            load_config=sglang.load_config.LoadConfig(),
            device="cpu",
            gpu_id=0,
            memory_saver_adapter=SimpleNamespace(region=lambda *_args, **_options: contextlib.nullcontext()),
            is_draft_worker=True,
        )


def _launch(sglang: Any, trial: Trial, folder: Path) -> None:
    """With the image's own environment, which says which draft is meant."""
    server_args = _parsed(
        sglang.arguments.ServerArgs,
        model_path=_config(folder / "target", drafts.TARGET),
        device="xpu",
        speculative_algorithm="DFLASH",
        speculative_draft_model_path=_config(folder / "draft", trial.config),
        speculative_num_draft_tokens=drafts.BLOCK,
        speculative_draft_window_size=drafts.WINDOW,
    )
    sglang.resolution._handle_dflash(server_args)


def _parsed(server_args: Any, **flags: Any) -> Any:
    """Arguments as parsed. Up to 0.5.18 the class resolves them when it is built, which takes a device."""
    if hasattr(server_args, "resolve_once"):
        return server_args(**flags)
    with mock.patch.object(server_args, "__post_init__"):
        parsed = server_args(**flags)
    parsed._resolved_overrides = []
    return parsed
