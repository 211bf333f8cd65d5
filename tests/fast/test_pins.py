"""Pinned inputs: hashes are checked, and what a source holds is read byte by byte and never leaves the tree."""

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline import pins
from pipeline.errors import PinError
from pipeline.manifest import DirPin, GitPin, PypiPin
from tests.fast.builders import git, make_commit, says, write_files

INFO = {
    "small-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n",
    "small-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "small-1.0.dist-info/RECORD": "",
}


def make_wheel(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """A wheel with exactly these entries beside its ``.dist-info``."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**files, **INFO}.items():
            archive.writestr(name, content)
    return wheel


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_pin(hash_: str) -> PypiPin:
    return PypiPin(kind="pypi", name="small", version="1.0", sha256={"cp311": hash_})


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any use of pip is a failure of the test."""

    def refuse(*_arguments: object) -> None:
        raise AssertionError("pip was run")

    monkeypatch.setattr(pins, "run_pip", refuse)


class TestWheel:
    def test_files_are_read_without_metadata_bytecode_and_extensions(self, tmp_path: Path) -> None:
        wheel = make_wheel(
            tmp_path,
            {
                "small/": "",
                "small/__init__.py": "x = 1\r\n",
                "small/data.json": b"\x00\xff",
                "small/ops/fast.cpython-311-x86_64-linux-gnu.so": b"elf",
                "small/flat.so": b"elf",
                "small/__pycache__/__init__.cpython-311.pyc": b"x",
                "small/old.pyc": b"x",
                "small-1.0.data/scripts/run": "x",
            },
        )
        tree = pins.read_wheel(wheel)
        assert tree.files == {"small/__init__.py": b"x = 1\r\n", "small/data.json": b"\x00\xff"}
        assert tree.extensions == {"small.ops.fast", "small.flat"}

    @pytest.mark.parametrize("entry", ["../evil.py", "small/../../evil.py", "/etc/evil", "small\\..\\evil.py"])
    def test_entry_that_leaves_the_tree_is_refused(self, tmp_path: Path, entry: str) -> None:
        wheel = make_wheel(tmp_path, {"small/__init__.py": "", entry: "x"})
        with pytest.raises(PinError, check=says(str(wheel), "evil.*leaves the tree")):
            pins.read_wheel(wheel)

    def test_wheel_without_files_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(PinError, check=says("holds no files")):
            pins.read_wheel(make_wheel(tmp_path, {}))

    def test_file_that_is_no_zip_is_one_line(self, tmp_path: Path) -> None:
        wheel = tmp_path / "x.whl"
        wheel.write_bytes(b"no zip")
        with pytest.raises(PinError, check=says(str(wheel), "expected a wheel")):
            pins.read_wheel(wheel)

    @pytest.mark.parametrize("step", [1, 7])
    def test_damaged_entry_is_one_line(self, tmp_path: Path, step: int) -> None:
        wheel = make_wheel(tmp_path, {"small.py": "".join(map(str, range(3000)))})
        data = bytearray(wheel.read_bytes())
        data[100:1000:step] = b"\xff" * len(data[100:1000:step])
        wheel.write_bytes(data)
        with pytest.raises(PinError, check=says(str(wheel), "expected a wheel")):
            pins.read_wheel(wheel)


class TestFetch:
    def test_wheel_is_fetched_once_then_taken_from_the_cache(
        self, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hash_ = sha256(make_wheel(index, {"small.py": "x"}))
        fetched = pins.fetch(make_pin(hash_), "cp311", tmp_path / "cache")
        assert fetched == tmp_path / "cache" / "sha256" / hash_ / "small-1.0-py3-none-any.whl"
        assert sha256(fetched) == hash_
        monkeypatch.setattr(pins, "run_pip", None)
        assert pins.fetch(make_pin(hash_), "cp311", tmp_path / "cache") == fetched
        assert pins.read(make_pin(hash_), "cp311", tmp_path / "cache").files == {"small.py": b"x"}

    def test_damaged_cache_entry_is_fetched_again(self, tmp_path: Path, index: Path) -> None:
        wheel = make_wheel(index, {"small.py": "x"})
        entry = tmp_path / "cache" / "sha256" / sha256(wheel) / wheel.name
        write_files(entry.parent, {entry.name: "damaged"})
        assert pins.fetch(make_pin(sha256(wheel)), "cp311", tmp_path / "cache") == entry
        assert entry.read_bytes() == wheel.read_bytes()

    def test_wrong_hash_is_refused_with_both_hashes_and_not_kept(self, tmp_path: Path, index: Path) -> None:
        found, wanted = sha256(make_wheel(index, {"small.py": "x"})), "a" * 64
        with pytest.raises(
            PinError, check=says(f"^small==1.0: expected sha256 {wanted}, found sha256 {found}; .*find out why")
        ):
            pins.fetch(make_pin(wanted), "cp311", tmp_path / "cache")
        assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]

    def test_wheel_that_the_index_lacks_is_one_line(self, tmp_path: Path, index: Path) -> None:
        assert not list(index.iterdir())
        with pytest.raises(PinError, check=says("^small==1.0: .*No matching distribution", "check the network")):
            pins.fetch(make_pin("a" * 64), "cp311", tmp_path / "cache")

    @pytest.mark.usefixtures("no_pip")
    def test_pin_without_a_hash_for_the_python_is_refused_before_the_index_is_asked(self, tmp_path: Path) -> None:
        with pytest.raises(PinError, check=says("small 1.0: expected a sha256 for cp312, found cp311")):
            pins.fetch(make_pin("a" * 64), "cp312", tmp_path / "cache")

    def test_tags_select_one_python_on_x86_64_up_to_the_glibc_of_the_base(self) -> None:
        options = pins.wheel_tags("cp312")
        assert {"--only-binary=:all:", "--python-version=3.12", "--abi=cp312", "--abi=abi3"} <= set(options)
        assert "--platform=manylinux_2_36_x86_64" in options
        assert "--platform=manylinux_2_37_x86_64" not in options


class TestGit:
    @pytest.fixture
    def repository(self, tmp_path: Path) -> Path:
        """An empty folder that becomes a repository by its first commit."""
        folder = tmp_path / "repository"
        folder.mkdir()
        return folder

    def read(self, repository: Path, commit: str, subdir: str = "") -> dict[str, bytes]:
        pin = GitPin(kind="git", url=str(repository), commit=commit, subdir=subdir)
        return dict(pins.read(pin, "cp311", repository.parent / "cache").files)

    def test_files_of_the_commit_are_read_and_not_those_of_a_later_one(self, repository: Path) -> None:
        commit = make_commit(repository, {"a/b.py": "1", "ü ñ.py": "2"})
        make_commit(repository, {"a/b.py": "later"})
        expected = {"a/b.py": b"1", "ü ñ.py": b"2"}
        assert self.read(repository, commit) == expected
        repository.rename(repository.with_name("gone"))
        assert self.read(repository, commit) == expected, "the second time it comes from the cache"

    def test_subdir_is_the_root_of_the_tree(self, repository: Path) -> None:
        commit = make_commit(repository, {"python/sglang/a.py": "1", "README.md": "2", "python2/x.py": "3"})
        assert self.read(repository, commit, "python") == {"sglang/a.py": b"1"}

    def test_missing_subdir_is_refused(self, repository: Path) -> None:
        commit = make_commit(repository, {"a.py": "1"})
        with pytest.raises(PinError, check=says(commit, "holds no files", "subdir")):
            self.read(repository, commit, "python")

    def test_attributes_change_no_byte(self, repository: Path) -> None:
        files = {
            ".gitattributes": b"*.crlf text eol=crlf\n*.lf text\nid.txt export-subst ident\nno.txt export-ignore\n",
            "a.crlf": b"one\ntwo\n",
            "id.txt": b"$Format:%H$ $Id$\n",
            "no.txt": b"kept\n",
        }
        assert self.read(repository, make_commit(repository, files)) == files

    def test_crlf_of_the_commit_stays(self, repository: Path) -> None:
        files = {".gitattributes": b"* -text\n", "a.txt": b"one\r\ntwo\n\r\n"}
        assert self.read(repository, make_commit(repository, files)) == files

    def test_symlink_is_refused(self, repository: Path) -> None:
        write_files(repository, {"a.py": "1"})
        (repository / "link").symlink_to("/etc/passwd")
        commit = make_commit(repository, {})
        with pytest.raises(PinError, check=says(f"{commit}: link: expected a regular file, found mode 120000")):
            self.read(repository, commit)

    def test_submodule_is_refused(self, repository: Path) -> None:
        commit = make_commit(repository, {"a.py": "1"})
        git(repository, "update-index", "--add", "--cacheinfo", f"160000,{commit},sub")
        git(repository, "commit", "--quiet", "--message=x")
        with pytest.raises(PinError, check=says("sub: expected a regular file, found mode 160000")):
            self.read(repository, git(repository, "rev-parse", "HEAD"))

    def test_missing_commit_is_one_line(self, repository: Path) -> None:
        make_commit(repository, {"a.py": "1"})
        with pytest.raises(PinError, check=says(f"{repository}@{'1' * 40}: git: ", "check the URL and commit")):
            self.read(repository, "1" * 40)

    def test_missing_repository_is_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(PinError, check=says(f"{tmp_path}/none@{'1' * 40}: git: ", "check the URL and commit")):
            self.read(tmp_path / "none", "1" * 40)

    def test_url_is_never_an_option_of_git(self, tmp_path: Path) -> None:
        pin = GitPin(kind="git", url=f"--upload-pack=touch {tmp_path}/ran;", commit="1" * 40)
        with pytest.raises(PinError, check=says("git: ")):
            pins.read(pin, "cp311", tmp_path / "cache")
        assert not (tmp_path / "ran").exists()


class TestFolder:
    def read(self, folder: Path) -> dict[str, bytes]:
        return dict(pins.read(DirPin(kind="dir", path=str(folder)), "cp311", folder).files)

    def test_files_are_read_without_git_and_bytecode(self, tmp_path: Path) -> None:
        kept = {"a/b.py": b"1\r\n", ".hidden": b"2", "a/.gitignore": b"3"}
        write_files(tmp_path, kept | {".git/HEAD": b"x", "a/.git": b"x", "a/__pycache__/b.pyc": b"x", "c.pyc": b"x"})
        assert self.read(tmp_path) == kept

    @pytest.mark.parametrize("target", ["a.py", "sub", "/etc", "nowhere"])
    def test_symlink_is_refused(self, tmp_path: Path, target: str) -> None:
        write_files(tmp_path, {"a.py": "1", "sub/b.py": "2"})
        (tmp_path / "sub" / "link").symlink_to(target)
        with pytest.raises(PinError, check=says(f"{tmp_path}/sub/link: is a symlink")):
            self.read(tmp_path)

    def test_missing_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(PinError, check=says(f"{tmp_path}/none: expected a folder")):
            self.read(tmp_path / "none")


def test_each_kind_of_pin_is_described_in_one_word() -> None:
    assert pins.describe(make_pin("a" * 64)) == "small==1.0"
    assert pins.describe(GitPin(kind="git", url="https://x/y", commit="1" * 40)) == f"https://x/y@{'1' * 40}"
    assert pins.describe(DirPin(kind="dir", path="wip")) == "dir:wip"
