"""Each line beside the main one: its image is made, made again, checked, and runs the tests of its tree.

Planted faults are the main line's business (test_planted_faults.py); here are those that only a mixed tree can have.
"""

from pathlib import Path

import pytest

from pipeline import compose as composing
from pipeline import image as images
from pipeline import oci, pins, tree_tests
from pipeline.documents import CheckStatus
from pipeline.files import BUILD
from pipeline.manifest import lines, load_line
from pipeline.oci import LayerEntry
from tests.image import inside
from tests.image.conftest import Real, end_to_end, in_the_image, only

OTHERS = [name for name in lines() if not load_line(name).is_main]
[HISTORY] = [name for name in OTHERS if name == "qwen3.8-27b-20260819"]  # the same object: a fixture is kept by it
ROOT = "usr/local/lib/python3.11/dist-packages"
WORKER, MODELS = "sglang/srt/speculative/dflash_worker_v2.py", "sglang/srt/models/dflash.py"


@pytest.mark.parametrize("other", OTHERS, indirect=True)
def test_the_sound_image_passes(other: Real, tmp_path: Path) -> None:
    report = other.check(other.image, tmp_path / "log")
    unusual = {row.name: (row.status, row.reason) for row in report.checks if row.status is not CheckStatus.PASSED}
    assert list(unusual) == ["kernels"], unusual
    assert unusual["kernels"][0] is CheckStatus.NOT_APPLICABLE
    assert report.passed


@pytest.mark.parametrize("other", OTHERS, indirect=True)
def test_image_that_is_made_again_has_the_same_digest(other: Real, tmp_path: Path) -> None:
    composed = composing.compose(other.line)
    again = images.build(other.line, composed, other.base, tmp_path / "image")
    assert again.digest == other.image.digest


@pytest.fixture(scope="module")
def cases(other: Real, tmp_path_factory: pytest.TempPathFactory) -> tuple[tree_tests.Case, ...]:
    """The tests of the line's modules, in its image."""
    return in_the_image(other, inside.tree_modules(other.line.name), tmp_path_factory.mktemp("tree") / "log")


@pytest.mark.parametrize(
    ("other", "module"), [(name, module) for name in OTHERS for module in inside.tree_modules(name)], indirect=["other"]
)
def test_module_is_sound_in_the_image(
    other: Real,  # noqa: ARG001  whose image ``cases`` ran in
    cases: tuple[tree_tests.Case, ...],
    module: str,
) -> None:
    inside.assert_sound(cases, module)


E2E_MODULES = [(name, module) for name in OTHERS for module in sorted(inside.named(name, "e2e"))]


@pytest.fixture(scope="module")
def drafted(other: Real, tmp_path_factory: pytest.TempPathFactory) -> tuple[tree_tests.Case, ...]:
    """The end-to-end tests of the line's rows: engines with tiny models, in its image."""
    log = tmp_path_factory.mktemp("e2e") / "log"
    return end_to_end(other.engine, other.tag, inside.unpatched(other), inside.named(other.line.name, "e2e"), log)


@pytest.mark.parametrize(
    ("other", "module"),
    [(name, module) for name in OTHERS for module in sorted(inside.named(name, "e2e"))],
    indirect=["other"],
)
def test_end_to_end_module_is_sound_in_the_image(
    other: Real,  # noqa: ARG001  whose image ``drafted`` ran in
    drafted: tuple[tree_tests.Case, ...],
    module: str,
) -> None:
    inside.assert_sound(drafted, module)


@pytest.mark.parametrize("other", [HISTORY], indirect=True)
def test_what_one_line_skips_the_other_runs(
    other: Real,  # noqa: ARG001  whose image ``cases`` ran in
    main_cases: tuple[tree_tests.Case, ...],
    cases: tuple[tree_tests.Case, ...],
) -> None:
    """A test that is skipped everywhere proves nothing and would not be missed."""
    passed, skipped = (
        {(case.module, case.name) for case in (*main_cases, *cases) if case.outcome is outcome}
        for outcome in (tree_tests.Outcome.PASSED, tree_tests.Outcome.SKIPPED)
    )
    assert skipped - passed == set()


@pytest.mark.parametrize("other", [HISTORY], indirect=True)
@pytest.mark.parametrize(
    ("path", "fails"),
    [(WORKER, {"features", "tree"}), (MODELS, {"features", "registry", "tree"})],
    ids=["worker", "models"],
)
def test_file_of_the_base_release_is_seen_in_the_image(other: Real, path: str, fails: set[str], tmp_path: Path) -> None:
    """A build elsewhere laid one of DFlash2's files from the wrong release: more than the digests of files say so."""
    base = pins.read(other.line.release.pins["sglang"], other.line.release.base.python_tag, BUILD / "cache")
    layer = oci.write_layer(tmp_path / "layer.tar", [LayerEntry(f"{ROOT}/{path}", base.files[path])])
    image = oci.append_layer(
        other.image,
        tmp_path / "image",
        tmp_path / "layer.tar",
        layer,
        environment={},
        labels={},
        created=other.line.release.created,
        comment=f"fault: {path} of the base release",
    )
    report = other.check(image, tmp_path / "log", only(fails, tmp_path))
    bad = {row.name: row.reason for row in report.checks if not row.status.is_sound}
    assert set(bad) == fails
    assert path in bad["features"]
