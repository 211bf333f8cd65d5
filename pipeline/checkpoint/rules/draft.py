"""DFlash2 draft: the trained selector and convolutions are there, and fit config, target and profile."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.checkpoint import payload, rope
from pipeline.checkpoint.naming import DFlash2Shape, is_dflash2
from pipeline.checkpoint.releases import DFLASH2
from pipeline.checkpoint.rule import Case, Rules, Severity, Skip
from pipeline.checkpoint.rules.integrity import READABLE
from pipeline.checkpoint.safetensors_header import FLOATS, Tensor

RULES = Rules()
ONLY: dict[str, Any] = {"roles": ("draft",), "modes": ("dflash2",)}
SOUND = (*READABLE, "INT-03", "INT-04", "INT-05")
"""Payload can be read where the header says it is."""
SHAPED = ("CFG-01", "DFL-01", "DFL-02")


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("dflash_config")
    return found if isinstance(found, dict) else {}


def _setting(case: Case, key: str) -> Any:
    """``dflash_config`` first, then the top level, as SGLang reads block size and target layers."""
    config = case.checkpoint.config
    return _settings(config).get(key, config.get(key))


def _numbers(case: Case) -> dict[str, Any]:
    config, settings = case.checkpoint.text_config, _settings(case.checkpoint.config)
    found = {key: config.get(key) for key in ("num_hidden_layers", "hidden_size", "vocab_size")}
    keys = ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size")
    return {**found, **{f"dflash_config.{key}": settings.get(key) for key in keys}}


def _shape(case: Case) -> DFlash2Shape:
    layers, hidden, vocabulary, rank, _, taps, group = _numbers(case).values()
    return DFlash2Shape(layers, hidden, vocabulary, rank, taps, group)


def _found(case: Case) -> dict[str, str]:
    """DFlash2's tensors that are there: name without ``model.`` to the name in the checkpoint."""
    return {name.removeprefix("model."): name for name in case.checkpoint.tensors if is_dflash2(name)}


def _trained(case: Case) -> Iterator[tuple[str, str, Tensor]]:
    """Each expected tensor that is there in a floating-point dtype: short name, name, entry."""
    found = _found(case)
    for name in _shape(case).tensors():
        if name in found:
            tensor = case.checkpoint.tensors[found[name]][1]
            if tensor.dtype in FLOATS:
                yield name, found[name], tensor


@RULES.add(
    "DFL-01",
    Severity.ERROR,
    f"the architecture is exactly {DFLASH2}",
    "use the DFlash2 checkpoint with its own config; another class drops its trained tensors, or has none",
    **ONLY,
    needs=("CFG-01",),
)
def architecture_is_dflash2(case: Case) -> Iterator[str]:
    names = case.checkpoint.config.get("architectures")
    if names == [DFLASH2]:
        if DFLASH2 not in case.release.architectures:
            yield f"{case.release} has no {DFLASH2}; 0.5.19 is the first"
        return
    aliases = ", ".join(case.release.dflash2_aliases) or "none"
    found = f"{len(_found(case))} DFlash2 tensors are there"
    yield f"architectures is {str(names)[:200]}; {found}; aliases that {case.release} registers: {aliases}"


@RULES.add(
    "DFL-02",
    Severity.ERROR,
    "the config gives every number that the class needs",
    "restore config.json; without the numbers the class builds no selector or no convolution",
    **ONLY,
    needs=("CFG-01", "DFL-01"),
)
def config_has_the_numbers(case: Case) -> Iterator[str]:
    numbers = _numbers(case)
    bad = {key: value for key, value in numbers.items() if type(value) is not int or not 0 < value < 1 << 24}
    yield from (f"{key} is {str(value)[:40]}, expected a whole number above 0" for key, value in bad.items())
    block = _setting(case, "block_size")
    if type(block) is not int or block < 1:
        yield f"block_size is {str(block)[:40]}, expected a whole number above 0"
    hidden, group = numbers["hidden_size"], numbers["dflash_config.conv_group_size"]
    if not bad and hidden % group:
        yield f"dflash_config.conv_group_size {group} does not divide hidden_size {hidden}"
    if not bad and numbers["num_hidden_layers"] > 1024:
        yield f"num_hidden_layers is {numbers['num_hidden_layers']}, expected at most 1024"


