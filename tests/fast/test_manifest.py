"""Manifests: what is wrong is named by file and key, in one line; the project's own load."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import ManifestError
from pipeline.manifest import (
    DEFAULT_LINE,
    Lock,
    OverlayLayer,
    PatchesLayer,
    Profiles,
    Release,
    SourceLayer,
    lines,
    load_line,
    load_yaml,
    read_yaml,
)
from tests.fast.builders import SHA256, make_line, release_document, says, write_files

Edit = Callable[[dict[str, Any]], object]


def rename(mapping: dict[str, Any], old: str, new: str) -> None:
    mapping[new] = mapping.pop(old)


def test_small_line_loads_with_its_layers_in_order(tmp_path: Path) -> None:
    layers = [{"source": "sglang"}, {"source": "second", "files": ["a.py"]}, {"overlay": "o"}, {"patches": "series"}]
    line = make_line(tmp_path, layers=layers, lock={"steps": {"source:sglang": f"sha256:{SHA256}"}})
    assert [type(layer) for layer in line.release.layers] == [SourceLayer, SourceLayer, OverlayLayer, PatchesLayer]
    assert line.release.created == "2026-01-31T00:00:00Z"
    assert line.lock
    assert list(line.lock.steps) == ["source:sglang"]


@pytest.mark.parametrize("name", lines())
def test_line_of_the_project_loads(name: str) -> None:
    assert load_line(name).release.layers


def test_default_line_exists() -> None:
    assert DEFAULT_LINE in lines()


@pytest.mark.parametrize(
    ("edit", "key", "nearest"),
    [
        (lambda d: rename(d, "environment", "enviroment"), "enviroment", "environment"),
        (lambda d: d.update(relase=1), "relase", "release"),
        (lambda d: rename(d["pins"]["sglang"], "version", "verison"), "pins.sglang.pypi.verison", "version"),
        (lambda d: d["layers"][0].update(fils=["a"]), "layers.0.source.fils", "files"),
        (lambda d: rename(d["base"], "suite", "siute"), "base.cpu.siute", "suite"),
    ],
)
def test_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path, edit: Edit, key: str, nearest: str) -> None:
    document = release_document()
    edit(document)
    path = write_files(tmp_path, {"release.yaml": yaml.safe_dump(document)}) / "release.yaml"
    with pytest.raises(ManifestError, check=says(f"^{path}: unknown key '{key}'; did you mean '{nearest}'\\?$")):
        read_yaml(path, Release)


def test_unknown_key_like_no_known_one_is_refused(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"release.yaml": yaml.safe_dump(release_document(zzzzz=1))}) / "release.yaml"
    with pytest.raises(ManifestError, check=says("unknown key 'zzzzz'; remove it$")):
        read_yaml(path, Release)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda d: d.update(release="2026-01-31"), "release: must be a date, YYYYMMDD: found '2026-01-31'"),
        (lambda d: d.update(release=20260230), "release: must be a date, YYYYMMDD: found 20260230"),
        (lambda d: d.update(release="20261345"), "release: must be a date"),
        (lambda d: d.update(release="２０２６０１３１"), "release: must be a date"),
        (lambda d: d.update(tag="A b"), "tag: .*found 'A b'"),
        (lambda d: d.pop("title"), "title: Field required"),
        (lambda d: d.update(pins=[]), r"pins: .*dictionary: found \[\]"),
        (lambda d: d["pins"]["sglang"].update(sha256={"cp311": "abc"}), "pins.sglang.pypi.sha256.cp311: .*found 'abc'"),
        (lambda d: d["pins"]["sglang"].update(sha256={"py3": SHA256}), "pins.sglang.pypi.sha256.py3.*found 'py3'"),
        (lambda d: d["pins"]["sglang"].update(kind="pipy"), "pins.sglang: .*'pypi', 'git', 'dir'"),
        (lambda d: d.update(layers=[]), "layers must start with a whole source"),
        (lambda d: d.update(layers=[{"overlay": "o"}]), "layers must start with a whole source"),
        (lambda d: d["layers"][0].update(files=["a"]), "layers must start with a whole source"),
        (lambda d: d.update(layers=[{"source": "other"}]), "layers names the source 'other', which pins does not"),
        (lambda d: d["layers"].append({"source": "sglang", "files": ["a"]}), "layers names source 'sglang' twice"),
        (lambda d: d["layers"].extend([{"patches": "series"}] * 2), "layers names patches 'series' twice"),
        (lambda d: d["layers"].append({"sorce": "x"}), "layers.1: must be a source, an overlay or patches"),
        (lambda d: d["layers"].append("x"), "layers.1: must be a source, an overlay or patches: found 'x'"),
        (lambda d: d["layers"].append({"overlay": "A b"}), "layers.1.overlay.overlay: .*found 'A b'"),
        (lambda d: d["layers"].append({"overlay": "../x"}), "layers.1.overlay.overlay: .*found '../x'"),
        (lambda d: d["layers"].append({"patches": "all"}), "layers.1.patches.patches: .*found 'all'"),
    ],
)
def test_bad_value_is_refused_with_its_key_in_one_line(tmp_path: Path, edit: Edit, problem: str) -> None:
    document = release_document()
    edit(document)
    path = write_files(tmp_path, {"release.yaml": yaml.safe_dump(document)}) / "release.yaml"
    with pytest.raises(ManifestError, check=says(f"^{path}: {problem}", "correct the manifest$")):
        read_yaml(path, Release)


@pytest.mark.parametrize("path", ["../a.py", "/a.py", "a/../../b.py", "a//b.py", "./a.py", "a\\b.py", "a/", "", ".", 5])
def test_path_that_is_not_plain_and_inside_the_tree_is_refused(tmp_path: Path, path: object) -> None:
    document = release_document(layers=[{"source": "sglang"}, {"source": "second", "files": [path]}])
    file = write_files(tmp_path, {"release.yaml": yaml.safe_dump(document)}) / "release.yaml"
    with pytest.raises(ManifestError, check=says("layers.1.source.files.0: ")):
        read_yaml(file, Release)


@pytest.mark.parametrize(
    ("pin", "problem"),
    [
        ({"kind": "git", "url": "u", "commit": "abc"}, "pins.x.git.commit"),
        ({"kind": "git", "url": "u", "commit": "A" * 40}, "pins.x.git.commit"),
        ({"kind": "git", "url": "u", "commit": "a" * 40, "subdir": "../x"}, "pins.x.git.subdir"),
    ],
)
def test_git_pin_needs_a_full_commit_and_a_folder_inside(tmp_path: Path, pin: dict[str, str], problem: str) -> None:
    document = release_document(pins={"x": pin})
    file = write_files(tmp_path, {"release.yaml": yaml.safe_dump(document)}) / "release.yaml"
    with pytest.raises(ManifestError, check=says(problem)):
        read_yaml(file, Release)


@pytest.mark.parametrize("reference", ["host/name:tag", "host/name@sha256:abc", f"a b@sha256:{SHA256}"])
def test_published_base_needs_a_digest(tmp_path: Path, reference: str) -> None:
    base = {"kind": "published", "reference": reference, "package_root": "/x", "python_tag": "cp312"}
    file = write_files(tmp_path, {"release.yaml": yaml.safe_dump(release_document(base=base))}) / "release.yaml"
    with pytest.raises(ManifestError, check=says("base.published.reference")):
        read_yaml(file, Release)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "key 'a' occurs twice.*line 3"),
        ("a: {b: 1, b: 2}\n", "key 'b' occurs twice.*line 1"),
        ("a: [1\nb: 2\n", "line 2"),
        ("a:\n\tb: 1\n", "line 2"),
        ("[a]: 1\n", "a key is no plain value.*line 1"),
        ("a: 2026-13-45\n", "month must be in 1..12"),
        ("a: !!python/object:os.system x\n", "could not determine a constructor"),
        (b"a: \xff\n", "utf-8"),
    ],
)
def test_malformed_yaml_is_one_line_with_its_place(tmp_path: Path, text: str | bytes, problem: str) -> None:
    path = write_files(tmp_path, {"x.yaml": text}) / "x.yaml"
    with pytest.raises(ManifestError, check=says(f"^{path}: .*{problem}", "correct the YAML$")):
        load_yaml(path)


@pytest.mark.parametrize("text", ["", "[]", "word"])
def test_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = write_files(tmp_path, {"lock.yaml": text}) / "lock.yaml"
    with pytest.raises(ManifestError, check=says(f"^{path}: .*dictionary")):
        read_yaml(path, Lock)


@pytest.mark.parametrize(
    ("name", "suggestion"), [("smal", "did you mean 'small'\\?"), ("zzzzzzz", "see build.py plan --help")]
)
def test_missing_line_is_refused_with_the_known_and_the_nearest_one(tmp_path: Path, name: str, suggestion: str) -> None:
    make_line(tmp_path)
    with pytest.raises(ManifestError, check=says(f"no release line '{name}'", "found small; " + suggestion)):
        load_line(name, tmp_path / "manifests")


def test_missing_profiles_are_named(tmp_path: Path) -> None:
    line = make_line(tmp_path)
    (line.folder / "profiles.yaml").unlink()
    with pytest.raises(ManifestError, check=says(f"^{line.folder}/profiles.yaml: No such file")):
        load_line("small", tmp_path / "manifests")


def test_profiles_need_no_profile(tmp_path: Path) -> None:
    file = write_files(tmp_path, {"profiles.yaml": "profiles: {}\n"}) / "profiles.yaml"
    assert read_yaml(file, Profiles).profiles == {}
