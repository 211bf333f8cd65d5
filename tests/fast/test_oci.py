"""Layers and layouts: bytes depend on what is inside alone, and damage is noticed."""

import hashlib
import io
import json
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from pipeline import oci
from pipeline.errors import ImageError
from pipeline.oci import Descriptor, Image, LayerEntry, append_layer, whiteout, write_layer
from tests.fast.builders import SHA256, make_image, says, write_files

LONG = "usr/" + "/".join(["long-folder-name"] * 12) + "/ü.py"


class TestLayer:
    def entries(self, folder: Path) -> list[LayerEntry]:
        """Files of every kind, some of them on disk."""
        write_files(folder, {"file": b"x" * 100_000})
        if not (folder / "link").is_symlink():
            (folder / "link").symlink_to("some/target")
        return [
            LayerEntry("usr/b/run.sh", b"#!/bin/sh\n", 0o755),
            LayerEntry("usr/a.py", folder / "file"),
            LayerEntry("usr/link", folder / "link"),
            whiteout("usr/b/old.py"),
            LayerEntry(LONG, b""),
        ]

    def test_bytes_do_not_depend_on_order_time_umask_and_folder(self, tmp_path: Path) -> None:
        first = write_layer(tmp_path / "1.tar", self.entries(tmp_path / "one"), ["usr", "usr/b"])
        before = os.umask(0o077)
        try:
            entries = self.entries(tmp_path / "two")
            random.Random(1).shuffle(entries)
            (tmp_path / "two" / "file").chmod(0o700)
            os.utime(tmp_path / "two" / "file", (1, 1))
            second = write_layer(tmp_path / "2.tar", entries, ["usr/b", "usr", "usr"])
        finally:
            os.umask(before)
        assert second == first
        assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()

    def test_bytes_are_what_this_project_has_always_written(self, tmp_path: Path) -> None:
        """A change of this digest changes the digest of every image: it must be meant."""
        layer = write_layer(tmp_path / "x.tar", [LayerEntry("usr/a.py", b"x = 1\n"), whiteout("usr/b.py")], ["usr"])
        assert layer.size == 10240
        assert layer.digest == "sha256:0fe5dad9f47781ce6c44ae8038e40bb112f9a86b49e523e341b4961c227769ce"

    def test_tar_holds_what_was_asked_for_as_root_at_a_constant_time(self, tmp_path: Path) -> None:
        layer = write_layer(tmp_path / "x.tar", self.entries(tmp_path / "one"), ["usr/b"])
        assert layer.media_type == oci.LAYER_TYPE
        assert layer.size == (tmp_path / "x.tar").stat().st_size
        with tarfile.open(tmp_path / "x.tar", "r:") as tar:
            members = {member.name: member for member in tar}
            names = list(members)
            link = members.pop("usr/link")
            assert (link.type, link.linkname) == (tarfile.SYMTYPE, "some/target")
            assert {name: (m.mode, m.size, m.isdir()) for name, m in members.items()} == {
                LONG: (0o644, 0, False),
                "usr/a.py": (0o644, 100_000, False),
                "usr/b": (0o755, 0, True),
                "usr/b/.wh.old.py": (0o644, 0, False),
                "usr/b/run.sh": (0o755, 10, False),
            }
            assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members.values()} == {(0, 0, "", "", oci.EPOCH)}
            stream = tar.extractfile("usr/a.py")
            assert stream
            assert stream.read() == b"x" * 100_000
        assert names == sorted(names)

    def test_digest_of_the_layer_is_its_diff_id(self, tmp_path: Path) -> None:
        layer = write_layer(tmp_path / "x.tar", [LayerEntry("a", b"x")])
        assert layer.digest == "sha256:" + hashlib.sha256((tmp_path / "x.tar").read_bytes()).hexdigest()

    def test_layer_without_entries_is_a_valid_tar(self, tmp_path: Path) -> None:
        write_layer(tmp_path / "x.tar", [])
        with tarfile.open(tmp_path / "x.tar", "r:") as tar:
            assert tar.getnames() == []

    @pytest.mark.parametrize("entries", [["a", "a"], ["b/.wh.a", "c", "b/.wh.a"]])
    def test_doubled_path_is_refused(self, tmp_path: Path, entries: list[str]) -> None:
        with pytest.raises(ImageError, check=says(f"layer entry {entries[-1]} occurs twice")):
            write_layer(tmp_path / "x.tar", [LayerEntry(path, b"") for path in entries])

    def test_path_that_is_file_and_directory_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ImageError, check=says("layer entry a occurs twice")):
            write_layer(tmp_path / "x.tar", [LayerEntry("a", b"")], ["a"])

    @pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", ".."])
    @pytest.mark.parametrize("kind", ["file", "directory"])
    def test_path_that_leaves_the_root_is_refused(self, tmp_path: Path, path: str, kind: str) -> None:
        entries, folders = ([LayerEntry(path, b"")], []) if kind == "file" else ([], [path])
        with pytest.raises(ImageError, check=says(f"layer entry {path} leaves the image root")):
            write_layer(tmp_path / "x.tar", entries, folders)

    @pytest.mark.parametrize(("path", "name"), [("a/b.py", "a/.wh.b.py"), ("a/b/c", "a/b/.wh.c"), ("top", ".wh.top")])
    def test_whiteout_lies_beside_what_it_deletes(self, path: str, name: str) -> None:
        assert whiteout(path) == LayerEntry(name, b"")