@RULES.add(
    "DFL-03",
    Severity.ERROR,
    "every selector and convolution tensor is there",
    "use a complete DFlash2 checkpoint; the server would start with the initial values instead",
    **ONLY,
    needs=(*SHAPED, *READABLE),
)
def tensors_are_there(case: Case) -> Iterator[str]:
    promised = {name.removeprefix("model.") for name in case.checkpoint.names}
    expected = list(_shape(case).tensors())
    missing = [name for name in expected if name not in promised]
    if missing and len(missing) == len(expected):
        yield f"none of the {len(expected)} is there; these are the weights of another class"
    else:
        yield from (f"{name}: not there" for name in missing)


@RULES.add(
    "DFL-04",
    Severity.ERROR,
    "each of them has its shape and a floating-point dtype",
    "make config and weights those of one checkpoint; none of these tensors is ever quantised",
    **ONLY,
    needs=(*SHAPED, *READABLE, "INT-04"),
)
def tensors_have_their_shape(case: Case) -> Iterator[str]:
    found = _found(case)
    for name, shape in _shape(case).tensors().items():
        if name not in found:
            continue
        tensor = case.checkpoint.tensors[found[name]][1]
        if tensor.shape != shape or tensor.dtype not in FLOATS:
            yield f"{name}: {tensor.dtype} {list(tensor.shape)}, expected a float of {list(shape)}"


@RULES.add(
    "DFL-05",
    Severity.ERROR,
    "each of them has a payload that is not all zero",
    "use a trained checkpoint; a zero tensor makes its part of the draft do nothing",
    **ONLY,
    needs=(*SHAPED, *SOUND),
)
def payload_is_not_zero(case: Case) -> Iterator[str]:
    for name, (tensor, look) in case.looks.items():
        if look.zero:
            yield f"{name}: all {tensor.span} bytes are zero"


@RULES.add(
    "DFL-06",
    Severity.ERROR,
    "what was read of each of them is finite",
    "use a sound checkpoint; NaN spreads to every token that it touches",
    **ONLY,
    needs=(*SHAPED, *SOUND),
)
def payload_is_finite(case: Case) -> Iterator[str]:
    for name, (_, look) in case.looks.items():
        if look.special:
            yield f"{name}: {look.special} NaN or infinite"


@RULES.add(
    "DFL-07",
    Severity.WARNING,
    "each base kernel differs from the identity that it starts as",
    "ask the producer whether the convolution was trained",
    **ONLY,
    needs=(*SHAPED, *SOUND, "DFL-04"),
)
def base_kernels_are_trained(case: Case) -> Iterator[str]:
    taps, hidden = _shape(case).taps, _shape(case).hidden
    identity = [1.0] * hidden + [0.0] * (taps - 1) * hidden
    for name, full_name, tensor in _trained(case):
        if not name.endswith(".base_kernel") or tensor.span > payload.MAX_BLOCK:
            continue
        if payload.values(case.checkpoint.read(full_name, 0, tensor.span), tensor.dtype) == identity * 2:
            yield f"{name}: is the identity"


@RULES.add(
    "DFL-08",
    Severity.WARNING,
    "no row of a codebook is zero",
    "ask the producer; tokens with a zero row are scored by the draft alone",
    **ONLY,
    needs=(*SHAPED, *SOUND),
)
def codebooks_have_no_zero_row(case: Case) -> Iterator[str]:
    if not case.full:
        raise Skip("reads whole codebooks; asked for with --full")
    for name, (tensor, look) in case.looks.items():
        if name.endswith("_codebook") and look.zero_rows and not look.zero:
            yield f"{name}: {look.zero_rows} of {tensor.shape[0]} rows are zero"


