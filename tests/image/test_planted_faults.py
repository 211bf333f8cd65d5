"""Each check can fail: a fault is appended to the real image, and exactly the expected checks see it."""

import dataclasses
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline import image as images
from pipeline import oci
from pipeline.check import CHECKS, expected_checks
from pipeline.documents import RECORD_PATH, CheckReport, CheckStatus
from pipeline.manifest import EnvironmentDefault
from pipeline.oci import Image, LayerEntry, whiteout
from tests.image.conftest import Real, only

ROOT = "usr/local/lib/python3.11/dist-packages"
PATCHED = "sglang/srt/layers/attention/xpu_backend.py"
DFLASH = "sglang/srt/models/dflash.py"
COMPRESSED_TENSORS = "sglang/srt/layers/quantization/compressed_tensors"
CACHE = "__pycache__/{}.cpython-311.pyc"


SWIFT = frozenset({"environment", "features", "kernels", "leftovers", "tree"})
"""Checks that run for every fault: they only read. One that imports SGLang takes long, and runs for its own faults."""


@dataclass(frozen=True)
class Fault:
    """A layer and variables on top of the sound image; ``fails`` is the whole set of checks that must fail."""

    name: str
    fails: frozenset[str]
    says: str
    """Part of the reason of the first failing check, in the order of the names."""
    entries: Callable[[Real], list[LayerEntry]] = field(default=lambda _: [])
    environment: dict[str, str] = field(default_factory=dict)


def laid(path: str, content: bytes) -> Callable[[Real], list[LayerEntry]]:
    """A file below the package root, new or replaced."""
    return lambda _: [LayerEntry(f"{ROOT}/{path}", content)]


def edited(path: str, old: bytes, new: bytes) -> Callable[[Real], list[LayerEntry]]:
    """A file of the composed tree with one place changed; its bytecode of the base goes, as in an honest layer."""

    def entries(real: Real) -> list[LayerEntry]:
        source = real.composed.files[path]
        assert old in source, f"{path} no longer holds what this fault changes"
        made = [LayerEntry(f"{ROOT}/{path}", source.replace(old, new, 1))]
        stale = f"{Path(path).parent}/{CACHE.format(Path(path).stem)}"
        return [*made, whiteout(f"{ROOT}/{stale}")] if stale in real.base.inventory.files else made

    return entries


def reverted(path: str) -> Callable[[Real], list[LayerEntry]]:
    """Upstream's own text of a file that a patch changed: the patch got lost."""
    return lambda real: [LayerEntry(f"{ROOT}/{path}", real.composed.upstream[path])]


def stale_bytecode(real: Real) -> list[LayerEntry]:
    """The base's bytecode of a patched file, as if the layer had not deleted it."""
    path = f"{ROOT}/{Path(PATCHED).parent}/{CACHE.format(Path(PATCHED).stem)}"
    with tarfile.open(real.base.image.blob(real.base.image.layers[-1].digest)) as tar:
        stream = tar.extractfile(path)
        assert stream is not None
        return [LayerEntry(path, stream.read())]


def same_length_edit(real: Real) -> list[LayerEntry]:
    """An edit that keeps a file's length beside its untouched, checked-hash bytecode."""
    path = "sglang/srt/models/registry.py"
    source = real.composed.files[path]
    edit = source.replace(b"import", b"\timprt"[:6], 1)
    assert len(edit) == len(source)
    assert edit != source
    return [LayerEntry(f"{ROOT}/{path}", edit)]