class TestAppend:
    def append(self, folder: Path, base: Image, **replaced: Any) -> Image:
        layer = write_layer(folder / "layer.tar", [LayerEntry("a", b"new")])
        arguments: dict[str, Any] = {
            "environment": {"B": "2", "NEW": "x=y"},
            "labels": {"l2": "new"},
            "created": "2026-01-31T00:00:00Z",
            "comment": "ours",
        }
        return append_layer(base, folder / "target", folder / "layer.tar", layer, **arguments | replaced)

    def base(self, folder: Path) -> Image:
        run = {"Env": ["A=1", "B=1", "PATH=/bin"], "Labels": {"l1": "base", "l2": "base"}, "User": "u", "Cmd": ["sh"]}
        return make_image(folder / "base", [[LayerEntry("a", b"1")], [LayerEntry("b", b"2")]], **run)

    def test_config_is_the_bases_with_our_environment_labels_layer_and_history(self, tmp_path: Path) -> None:
        base = self.base(tmp_path)
        image = self.append(tmp_path, base)
        ours = oci.digest_file(tmp_path / "layer.tar")
        assert image.environment == {"A": "1", "B": "2", "PATH": "/bin", "NEW": "x=y"}
        assert list(image.environment) == ["A", "B", "PATH", "NEW"]
        assert image.labels == {"l1": "base", "l2": "new"}
        assert image.config["config"]["User"] == "u"
        assert image.config["config"]["Cmd"] == ["sh"]
        assert image.config["created"] == "2026-01-31T00:00:00Z"
        assert image.config["rootfs"]["diff_ids"] == [*base.config["rootfs"]["diff_ids"], ours]
        assert image.config["history"][-1] == {"created": "2026-01-31T00:00:00Z", "created_by": "ours"}
        assert image.layers[:-1] == base.layers
        assert image.layers[-1].digest == ours
        assert [layer.digest for layer in image.layers] == image.config["rootfs"]["diff_ids"]

    def test_layout_can_be_loaded_and_holds_every_blob(self, tmp_path: Path) -> None:
        image = self.append(tmp_path, self.base(tmp_path))
        loaded = Image.load(tmp_path / "target")
        assert loaded == image
        assert all(oci.digest_file(loaded.blob(layer.digest)) == layer.digest for layer in loaded.layers)
        assert (tmp_path / "target" / "oci-layout").read_text() == '{"imageLayoutVersion":"1.0.0"}'
        assert loaded.blob(loaded.config_digest).read_bytes() == loaded.config_bytes

    def test_digest_is_the_same_in_another_folder_and_at_another_time(self, tmp_path: Path) -> None:
        digests = set()
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            digests.add(self.append(tmp_path / name, self.base(tmp_path / name)).digest)
        assert len(digests) == 1

    @pytest.mark.parametrize(
        "other", [{"environment": {}}, {"labels": {}}, {"created": "2026-02-01T00:00:00Z"}, {"comment": "other"}]
    )
    def test_each_argument_decides_the_digest(self, tmp_path: Path, other: dict[str, Any]) -> None:
        base = self.base(tmp_path)
        first = self.append(tmp_path, base)
        (tmp_path / "target").rename(tmp_path / "first")
        assert self.append(tmp_path, base, **other).digest != first.digest

    def test_base_without_blobs_is_enough(self, tmp_path: Path) -> None:
        base = self.base(tmp_path)
        full = self.append(tmp_path, base)
        for layer in base.layers:
            base.blob(layer.digest).unlink()
        (tmp_path / "target").rename(tmp_path / "first")
        assert self.append(tmp_path, base).digest == full.digest
        assert not Image.load(tmp_path / "target").blob(base.layers[0].digest).exists()

    def test_traces_of_the_bases_build_machine_are_dropped(self, tmp_path: Path) -> None:
        base = self.base(tmp_path)
        config = base.config | {"container": "abc", "container_config": {"Hostname": "h"}, "docker_version": "1"}
        traced = Image(base.layout, base.digest, base.manifest_bytes, json.dumps(config).encode())
        assert self.append(tmp_path, traced).config.keys() == self.base(tmp_path / "other").config.keys() | {"created"}

    def test_docker_manifest_stays_a_docker_manifest(self, tmp_path: Path) -> None:
        base = self.base(tmp_path)
        manifest = base.manifest | {"mediaType": oci.DOCKER_MANIFEST_TYPE}
        docker = Image(base.layout, base.digest, json.dumps(manifest).encode(), base.config_bytes)
        assert self.append(tmp_path, docker).media_type == oci.DOCKER_MANIFEST_TYPE

    def test_blobs_are_copied_where_they_cannot_be_linked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_arguments: object) -> None:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", refuse)
        image = self.append(tmp_path, self.base(tmp_path))
        assert all(oci.digest_file(image.blob(layer.digest)) == layer.digest for layer in image.layers)