@RULES.add(
    "DFL-09",
    Severity.WARNING,
    "no selector or convolution tensor is left over",
    "compare num_hidden_layers with the checkpoint; the loader drops such tensors silently",
    **ONLY,
    needs=(*SHAPED, *READABLE),
)
def nothing_is_left_over(case: Case) -> Iterator[str]:
    extra = sorted(set(_found(case)) - set(_shape(case).tensors()))
    if extra:
        yield f"{len(extra)} tensors without a place: {', '.join(extra[:3])}{' …' if len(extra) > 3 else ''}"


@RULES.add(
    "DFL-10",
    Severity.ERROR,
    "block size and window are those of the profile",
    "use the checkpoint that the profile was made for; SGLang only warns of another block size",
    **ONLY,
    needs=("CFG-01", "DFL-02"),
)
def profile_agrees(case: Case) -> Iterator[str]:
    if case.profile is None:
        raise Skip("no --profile")
    block = _setting(case, "block_size")
    for flag in ("speculative-num-draft-tokens", "speculative-dflash-block-size"):
        wanted = case.argument(flag)
        if wanted is not None and wanted != block:
            yield f"block_size is {block}, and the profile's {flag} is {wanted}"
    window, wanted = case.checkpoint.text_config.get("sliding_window"), case.argument("speculative-draft-window-size")
    if wanted is not None and wanted != window:
        yield f"sliding_window is {str(window)[:40]}, and the profile's speculative-draft-window-size is {wanted}"


@RULES.add(
    "DFL-11",
    Severity.ERROR,
    "width, vocabulary and feature layers fit the target",
    "use the draft that was trained for this target",
    **ONLY,
    needs=("CFG-01", "DFL-02"),
)
def target_agrees(case: Case) -> Iterator[str]:
    target, draft = _target_config(case), case.checkpoint.text_config
    for key in ("hidden_size", "vocab_size"):
        if draft.get(key) != target.get(key):
            yield f"{key} is {draft.get(key)}, and the target's is {str(target.get(key))[:40]}"
    layers, ids = target.get("num_hidden_layers"), _setting(case, "target_layer_ids")
    count = _setting(case, "num_target_layers")
    if count is not None and count != layers:
        yield f"num_target_layers is {str(count)[:40]}, and the target has {str(layers)[:40]} layers"
    if ids is None:
        return
    if not isinstance(ids, list) or not ids or not all(type(row) is int for row in ids):
        yield "target_layer_ids is no list of layers"
    elif type(layers) is int and not all(0 <= row < layers for row in ids):
        yield f"target_layer_ids {str(ids)[:80]} are not all layers of the target, which has {layers}"


@RULES.add(
    "DFL-12",
    Severity.ERROR,
    "RoPE is that of the target",
    "derive a draft config with the target's RoPE, or use the revision of the target that fits",
    **ONLY,
    needs=("CFG-01",),
)
def rope_is_that_of_the_target(case: Case) -> Iterator[str]:
    target, draft = rope.read(_target_config(case)), rope.read(case.checkpoint.text_config)
    if target is None or draft is None:
        whose = "target" if target is None else "draft"
        yield f"the {whose}'s config has no usable max_position_embeddings and RoPE factor"
        return
    yield from (f"{difference}, of draft and target" for difference in rope.differences(draft, target))


@RULES.add(
    "DFL-13",
    Severity.ERROR,
    "RoPE reaches as far as the profile needs, and no further",
    "use the draft whose RoPE is native for a native profile, stretched for a stretched one",
    **ONLY,
    needs=("CFG-01",),
)
def rope_is_that_of_the_profile(case: Case) -> Iterator[str]:
    if case.profile is None:
        raise Skip("no --profile")
    found = rope.read(case.checkpoint.text_config)
    if found is None:
        yield "the config has no usable max_position_embeddings and RoPE factor"
    else:
        yield from rope.profile_problems(found, case.profile.context_length)


def _target_config(case: Case) -> Mapping[str, Any]:
    if case.target is None:
        raise Skip("no target to compare with; name it with --target or --profile")
    return case.target.text_config
