"""The xpu base: rendered here, built by the user's own Docker where Intel's and PyTorch's servers can be reached.

Nothing of it has been built here. What could not be found out without those servers is null in ``base-xpu.yaml``, and
a build refuses until it is filled in: no step may take what a server happens to offer that day.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from pipeline import compose as composing
from pipeline import dockerfile, pins
from pipeline.base import sglang_pin
from pipeline.console import Step, step
from pipeline.documents import Digest, Sha256
from pipeline.errors import BaseError
from pipeline.files import BUILD
from pipeline.manifest import Line, Strict, read_yaml
from pipeline.oci import digest_file
from pipeline.templates import render

FILE = "base-xpu.yaml"
TEMPLATE = "base-xpu.Dockerfile.j2"
KEY = "intel-graphics.asc"
"""The archive's public key, armoured, beside the manifest."""
PREFIX = "/opt/sglang"


class Archive(Strict):
    """A Debian archive and the key that signs it."""

    url: str
    suite: str
    fingerprint: str = Field(pattern=r"^[0-9A-F]{40}$")
    key_sha256: Sha256 | None = None
    """Of the file with the key, as this line keeps it."""


class XpuBase(Strict):
    """``base-xpu.yaml``."""

    image: str
    """Where Intel's image is, with the tag that people know it by."""
    digest: Digest | None = None
    python_tag: str = Field(pattern=r"^cp3\d+$")
    requirements: str
    """Hashed requirements file beside this one."""
    archive: Archive
    packages: dict[str, str | None]
    """Package to exact version."""


class Wheel(NamedTuple):
    """The pinned SGLang wheel."""

    name: str
    sha256: str


def read(line: Line) -> XpuBase:
    """The line's xpu base.

    Raises:
        BaseError: the line has none.
        ManifestError: the file is malformed.
    """
    if not (line.folder / FILE).is_file():
        raise BaseError(
            f"{line.folder / FILE}",
            expected="what an xpu base is made of",
            found="no such file: this line has no xpu base",
            do="docs/add-a-model.md names the files; build.py base build --line makes the cpu base",
        )
    return read_yaml(line.folder / FILE, XpuBase)


def unknown(base: XpuBase, folder: Path) -> list[str]:
    """What has to be filled in before a build."""
    found = ["digest"] if base.digest is None else []
    found += [f"packages.{name}" for name, version in base.packages.items() if version is None]
    found += ["archive.key_sha256"] if base.archive.key_sha256 is None else []
    return found + [name for name in (base.requirements, KEY) if not (folder / name).is_file()]


def render_dockerfile(base: XpuBase, wheel: Wheel) -> str:
    """The Dockerfile as text.

    Raises:
        BaseError: it would hide a failure or float.
    """
    text = render(TEMPLATE, base=base, wheel=wheel, key=KEY, prefix=PREFIX)
    if problems := dockerfile.problems(text):
        raise BaseError(f"recipes/{TEMPLATE}: {problems[0]}", do="mend the template")
    return text


def build(line: Line, repository: str, build: Path = BUILD) -> str:
    """Build the xpu base, push it to ``repository``, and put its reference into the line's lock.

    Returns:
        ``repository@sha256:…``, for ``base.reference`` in ``release.yaml``.

    Raises:
        BaseError: an input is not known, is not what its hash says, or Docker failed.
    """
    base = read(line)
    if missing := unknown(base, line.folder):
        raise BaseError(
            f"{line.folder / FILE}: {', '.join(missing)}",
            expected="every input by digest, hash or version",
            found="nothing",
            do="docs/xpu-base.md says where each comes from",
        )
    docker = shutil.which("docker")
    if docker is None:
        raise BaseError("docker", expected="the program, with buildx", found="none", do="install Docker with BuildKit")
    if (found := digest_file(line.folder / KEY).removeprefix("sha256:")) != base.archive.key_sha256:
        raise BaseError(f"{line.folder / KEY}", expected=base.archive.key_sha256, found=found, do="fetch the key again")
    file = pins.fetch(sglang_pin(line), base.python_tag, build / "cache")
    wheel = Wheel(file.name, digest_file(file).removeprefix("sha256:"))
    with tempfile.TemporaryDirectory() as scratch:
        context = Path(scratch)
        _fill(context, line, base, file, render_dockerfile(base, wheel))
        tag = f"{repository}:{line.release.tag}-base-{line.release.release}"
        digest = _run(docker, context, base, tag, build / line.name / "base-xpu.log")
    reference = f"{repository}@{digest}"
    composing.write_lock(line, xpu_base=reference)
    return reference


def _fill(context: Path, line: Line, base: XpuBase, wheel: Path, text: str) -> None:
    """Everything that the build may see: nothing else of this machine gets into it."""
    (context / "Dockerfile").write_text(text, encoding="utf-8")
    archive = base.archive
    source = f"deb [signed-by=/usr/share/keyrings/{KEY}] {archive.url} {archive.suite} main\n"
    (context / "intel-graphics.list").write_text(source, encoding="utf-8")
    for path in (line.folder / KEY, line.folder / base.requirements, wheel):
        shutil.copyfile(path, context / path.name)


def _run(docker: str, context: Path, base: XpuBase, tag: str, log: Path) -> str:
    """Build and push; the digest of the manifest, not of an index with attestations around it."""
    result = context.with_suffix(".json")
    command = [docker, "buildx", "build", "--push", "--progress=plain", "--platform=linux/amd64"]
    command += ["--provenance=false", "--sbom=false"]
    command += [f"--build-arg=BASE_DIGEST={base.digest}", f"--metadata-file={result}", f"--tag={tag}", str(context)]
    try:
        with step("Build and push the xpu base") as shown:
            if status := _watch(command, log, shown):
                raise BaseError(f"docker buildx build: {shown.detail or status}", do=f"{log} has all of its output")
            shown.detail = f"output in {log}"
        digest = json.loads(result.read_text(encoding="utf-8")).get("containerimage.digest")
    except (OSError, ValueError) as error:
        raise BaseError(
            f"docker buildx build: no result: {error}", do="use a Docker whose buildx is 0.10 or newer"
        ) from error
    finally:
        result.unlink(missing_ok=True)
    if not isinstance(digest, str) or not digest.startswith("sha256:"):
        raise BaseError(
            "docker buildx build", expected="containerimage.digest", found=digest or "none", do="update buildx"
        )
    return digest


def _watch(command: list[str], log: Path, shown: Step) -> int:
    """The command's status; all that it says goes into the log, and its last line is shown meanwhile."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=subprocess.STDOUT) as process,
    ):
        for line in process.stdout or ():
            file.write(line)
            file.flush()
            shown.detail = line.decode(errors="replace").strip() or shown.detail
    return process.returncode
