"""Which modules an SGLang release builds without quantisation, by that release's own matching rules.

Nothing but the standard library, and no other module of this project: ``tests/tree/test_ignore_matcher.py`` loads this
file alone, inside the image, and compares it with the real matchers of the composed tree. The rules themselves are the
same from 0.5.17 to 0.5.23; what differs is the table of fused modules that the model class hands to them
(:mod:`pipeline.checkpoint.releases`).
"""

import re
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Fused = Mapping[str, Sequence[str]]
"""Name of a fused projection to the names of its parts."""

QWEN3_5_FUSED: Fused = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
"""``Qwen3_5ForCausalLM.packed_modules_mapping``."""
FP8_FUSED: Fused = {key: QWEN3_5_FUSED[key] for key in ("qkv_proj", "gate_up_proj")}
"""What FP8 falls back to for these two names when the model class has no table."""
AUTO_ROUND_REGEX = frozenset("*+?^$()[]{}|\\")
"""A key of ``extra_config`` with one of these is a regular expression."""
SECONDS = 5.0
"""A list whose expressions need longer than this has no answer (``(a+)+$`` would take years)."""


class Refused(Exception):
    """SGLang itself would stop while it builds the module; the text says why."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Stop hopeless regular expressions; only the main thread can be interrupted, elsewhere there is no limit.

    Raises:
        Refused: the time is over.
    """

    def stop(*_: object) -> None:
        raise Refused(f"matching takes more than {SECONDS:g} s: one of its regular expressions backtracks without end")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def expression(pattern: str) -> re.Pattern[str]:
    """Compile as SGLang does.

    Raises:
        Refused: it is no regular expression.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise Refused(f"{pattern!r} is no regular expression: {error}") from None


def compressed_tensors(name: str, ignore: Sequence[str], fused: Fused) -> bool:
    """Whether ``ignore`` keeps the module plain: ``should_ignore_layer``.

    An entry matches when it is the name, a dotted suffix of it, or ``re:`` and an expression that fits its beginning.
    A fused module that is not named itself stands for its parts, which must agree.

    Raises:
        Refused: some parts of a fused module are ignored and others are not.
    """
    projection = name.rsplit(".", 1)[-1]
    if projection not in fused or name in ignore:
        return _entry_matches(name, ignore)
    parts = [name.replace(projection, part) for part in fused[projection]]
    verdicts = [_entry_matches(part, ignore) for part in parts]
    return _agreed(name, verdicts)


def _agreed(name: str, verdicts: Sequence[bool]) -> bool:
    if len(set(verdicts)) > 1:
        raise Refused(f"{name}: some of its parts are left unquantised and others are not")
    return verdicts[0]


def _entry_matches(name: str, ignore: Iterable[str]) -> bool:
    for entry in ignore:
        if entry.startswith("re:"):
            if expression(entry[3:]).match(name):
                return True
        elif entry == name or name.endswith("." + entry):
            return True
    return False


def compressed_tensors_target(name: str, class_name: str, targets: Sequence[str], fused: Fused) -> str:
    """The target of ``config_groups`` that a module falls under: ``find_matched_target``.

    Raises:
        Refused: none fits, which SGLang does not accept.
    """
    found = (
        next((target for target in targets if _target_matches(name, target)), None)
        or next((target for target in targets if _target_matches(class_name, target, contains=True)), None)
        or _fused_target(name, targets, fused)
    )
    if found is None:
        raise Refused(f"{name}: no target of config_groups fits")
    return found


def _target_matches(name: str, target: str, *, contains: bool = False) -> bool:
    if target.startswith("re:"):
        return expression(target[3:]).match(name) is not None
    return target.lower() in name.lower() if contains else target == name


def _fused_target(name: str, targets: Sequence[str], fused: Fused) -> str | None:
    projection = next((key for key in fused if name.endswith(key)), None)
    if projection is None:
        return None
    parts = [name.replace(projection, part) for part in fused[projection]]
    found = [next((target for target in targets if _target_matches(part, target)), None) for part in parts]
    return found[0] if all(found) else None


def awq(name: str, modules: Iterable[str]) -> bool:
    """Whether ``modules_to_not_convert`` keeps the module plain: an entry is any piece of text within the name.

    Fused modules do not stand for their parts here: ``q_proj`` is no piece of ``qkv_proj``.
    """
    return any(module in name for module in modules)


def fp8(name: str, modules: Sequence[str], fused: Fused) -> bool:
    """Whether FP8's ``modules_to_not_convert`` keeps the module plain: ``is_layer_skipped`` after ``Fp8Config``.

    An entry is a run of whole dotted components, with or without a leading ``model.``; a fused module stands for its
    parts only, so its own name does nothing.

    Raises:
        Refused: some parts of a fused module are left unquantised and others are not.
    """
    ignored = [entry for module in modules for entry in _with_and_without_model(module)]
    projection = name.rsplit(".", 1)[-1]
    parts = (fused if projection in fused else FP8_FUSED).get(projection)
    if parts is None:
        return _fp8_matches(name, ignored) or _both_halves_named(name, ignored)
    return _agreed(name, [_fp8_matches(name.replace(projection, part), ignored) for part in parts])


def _with_and_without_model(module: str) -> tuple[str, str]:
    base = module.removeprefix("model.")
    return base, f"model.{base}"


def _fp8_matches(name: str, ignored: Iterable[str]) -> bool:
    return any(f".{entry.rstrip('.')}." in f".{name.rstrip('.')}." for entry in ignored)


def _both_halves_named(name: str, ignored: Sequence[str]) -> bool:
    """An odd corner: ``gate_up_proj`` somewhere inside a longer name, and both halves listed."""
    if "gate_up_proj" in name:
        return all(name.replace("gate_up_proj", half) in ignored for half in ("gate_proj", "up_proj"))
    return "experts" in name and any(name in entry for entry in ignored if "experts" in entry)


def auto_round(name: str, config: Mapping[str, Any], fused: Fused) -> bool:
    """Whether AutoRound keeps a linear module plain: 16 bits or more after ``AutoRoundConfig.get_layer_config``.

    It reads ``block_name_to_quantize`` (prefixes) and ``extra_config`` (names or expressions that fit the whole name);
    ``modules_to_not_convert`` is not read.

    Raises:
        Refused: the parts of a fused module have unequal settings.
    """
    extra = config.get("extra_config") or {}
    if name in extra:
        return _bits_are_plain(_auto_round_setting(name, config, extra, quantised=True))
    blocks = config.get("block_name_to_quantize") or config.get("to_quant_block_names")
    blocks = blocks.split(",") if isinstance(blocks, str) else blocks
    quantised = not blocks or any(name.startswith(block) for block in blocks)
    for key, parts in fused.items() if extra else ():
        if name.count(key) == 1:
            settings = {
                _auto_round_setting(name.replace(key, part), config, extra, quantised=quantised) for part in parts
            }
            if len(settings) > 1:
                raise Refused(f"{name}: its parts have unequal settings in extra_config")
            return _bits_are_plain(settings.pop())
    return _bits_are_plain(_auto_round_setting(name, config, extra, quantised=quantised))


def _bits_are_plain(setting: tuple[int, int, bool]) -> bool:
    return setting[0] >= 16


def _auto_round_setting(
    name: str, config: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]], *, quantised: bool
) -> tuple[int, int, bool]:
    """Bits, group size, symmetry."""
    default = (config["bits"], config["group_size"], config["sym"]) if quantised else (16, -1, True)
    found = extra.get(name)
    if found is None:
        found = next((setting for key, setting in extra.items() if _whole_match(key, name)), {})
    keys = ("bits", "group_size", "sym")
    bits, group_size, symmetric = (found.get(key, value) for key, value in zip(keys, default, strict=True))
    return bits, group_size, symmetric


def _whole_match(key: str, name: str) -> bool:
    if not AUTO_ROUND_REGEX & set(key):
        return False
    try:
        return expression(key).fullmatch(name) is not None
    except Refused:  # SGLang passes over what is no expression
        return False
