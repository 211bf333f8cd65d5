"""The checks that ask SGLang as on an XPU, with a process that finds a small SGLang in its place."""

import dataclasses
from pathlib import Path

import pytest

from checks import test_imports, test_quantization, xpu
from checks.given import Given, load
from checks.xpu import Answer
from pipeline.check_data import input_parts
from pipeline.checkpoint import naming
from pipeline.manifest import DEFAULT_LINE, load_line
from tests.fast.fake_image import FakeImage

TORCH = "class xpu:\n    is_available = staticmethod(lambda: False)\n"
QUANTISATION = """\
import torch


class UnquantizedLinearMethod: ...


class INT4:
    def __init__(self, config):
        if not config["symmetric"]:
            raise NotImplementedError("only symmetric weights")
        if config["num_bits"] != 4:
            raise NotImplementedError("only 4-bit weights")
        if config["group_size"] < 32:
            raise NotImplementedError("no such group_size")
        if config.get("actorder"):
            raise NotImplementedError("no reordering")


class XPUCompressedTensorsWNA16(INT4): ...


class Config:
    def __init__(self, config):
        self.config = config

    from_config = classmethod(lambda cls, config: cls(config))

    def scheme(self, name):
        parts = self.packed_modules_mapping.get(name.rpartition(".")[2], [])
        names = {name, *(name.replace(name.rpartition(".")[2], part) for part in parts)}
        if names & set(self.config["ignore"]):
            return None
        cls = XPUCompressedTensorsWNA16 if torch.xpu.is_available() else INT4
        return cls(self.config["config_groups"]["group_0"]["weights"])


def get_quantization_config(name):
    return {"compressed-tensors": Config}[name]
"""
LINEAR = """\
from sglang.srt.layers.quantization import UnquantizedLinearMethod


class LinearBase:
    def __init__(self, inputs, outputs, quant_config, prefix):
        self.scheme = quant_config.scheme(prefix)
        self.quant_method = object() if self.scheme else UnquantizedLinearMethod()
"""
MTP = "class Qwen3_5ForCausalLMMTP:\n    packed_modules_mapping = {'qkv_proj': ['q_proj', 'k_proj', 'v_proj']}\n"
ON_XPU = "import torch\n\nif torch.xpu.is_available():\n    "


@pytest.fixture
def image(tmp_path: Path) -> FakeImage:
    """A small SGLang with the classes that the process asks; torch is a name only."""
    made = FakeImage(tmp_path)
    made.write("torch.py", TORCH)
    made.write("sglang/srt/layers/__init__.py", "")
    made.write("sglang/srt/layers/quantization/__init__.py", QUANTISATION)
    made.write("sglang/srt/layers/linear.py", LINEAR)
    made.write("sglang/srt/models/qwen3_5_mtp.py", MTP)
    made.patch("sglang/srt/server.py", ON_XPU + "from sgl_kernel import store_cache_xpu\n")
    return made


def ask(image: FakeImage, seconds: float = 60) -> tuple[Given, Answer]:
    given = dataclasses.replace(load(image.write_volume()), environment=image.variables)
    return given, xpu.ask(given, seconds)


def problems(image: FakeImage, seconds: float = 60) -> dict[str, list[str]]:
    """Problems of both checks."""
    given, answer = ask(image, seconds)
    return {
        "imports": list(test_imports.problems(given, answer)),
        "quantization": list(test_quantization.problems(given.quantization, answer)),
    }


def test_sound(image: FakeImage) -> None:
    given, answer = ask(image)
    assert problems(image) == {"imports": [], "quantization": []}
    assert answer.modules == {"sglang.srt.kernel": None, "sglang.srt.new": None, "sglang.srt.server": None}
    assert len(answer.layers) == len(list(xpu.layers(given.quantization)))


def test_file_that_cannot_be_imported(image: FakeImage) -> None:
    image.write("sglang/srt/new.py", "import absent\n")
    error = "ModuleNotFoundError: No module named 'absent'"
    found = problems(image)
    assert found == {"imports": [f"sglang/srt/new.py: cannot be imported as on an XPU: {error}"], "quantization": []}


def test_branch_that_only_an_xpu_takes(image: FakeImage) -> None:
    image.patch("sglang/srt/server.py", ON_XPU + "raise RuntimeError('x\\ny')\n")
    (problem,) = problems(image)["imports"]
    assert problem.endswith("server.py: cannot be imported as on an XPU: RuntimeError: x")


def test_nothing_of_ours_proves_nothing(image: FakeImage) -> None:
    for entry in image.given["record"]["files"].values():
        entry |= {"origin": "source:sglang", "patches": []}
    assert problems(image)["imports"] == ["expected Python files of ours in the record, found none"]


