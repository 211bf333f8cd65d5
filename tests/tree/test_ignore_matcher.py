"""The checkpoint gate's exclusion rules give the same verdict as SGLang's own matchers, list by list."""

from __future__ import annotations

import ast
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from gate import RULES, gate_module  # type: ignore[import-not-found]  # beside this file

if TYPE_CHECKING:
    from tests.tree.conftest import Tree

SEED = 20261129
LISTS = 600
"""Generated lists per format."""
MODULES_PER_LIST = 5


ignore = gate_module("ignore")
naming = gate_module("naming")

MODULES = [
    *naming.MTP_EXCLUSIONS,
    "model.layers.3.self_attn.qkv_proj",
    "model.layers.3.linear_attn.in_proj_qkvz",
    "model.layers.3.linear_attn.in_proj_ba",
    "model.layers.3.mlp.gate_up_proj",
    "model.layers.3.mlp.experts.0.gate_up_proj_x",
    "model.layers.3.mlp.gate",
    "lm_head",
]
ENTRIES = [
    *MODULES,
    *("mtp", "mtp.", "mtp.*", "mtp.layers.0", "model.mtp.fc", "o_proj", "self_attn.q_proj", "mlp", "mlp.gate", "gate"),
    *(
        "re:^mtp.*",
        "re:.*mtp.*",
        "re:mtp",
        "re:.*q_proj",
        "re:.*_proj$",
        "re:.*(gate|up)_proj",
        "re:(",
        "re:[[a",
        "re:",
    ),
    *(
        "",
        ".",
        "visual",
        "model.",
        "in_proj_b",
        "in_proj_qkv",
        "experts",
        "model.layers.3",
        "k_proj",
        "v_proj",
        "self_attn",
    ),
]
FUSED: list[dict[str, list[str]]] = [{}, {key: list(parts) for key, parts in ignore.QWEN3_5_FUSED.items()}]
TARGETS = ["Linear", "linear", "RowParallelLinear", "FusedMoE", "re:.*mlp.*", "re:.*q_proj", "re:.*[kv]_proj", *MODULES]
CLASSES = ["QKVParallelLinear", "RowParallelLinear", "MergedColumnParallelLinear", "ReplicatedLinear", "FusedMoE"]
FORMATS = ("compressed-tensors", "target", "awq", "fp8", "auto-round")


def generated(format_: str) -> list[dict[str, Any]]:
    """Cases of one format, always the same ones."""
    draw = random.Random(f"{SEED} {format_}")
    cases = []
    for number in range(LISTS):
        entries = draw.sample(ENTRIES, draw.randint(0, 8))
        if draw.random() < 0.3:
            entries += draw.sample(naming.MTP_EXCLUSIONS, draw.randint(1, len(naming.MTP_EXCLUSIONS)))
        shared = {
            "format": format_,
            "entries": entries,
            "fused": draw.choice(FUSED),
            "targets": draw.sample(TARGETS, draw.randint(0, 4)),
            "config": auto_round_config(draw, entries),
        }
        for module in draw.sample(MODULES, MODULES_PER_LIST):
            cases.append(
                {**shared, "name": f"{format_} {number} {module}", "module": module, "class_name": draw.choice(CLASSES)}
            )
    return cases


def auto_round_config(draw: random.Random, entries: list[str]) -> dict[str, Any]:
    keys = [entry.removeprefix("re:") for entry in entries]
    settings = [{"bits": 16}, {"bits": 8}, {"bits": 4, "group_size": 32}, {"sym": False}, {}]
    config = {"bits": draw.choice([4, 8]), "group_size": 128, "sym": True}
    blocks: Any = draw.choice([None, "model.layers", "model.layers,mtp", ["mtp.layers.0.mlp"]])
    extra = {key: draw.choice(settings) for key in keys} or None
    return {**config, "block_name_to_quantize": blocks, "extra_config": extra}


def ours(case: dict[str, Any]) -> bool | str | None:
    """What the gate says; null where SGLang would stop."""
    module, entries, fused = case["module"], case["entries"], case["fused"]
    verdicts = {
        "compressed-tensors": lambda: ignore.compressed_tensors(module, entries, fused),
        "target": lambda: ignore.compressed_tensors_target(module, case["class_name"], case["targets"], fused),
        "awq": lambda: ignore.awq(module, entries),
        "fp8": lambda: ignore.fp8(module, entries, fused),
        "auto-round": lambda: ignore.auto_round(module, case["config"], fused),
    }
    try:
        found: bool | str = verdicts[case["format"]]()
    except ignore.Refused:
        return None
    return found