FAULTS = [
    Fault("extra-module", frozenset({"tree"}), "extra file", laid("sglang/srt/extra.py", b"")),
    Fault("torch-edited", frozenset({"tree"}), "torch/utils/collect_env.py", laid("torch/utils/collect_env.py", b"")),
    Fault("file-removed", frozenset({"tree"}), "missing", lambda _: [whiteout(f"{ROOT}/sglang/bench_serving.py")]),
    Fault(
        "record-of-another-tree",
        frozenset({"tree"}),
        "record",
        lambda real: [LayerEntry(RECORD_PATH, real.composed.record.to_json().replace(b"cp311", b"cp313", 1))],
    ),
    Fault("stale-bytecode", frozenset({"leftovers", "tree"}), "pyc", stale_bytecode),
    Fault("same-length-edit", frozenset({"registry", "startup", "tree"}), "registry", same_length_edit),
    Fault(
        "patch-lost",
        frozenset({"environment", "features", "tree"}),
        "SGLANG_XPU_VERIFY_SINGLE_QUERY_ROWS: expected",
        reverted(PATCHED),
    ),
    Fault(
        "classic-dflash-file",
        frozenset({"features", "imports", "registry", "startup", "tree"}),
        "DFlash2DraftModel",
        edited(DFLASH, b"class DFlash2DraftModel(DFlashDraftModel):", b"class DFlash1DraftModel(DFlashDraftModel):"),
    ),
    Fault(
        "dependency-missing",
        frozenset({"imports", "quantization", "registry", "startup", "tree"}),
        "No module named 'torchvision'",
        lambda _: [whiteout(f"{ROOT}/torchvision")],
    ),
    Fault(
        "dflash-gate-closed",
        frozenset({"features", "startup", "tree"}),
        "dflash",
        edited("sglang/srt/arg_groups/speculative_hook.py", b'"xpu"', b'"npx"'),
    ),
    Fault(
        "flush-route-lost",
        frozenset({"serve", "tree"}),
        "/flush_cache: expected status 200, found 404",
        edited("sglang/srt/entrypoints/http_server.py", b'"/flush_cache"', b'"/flush"'),
    ),
    Fault(
        "load-never-judged",
        frozenset({"startup", "tree"}),
        "DFlash2 draft without candidate_selector.successor_codebook",
        edited("sglang/srt/model_loader/load_coverage.py", b"return _FULL_LOAD.get()", b"return False"),
    ),
    Fault(
        "zero-payload-unseen",
        frozenset({"startup", "tree"}),
        "DFlash2 draft of zeros",
        edited("sglang/srt/speculative/dflash_coverage.py", b"low == high == 0", b"low > high"),
    ),
    Fault(
        "any-draft-launched",
        frozenset({"startup", "tree"}),
        "launch with a classic draft",
        edited("sglang/srt/speculative/dflash_launch.py", b"if not expected:", b"if expected:"),
    ),
    Fault(
        "any-window-launched",
        frozenset({"startup", "tree"}),
        "launch with another window: expected a refusal",
        edited("sglang/srt/speculative/dflash_launch.py", b"left + 1 != flag", b"left + 1 < 0"),
    ),
    Fault(
        "rings-of-another-size",
        frozenset({"launch", "tree"}),
        "private rings of draft KV: expected 2176 rows with a stride of 2176, this image makes 2112 rows",
        edited(
            "sglang/srt/speculative/dflash_ring.py",
            b"(span + self.page_size - 1) // self.page_size",
            b"span // self.page_size",
        ),
    ),
    Fault(
        "log-probabilities-of-other-tokens",
        frozenset({"features", "tree"}),
        "dflash-logprobs",
        edited("sglang/srt/speculative/dflash_worker_v2.py", b"chain_stride=block_size", b"chain_stride=None"),
    ),
    Fault("backup-file", frozenset({"leftovers", "tree"}), ".orig", laid(f"{DFLASH}.orig", b"")),
    Fault("test-log", frozenset({"leftovers", "tree"}), ".log", laid("sglang/bench.log", b"")),
    Fault(
        "diagnostic-switch",
        frozenset({"leftovers", "tree"}),
        "SGLANG_DFLASH_DEBUG",
        edited(PATCHED, b"import torch\n", b'import torch\nimport os; os.environ.get("SGLANG_DFLASH_DEBUG")\n'),
    ),
    Fault(
        "patch-that-imports-nothing-known",
        frozenset({"imports", "tree"}),
        "xpu_backend.py: cannot be imported as on an XPU: ModuleNotFoundError: No module named 'absent'",
        edited(PATCHED, b"import torch\n", b"import torch\nimport absent\n"),
    ),
    Fault(
        "asymmetric-weights-accepted",
        frozenset({"quantization", "tree"}),
        "{'symmetric': False}: expected an error that says 'symmetric', found XPUCompressedTensorsWNA16",
        edited(
            f"{COMPRESSED_TENSORS}/schemes/compressed_tensors_wNa16.py",
            b"if not self.symmetric:\n            raise",
            b"if False:\n            raise",
        ),
    ),
    Fault(
        "ignore-entries-not-matched",
        frozenset({"quantization", "tree"}),
        "the published ignore list: expected plain, found",
        edited(
            f"{COMPRESSED_TENSORS}/utils.py",
            b"elif target == layer_name or layer_name",
            b"elif layer_name",
        ),
    ),
    Fault(
        "ipex-installed",
        frozenset({"leftovers", "tree"}),
        "intel",
        laid(
            "intel_extension_for_pytorch-2.8.0.dist-info/METADATA",
            b"Name: intel_extension_for_pytorch\nVersion: 2.8.0\n",
        ),
    ),
    Fault(
        "default-changed",
        frozenset({"environment"}),
        "ONEAPI_DEVICE_SELECTOR",
        environment={"ONEAPI_DEVICE_SELECTOR": "opencl:cpu"},
    ),
    Fault(
        "variable-that-nothing-asked-for",
        frozenset({"environment"}),
        "SGLANG_DFLASH_DISABLE_DRAFT_GRAPH",
        environment={"SGLANG_DFLASH_DISABLE_DRAFT_GRAPH": "1"},
    ),
    Fault(
        "kernel-package-without-the-names",
        frozenset({"kernels", "tree"}),
        "imports sgl_kernel.",
        laid("sgl_kernel/__init__.py", b"def rmsnorm(): ...\n"),
    ),
    Fault(
        "readiness-probe-that-generates",
        frozenset({"environment"}),
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
        environment={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "1"},
    ),
    Fault(
        "rejected-experiment-as-a-default",
        frozenset({"environment"}),
        "SGLANG_MAMBA_SSM_DTYPE",
        environment={"SGLANG_MAMBA_SSM_DTYPE": "bfloat16"},
    ),
    Fault(
        "known-bad-variable",
        frozenset({"environment"}),
        "SGLANG_ENABLE_WAR_BARRIER",
        environment={"SGLANG_ENABLE_WAR_BARRIER": "1"},
    ),
]