@pytest.mark.parametrize(
    ("old", "new", "count", "says"),
    [
        ('not config["symmetric"]', "False", 4, "expected an error that says 'symmetric', found XPUCompressedTensors"),
        ('"only 4-bit weights"', '"no"', 4, "expected an error that says '4-bit', found NotImplementedError: no"),
        (
            'config["group_size"] < 32',
            "False",
            4,
            "expected an error that says 'group_size', found XPUCompressedTensors",
        ),
        ('config.get("actorder")', "False", 4, "expected an error that says 'reordering', found XPUCompressedTensors"),
        ("torch.xpu.is_available()", "False", 14, "expected XPUCompressedTensorsWNA16, found INT4"),
        ("names & set(", "not set(", 4, "the published ignore list: expected plain, found XPUCompressedTensorsWNA16"),
        ('["ignore"]):', '["ignore"]) or "mtp" in names | set(self.config["ignore"]):', 4, "which match nothing: exp"),
        ('"compressed-tensors": Config', "", 36, "found KeyError: 'compressed-tensors'"),
    ],
    ids=[
        "asymmetric",
        "other error",
        "small groups",
        "reordered",
        "not for XPU",
        "nothing ignored",
        "parents match",
        "unknown method",
    ],
)
def test_sglang_that_builds_layers_otherwise(image: FakeImage, old: str, new: str, count: int, says: str) -> None:
    assert old in QUANTISATION
    image.write("sglang/srt/layers/quantization/__init__.py", QUANTISATION.replace(old, new))
    found = problems(image)
    assert found["imports"] == []
    assert sum(says in problem for problem in found["quantization"]) == count, found["quantization"]


@pytest.mark.parametrize(
    ("torch", "seconds", "says"),
    [
        ("raise ImportError('broken torch')\n", 60, "found status 1: ImportError: broken torch"),
        ("import time\ntime.sleep(60)\n", 0.2, "found none within 0.2 s"),
        ("import os\nos._exit(3)\n", 60, "found status 3: no output"),
    ],
    ids=["torch is broken", "too slow", "dies silently"],
)
def test_no_answer_fails_both(image: FakeImage, torch: str, seconds: float, says: str) -> None:
    image.write("torch.py", torch)
    found = problems(image, seconds)
    assert found["imports"] == found["quantization"]
    assert says in found["imports"][0]


def test_another_sglang_is_no_answer(image: FakeImage, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (image.root / "sglang").rename(tmp_path / "elsewhere/sglang")
    (image.root / "sglang").symlink_to(tmp_path / "elsewhere/sglang")
    image.write("torch.py", TORCH + f"import sys\nsys.path.insert(0, {str(tmp_path / 'elsewhere')!r})\n")
    assert "found one of " in problems(image)["imports"][0]


NO_INT4 = 'raise AssertionError("Torch not compiled with CUDA enabled")'


@pytest.mark.parametrize(
    ("scheme", "bad"), [(NO_INT4, 0), ("return None", 14), ('raise AssertionError("another")', 14)], ids=str
)
def test_line_that_does_not_serve_such_weights(image: FakeImage, scheme: str, bad: int) -> None:
    """The start stops with the error that the line states: another one is as wrong as a layer that is built."""
    error = "AssertionError: Torch not compiled with CUDA enabled"
    image.given["quantization"] |= {"scheme": None, "refused": [], "stops_with": error}
    text = QUANTISATION.replace('return cls(self.config["config_groups"]["group_0"]["weights"])', scheme)
    image.write("sglang/srt/layers/quantization/__init__.py", text)
    found = problems(image)["quantization"]
    assert len(found) == bad
    assert all(f"expected {error}, found " in row for row in found)


def test_lists_are_those_of_the_checkpoint_gate() -> None:
    mtp = input_parts(load_line(DEFAULT_LINE))["quantization"]["mtp"]
    assert sorted(mtp["ignore"]) == sorted(naming.MTP_EXCLUSIONS)
    assert mtp["modules"] == [built.name for built in naming.MTP_BUILT]


def test_stand_in_imports_any_name_and_runs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(xpu.STUBS)
    import sgl_kernel  # type: ignore[import-not-found]

    with pytest.raises(NotImplementedError, match=r"^sgl_kernel\.store_cache_xpu: the stand-in has no such kernel"):
        sgl_kernel.store_cache_xpu()
    with pytest.raises(AttributeError):
        sgl_kernel.__path_hooks__  # noqa: B018
