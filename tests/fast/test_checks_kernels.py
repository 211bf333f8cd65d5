"""The kernel check: what a start on an XPU imports, and what a package has."""

import ast
from pathlib import Path

import pytest

from checks import kernel_names
from checks.test_kernels import START
from tests.fast.builders import write_files
from tests.fast.fake_image import FakeImage

BACKEND = """
from typing import TYPE_CHECKING
from sgl_kernel import attend, merge as merged
from sgl_kernel.flash import step
from sglang.srt.utils import is_cuda, is_xpu
_is_cuda, _is_xpu = is_cuda(), is_xpu()
if _is_cuda:
    from sgl_kernel import only_cuda
elif _is_xpu:
    from sgl_kernel import on_xpu
try:
    from sgl_kernel import optional
except ImportError:
    optional = None
if TYPE_CHECKING:
    from sgl_kernel import for_types
def lazy():
    from sgl_kernel import later
"""
PACKAGE = {
    "__init__.py": "from sgl_kernel.core import *\nfrom .core import attend as attend\nmerge = 1\n",
    "core.py": "def attend(): ...\ndef on_xpu(): ...\n",
    "flash.py": "class step: ...\n",
}


@pytest.fixture
def image(tmp_path: Path) -> FakeImage:
    """An image on a base with kernels, whose start imports some of them."""
    made = FakeImage(tmp_path)
    made.given["base_kind"] = "published"
    launch, backend = START
    made.put_in_tree(launch, "from sglang.srt import server\n")
    made.put_in_tree(backend, BACKEND)
    for name, text in PACKAGE.items():
        made.write(f"sgl_kernel/{name}", text)
        made.put_in_base(f"sgl_kernel/{name}")
    return made


def fails(image: FakeImage, *reason: str) -> None:
    report = image.run()
    assert report.statuses == {"kernels": "failed"}, report.stderr
    for words in reason:
        assert words in report.reason("kernels")


def test_package_with_every_name_passes(image: FakeImage) -> None:
    report = image.run()
    assert report.statuses == {}
    assert "names that the start on an XPU imports: 4, all in sgl_kernel" in report.reason("kernels")


@pytest.mark.parametrize(
    ("file", "old", "name"),
    [
        ("core.py", "def on_xpu(): ...\n", "sgl_kernel.on_xpu"),
        ("__init__.py", "merge = 1\n", "sgl_kernel.merge"),
        ("flash.py", "class step: ...\n", "sgl_kernel.flash.step"),
    ],
)
def test_name_that_the_package_lacks_is_found(image: FakeImage, file: str, old: str, name: str) -> None:
    image.write(f"sgl_kernel/{file}", PACKAGE[file].replace(old, ""))
    image.put_in_base(f"sgl_kernel/{file}")
    fails(image, f"{START[1]}: imports {name}, which ", "pair kernels and SGLang anew")


def test_base_from_a_registry_without_kernels_fails(image: FakeImage) -> None:
    for name in PACKAGE:
        (image.root / "sgl_kernel" / name).unlink()
        del image.given["inventory"]["files"][f"sgl_kernel/{name}"]
    (image.root / "sgl_kernel").rmdir()
    fails(image, "expected the kernel package, found none")


def test_cpu_base_has_nothing_to_judge(tmp_path: Path) -> None:
    report = FakeImage(tmp_path).run()
    assert report.rows["kernels"]["status"] == "not_applicable"
    assert report.reason("kernels") == "the cpu base has no sgl_kernel; judged on a base with kernels"


def test_package_on_a_cpu_base_is_judged_all_the_same(image: FakeImage) -> None:
    image.given["base_kind"] = "cpu"
    image.write("sgl_kernel/flash.py", "")
    image.put_in_base("sgl_kernel/flash.py")
    fails(image, "sgl_kernel.flash.step")


def test_start_that_is_not_there_fails(image: FakeImage) -> None:
    image.given["architectures"]["Gone"] = {"file": "sglang/srt/models/gone.py"}
    assert "kernels" in image.run().statuses


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("_is_cuda", False),
        ("is_xpu()", True),
        ("not _is_npu", True),
        ("_is_cuda or _is_xpu", True),
        ("_is_cuda and flag", False),
        ("flag or _is_xpu", True),
        ("flag", None),
        ("_is_xpu and flag", None),
        ("not flag", None),
        ("is_flashinfer_available()", None),
        ("platform.is_hip", False),
        ("TYPE_CHECKING", False),
    ],
)
def test_condition_on_the_platform_is_taken_as_on_an_xpu(condition: str, holds: bool | None) -> None:
    assert kernel_names.on_xpu(ast.parse(condition, mode="eval").body) is holds


def test_imports_are_followed_relative_ones_and_packages_too(tmp_path: Path) -> None:
    files = {
        "sglang/__init__.py": "",
        "sglang/a/__init__.py": "from .b import x\n",
        "sglang/a/b.py": "from ..c import d\n",
        "sglang/c/__init__.py": "",
        "sglang/c/d.py": "import sgl_kernel.deep\nfrom sgl_kernel import k\n",
        "sglang/other.py": "from sgl_kernel import never\n",
    }
    write_files(tmp_path, {**files, "sglang/start.py": "import sglang.a\n"})
    found = kernel_names.imported(tmp_path, ["sglang/start.py"])
    assert found == {"sgl_kernel.deep": "sglang/c/d.py", "sgl_kernel.k": "sglang/c/d.py"}