@pytest.fixture(scope="module")
def theirs(composed: Tree) -> dict[str, Any]:
    """What the tree says to every case, and its facts."""
    cases = [case for format_ in FORMATS for case in generated(format_)]
    return composed.measure("ignore_matcher", [*cases, {"name": "facts", "format": "facts"}])


@pytest.mark.parametrize("format_", FORMATS)
def test_verdicts_are_those_of_the_tree(theirs: dict[str, Any], format_: str) -> None:
    cases = generated(format_)
    assert len({case["name"] for case in cases}) == LISTS * MODULES_PER_LIST
    assert [(case, theirs[case["name"]]) for case in cases if theirs[case["name"]] != ours(case)] == []
    kinds = Counter(
        "target" if format_ == "target" and theirs[case["name"]] else theirs[case["name"]] for case in cases
    )
    assert {"target", None} <= set(kinds) if format_ == "target" else {True, False} <= set(kinds)
    assert min(kinds.values()) > 20, f"the lists are too tame: {kinds}"


def test_a_rule_that_drifts_is_seen(theirs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: with a gate that took a parent for a match, it does."""
    monkeypatch.setattr(ignore, "_entry_matches", lambda name, entries: any(map(name.startswith, entries)))
    assert any(theirs[case["name"]] != ours(case) for case in generated("compressed-tensors"))


def known_classes() -> dict[str, str]:
    """By class the release that has it first."""
    text = (RULES / "architectures.txt").read_text(encoding="utf-8")
    return dict(line.split() for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.patch("mtp-packed-modules.patch")
def test_the_mtp_head_has_the_fused_map(theirs: dict[str, Any]) -> None:
    assert theirs["facts"]["fused"] == {key: list(parts) for key, parts in ignore.QWEN3_5_FUSED.items()}


def test_facts_about_the_release_are_those_of_the_tree(theirs: dict[str, Any]) -> None:
    facts = theirs["facts"]
    assert set(facts["classes"]) <= set(known_classes())
    assert "DFlash2DraftModel" in facts["classes"]


def test_every_registered_class_is_known(composed: Tree) -> None:
    """By reading: importing every model would need packages that the image leaves out.

    A line may take ``dflash.py`` from a later release than the rest.
    """
    found, of_drafts = set(), set()
    for path in sorted((composed.root / "sglang/srt/models").rglob("*.py")):
        classes = registered(path.read_text(encoding="utf-8-sig"))  # one file of 0.5.18 begins with a byte-order mark
        found |= classes
        of_drafts |= classes if path.name == "dflash.py" else set()
    release = numbers(literal(composed.source("sglang/_version.py"), "__version__"))
    known = known_classes()
    assert of_drafts <= set(known)
    assert found == of_drafts | {name for name, first in known.items() if numbers(first) <= release}


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def literal(source: str, name: str) -> str:
    """What a module assigns to a name, first of several in a row."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and name in [ast.unparse(target) for target in statement.targets]:
            return str(ast.literal_eval(statement.value))
    raise AssertionError(f"{name} is assigned nothing")


def registered(source: str) -> set[str]:
    """Names in a module's ``EntryClass``."""
    found: set[str] = set()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and any(ast.unparse(name) == "EntryClass" for name in statement.targets):
            value = statement.value
            found |= {ast.unparse(item) for item in (value.elts if isinstance(value, ast.List) else [value])}
    return found


def test_prefixes_and_classes_of_the_mtp_head_are_those_of_the_tree(composed: Tree) -> None:
    """The four quantisable modules are constructed under the names that the gate asks about."""
    attention = composed.source("sglang/srt/models/qwen3_5.py")
    mlp = composed.source("sglang/srt/models/qwen2_moe.py")
    for built in naming.MTP_BUILT:
        source = attention if ".self_attn." in built.name else mlp
        name = built.name.rpartition(".")[2]
        assert f'add_prefix("{name}", prefix)' in source, built.name
        assert f"{built.class_name}(" in source, built.name
    assert 'add_prefix("mtp", prefix)' in composed.source("sglang/srt/models/qwen3_5_mtp.py")
