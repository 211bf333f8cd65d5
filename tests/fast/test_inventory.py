"""Inventories: the merged view of an image's layers, and the packages in it."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline import inventory
from pipeline.documents import Inventory
from pipeline.errors import BaseError
from pipeline.oci import LayerEntry
from tests.fast.builders import ROOT, SHA256, make_image, says

BASE = f"sha256:{SHA256}"
P = ROOT.strip("/")
STATUS = b"""Package: bash
Status: install ok installed
Version: 5.2-1
Description: a shell
 with more lines

Package: gone
Status: deinstall ok config-files
Version: 1

Package: libc6
Status: hold ok installed
Version: 2.36-9
"""
Content = bytes | tarfile.TarInfo


def link(target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


DIRECTORY = link("", tarfile.DIRTYPE)


def tar(files: Mapping[str, Content], *, zipped: bool = False) -> bytes:
    """A layer; a name that ends in ``!`` is executable."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo() if isinstance(content, bytes) else content
            info.name, info.mode = name.rstrip("!"), 0o755 if name.endswith("!") else 0o644
            data = content if isinstance(content, bytes) else b""
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(target.getvalue()) if zipped else target.getvalue()


def take(*layers: Mapping[str, Content] | bytes) -> Inventory:
    streams = [layer if isinstance(layer, bytes) else tar(layer) for layer in layers]
    return inventory.take(BASE, [lambda data=data: io.BytesIO(data) for data in streams], ROOT)  # type: ignore[misc]


def files(*layers: Mapping[str, Content] | bytes) -> set[str]:
    return set(take(*layers).files)


def test_files_below_the_package_root_are_listed_with_hash_and_mode() -> None:
    taken = take({f"{P}/b/x.py": b"x", f"./{P}/a.sh!": b"y", f"/{P}/c": b"", "etc/passwd": b"z", P + "x/d": b""})
    assert taken.base == BASE
    assert taken.package_root == ROOT
    assert {path: (entry.sha256, entry.mode) for path, entry in taken.files.items()} == {
        "a.sh": (hashlib.sha256(b"y").hexdigest(), 0o755),
        "b/x.py": (hashlib.sha256(b"x").hexdigest(), 0o644),
        "c": (hashlib.sha256(b"").hexdigest(), 0o644),
    }
    assert list(taken.files) == sorted(taken.files)


@pytest.mark.parametrize("zipped", [False, True])
def test_upper_layer_replaces_the_lower_ones_file_plain_or_gzip(zipped: bool) -> None:
    taken = take(tar({f"{P}/a": b"1", f"{P}/b": b"1"}, zipped=zipped), tar({f"{P}/a!": b"2"}, zipped=zipped))
    assert taken.files["a"].sha256 == hashlib.sha256(b"2").hexdigest()
    assert taken.files["a"].mode == 0o755
    assert taken.files["b"].sha256 == hashlib.sha256(b"1").hexdigest()


LOWER = {f"{P}/a/x": b"1", f"{P}/a/sub/y": b"1", f"{P}/ab": b"1", "var/lib/dpkg/status": STATUS}


@pytest.mark.parametrize(
    ("upper", "left"),
    [
        ({f"{P}/a/.wh.x": b""}, {"a/sub/y", "ab"}),
        ({f"{P}/.wh.a": b""}, {"ab"}),
        ({f"./{P}/a/.wh.sub": b""}, {"a/x", "ab"}),
        ({f"{P}/a/.wh.none": b""}, {"a/x", "a/sub/y", "ab"}),
        ({f"{P}/a/.wh..wh..opq": b"", f"{P}/a/new": b""}, {"a/new", "ab"}),
        ({f"{P}/a/new": b"", f"{P}/a/.wh..wh..opq": b""}, {"a/new", "ab"}),
        ({f"{P}/a/x": b"", f"{P}/a/.wh.x": b""}, {"a/x", "a/sub/y", "ab"}),
        ({".wh.usr": b"", f"{P}/new": b""}, {"new"}),
        ({"usr/.wh.local": b"", f"{P}/new": b""}, {"new"}),
        ({".wh..wh..opq": b"", f"{P}/new": b""}, {"new"}),
        ({f"{P}/ab": DIRECTORY, f"{P}/ab/z": b""}, {"a/x", "a/sub/y", "ab/z"}),
        ({f"{P}/a": DIRECTORY}, {"a/x", "a/sub/y", "ab"}),
    ],
)
def test_whiteouts_hide_what_lower_layers_hold_and_only_that(upper: Mapping[str, Content], left: set[str]) -> None:
    assert files(LOWER, upper) == left


def test_deleted_dpkg_status_means_no_debian_packages() -> None:
    assert take(LOWER).debian
    assert take(LOWER, {"var/lib/.wh.dpkg": b""}).debian == {}


def test_symlink_is_listed_with_the_hash_of_its_target_text() -> None:
    taken = take({f"{P}/link": link("../elsewhere", tarfile.SYMTYPE)})
    assert taken.files["link"].sha256 == hashlib.sha256(b"../elsewhere").hexdigest()


