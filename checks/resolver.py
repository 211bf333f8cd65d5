"""A process of its own: what SGLang makes of one command line, with a faked torch.xpu; JSON in, JSON out.

Input: ``argv`` (words after ``launch_server``), ``attributes`` (names to read off the resolved ``ServerArgs``),
``variables`` (names to read through SGLang's own ``envs``), ``lib`` (folders to import from, after the image's own).
Output, on the real standard output:

* ``unknown``: words that the parser does not know, abbreviations among them;
* ``error`` and ``cures``: why start-up stops, and the flags that it does not stop without;
* ``flags``: per flag of ``argv`` the attribute, the value as parsed and as resolved;
* ``attributes``: per name its value; absent where there is no such attribute;
* ``draft_ring``: ``stride`` and ``rows`` of private rings of draft KV; empty where the draft gets none;
* ``variables``: per name the value that ``envs`` gives; absent where SGLang declares no such variable.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from typing import Any


def main() -> None:
    """Answer one question."""
    answer = os.dup(1)
    os.dup2(2, 1)  # whatever SGLang prints is no answer
    question = json.load(sys.stdin)
    sys.path += question["lib"]

    from fake_xpu import install  # type: ignore[import-not-found]  # beside this file

    install()
    result = judge(question["argv"], question["attributes"], question["variables"])
    with os.fdopen(answer, "w", encoding="utf-8") as stream:
        json.dump(result, stream, default=str)


def judge(argv: Sequence[str], attributes: Sequence[str], variables: Sequence[str]) -> dict[str, Any]:
    """Everything that the module's docstring promises."""
    try:
        parsed, unknown = _parser().parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        return {"error": str(error), "cures": [error.argument_name or ""]}
    if unknown:
        return {"unknown": [word for word in unknown if word.startswith("-")] or unknown}
    try:
        arguments = _resolve(argv)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "cures": _cures(argv)}
    resolved = _settings(arguments)
    actions = {option: action for action in _parser()._actions for option in action.option_strings}
    dests = {flag: actions[flag].dest for flag in _flags(argv)}
    return {
        "flags": {
            flag: [dest, _plain(getattr(parsed, dest)), _plain(getattr(resolved, dest))] for flag, dest in dests.items()
        },
        "attributes": {name: _plain(getattr(resolved, name)) for name in attributes if hasattr(resolved, name)},
        "draft_ring": _draft_ring(arguments),
        "variables": _variables(variables),
    }


def _parser() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]

    # The server itself takes an abbreviation, which the next release may read as another flag.
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    return parser


def _resolve(argv: Sequence[str]) -> Any:
    """The server's arguments, with all settings resolved and checked.

    Raises:
        Exception: whatever SGLang raises where settings do not go together.
    """
    import torch  # type: ignore[import-not-found]
    from sglang.srt.server_args import prepare_server_args

    arguments = prepare_server_args(list(argv))  # up to 0.5.18 it resolves them too
    try:
        # The parser has no choices for it, and a typo only fails when weights are placed.
        torch.device(arguments.device or "xpu")
    except RuntimeError:
        raise ValueError(f"--device {arguments.device}: expected a device that torch knows") from None
    if hasattr(arguments, "resolve_once"):
        arguments.resolve_once()
    arguments.check_server_args()
    return arguments


def _settings(arguments: Any) -> Any:
    """The settings as the scheduler reads them: a view of the arguments, up to 0.5.18 the arguments themselves."""
    from sglang.srt.arg_groups import overrides  # type: ignore[import-not-found]

    return overrides.resolving_view(arguments) if hasattr(overrides, "resolving_view") else arguments


def _cures(argv: Sequence[str]) -> list[str]:
    """Flags without which the command line resolves, each tried in a child: the message may name none of them."""
    return [flag for flag in _flags(argv) if flag != "--model-path" and _resolves(_without(argv, flag))]


def _resolves(argv: Sequence[str]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            _resolve(argv)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _flags(argv: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(word.split("=")[0] for word in argv if word.startswith("--")))


def _without(argv: Sequence[str], flag: str) -> list[str]:
    """The command line without a flag and the words up to the next one."""
    kept, skipping = [], False
    for word in argv:
        skipping = word.split("=")[0] == flag if word.startswith("--") else skipping
        if not skipping:
            kept.append(word)
    return kept


def _variables(names: Sequence[str]) -> dict[str, Any]:
    from sglang.srt.environ import envs  # type: ignore[import-not-found]

    return {name: _plain(getattr(envs, name).get()) for name in names if hasattr(envs, name)}


def _draft_ring(arguments: Any) -> dict[str, int]:
    """The image's own layout of the rings, for the requests that its own admission lets run at once."""
    from sglang.srt.environ import envs

    if not hasattr(envs, "SGLANG_DFLASH_PRIVATE_RING"):
        return {}
    from sglang.srt.arg_groups.overrides import model_config_of  # type: ignore[import-not-found]
    from sglang.srt.configs.hybrid_arch import mambaish_config  # type: ignore[import-not-found]
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator  # type: ignore[import-not-found]
    from sglang.srt.runtime_context import get_context  # type: ignore[import-not-found]
    from sglang.srt.speculative import dflash_ring  # type: ignore[import-not-found]

    get_context().set_server_args(arguments)
    if not dflash_ring.private_ring_enabled():
        return {}
    # Its constructor wants a loaded model; admission reads these three, and the settings.
    configurator = KVCacheConfigurator.__new__(KVCacheConfigurator)
    configurator.attn_dp_size = arguments.dp_size if arguments.enable_dp_attention else 1
    configurator.model_config = model_config_of(arguments)
    configurator.mambaish_config = mambaish_config(configurator.model_config)
    layout = dflash_ring.current_layout()
    slots = configurator.resolve_max_num_reqs(arguments.max_total_tokens or sys.maxsize)
    return {"stride": layout.stride, "rows": layout.pool_rows(slots)}


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


if __name__ == "__main__":
    main()
