"""Verification: equal inputs give the recorded image again, and each difference is said for what it is."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import base as bases
from pipeline import cli
from pipeline import verify as verifying
from pipeline.errors import VerifyError
from pipeline.manifest import load_line
from pipeline.oci import Image, LayerEntry, append_layer, digest_bytes, digest_file, write_layer
from pipeline.registry import Registry, Repository
from pipeline.verify import Comparison, Verification, verify_remote
from tests.fast.builders import ROOT, diff, make_base, make_commit, says, write_series
from tests.fast.fake_registry import FakeRegistry, fake_registry
from tests.fast.small_release import COMMIT, OTHER, Released, make_released


def outcomes(found: Verification) -> dict[str, str]:
    return {row.part: row.outcome for row in found.rows}


def row(found: Verification, part: str) -> Comparison:
    return next(row for row in found.rows if row.part == part)


ALL_SAME = dict.fromkeys(("inputs", "tree", "base", "layer", "config", "manifest"), "same")


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Released:
    return make_released(tmp_path, monkeypatch)


class TestRebuilding:
    def test_equal_inputs_give_the_recorded_image_again(self, released: Released) -> None:
        found = released.verify()
        assert outcomes(found) == ALL_SAME
        assert found.image == released.image.digest
        found.require()
        assert list((released.folder / "build").glob(".verify.*")) == []

    def test_patch_that_is_not_the_recorded_one_is_named_with_the_commit(self, released: Released) -> None:
        file = released.folder / "patches/small/one.patch"
        file.write_text(file.read_text().replace("Description: A change", "Description: Another"))
        found = released.verify()
        assert outcomes(found) == dict.fromkeys(ALL_SAME, "not compared") | {"inputs": "differs"}
        assert row(found, "inputs").detail.startswith("patch one.patch: recorded ")
        assert row(found, "inputs").detail.endswith(f"check out commit {COMMIT}")

    def test_other_manifest_is_said_with_the_commit(self, released: Released) -> None:
        found = released.verify(released.record.model_copy(update={"manifest": OTHER}))
        assert row(found, "inputs").detail.startswith(f"manifest of small: recorded {OTHER}, here sha256:")
        assert outcomes(found)["tree"] == "not compared"

    def test_pins_are_the_recorded_ones_not_those_of_the_checkout(self, released: Released) -> None:
        later = make_commit(released.folder / "upstream", {"sglang/b.py": "B = 2\n"})
        pins = {"sglang": {**released.record.pins["sglang"], "commit": later}}
        found = released.verify(released.record.model_copy(update={"pins": pins}))
        assert row(found, "tree").outcome == "differs"
        assert row(found, "tree").detail.startswith("after source:sglang: recorded sha256:")
        assert outcomes(found)["layer"] == "not compared"

    @pytest.mark.parametrize("part", ["layer", "config"])
    def test_object_that_is_not_the_recorded_one_is_named(self, released: Released, part: str) -> None:
        found = released.verify(released.change(**{part: OTHER}))
        assert outcomes(found) == ALL_SAME | {part: "differs"}
        assert row(found, part).detail.startswith(f"recorded {OTHER}, here sha256:")
        with pytest.raises(VerifyError, check=says(f"record.json: {part}: expected same, found differs")):
            found.require()

    def test_tree_digest_that_is_not_that_of_the_steps_differs(self, released: Released) -> None:
        assert outcomes(released.verify(released.change(tree=OTHER))) == ALL_SAME | {"tree": "differs"}

    def test_local_base_of_another_mirror_state_is_not_compared_but_the_layer_is(self, released: Released) -> None:
        other = make_base(released.folder / "other", {"etc/other": b"x"}, released.base.inventory)
        record = released.change(base=other.image.digest, config=OTHER, digest=OTHER)
        found = released.verify(record)
        expected = {"base": "not compared", "config": "not compared", "manifest": "not compared"}
        assert outcomes(found) == ALL_SAME | expected
        assert "only on one state of Debian's mirror" in row(found, "base").detail
        with pytest.raises(VerifyError, check=says("base, config, manifest: expected same, found not compared")):
            found.require()

    def test_without_a_local_base_only_the_tree_is_compared(
        self, released: Released, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bases, "cached", lambda _line, _build: False)
        found = released.verify()
        assert [part for part, outcome in outcomes(found).items() if outcome == "same"] == ["inputs", "tree"]
        assert row(found, "base").detail == "no local base lies here; build.py base build makes one"

    def test_base_of_another_kind_differs(self, released: Released) -> None:
        found = released.verify(released.change(base_kind="published"))
        assert row(found, "base").detail == "recorded a published base, the manifest names a cpu base"
        assert outcomes(found)["layer"] == "not compared"

    def test_record_of_a_changed_folder_says_so(self, released: Released) -> None:
        found = released.verify(released.record.model_copy(update={"manifest": OTHER, "dirty": True}))
        assert row(found, "inputs").detail.endswith(f"{COMMIT}, from which the folder differed when it was released")

    def test_published_base_is_read_by_its_digest(self, released: Released, monkeypatch: pytest.MonkeyPatch) -> None:
        digest, read = released.base.image.digest, list[str]()
        base = {
            "kind": "published",
            "reference": f"127.0.0.1:1/base@{digest}",
            "package_root": ROOT,
            "python_tag": "cp311",
        }
        file = released.line.folder / "release.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"base": base}))
        monkeypatch.setattr(bases, "read_inventory", lambda base, _build: read.append(base.reference))
        record = released.change(base_kind="published").model_copy(update={"manifest": digest_file(file)})
        assert outcomes(released.verify(record)) == ALL_SAME
        assert read == [base["reference"]]
        record = record.model_copy(update={"image": record.image.model_copy(update={"base": OTHER})})
        found = released.verify(record)
        assert row(found, "base").detail == f"recorded {OTHER}, the manifest names {base['reference']}"
        assert outcomes(found)["layer"] == "not compared"

    def test_pin_of_work_in_progress_is_refused(self, released: Released) -> None:
        pins = {"sglang": {"kind": "dir", "path": "somewhere"}}
        with pytest.raises(VerifyError, check=says("pin sglang: expected a version or a commit, found work in prog")):
            released.verify(released.record.model_copy(update={"pins": pins}))

    @pytest.mark.parametrize(
        ("pin", "problem"),
        [
            (
                {"kind": "git", "url": "ssh://host/x", "commit": "0" * 40},
                "pin sglang: expected an https URL, found ssh:",
            ),
            (
                {"kind": "git", "url": "ext::sh -c x", "commit": "0" * 40},
                "pin sglang: expected an https URL, found ext:",
            ),
            (
                {"kind": "pypi", "name": "a\n--no-binary=:all:\na", "version": "1", "sha256": {"cp311": "0" * 64}},
                "with the recorded pins: String should match pattern",
            ),
        ],
    )
    def test_nothing_is_fetched_from_where_a_strangers_record_must_not_lead(
        self, released: Released, pin: dict[str, Any], problem: str
    ) -> None:
        with pytest.raises(VerifyError, check=says(problem)):
            released.verify(released.record.model_copy(update={"pins": {"sglang": pin}}))

    @pytest.mark.parametrize("line", ["nosuch", "../manifests/small"])
    def test_line_that_is_none_here_sends_to_the_commit(self, released: Released, line: str) -> None:
        with pytest.raises(VerifyError, check=says(f"recorded line: expected small, found '{line}'; check out commit")):
            released.verify(released.record.model_copy(update={"line": line}))

    def test_pins_that_the_layers_do_not_find_send_to_the_commit(self, released: Released) -> None:
        with pytest.raises(VerifyError, check=says("with the recorded pins: .*'sglang'", f"check out commit {COMMIT}")):
            released.verify(released.record.model_copy(update={"pins": {}}))

    @pytest.mark.parametrize("text", ["", "{}", '{"line": 1}'])
    def test_malformed_record_is_one_line(self, released: Released, text: str) -> None:
        file = released.folder / "malformed.json"
        file.write_text(text)
        with pytest.raises(VerifyError, check=says("malformed.json: not a release record: ")):
            released.verify(target=str(file))

    @pytest.mark.parametrize(
        "text", ["nothing", "a.json", "host/name", "host/name:", "host/name@sha256:12", "http://h/n:t"]
    )
    def test_what_is_neither_file_nor_reference_is_refused(self, released: Released, text: str) -> None:
        with pytest.raises(VerifyError):
            released.verify(target=text)


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with fake_registry() as running:
        yield running


def serve(server: FakeRegistry, image: Image) -> str:
    """Put the image's own parts into the registry, without the base's layers; its reference."""
    config = image.manifest["config"]
    with Registry(Repository(server.address, "team/image")) as registry:
        for digest in (image.layers[-1].digest, config["digest"]):
            server.blobs["team/image", digest] = image.blob(digest).read_bytes()
        registry.put_manifest("a-cpu", image.manifest_bytes, image.media_type)
    return f"{server.address}/team/image:a-cpu"


def repack(released: Released, target: Path, files: dict[str, bytes], **labels: str) -> Image:
    """The released image with another last layer: its record, and ``files`` below ``/``."""
    entries = [LayerEntry(path, data) for path, data in files.items()]
    target.mkdir()
    layer = write_layer(target / "layer.tar", entries)
    return append_layer(
        released.base.image,
        target / "image",
        target / "layer.tar",
        layer,
        environment={},
        labels=released.image.labels | labels,
        created="2026-01-31T00:00:00Z",
        comment="another",
    )


INSIDE = "usr/local/share/sglang-xpu/record.json"
A = f"{ROOT.strip('/')}/sglang/a.py"


class TestReference:
    def test_image_without_a_release_record_is_rebuilt_from_the_record_inside(
        self, released: Released, server: FakeRegistry
    ) -> None:
        found = released.verify(target=serve(server, released.image))
        assert outcomes(found) == ALL_SAME
        assert row(found, "inputs").detail == "patches by name: no release record has hashes"

    def test_files_of_a_tree_that_differs_are_listed(self, released: Released, server: FakeRegistry) -> None:
        reference = serve(server, released.image)
        write_series(released.folder / "patches/small", {"one.patch": diff("sglang/a.py", "A = 1\n", "A = 3\n")})
        found = released.verify(target=reference)
        assert outcomes(found)["tree"] == "differs"
        assert found.files == ("sglang/a.py: differs",)

    def test_files_of_a_record_that_differs_are_read_from_its_registry(
        self, released: Released, server: FakeRegistry
    ) -> None:
        serve(server, released.image)
        later = make_commit(released.folder / "upstream", {"sglang/b.py": "B = 2\n", "sglang/new.py": ""})
        pins = {"sglang": {**released.record.pins["sglang"], "commit": later}}
        here = {"pins": pins, "repository": f"{server.address}/team/image"}
        found = released.verify(released.record.model_copy(update=here))
        assert found.files == ("sglang/b.py: differs", "sglang/new.py: here only")

    def test_first_files_are_listed(
        self, released: Released, server: FakeRegistry, capfd: pytest.CaptureFixture[str]
    ) -> None:
        reference = serve(server, released.image)
        later = make_commit(released.folder / "upstream", {f"sglang/{number:02}.py": "" for number in range(30)})
        pins = {"sglang": {**released.record.pins["sglang"], "commit": later}}
        record = released.record.model_copy(update={"pins": pins, "repository": reference.rpartition(":")[0]})
        assert released.verify(record).files == tuple(f"sglang/{number:02}.py: here only" for number in range(20))
        assert "30 differences; the first 20 are listed" in capfd.readouterr().err

    def test_parts_that_differ_are_listed_by_file_and_by_key_of_the_config(
        self, released: Released, server: FakeRegistry
    ) -> None:
        files = {A: b"A = 2\n", INSIDE: released.inside.to_json(), "etc/extra": b"x"}
        other = repack(released, released.folder / "other", files, extra="label")
        found = released.verify(target=serve(server, other))
        assert outcomes(found) == ALL_SAME | dict.fromkeys(("layer", "config", "manifest"), "differs")
        assert found.files[0] == "/etc/extra: recorded only"
        assert "config: Labels.extra: recorded only" in found.files


class TestRemote:
    def test_what_was_released_reads_back(self, released: Released, server: FakeRegistry) -> None:
        found = verify_remote(serve(server, released.image))
        assert outcomes(found) == {"digest": "same", "release record": "not compared", "tree": "same", "files": "same"}
        with pytest.raises(VerifyError, check=says("release record: expected same, found not compared")):
            found.require()

    def test_file_that_is_not_what_the_record_says_is_named(self, released: Released, server: FakeRegistry) -> None:
        other = repack(released, released.folder / "other", {A: b"evil\n", INSIDE: released.inside.to_json()})
        found = verify_remote(serve(server, other))
        assert found.files == (f"/{A}: is not what the record says",)
        with pytest.raises(VerifyError, check=says("files: expected same, found differs")):
            found.require()

    def test_file_that_the_record_does_not_name_is_named(self, released: Released, server: FakeRegistry) -> None:
        other = repack(released, released.folder / "other", {"etc/profile": b"x", INSIDE: released.inside.to_json()})
        assert verify_remote(serve(server, other)).files == ("/etc/profile: the record does not name it",)

    def test_second_copy_of_the_tree_elsewhere_is_named(self, released: Released, server: FakeRegistry) -> None:
        files = {A: b"A = 2\n", "srv/sglang/a.py": b"A = 2\n", INSIDE: released.inside.to_json()}
        found = verify_remote(serve(server, repack(released, released.folder / "other", files)))
        assert found.files == (f"files below more than one package root: /srv/, {ROOT}/",)

    def test_whiteout_outside_the_package_root_is_named(self, released: Released, server: FakeRegistry) -> None:
        files = {A: b"A = 2\n", "etc/.wh.passwd": b"", INSIDE: released.inside.to_json()}
        found = verify_remote(serve(server, repack(released, released.folder / "other", files)))
        assert found.files == ("/etc/.wh.passwd: deletes outside the package root",)

    def test_record_that_lists_another_tree_than_it_names_differs(
        self, released: Released, server: FakeRegistry
    ) -> None:
        document = json.loads(released.inside.to_json())
        document["files"]["sglang/a.py"]["sha256"] = digest_bytes(b"evil\n")[7:]
        files = {A: b"evil\n", INSIDE: json.dumps(document).encode()}
        found = verify_remote(serve(server, repack(released, released.folder / "other", files)))
        assert outcomes(found)["files"] == "same"
        assert row(found, "tree").detail.startswith("label: expected sha256:")

    @pytest.mark.parametrize(
        ("files", "problem"),
        [
            ({"etc/x": b""}, "expected /usr/local/share/sglang-xpu/record.json in the last layer, found none"),
            ({INSIDE: b"{}"}, "expected /usr/local/share/sglang-xpu/record.json as this pipeline writes it"),
            ({"etc/x": b"0" * (9 << 20)}, "expected a last layer of at most 8,388,608 bytes, found one of"),
        ],
    )
    def test_foreign_image_is_refused(
        self, released: Released, server: FakeRegistry, files: dict[str, bytes], problem: str
    ) -> None:
        reference = serve(server, repack(released, released.folder / "other", files))
        with pytest.raises(VerifyError, check=says(problem)):
            verify_remote(reference)

    def test_tag_that_is_not_there_is_one_line(self, released: Released, server: FakeRegistry) -> None:
        serve(server, released.image)
        with pytest.raises(VerifyError, check=says("get manifest nosuch: expected status 200, found 404")):
            verify_remote(f"{server.address}/team/image:nosuch")

    def test_blob_with_other_bytes_is_refused(self, released: Released, server: FakeRegistry) -> None:
        reference = serve(server, released.image)
        layer = released.image.layers[-1].digest
        server.blobs["team/image", layer] = server.blobs["team/image", layer].replace(b"A = 2", b"A = 3")
        with pytest.raises(VerifyError, check=says(f"get blob {layer}: expected {layer}, found sha256:")):
            verify_remote(reference)


def test_command_prints_the_verdict_and_fails_with_its_own_code(
    released: Released, server: FakeRegistry, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reference = serve(server, released.image)
    assert cli.run(["verify", "--remote", "--json", reference]) == 14
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert document["verified"] is False
    assert document["image"] == released.image.digest
    assert [row["part"] for row in document["rows"]] == ["digest", "release record", "tree", "files"]
    assert err.endswith("release record: expected same, found not compared; docs/verify.md says what it means\n")
    file = released.folder / "r.json"
    file.write_bytes(released.record.to_json())
    monkeypatch.setattr(cli, "BUILD", released.folder / "build")
    monkeypatch.setattr(cli, "build_lock", nullcontext)
    monkeypatch.setattr(verifying, "lines", lambda _: ["small"])
    monkeypatch.setattr(verifying, "load_line", lambda name, _: load_line(name, released.folder / "manifests"))
    assert cli.run(["verify", str(file)]) == 0
    out, _ = capfd.readouterr()
    assert out.count("same") == len(ALL_SAME)
    assert out.endswith(f"{released.image.digest}\n")