def test_hard_link_is_the_file_that_it_links_to() -> None:
    metadata = b"Name: linked\nVersion: 1\n"
    path = f"{P}/linked-1.dist-info/METADATA"
    taken = take({f"{P}/a!": b"x", f"{P}/b": link(f"./{P}/a", tarfile.LNKTYPE), f"{P}/m": b""})
    assert taken.files["b"] == taken.files["a"]
    linked = take({f"{P}/x-1.dist-info/METADATA": metadata, path: link(f"{P}/x-1.dist-info/METADATA", tarfile.LNKTYPE)})
    assert linked.python == {"linked": "1"}
    alone = take(
        {f"{P}/x-1.dist-info/METADATA": metadata, path: link(f"{P}/x-1.dist-info/METADATA", tarfile.LNKTYPE)},
        {f"{P}/.wh.x-1.dist-info": b""},
    )
    assert alone.python == {"linked": "1"}


def test_hard_link_out_of_the_package_root_is_refused() -> None:
    with pytest.raises(BaseError, check=says(f"^/{P}/b: is a hard link out of the package root")):
        take({"etc/a": b"x", f"{P}/b": link("etc/a", tarfile.LNKTYPE)})


def test_device_below_the_package_root_is_refused() -> None:
    with pytest.raises(BaseError, check=says(f"^/{P}/fifo: expected a regular file or symlink")):
        take({f"{P}/fifo": link("", tarfile.FIFOTYPE)})


def test_installed_debian_packages_are_listed_and_removed_ones_are_not() -> None:
    taken = take({f"{P}/a": b"", "./var/lib/dpkg/status": STATUS})
    assert taken.debian == {"bash": "5.2-1", "libc6": "2.36-9"}


def test_python_distributions_are_listed_by_normalised_name() -> None:
    taken = take(
        {
            f"{P}/Foo.Bar_baz-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: Foo.Bar__baz\nVersion: 1\n\nT",
            f"{P}/x-2.dist-info/METADATA": b"Name: x\nVersion: 2\n",
        }
    )
    assert taken.python == {"foo-bar-baz": "1", "x": "2"}


def test_distribution_that_another_one_carries_inside_is_not_installed() -> None:
    taken = take(
        {
            f"{P}/packaging-26.dist-info/METADATA": b"Name: packaging\nVersion: 26\n",
            f"{P}/setuptools/_vendor/packaging-24.dist-info/METADATA": b"Name: packaging\nVersion: 24\n",
        }
    )
    assert taken.python == {"packaging": "26"}


@pytest.mark.parametrize("layers", [(), ({"etc/passwd": b""},), ({f"{P}/a": b""}, {f"{P}/.wh.a": b""})])
def test_nothing_below_the_package_root_is_an_error(layers: tuple[Mapping[str, Content], ...]) -> None:
    with pytest.raises(BaseError, check=says(f"{ROOT}: expected Python packages, found nothing", "package_root")):
        take(*layers)


@pytest.mark.parametrize(
    "layer",
    [b"", b"\x28\xb5\x2f\xfd" + b"x" * 600, tar({f"{P}/a": b"x" * 9000})[:3000], gzip.compress(b"x" * 9999)[:20]],
    ids=["empty", "zstd", "cut-short", "cut-gzip"],
)
def test_layer_that_cannot_be_read_is_one_line(layer: bytes) -> None:
    with pytest.raises(BaseError, check=says(f"^{BASE}: a layer cannot be read: ", "tar or tar\\+gzip")):
        take(layer)


class TestStored:
    def test_inventory_of_a_layout_is_taken_once_and_stored_by_digest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = make_image(tmp_path / "base", [[LayerEntry(f"{P}/a", b"x")], [LayerEntry(f"{P}/b", b"x")]])
        taken = inventory.of_layout(base, ROOT, tmp_path)
        assert set(taken.files) == {"a", "b"}
        name = base.digest.replace(":", "-")
        assert (tmp_path / "inventories" / f"{name}.json").read_bytes() == taken.to_json()
        monkeypatch.setattr(inventory, "take", None)
        assert inventory.of_layout(base, ROOT, tmp_path) == taken

    def test_other_package_root_is_taken_anew(self, tmp_path: Path) -> None:
        base = make_image(tmp_path / "base", [[LayerEntry(f"{P}/a", b"x"), LayerEntry("opt/b", b"x")]])
        inventory.of_layout(base, ROOT, tmp_path)
        assert set(inventory.of_layout(base, "/opt", tmp_path).files) == {"b"}

    @pytest.mark.parametrize("stored", [None, b"", b"{}", b'{"base": 1, "unknown": 2}'])
    def test_missing_or_older_inventory_counts_as_none(self, tmp_path: Path, stored: bytes | None) -> None:
        if stored is not None:
            inventory.path_of(BASE, tmp_path).parent.mkdir()
            inventory.path_of(BASE, tmp_path).write_bytes(stored)
        assert inventory.load(BASE, tmp_path) is None

    def test_inventory_of_another_base_counts_as_none(self, tmp_path: Path) -> None:
        other = take({f"{P}/a": b""}).model_copy(update={"base": "sha256:" + "1" * 64})
        inventory.path_of(BASE, tmp_path).parent.mkdir()
        inventory.path_of(BASE, tmp_path).write_bytes(other.to_json())
        assert inventory.load(BASE, tmp_path) is None


def test_difference_names_changed_new_and_missing_packages_in_order() -> None:
    old, new = {"same": "1", "b": "1", "gone": "3"}, {"same": "1", "b": "2", "a": "1"}
    assert inventory.difference(old, new) == ["a (absent) → 1", "b 1 → 2", "gone 3 → (absent)"]
    assert inventory.difference(old, old) == []
