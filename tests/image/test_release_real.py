"""From the checked image to a registry and back: release, docker pull by digest, and a base that is published."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import check, stages
from pipeline import image as images
from pipeline import release as releases
from pipeline.documents import CheckReport, CheckStatus
from pipeline.gate import Candidate, GateError
from pipeline.manifest import Lock, LockedBase, PublishedBase
from pipeline.oci import CONFIG_TYPE, Descriptor
from pipeline.registry import Registry, Repository
from tests.engine.registry_server import RegistryServer, registry_server
from tests.image.conftest import Real, only

BASES = frozenset({"environment", "features", "kernels", "leftovers", "tree"})
"""Checks whose answer can depend on the base that our layer lies on."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A registry on loopback."""
    with registry_server(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Locks of releases lie elsewhere than the user's."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def candidate(real: Real, report: CheckReport) -> Candidate:
    """The real image with a verdict, as from a clean commit: this checkout's state is not what is tested."""
    return Candidate(
        line=real.line,
        image=real.image,
        record=real.composed.record,
        report=report,
        manifest=stages.manifest_digest(real.line),
        checks_digest=check.checks_digest(),
        patches={},
        commit="0" * 40,
    )


@pytest.fixture(scope="module")
def released(real: Real, server: RegistryServer, report: CheckReport) -> releases.ReleaseResult:
    """The real image, released through the real engine."""
    return releases.release(candidate(real, report), f"{server.address}/sglang-xpu", lambda: real.engine)


def test_tags_carry_the_base_kind_and_latest_is_absent(
    real: Real, server: RegistryServer, released: releases.ReleaseResult
) -> None:
    """A cpu image is never found under the model's plain tags."""
    pinned = f"{real.line.release.tag}-{real.line.release.release}-cpu"
    assert released.tags == (pinned, f"{real.line.release.tag}-cpu")
    with Registry(Repository.parse(released.repository)) as client:
        assert [client.head_manifest(tag) for tag in released.tags] == [real.image.digest] * 2
        for absent in ("latest", real.line.release.tag, pinned.removesuffix("-cpu")):
            assert client.head_manifest(absent) is None
        assert server.address in released.repository


def test_docker_pull_by_digest_gives_the_same_image(real: Real, released: releases.ReleaseResult) -> None:
    """What an operator pulls is what was checked."""
    api = real.engine.client.images
    loaded = real.engine.find(real.image)
    assert loaded is not None
    with contextlib.ExitStack() as cleanup:
        pulled = api.pull(released.repository, tag=released.digest)
        reference = f"{released.repository}@{released.digest}"
        cleanup.callback(api.remove, reference)
        assert reference in pulled.attrs["RepoDigests"]
        assert pulled.id == real.image.config_digest


def test_release_needs_a_report_on_this_very_image(real: Real, server: RegistryServer, report: CheckReport) -> None:
    """A passed report on another digest opens nothing."""
    other = report.model_copy(update={"image": "sha256:" + "0" * 64})
    repository = f"{server.address}/refused"
    with pytest.raises(GateError, match="checked image"):
        releases.release(candidate(real, other), repository, lambda: real.engine)
    with Registry(Repository.parse(repository)) as client:
        assert not client.has_blob(real.image.config_digest)


def test_an_image_on_a_published_base(
    real: Real,
    server: RegistryServer,
    released: releases.ReleaseResult,
    report: CheckReport,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The base is read from its registry by digest, pulled by the engine, and mounted; the plain tags are its."""
    config = Descriptor(CONFIG_TYPE, real.base.image.config_digest, len(real.base.image.config_bytes))
    with Registry(Repository.parse(released.repository)) as client:
        client.push_blob(real.base.image.blob(config.digest), config)
        client.put_manifest(real.base.image.digest, real.base.image.manifest_bytes, real.base.image.media_type)
    published = PublishedBase(
        kind="published",
        reference=f"{released.repository}@{real.base.image.digest}",
        package_root=real.base.inventory.package_root,
        python_tag="cp311",
    )
    release = real.line.release.model_copy(update={"base": published})
    lock = Lock(steps=real.line.lock.steps if real.line.lock else {}, base=LockedBase(digest=real.base.image.digest))
    line = real.line.model_copy(update={"release": release, "lock": lock})
    build = tmp_path / "build"
    monkeypatch.setenv("DOCKER_HOST", real.engine.host)  # else a second build folder starts an engine of its own
    assert stages.take_inventory(line, build) == real.base.inventory
    base = stages.get_base(line, build=build)
    image = images.build(line, real.composed, base, build / "image")
    assert image.layers[:-1] == real.image.layers[:-1]
    assert not any(image.blob(layer.digest).exists() for layer in image.layers[:-1])
    # What a base can change is looked at again; the other checks ran on these very files.
    monkeypatch.setattr(check, "CHECKS", only(BASES, tmp_path))
    verdict = stages.check_image(line, real.composed, base, image, build)
    # This base poses as a published one and has no kernels; one that has them is not to be had on a test's machine.
    assert {row.name for row in verdict.checks if not row.status.is_sound} == {"kernels"}
    rows = {row.name: row for row in (*report.checks, *verdict.checks)}
    rows["kernels"] = rows["kernels"].model_copy(update={"status": CheckStatus.PASSED})
    checks = tuple(rows[name] for name in sorted(rows))
    verdict = verdict.model_copy(update={"checks": checks, "checks_digest": report.checks_digest})
    repository = f"{server.address}/plain"
    plain = replace(candidate(real, verdict), line=line, image=image, manifest=stages.manifest_digest(line))
    result = releases.release(plain, repository, lambda: real.engine)
    assert result.tags == (f"{release.tag}-{release.release}", release.tag)
    assert result.bytes_sent < 4 << 20
