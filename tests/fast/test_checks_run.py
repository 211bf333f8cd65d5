"""checks/run.py itself: one row per check file, whatever happens, and a clean standard output."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pipeline.documents import CheckResult
from tests.fast.fake_image import FakeImage

PASSES = "def test_it(verdict): verdict.conclude('3 things proven')\n"
FAILS = "def test_it(verdict):\n    verdict.problem('first')\n    verdict.problem('second')\n    verdict.conclude('')\n"


@pytest.fixture
def image(tmp_path: Path) -> FakeImage:
    return FakeImage(tmp_path)


def test_document_has_the_shape_of_check_results(image: FakeImage) -> None:
    report = image.start({"test_good.py": PASSES, "test_bad.py": FAILS})
    results = [CheckResult.model_validate(row) for row in report.rows.values()]
    assert [(row.name, row.status.value, row.reason) for row in results] == [
        ("bad", "failed", "first (and 1 more)"),
        ("good", "passed", "3 things proven"),
    ]
    assert report.returncode == 1
    assert {case.get("name") for case in ET.fromstring(report.junit).iter("testcase")} == {"test_it"}


def test_check_that_has_nothing_to_judge_says_so(image: FakeImage) -> None:
    nothing = "def test_it(verdict): verdict.not_applicable('no such part; judged elsewhere')\n"
    report = image.start({"test_a.py": nothing, "test_b.py": PASSES})
    row = CheckResult.model_validate(report.rows["a"])
    assert (row.status.value, row.reason) == ("not_applicable", "no such part; judged elsewhere")
    assert report.returncode == 0


def test_problem_beside_nothing_to_judge_is_a_failure(image: FakeImage) -> None:
    nothing = "def test_it(verdict): verdict.not_applicable('nothing')\n\n\n"
    assert image.start({"test_a.py": nothing + FAILS.replace("test_it", "test_more")}).statuses == {"a": "failed"}


def test_several_tests_of_one_check_become_one_row(image: FakeImage) -> None:
    report = image.start({"test_a.py": PASSES + FAILS.replace("test_it", "test_more") + FAILS.replace("it", "z")})
    assert report.rows["a"]["reason"] == "first (and 3 more)"


def test_what_a_check_prints_does_not_reach_the_document(image: FakeImage) -> None:
    noise = "import os\n\n\ndef test_it(verdict):\n    os.system('echo noise; echo noise >&2')\n    print('noise')\n"
    report = image.start({"test_a.py": noise + "    verdict.conclude('quiet')\n"})
    assert report.statuses == {}


def test_exception_in_a_check_is_an_error(image: FakeImage) -> None:
    report = image.start({"test_a.py": "def test_it():\n    raise KeyError('odd\\nlines')\n"})
    assert report.statuses == {"a": "error"}
    assert report.reason("a").startswith("KeyError: ")


def test_check_file_that_cannot_be_imported(image: FakeImage) -> None:
    report = image.start({"test_a.py": "import missing_thing\n", "test_b.py": PASSES})
    assert report.statuses == {"a": "error"}
    assert "No module named 'missing_thing'" in report.reason("a")


def test_failing_fixture_is_an_error(image: FakeImage) -> None:
    fixture = "import pytest\n\n\n@pytest.fixture\ndef broken():\n    raise OSError('no disk')\n\n\n"
    code = fixture + "def test_it(broken): ...\n"
    report = image.start({"test_a.py": code})
    assert report.statuses == {"a": "error"}
    assert "no disk" in report.reason("a")


def test_failing_tear_down_is_an_error(image: FakeImage) -> None:
    code = "import pytest\n\n\n@pytest.fixture\ndef late():\n    yield\n    raise OSError('late')\n\n\n"
    report = image.start({"test_a.py": code + PASSES.replace("verdict)", "verdict, late)")})
    assert report.statuses == {"a": "error"}


def test_skipped_check_is_an_error(image: FakeImage) -> None:
    report = image.start({"test_a.py": "import pytest\n\n\ndef test_it():\n    pytest.skip('lazy')\n"})
    assert report.statuses == {"a": "error"}
    assert "lazy" in report.reason("a")


def test_check_that_proves_nothing_is_an_error(image: FakeImage) -> None:
    report = image.start({"test_a.py": "def test_it(): ...\n"})
    assert report.statuses == {"a": "error"}
    assert report.reason("a") == "the check ended without saying what it proved"


def test_file_without_tests_is_not_run(image: FakeImage) -> None:
    report = image.start({"test_a.py": "", "test_b.py": PASSES})
    assert report.statuses == {"a": "not_run"}


def test_interrupt_leaves_later_checks_not_run(image: FakeImage) -> None:
    code = "def test_it():\n    raise KeyboardInterrupt\n"
    report = image.start({"test_a.py": PASSES, "test_b.py": code, "test_c.py": PASSES})
    assert report.statuses == {"b": "not_run", "c": "not_run"}
    assert report.returncode == 1


@pytest.mark.parametrize("key", ["record", "removed"])
def test_input_that_lacks_a_key(image: FakeImage, key: str) -> None:
    del image.given[key]
    report = image.start()
    assert set(report.statuses.values()) == {"error"}
    assert f"expected the key '{key}', found none" in report.reason("tree")


def test_sound_image(image: FakeImage) -> None:
    report = image.start()
    assert list(report.rows) == ["environment", "features", "kernels", "leftovers", "registry", "startup", "tree"]
    assert report.statuses == {}, report.stderr
    assert report.returncode == 0


def test_a_fault_for_each_check(image: FakeImage) -> None:
    image.variables["LEFT_BEHIND"] = "1"
    image.given["record"]["files"]["sglang/srt/kernel.py"]["sha256"] = "0" * 64
    image.given["features"][0]["find"] = ["missing_code()"]
    image.given["leftovers"]["content"] = [{"pattern": "VALUE", "reason": "word"}]
    image.given["architectures"]["Unknown"] = {"file": "sglang/a.py", "why": ""}
    report = image.start()
    assert set(report.statuses.values()) == {"failed"}
    assert len(report.statuses) == 5
    assert {report.reason(name) for name in report.rows} == {image.run().reason(name) for name in report.rows}


def test_long_reason_is_cut(image: FakeImage) -> None:
    report = image.start({"test_a.py": PASSES.replace("3 things proven", "x" * 1000)})
    assert len(report.reason("a")) == 500


def test_ini_files_and_variables_of_the_surroundings_do_not_matter(image: FakeImage) -> None:
    (image.home / "pytest.ini").write_text("[pytest]\naddopts = --unknown-option\n")
    assert image.start({"test_a.py": PASSES}).statuses == {}
