"""Verification against a real registry: what a release pushed and recorded is found again, by everyone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.documents import CheckReport, CheckResult, CheckStatus
from pipeline.errors import VerifyError
from pipeline.gate import Candidate
from pipeline.manifest import Lock, LockedBase
from pipeline.oci import Descriptor, digest_bytes
from pipeline.registry import Registry, Repository
from pipeline.release import release
from pipeline.verify import Verification, verify_remote
from tests.engine.registry_server import RegistryServer, registry_server
from tests.engine.releasing import Puller
from tests.fast.small_release import COMMIT, OTHER, Released, make_released


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RegistryServer]:
    with registry_server(tmp_path / "registry") as running:
        yield running


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: RegistryServer) -> Released:
    """The small release, pushed with its record to ``team/image``."""
    for name in ("DOCKER_CONFIG", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    made = make_released(tmp_path, monkeypatch)
    release(candidate(made), f"{server.address}/team/image", Puller)
    return made


def candidate(made: Released) -> Candidate:
    """The small release as the gate wants it."""
    lock = Lock(steps={}, base=LockedBase(digest=made.base.image.digest))
    report = CheckReport(
        image=made.image.digest,
        base_kind="cpu",
        base=made.base.image.digest,
        tree=made.inside.digest,
        checks_digest=OTHER,
        manifest=made.record.manifest,
        checks=(CheckResult(name="tree", status=CheckStatus.PASSED, seconds=1, reason="equal"),),
    )
    line, patches = made.line.model_copy(update={"lock": lock}), made.record.patches
    return Candidate(line, made.image, made.inside, report, made.record.manifest, OTHER, patches, COMMIT)


def outcomes(found: Verification) -> set[str]:
    return {str(row.outcome) for row in found.rows}


@pytest.mark.parametrize("end", [":a-cpu", ":a-20260131-cpu", "@{digest}"])
def test_reference_verifies_remotely_and_by_a_rebuild(released: Released, server: RegistryServer, end: str) -> None:
    reference = f"{server.address}/team/image{end.format(digest=released.image.digest)}"
    remote = verify_remote(reference)
    assert [row.part for row in remote.rows] == ["digest", "release record", "tree", "files"]
    assert outcomes(remote) == {"same"}
    assert f"commit {COMMIT}" in remote.rows[1].detail
    rebuilt = released.verify(target=reference)
    assert outcomes(rebuilt) == {"same"}
    assert rebuilt.rows[0].detail == "patches (1) and the manifest"
    assert rebuilt.image == remote.image == released.image.digest


def test_tag_that_was_moved_to_another_image_is_not_that_of_the_record(
    released: Released, server: RegistryServer
) -> None:
    """The same layers under another config: its digest has no record, and the rebuild differs in the config."""
    image = released.image
    config = json.loads(image.config_bytes)
    config["config"]["Env"] = ["LD_PRELOAD=/evil.so"]
    content = json.dumps(config).encode()
    descriptor = {**image.manifest["config"], "digest": digest_bytes(content), "size": len(content)}
    manifest = json.dumps({**image.manifest, "config": descriptor}).encode()
    reference = f"{server.address}/team/image:a-cpu"
    with Registry(Repository(server.address, "team/image")) as registry:
        registry.push_blob(content, Descriptor(descriptor["mediaType"], descriptor["digest"], len(content)))
        registry.put_manifest("a-cpu", manifest, image.media_type)
    remote = verify_remote(reference)
    assert {row.part: str(row.outcome) for row in remote.rows}["release record"] == "not compared"
    with pytest.raises(VerifyError, match="release record: expected same, found not compared"):
        remote.require()
    rebuilt = released.verify(target=reference)
    found = {row.part: str(row.outcome) for row in rebuilt.rows}
    assert (found["tree"], found["base"], found["layer"]) == ("same", "same", "same")
    assert (found["config"], found["manifest"]) == ("differs", "differs")
    assert rebuilt.files == ("config: Env: differs",)


def test_record_of_the_release_verifies_as_a_file(released: Released, server: RegistryServer) -> None:
    found = released.verify(released.record.model_copy(update={"repository": f"{server.address}/team/image"}))
    assert outcomes(found) == {"same"}
