"""A draft that is not whole gives the right text, so only a refusal to start tells.

On the unpatched tree such engines start and answer with the very same ids; on ours they do not start.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.support import tiny_models
from tests.e2e.support.engines import MTP, Answer, Case, Engines, dflash
from tests.e2e.support.prompts import prompt

if TYPE_CHECKING:
    from tests.e2e.support.reference import Reference
    from tests.e2e.support.tiny_models import Models

PROMPT, TOKENS = prompt(0, 20), 10
STEP = {"do": "generate", "prompts": [PROMPT], "max_new_tokens": TOKENS}
COLLAPSED = 0.1
"""Acceptance of a draft that guesses; whole, the drafts have 0.4 and more."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with the checkpoint that drafts, and what the refusal names."""

    mode: str
    change: tiny_models.Change
    named: str


FAULTS = {
    "MTP without fc": Fault("MTP", tiny_models.drop("mtp.fc.weight"), "fc.weight"),
    "MTP without queries": Fault("MTP", tiny_models.drop("mtp.layers.0.self_attn.q_proj.weight"), "qkv_proj"),
    "DFLASH without a codebook": Fault(
        "DFLASH", tiny_models.drop("candidate_selector.predecessor_codebook"), "predecessor_codebook"
    ),
    "DFLASH with a zero codebook": Fault(
        "DFLASH", tiny_models.zero("candidate_selector.successor_codebook"), "successor_codebook"
    ),
    "DFLASH without a convolution kernel": Fault(
        "DFLASH", tiny_models.drop("layers.4.mlp_conv.base_kernel"), "layers.4.mlp_conv.base_kernel"
    ),
    "DFLASH2 under the classic class": Fault("DFLASH", tiny_models.declare("DFlashDraftModel"), "DFlashDraftModel"),
}
UNSEEN = ("MTP without fc", "DFLASH without a codebook")
"""Those that are also run on the unpatched tree."""


def case(models: Models, fault: Fault, folder: Path) -> Case:
    whole = models.target if fault.mode == "MTP" else models.draft
    broken = tiny_models.changed(whole, folder, fault.change)
    arguments: dict[str, Any] = MTP if fault.mode == "MTP" else dflash(broken)
    target = broken if fault.mode == "MTP" else models.target
    return Case({"model_path": str(target), **arguments}, [STEP])


@pytest.fixture(scope="module")
def unseen(upstream_engines: Engines, models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    folder = tmp_path_factory.mktemp("unseen")
    return upstream_engines.run_all({name: case(models, FAULTS[name], folder / name) for name in UNSEEN})


@pytest.mark.parametrize("name", UNSEEN)
def test_upstream_starts_and_its_text_does_not_tell(unseen: dict[str, Answer], reference: Reference, name: str) -> None:
    ((row,),) = unseen[name].steps
    assert row["ids"] == reference.continued(PROMPT, TOKENS)


def test_upstream_drafts_in_vain_without_fc(unseen: dict[str, Answer]) -> None:
    ((row,),) = unseen["MTP without fc"].steps
    assert row["spec_accept_rate"] < COLLAPSED


@pytest.mark.parametrize("name", FAULTS)
def test_ours_does_not_start(engines: Engines, models: Models, tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    refusal = engines.refusal(case(models, fault, tmp_path / "broken"))
    assert refusal.startswith("ValueError: ")
    assert fault.named in refusal
