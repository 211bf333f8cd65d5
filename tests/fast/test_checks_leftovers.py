"""The leftovers check: traces of the workshop in what we added, and only there."""

import re
from pathlib import Path, PurePosixPath

import pytest

from checks.test_leftovers import path_matches
from pipeline.check_data import input_parts
from pipeline.manifest import DEFAULT_LINE, load_line
from tests.fast.fake_image import KERNEL, PATCHED_KERNEL, FakeImage

RULES: dict[str, list[dict[str, str]]] = input_parts(load_line(DEFAULT_LINE))["leftovers"]


@pytest.fixture
def image(tmp_path: Path) -> FakeImage:
    return FakeImage(tmp_path)


def fails(image: FakeImage, *reason: str, also: str | None = None) -> None:
    """Run; the leftovers check fails (and ``also``, if named), and its reason holds these words."""
    report = image.run()
    expected = {"leftovers": "failed"} | ({also: "failed"} if also else {})
    assert report.statuses == expected, report.stderr
    for words in reason:
        assert words in report.reason("leftovers")


def test_proof_counts_paths_and_lines(image: FakeImage) -> None:
    reason = image.run().reason("leftovers")
    assert "lines of ours: 2, files looked at: 2; intel-extension-for-pytorch is absent" in reason


def test_path_in_our_layer(image: FakeImage) -> None:
    image.given["layer_paths"].append(f"{image.root}/sglang/a.py.orig".strip("/"))
    fails(image, "sglang/a.py.orig: backup (*.orig)")


def test_new_file_that_the_layer_list_does_not_have(image: FakeImage) -> None:
    image.write("sglang/srt/kernel.py.orig", KERNEL)
    fails(image, "sglang/srt/kernel.py.orig: backup (*.orig)", also="tree")


def test_folder_pattern(image: FakeImage) -> None:
    image.write("sglang/tests/data.py", "A = 1\n")
    fails(image, "sglang/tests/data.py: folder of tests (tests/)", also="tree")


def test_the_same_names_in_the_base_and_upstream_are_not_ours(image: FakeImage) -> None:
    image.put_in_tree("sglang/tests/a.py", "A = 1\n")
    image.write("other/a.orig", "A")
    image.put_in_base("other/a.orig")
    image.given["layer_paths"].append(f"{image.root}/sglang/tests/a.py".strip("/"))
    assert image.run().statuses == {}


def test_overlay_file_under_such_a_name_is_ours(image: FakeImage) -> None:
    image.put_in_tree("sglang/tests/a.py", "A = 1\n")
    image.given["record"]["files"]["sglang/tests/a.py"]["origin"] = "overlay:new"
    image.given["layer_paths"].append(f"{image.root}/sglang/tests/a.py".strip("/"))
    fails(image, "sglang/tests/a.py: folder of tests")


def test_layer_reaches_outside_the_package_root(image: FakeImage) -> None:
    image.given["layer_paths"] += ["etc", "etc/profile.d/debug.sh"]
    fails(image, "etc: the layer carries it, expected only", "and 1 more")


def test_line_in_a_patched_file(image: FakeImage) -> None:
    image.patch("sglang/srt/kernel.py", PATCHED_KERNEL + "import torch.profiler\n")
    fails(image, "sglang/srt/kernel.py:5: profiler: 'import torch.profiler'")


def test_upstream_s_own_line_is_not_flagged_but_a_copy_of_it_is(image: FakeImage) -> None:
    assert "torch.profiler" in KERNEL
    assert image.run().statuses == {}
    image.patch("sglang/srt/kernel.py", PATCHED_KERNEL + KERNEL.splitlines(keepends=True)[0])
    fails(image, "sglang/srt/kernel.py:5: profiler")


def test_line_in_an_overlay_file(image: FakeImage) -> None:
    image.patch("sglang/srt/new.py", "import torch.profiler\n")
    image.given["record"]["files"]["sglang/srt/new.py"].update(origin="overlay:new", patches=[])
    fails(image, "sglang/srt/new.py:1: profiler")


def test_line_in_a_file_of_a_second_source(image: FakeImage) -> None:
    image.put_in_tree("sglang/srt/draft.py", "import torch.profiler\n")
    image.given["record"]["files"]["sglang/srt/draft.py"]["origin"] = "source:dflash2"
    fails(image, "sglang/srt/draft.py:1: profiler")


def test_line_in_a_file_that_we_did_not_touch(image: FakeImage) -> None:
    image.put_in_tree("sglang/srt/kernels.py", "import torch.profiler\n")
    assert image.run().statuses == {}


