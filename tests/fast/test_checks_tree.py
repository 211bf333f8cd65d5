"""The tree check: a sound image passes, each planted fault fails exactly this check with its own reason."""

import json
import os
import shutil
from pathlib import Path

import pytest

from checks.bytecode import source_of
from checks.files import scan
from tests.fast.fake_image import KERNEL, RECORD, FakeImage, bytecode

KERNEL_PYC = "sglang/srt/__pycache__/kernel.cpython-311.pyc"


@pytest.fixture
def image(tmp_path: Path) -> FakeImage:
    return FakeImage(tmp_path)


def fails(image: FakeImage, *reason: str) -> None:
    """Run; the tree check alone fails, and its reason holds these words."""
    report = image.run()
    assert report.statuses == {"tree": "failed"}, report.stderr
    for words in reason:
        assert words in report.reason("tree")


def test_a_sound_image_passes_every_check(image: FakeImage) -> None:
    report = image.run()
    assert report.statuses == {}, report.stderr
    assert list(report.rows) == ["environment", "features", "kernels", "leftovers", "registry", "startup", "tree"]
    assert report.reason("tree").startswith("10 files below")
    assert "8 files, 2 of them from later layers" in report.reason("tree")


def test_extra_module(image: FakeImage) -> None:
    image.write("sglang/srt/more.py", "A = 1\n")
    fails(image, "sglang/srt/more.py: extra file")


def test_extra_file_outside_the_tree(image: FakeImage) -> None:
    image.write("other/data.txt", "A")
    fails(image, "other/data.txt: extra file")


def test_changed_byte_of_a_tree_file(image: FakeImage) -> None:
    image.write("sglang/srt/new.py", "VALUE = 2\n")
    fails(image, "sglang/srt/new.py: expected sha256", "of the record")


def test_unpatched_file_fails_its_feature_too(image: FakeImage) -> None:
    image.write("sglang/srt/kernel.py", KERNEL)
    assert image.run().statuses == {"tree": "failed", "features": "failed"}


def test_changed_byte_of_a_base_file(image: FakeImage) -> None:
    image.write("other/__init__.py", "A = 2\n")
    fails(image, "other/__init__.py: expected sha256", "of the base's inventory")


@pytest.mark.parametrize("path", ["sglang/srt/new.py", "other/__init__.py"])
def test_missing_file(image: FakeImage, path: str) -> None:
    (image.root / path).unlink()
    fails(image, f"{path}: missing")


@pytest.mark.parametrize("path", ["sglang/srt/new.py", "sglang/srt/kernel.py", "other/__init__.py"])
def test_wrong_mode(image: FakeImage, path: str) -> None:
    (image.root / path).chmod(0o755)
    fails(image, f"{path}: expected mode 0644, found 0755")


def test_mode_of_the_base_is_kept_by_a_changed_file(image: FakeImage) -> None:
    image.given["inventory"]["files"]["sglang/srt/kernel.py"]["mode"] = 0o755
    fails(image, "sglang/srt/kernel.py: expected mode 0755, found 0644")


def test_file_replaced_by_a_symlink_to_the_same_bytes(image: FakeImage) -> None:
    (image.root / "other/__init__.py").rename(image.home / "moved")
    (image.root / "other/__init__.py").symlink_to(image.home / "moved")
    fails(image, "other/__init__.py: expected sha256")


def test_symlink_of_the_base(image: FakeImage) -> None:
    (image.root / "other/link").symlink_to("__init__.py")
    entry = {"sha256": "a4b37b52dd0eefa9b95f3e9e79f62b4c9c2b9e8eb4ae0ab4b0a0d2a9c5c5e7b0", "mode": 0o777}
    image.given["inventory"]["files"]["other/link"] = entry
    fails(image, "other/link: expected sha256")
    found, _ = scan(image.root)
    entry["sha256"] = found["other/link"].sha256
    assert image.run().statuses == {}


def test_node_that_is_no_file(image: FakeImage) -> None:
    os.mkfifo(image.root / "other/pipe")
    fails(image, "other/pipe: expected a file or symlink")


def test_file_that_the_tree_dropped_must_be_gone(image: FakeImage) -> None:
    image.write("sglang/old.py", "A = 1\n")
    image.put_in_base("sglang/old.py")
    fails(image, "sglang/old.py: extra file")
    (image.root / "sglang/old.py").unlink()
    image.given["removed"] = ["sglang/old.py"]
    assert image.run().statuses == {}


def test_whiteout_that_did_not_take_effect(image: FakeImage) -> None:
    image.write("sglang/old.so", "A")
    image.put_in_base("sglang/old.so")
    image.given["removed"] = ["sglang/old.so"]
    fails(image, "sglang/old.so: extra file")


def test_whiteout_of_a_foreign_package(image: FakeImage) -> None:
    (image.root / "other/__init__.py").unlink()
    image.given["removed"] = ["other/__init__.py"]
    fails(image, "other/__init__.py: the layer deletes it, expected deletions only below sglang/")


def test_whiteout_of_a_recorded_file(image: FakeImage) -> None:
    image.given["removed"] = ["sglang/srt/new.py"]
    fails(image, "sglang/srt/new.py: the layer deletes it, expected it to stay")


def test_record_in_the_image_differs(image: FakeImage) -> None:
    other = {**image.given["record"], "line": "another"}
    image.foreign_record = True
    (image.home / RECORD).parent.mkdir()
    (image.home / RECORD).write_text(json.dumps(other))
    fails(image, "found another: line")


