"""The tests of the patched tree (``tests/tree``), run inside the real image: one environment, one lock."""

import pytest

from pipeline import check, container
from pipeline.files import PROJECT
from pipeline.manifest import DEFAULT_LINE, MANIFESTS
from pipeline.oci import LayerEntry
from tests.image import inside
from tests.image.conftest import Real

TESTS = PROJECT / "tests" / "tree"
CONFIGS = MANIFESTS / DEFAULT_LINE / "configs"
SHARED = [
    *(f"checks/{name}" for name in ("fake_xpu.py", "ast_match.py", "given.py", "verdict.py", "test_features.py")),
    f"manifests/{DEFAULT_LINE}/features.yaml",
    *(f"pipeline/{name}.py" for name in ("pool_sizes", "launch_flags", "source_values", "imports", "errors")),
    *(f"pipeline/checkpoint/{name}" for name in ("ignore.py", "naming.py", "architectures.txt")),
    *(path.relative_to(PROJECT).as_posix() for path in sorted(CONFIGS.rglob("*.json"))),
]
"""The device and the models that are not there; the rows of the check ``features``, capacity arithmetic, the reader of
launch flags, and rules of the checkpoint gate, which tests there hold against the trees."""
LIMITS = container.Limits(memory=8 << 30, seconds=900)
"""Two drivers at a time import most of SGLang, 1 GiB each; their bytecode in the tmpfs counts too."""


@pytest.fixture(scope="module")
def cases(real: Real, tmp_path_factory: pytest.TempPathFactory) -> inside.Cases:
    entries = [
        LayerEntry("run.py", TESTS / "run.py"),
        *inside.python_files(TESTS, "tests"),
        *inside.python_files(check.CHECKS / "stubs", "checks/stubs"),
        *(LayerEntry(shared, PROJECT / shared) for shared in SHARED),
        *inside.libraries("hypothesis"),
        *inside.tree("tree", real.composed.files),
        *inside.tree("upstream", inside.unpatched(real)),
    ]
    return inside.run(real.engine, real.tag, entries, LIMITS, tmp_path_factory.mktemp("tree") / "log")


@pytest.mark.parametrize("module", inside.modules(TESTS))
def test_module_passes_in_the_image(cases: inside.Cases, module: str) -> None:
    inside.assert_passed(cases, module)