class TestIpex:
    """intel_extension_for_pytorch is deliberately absent."""

    @pytest.mark.parametrize("name", ["intel_extension_for_pytorch", "Intel.Extension-for_PyTorch"])
    def test_installed_distribution(self, image: FakeImage, name: str) -> None:
        path = "intel_ext-2.8.0.dist-info/METADATA"
        image.write(path, f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.8.0\n")
        image.put_in_base(path)
        fails(image, "intel-extension-for-pytorch 2.8.0 is installed: XPU support is in torch itself")
        image.given["allows"] = ["intel-extension-for-pytorch"]
        report = image.run()
        assert report.statuses == {}
        assert "intel-extension-for-pytorch is allowed by the base" in report.reason("leftovers")

    def test_folder_without_metadata(self, image: FakeImage) -> None:
        image.write("intel_extension_for_pytorch/__init__.py", "")
        image.put_in_base("intel_extension_for_pytorch/__init__.py")
        fails(image, "intel_extension_for_pytorch exists")

    @pytest.mark.parametrize(
        "line",
        [
            "import intel_extension_for_pytorch as ipex",
            "    from intel_extension_for_pytorch.llm import f",
            "m = importlib.import_module('intel_extension_for_pytorch')",
        ],
    )
    def test_import_in_our_lines(self, image: FakeImage, line: str) -> None:
        text = f"import importlib\n\n\ndef f():\n    pass\n{line}\n" if not line.startswith(" ") else f"if 1:\n{line}\n"
        image.patch("sglang/srt/kernel.py", PATCHED_KERNEL + text)
        fails(image, "imports intel-extension-for-pytorch", line.strip())


class TestData:
    """The patterns of the real data file."""

    @pytest.mark.parametrize(
        "line",
        [
            "<<<<<<< HEAD",
            ">>>>>>> ours",
            "=======",
            "    breakpoint()",
            "import pdb; pdb.set_trace()",
            "with torch.profiler.profile() as p:",
            "from torch import nn, profiler",
            "with record_function('draft'):",
            "self.phase_timer = PhaseTimer()",
            "class DFlashPhaseProfiler:",
            "start = torch.xpu.Event(enable_timing=True)",
            "if os.environ.get('SGLANG_DFLASH_PROFILE'):",
            "if envs.SGLANG_XPU_DEBUG_VERIFY.get():",
            "SGLANG_DIAG_RING = EnvBool(False)",
            "dtype = os.environ.get('SGLANG_DFLASH_DRAFT_KV_DTYPE')",
            "draft_kv_fp8 = True",
            "        print(hidden.shape)",
            "logger.info('[DBG] %s', x)",
            "torch.save(hidden, path)",
            "path = '/tmp/draft.pt'",
            "traceback.print_stack()",
        ],
    )
    def test_flagged(self, line: str) -> None:
        assert any(re.search(rule["pattern"], line) for rule in RULES["content"])

    @pytest.mark.parametrize(
        "line",
        [
            "ring_stride = ceil_align(window + page_size - 1 + block, page_size)",
            "logger.info('draft ring: %d rows', rows)",
            "dtype = get_spec().speculative_draft_kv_cache_dtype",
            "_, draft_kv_dtype = configure_kv_cache_dtype(",
            "if not envs.SGLANG_DFLASH_DISABLE_DRAFT_GRAPH.get():",
            "raise ValueError('DFLASH draft window does not match the checkpoint')",
            "def blueprint(self): return reprint(self)",
            "# heading ======= of a table",
            "retrace = SGLANG_RETRACED",
            "torch.xpu.synchronize()",
            "timer_free = step_time(phase=1)",
            "missing = expected.keys() - loaded.keys()",
        ],
    )
    def test_not_flagged(self, line: str) -> None:
        assert not [rule for rule in RULES["content"] if re.search(rule["pattern"], line)]

    @pytest.mark.parametrize(
        ("path", "hit"),
        [
            ("sglang/a.py.orig", True),
            ("sglang/a.py.rej", True),
            ("sglang/a.py~", True),
            ("sglang/.a.py.swp", True),
            ("sglang/__pycache__/a.cpython-311.pyc", True),
            ("sglang/test_ring.py", True),
            ("sglang/ring_test.py", True),
            ("sglang/tests/helpers.py", True),
            ("sglang/.gitignore", True),
            ("sglang/.git/config", True),
            ("sglang/nohup.out", True),
            ("sglang/server.log", True),
            ("sglang/srt/speculative/dflash_ring.py", False),
            ("sglang/srt/speculative/latest.py", False),
            ("sglang/srt/attestation/contest.py", False),
            ("usr/local/share/sglang-xpu/record.json", False),
        ],
    )
    def test_paths(self, path: str, hit: bool) -> None:
        assert any(path_matches(rule["pattern"], PurePosixPath(path)) for rule in RULES["paths"]) is hit