def plant(real: Real, fault: Fault, folder: Path) -> Image:
    """The sound image plus the fault."""
    layer = oci.write_layer(folder / "layer.tar", fault.entries(real))
    return oci.append_layer(
        real.image,
        folder / "image",
        folder / "layer.tar",
        layer,
        environment=fault.environment,
        labels={},
        created=real.line.release.created,
        comment=f"fault: {fault.name}",
    )


def test_the_sound_image_passes(real: Real, report: CheckReport) -> None:
    """Without this, a fault below could "fail" for another reason."""
    unusual = {row.name: row.status for row in report.checks if row.status is not CheckStatus.PASSED}
    assert unusual == {"kernels": CheckStatus.NOT_APPLICABLE}
    assert report.passed
    assert report.image == real.image.digest


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_exactly_the_expected_checks_fail(real: Real, fault: Fault, tmp_path: Path) -> None:
    """The set is exact: a check that fails too much would soon be ignored."""
    checks = only(SWIFT | fault.fails, tmp_path)
    report = real.check(plant(real, fault, tmp_path), tmp_path / "log", checks)
    bad = {row.name: row for row in report.checks if not row.status.is_sound}
    assert {name: row.reason for name, row in bad.items() if name not in fault.fails} == {}
    assert set(bad) == fault.fails
    assert {row.status for row in bad.values()} == {CheckStatus.FAILED}
    assert fault.says in bad[min(bad)].reason


@pytest.mark.parametrize(
    ("variable", "fails"),
    [("SGLANG_SET_CPU_AFFINITY", set()), ("SGLANG_XPU_DRAFT_RING", {"environment"})],
    ids=["read", "read-by-nothing"],
)
def test_default_must_be_read_by_the_tree(real: Real, variable: str, fails: set[str], tmp_path: Path) -> None:
    """A default of the manifest that no code of the image reads would be believed to do something."""
    default = EnvironmentDefault(value="1", why="a test")
    release = real.line.release.model_copy(update={"environment": {variable: default}})
    other = dataclasses.replace(real, line=real.line.model_copy(update={"release": release}))
    image = images.build(other.line, other.composed, other.base, tmp_path / "image")
    report = other.check(image, tmp_path / "log", only(SWIFT, tmp_path))
    bad = {row.name: row.reason for row in report.checks if not row.status.is_sound}
    assert set(bad) == fails
    assert all(variable in reason for reason in bad.values())


def test_every_check_has_a_fault() -> None:
    """A new check comes with a fault that it sees; more of ``launch`` are in test_launch_faults.py."""
    assert set().union(*(fault.fails for fault in FAULTS)) == set(expected_checks(CHECKS))
