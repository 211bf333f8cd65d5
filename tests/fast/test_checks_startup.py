"""checks/test_startup.py's verdicts; the drafts themselves meet SGLang in the image (tests/image) and in tests/tree."""

import re
from pathlib import Path

import pytest

from checks import drafts
from checks.drafts import DFLASH2_DRAFT, MTP_HEAD, Trial
from checks.test_startup import _judge
from checks.verdict import Verdict
from pipeline.checkpoint.naming import MTP_PARTS, MTP_PLAIN, DFlash2Shape, is_dflash2
from tests.fast.fake_image import FakeImage


@pytest.fixture
def image(tmp_path: Path) -> FakeImage:
    return FakeImage(tmp_path)


REFUSED = MTP_HEAD.without("mtp.fc.weight", "missing: fc.weight")


@pytest.mark.parametrize(
    ("trial", "error", "says"),
    [
        (MTP_HEAD, "", ""),
        (REFUSED, "ValueError: missing: fc.weight.", ""),
        (REFUSED, "", "mtp.fc.weight: expected a refusal with 'missing: fc.weight', found that it starts"),
        (REFUSED, "KeyError: x", "expected a refusal with 'missing: fc.weight', found KeyError: x"),
        (MTP_HEAD, "ValueError: y", "MTP head: expected that it starts, found ValueError: y"),
    ],
)  # fmt: skip
def test_verdict(trial: Trial, error: str, says: str) -> None:
    properties: list[tuple[str, object]] = []
    verdict = Verdict(properties)
    _judge(trial, error, verdict)
    if not says:
        verdict.conclude("sound")
        assert properties == [("proof", "sound")]
        return
    with pytest.raises(pytest.fail.Exception, match=re.escape(says)):
        verdict.conclude("sound")


def test_sglang_that_cannot_be_imported_fails_the_check(image: FakeImage) -> None:
    image.given["architectures"]["DFlash2DraftModel"] = {"file": "sglang/srt/models/draft.py", "why": ""}
    assert image.run().reason("startup").startswith("the modules that load a draft cannot be imported: ")


def test_a_line_without_drafts_has_no_trials(image: FakeImage) -> None:
    assert image.run().reason("startup") == "0 whole drafts start; 0 others are refused by reason"


def test_the_miniatures_are_whole() -> None:
    """By the rules of the checkpoint gate."""
    assert set(MTP_HEAD.tensors) == {f"{module}.weight" for module in (*MTP_PLAIN, *MTP_PARTS)}
    shape = DFlash2Shape(
        drafts.LAYERS, drafts.HIDDEN, drafts.VOCABULARY, drafts.RANK, taps=drafts.TAPS, group=drafts.GROUP
    )
    assert {name: found for name, found in DFLASH2_DRAFT.tensors.items() if is_dflash2(name)} == shape.tensors()