def test_no_record_in_the_image(image: FakeImage) -> None:
    image.foreign_record = True
    fails(image, "found none that can be read")


class TestBytecode:
    """PEP 552: only bytecode that Python compares with its source by hash is safe beside a changed source."""

    def test_checked_hash_of_the_base_beside_an_unchanged_source(self, image: FakeImage) -> None:
        source = image.root / "other/__init__.py"
        path = "other/__pycache__/__init__.cpython-311.pyc"
        image.write(path, bytecode(source))
        image.put_in_base(path)
        report = image.run()
        assert report.statuses == {}
        assert "1 bytecode files" in report.reason("tree")

    @pytest.mark.parametrize("flags", [0, 0b01])
    def test_other_bytecode_of_the_base_is_trusted_only_while_its_source_is(self, image: FakeImage, flags: int) -> None:
        path = "other/__pycache__/__init__.cpython-311.pyc"
        image.write(path, bytecode(image.root / "other/__init__.py", flags=flags))
        image.put_in_base(path)
        assert image.run().statuses == {}

    def test_timestamp_bytecode_with_length_and_time_of_the_changed_source(self, image: FakeImage) -> None:
        """What Python itself would run: the old code, without a warning."""
        source = image.root / "sglang/srt/kernel.py"
        old = KERNEL.replace("bfloat16", "float16").encode()
        source.write_bytes(old)
        os.utime(source, (1, 1))
        data = bytecode(source, flags=0)
        new = old.replace(b"float16", b"float32")
        source.write_bytes(new)
        os.utime(source, (1, 1))
        assert data == bytecode(source, flags=0, text=old), "the header alone does not tell them apart"
        image.patch("sglang/srt/kernel.py", new.decode())
        image.write(KERNEL_PYC, data)
        image.put_in_base(KERNEL_PYC)
        fails(image, f"{KERNEL_PYC}: timestamp bytecode beside a source that the base did not have so")

    def test_unchecked_hash_bytecode_of_a_changed_source(self, image: FakeImage) -> None:
        image.write(KERNEL_PYC, bytecode(image.root / "sglang/srt/kernel.py", flags=0b01, text=KERNEL.encode()))
        image.put_in_base(KERNEL_PYC)
        fails(image, f"{KERNEL_PYC}: unchecked-hash bytecode")

    def test_checked_hash_bytecode_of_another_source(self, image: FakeImage) -> None:
        image.write(KERNEL_PYC, bytecode(image.root / "sglang/srt/kernel.py", text=KERNEL.encode()))
        image.put_in_base(KERNEL_PYC)
        fails(image, f"{KERNEL_PYC}: checked-hash bytecode of another source")

    def test_truncated_bytecode(self, image: FakeImage) -> None:
        image.write(KERNEL_PYC, b"short")
        image.put_in_base(KERNEL_PYC)
        fails(image, f"{KERNEL_PYC}: bytecode shorter than its header")

    def test_new_bytecode_is_an_extra_file_even_when_it_fits(self, image: FakeImage) -> None:
        image.write(KERNEL_PYC, bytecode(image.root / "sglang/srt/kernel.py"))
        fails(image, f"{KERNEL_PYC}: extra file")

    @pytest.mark.parametrize("path", ["sglang/srt/__pycache__/gone.cpython-311.pyc", "sglang/srt/gone.pyc"])
    def test_bytecode_without_a_source(self, image: FakeImage, path: str) -> None:
        image.write(path, bytecode(image.root / "sglang/srt/new.py"))
        image.put_in_base(path)
        fails(image, f"{path}: bytecode without its source sglang/srt/gone.py")

    def test_bytecode_whose_source_left_a_foreign_package(self, image: FakeImage) -> None:
        image.write("other/gone.py", "A = 1\n")
        image.write("other/gone.pyc", bytecode(image.root / "other/gone.py"))
        image.put_in_base("other/gone.py")
        image.put_in_base("other/gone.pyc")
        (image.root / "other/gone.py").unlink()
        fails(image, "other/gone.py: missing", "and 1 more")

    def test_foreign_package_that_never_had_its_source(self, image: FakeImage) -> None:
        image.write("other/compiled.pyc", bytecode(image.root / "other/__init__.py"))
        image.put_in_base("other/compiled.pyc")
        assert image.run().statuses == {}

    @pytest.mark.parametrize(
        ("path", "source"),
        [
            ("a/__pycache__/b.cpython-311.pyc", "a/b.py"),
            ("a/__pycache__/b.cpython-311.opt-1.pyc", "a/b.py"),
            ("a/__pycache__/b.c.cpython-312.pyc", "a/b.c.py"),
            ("__pycache__/b.cpython-310.pyc", "b.py"),
            ("a/b.pyc", "a/b.py"),
        ],
    )
    def test_source_of(self, path: str, source: str) -> None:
        assert source_of(path) == source


def test_all_problems_are_counted_and_shown(image: FakeImage) -> None:
    shutil.rmtree(image.root / "other")
    image.write("sglang/srt/more.py", "A = 1\n")
    report = image.run()
    assert report.reason("tree").endswith("(and 1 more)")
    assert "sglang/srt/more.py: extra file" in report.stderr


def test_root_that_cannot_be_listed(tmp_path: Path) -> None:
    found, problems = scan(tmp_path / "none")
    assert (found, len(problems)) == ({}, 1)
    assert "cannot be listed: No such file or directory" in problems[0]