class TestLoad:
    @pytest.mark.parametrize("which", ["manifest", "config"])
    def test_damaged_blob_is_refused_with_both_digests(self, tmp_path: Path, which: str) -> None:
        image = make_image(tmp_path / "x", [])
        digest = image.digest if which == "manifest" else image.config_digest
        image.blob(digest).write_bytes(b"{}")
        said = says(f"^{image.blob(digest)}: expected {digest}, found {oci.digest_bytes(b'{}')}")
        with pytest.raises(ImageError, check=said):
            Image.load(tmp_path / "x")

    def test_missing_blob_is_refused(self, tmp_path: Path) -> None:
        image = make_image(tmp_path / "x", [])
        image.blob(image.config_digest).unlink()
        with pytest.raises(ImageError, check=says(f"^{image.blob(image.config_digest)}: No such file")):
            Image.load(tmp_path / "x")

    @pytest.mark.parametrize(
        "index",
        [
            None,
            "",
            "[]",
            "{}",
            '{"manifests": []}',
            '{"manifests": {}}',
            '{"manifests": [{}]}',
            '{"manifests": ["x"]}',
            f'{{"manifests": [{{"digest": "sha256:{SHA256}"}}, {{"digest": "sha256:{SHA256}"}}]}}',
        ],
    )
    def test_index_that_does_not_name_one_manifest_is_refused(self, tmp_path: Path, index: str | None) -> None:
        make_image(tmp_path / "x", [])
        (tmp_path / "x" / "index.json").unlink()
        if index is not None:
            (tmp_path / "x" / "index.json").write_text(index)
        said = says(f"^{tmp_path}/x/index.json: expected an OCI index with one manifest", "build it again")
        with pytest.raises(ImageError, check=said):
            Image.load(tmp_path / "x")

    def test_index_that_names_another_manifest_is_refused(self, tmp_path: Path) -> None:
        make_image(tmp_path / "x", [])
        index = json.dumps({"manifests": [{"digest": f"sha256:{SHA256}"}]})
        (tmp_path / "x" / "index.json").write_text(index)
        with pytest.raises(ImageError, check=says(f"{SHA256}: No such file")):
            Image.load(tmp_path / "x")


def test_digest_of_a_file_and_of_its_bytes_are_equal(tmp_path: Path) -> None:
    data = io.BytesIO(b"x" * 3_000_000).getvalue()
    (tmp_path / "x").write_bytes(data)
    assert oci.digest_file(tmp_path / "x") == oci.digest_bytes(data)


def test_descriptor_is_written_with_the_names_of_the_specification() -> None:
    descriptor = Descriptor("t", "sha256:x", 1)
    assert descriptor.as_json() == {"mediaType": "t", "digest": "sha256:x", "size": 1}
