"""Planted faults, one per row, against a whole small line: exit code, the one red line, and nothing half-made.

Each command is a process of its own in a copy of the line that was composed, built and checked before the fault came.
What it leaves is compared with what was there: every output is the old one.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from pipeline.engine import PrivateEngine
from pipeline.files import PROJECT
from pipeline.oci import Image, LayerEntry, digest_file
from pipeline.registry import Registry, Repository
from tests.engine import small_line
from tests.engine.conftest import PYTHON
from tests.engine.images import make_base
from tests.engine.registry_server import RegistryServer, registry_server
from tests.engine.small_line import DEPENDENCY, FIRST, SMALL, WHEEL, Done, SmallLine, make_wheel
from tests.fast.builders import HEADER, diff, make_commit, write_files, write_series

FILE = "sglang/srt/models/small.py"
CHECKS = ["environment", "features", "kernels", "leftovers", "registry", "startup", "tree"]
IN_THE_END = "interrupted; nothing half-made is left, the same command goes on from here"
SEE = "see docs/read-a-failed-check.md"


@pytest.fixture(scope="module")
def tally() -> dict[str, int]:
    return {"cases": 0, "bad outcomes": 0}


@pytest.fixture(autouse=True)
def counted(request: pytest.FixtureRequest, tally: dict[str, int]) -> Iterator[None]:
    """Count every case, and those that did not end as their row says."""
    before = request.session.testsfailed
    tally["cases"] += 1
    yield
    tally["bad outcomes"] += request.session.testsfailed - before


@dataclass(frozen=True)
class States:
    """The line as it was released before, and the same one with other inputs, each with all of its outputs."""

    old: SmallLine
    new: SmallLine


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the registry keeps its data."""
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="module")
def server(storage: Path) -> Iterator[RegistryServer]:
    with registry_server(storage) as running:
        yield running


@pytest.fixture(scope="module")
def states(
    private: PrivateEngine, python_base: Image, server: RegistryServer, tmp_path_factory: pytest.TempPathFactory
) -> States:
    folder = tmp_path_factory.mktemp("small")
    (folder / "shared").mkdir()
    with contextlib.closing(private.start().client):
        old = small_line.make(
            folder / "old", folder / "shared", python_base, PYTHON.resolve().name, server.address, private.host
        )
        old.ok("image")
        new = old.copy(folder / "new")
        (new.overlay / "sglang/srt/extra.py").write_text("EXTRA = 1\n\nMORE = 2\n")
        write_series(
            new.patches,
            {
                "first.patch": FIRST,
                "second.patch": diff("sglang/srt/extra.py", "EXTRA = 1\n\nMORE = 2\n", "EXTRA = 2\n\nMORE = 2\n"),
            },
        )
        new.edit(release=20260201)
        new.ok("compose", "--write-lock")
        new.ok("image")
    return States(old, new)


@pytest.fixture
def line(states: States, private: PrivateEngine, tmp_path: Path) -> Iterator[SmallLine]:
    """A copy of the old state; at the end the engine may hold nothing of any run.

    What its last run remembered is gone: ``image`` would stand by that verdict, and meet no fault.
    """
    with contextlib.closing(private.start().client) as client:
        copy = states.old.copy(tmp_path / "line")
        (copy.out / "inputs").unlink()
        yield copy
        assert [*client.containers.list(all=True), *client.volumes.list()] == []


@pytest.fixture
def moved_on(states: States, line: SmallLine) -> SmallLine:
    """The old outputs with the new inputs."""
    for name in ("manifests", "overlays", "patches"):
        shutil.rmtree(line.folder / name)
        shutil.copytree(states.new.folder / name, line.folder / name)
    return line


def outputs(line: SmallLine) -> dict[str, object]:
    """What the line has made, each in full; reading it proves that it is whole."""
    found: dict[str, object] = {}
    if (line.out / "tree").exists():
        tree = line.out / "tree"
        found["tree"] = {str(file.relative_to(tree)): file.read_bytes() for file in tree.rglob("*") if file.is_file()}
    for name in ("record.json", "image/index.json"):
        if (line.out / name).exists():
            found[name] = json.loads((line.out / name).read_bytes())
    if (line.out / "image").exists():
        image = line.image()
        found["layer"] = image.blob(image.layers[-1].digest).read_bytes()
    if (line.out / "check-report.json").exists():
        report = json.loads((line.out / "check-report.json").read_bytes())
        found["report"] = report["image"], line.report()
    if (line.out / "junit.xml").exists():
        found["junit"] = len(list(ET.parse(line.out / "junit.xml").iter("testcase")))
    found["lock"] = yaml.safe_load((line.manifest.parent / "lock.yaml").read_text())
    return found


def refused(done: Done, code: int, message: str) -> None:
    """One red line that says what, expected or found, and what to do; the exit code of its stage; no traceback."""
    assert "Traceback" not in done.err
    (line,) = done.errors
    assert re.fullmatch(f"error: {message}", line), line
    assert done.code == code
    assert re.search(r"; \w", line), "says what to do"


# -- faults of the inputs -------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """A row: what is planted, and how the command (``compose`` unless said) ends."""

    name: str
    plant: Callable[[SmallLine], object]
    code: int
    message: str
    """Of the red line, as a regular expression for all of it."""
    command: tuple[str, ...] = ("compose",)


def wrong_sha256(line: SmallLine) -> None:
    line.pin_wheel("f" * 64)


def cut(file: Path) -> Path:
    """Take the last third of a file away."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    return file


def truncated_in_the_index(line: SmallLine) -> None:
    shutil.rmtree(line.build / "cache")
    cut(line.wheel)


def truncated_and_pinned(line: SmallLine) -> None:
    line.pin_wheel(digest_file(cut(line.wheel)).removeprefix("sha256:"))


def truncated_in_the_cache_and_gone(line: SmallLine) -> None:
    cut(next(line.build.rglob("models-*.whl")))
    line.wheel.unlink()


def wheel_with(*paths: str, symlinks: dict[str, str] | None = None) -> Callable[[SmallLine], object]:
    """A wheel with more entries, and pinned."""
    files = {**WHEEL, **dict.fromkeys(paths, "x")}
    return lambda line: line.pin_wheel(make_wheel(line.index, files, symlinks or {}))


def linked_commit(line: SmallLine) -> None:
    repository = line.folder / "repository"
    write_files(repository, {"python/sglang/a.py": ""})
    (repository / "python/sglang/link").symlink_to("/etc")
    line.edit_pin("sglang", url=str(repository), commit=make_commit(repository, {}))


def linked_folder(target: str) -> Callable[[SmallLine], None]:
    """A ``dir`` pin with a symlink in it."""

    def plant(line: SmallLine) -> None:
        write_files(line.folder / "wip", {"sglang/a.py": "", "outside/b.py": ""})
        (line.folder / "wip/sglang/link").symlink_to(target)
        line.edit(pins={**line.edit()["pins"], "models": {"kind": "dir", "path": "wip"}})

    return plant


def listed(path: str) -> Callable[[SmallLine], object]:
    """A second source that is to bring ``path``."""
    return lambda line: line.edit(layers=[{"source": "sglang"}, {"source": "models", "files": [path]}])


def overlay_named(name: str) -> Callable[[SmallLine], object]:
    return lambda line: line.edit(layers=[{"source": "sglang"}, {"overlay": name}])


def linked_overlay_file(target: str) -> Callable[[SmallLine], object]:
    return lambda line: (line.overlay / "sglang/link").symlink_to(target)


def replace_by_link(path: Callable[[SmallLine], Path]) -> Callable[[SmallLine], None]:
    """Move a file or folder away and leave a symlink to it."""

    def plant(line: SmallLine) -> None:
        there = path(line)
        away = line.folder / "elsewhere"
        there.rename(away)
        there.symlink_to(away)

    return plant


def patch(text: str | bytes) -> Callable[[SmallLine], object]:
    """The first patch with another diff."""
    data = text.encode() if isinstance(text, str) else text
    return lambda line: (line.patches / "first.patch").write_bytes(HEADER.encode() + data)


def series(text: str) -> Callable[[SmallLine], object]:
    return lambda line: (line.patches / "series").write_text(text)


def moved(by: int) -> str:
    """The first patch with its hunk stated that many lines further down."""
    at = int(re.search(r"@@ -(\d+),", FIRST)[1])  # type: ignore[index]
    return FIRST.replace(f"@@ -{at},7 +{at},7 @@", f"@@ -{at + by},7 +{at + by},7 @@")


FUZZ = FIRST.replace("     def first(self, x):\n", "     def first(self, x, z):\n")
"""One line of context is another: ``patch`` would take it with fuzz 1, ``git apply`` with ``-C2``."""
TWIN = SMALL.replace("return y\n\n    def second", "return y + 0\n\n    def second")
"""A source in which the body of ``first`` has changed, so that the hunk below fits ``second`` alone."""
IN_THE_WRONG_FUNCTION = f"""\
--- a/{FILE}
+++ b/{FILE}
@@ -8,3 +8,3 @@
         y = x + 1
-        y = y * 2
+        y = y * 3
         return y
"""
NOTHING = f"--- a/{FILE}\n+++ b/{FILE}\n@@ -1,2 +1,2 @@\n-import os\n+import os\n \n"
NO_END = "--- a/sglang/version.txt\n+++ b/sglang/version.txt\n@@ -1 +1 @@\n-no newline at the end\n+other\n"
BINARY = f"diff --git a/{FILE} b/{FILE}\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n"
SYMLINK = f"diff --git a/{FILE} b/{FILE}\nold mode 100644\nnew mode 120000\n{FIRST}"
NEW_SYMLINK = "diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc\n"


def at_path(path: str) -> str:
    """The first patch for another path."""
    return FIRST.replace(f"a/{FILE}", f"a/{path}").replace(f"b/{FILE}", f"b/{path}")


def twin(line: SmallLine) -> None:
    repository = line.folder / "repository"
    tree = {f"python/{path}": text for path, text in small_line.TREE.items()} | {f"python/{FILE}": TWIN}
    line.edit_pin("sglang", url=str(repository), commit=make_commit(repository, tree))
    patch(IN_THE_WRONG_FUNCTION)(line)


def overlay_after_the_patches(line: SmallLine) -> None:
    layers = line.edit()["layers"]
    line.edit(layers=[layers[0], layers[1], {"patches": "series"}, {"overlay": "late"}])
    write_files(line.folder / "overlays/late", {FILE: "x = 1\n"})
    write_series(line.patches, {"first.patch": FIRST})
    (line.patches / "second.patch").unlink()


def drop_from_cache(line: SmallLine) -> None:
    shutil.rmtree(line.build / "inventories")


def other_inventory(line: SmallLine) -> None:
    (file,) = (line.build / "inventories").iterdir()
    document = json.loads(file.read_bytes())
    file.write_text(json.dumps(document | {"base": "sha256:" + "7" * 64}))


def cut_inventory(line: SmallLine) -> None:
    (file,) = (line.build / "inventories").iterdir()
    cut(file)


def missing_base(line: SmallLine) -> None:
    document = line.edit()
    reference = document["base"]["reference"].partition("@")[0] + "@sha256:" + "7" * 64
    line.edit(base={**document["base"], "reference": reference})


def build_is_a_file(line: SmallLine) -> None:
    shutil.rmtree(line.build)
    line.build.write_text("")


LEAVES = r"\S+\.whl: entry '{}' leaves the tree; do not use this source"
LINKS = r"\S+\.whl: entry '{}' is a symlink; do not use this source"
PLAIN = r"must be a plain relative path inside the tree: found '{}'; correct the manifest"
FIRST_HUNK = r"hunk 1, in the file of source:sglang \(.*\)"
HUNK = rf"first\.patch: {FILE}: {FIRST_HUNK}"
INPUT_FAULTS = [
    Fault(
        "wrong sha256",
        wrong_sha256,
        5,
        r"models==1\.0: expected sha256 f{64}, found sha256 [0-9a-f]{64}; the index serves another file than .*",
    ),
    Fault(
        "truncated wheel in the index",
        truncated_in_the_index,
        5,
        r"models==1\.0: expected sha256 [0-9a-f]{64}, found sha256 [0-9a-f]{64}; the index serves another file .*",
    ),
    Fault(
        "truncated wheel that the pin names", truncated_and_pinned, 5, r"(\S+\.whl|models==1\.0): .*; (remove|check) .*"
    ),
    Fault(
        "truncated wheel in the cache, gone from the index",
        truncated_in_the_cache_and_gone,
        5,
        r"models==1\.0: No matching distribution found for models==1\.0.*; check the network and the package index .*",
    ),
    Fault("entry ../", wheel_with("sglang/../../x.py"), 5, LEAVES.format(r"sglang/\.\./\.\./x\.py")),
    Fault("entry absolute", wheel_with("/etc/x.py"), 5, LEAVES.format("/etc/x.py")),
    Fault("entry symlink", wheel_with(symlinks={"sglang/link": "/etc/passwd"}), 5, LINKS.format("sglang/link")),
    Fault(
        "entry below a symlink",
        wheel_with("sglang/link/x.py", symlinks={"sglang/link": "/etc"}),
        5,
        LINKS.format("sglang/link"),
    ),
    Fault(
        "commit with a symlink",
        linked_commit,
        5,
        r"\S+@[0-9a-f]{40}: python/sglang/link: expected a regular file, found mode 120000; pin a tree without",
    ),
    Fault(
        "folder with a symlink",
        linked_folder("/etc/passwd"),
        5,
        r"\S+/wip/sglang/link: is a symlink: expected regular files; copy what it points to",
    ),
    Fault(
        "folder with a symlinked parent",
        linked_folder("../outside"),
        5,
        r"\S+/wip/sglang/link: is a symlink: expected regular files; copy what it points to",
    ),
    Fault("listed file ../", listed("sglang/../../x"), 4, r"\S+: layers\.1\.source\.files\.0: " + PLAIN.format(r".*x")),
    Fault("listed file absolute", listed("/etc/x"), 4, r"\S+: layers\.1\.source\.files\.0: " + PLAIN.format("/etc/x")),
    Fault(
        "subdir ../",
        lambda line: line.edit_pin("sglang", subdir="../x"),
        4,
        r"\S+: pins\.sglang\.git\.subdir: " + PLAIN.format(r"\.\./x"),
    ),
    Fault("overlay ../", overlay_named("../extras"), 4, r"\S+: layers\.1\.overlay\.overlay: .*; correct the manifest"),
    Fault("overlay absolute", overlay_named("/etc"), 4, r"\S+: layers\.1\.overlay\.overlay: .*; correct the manifest"),
    Fault(
        "overlay with a symlink",
        linked_overlay_file("/etc/passwd"),
        6,
        r"\S+/overlays/extras/sglang/link: is a symlink: expected regular files; copy what it points to",
    ),
    Fault(
        "overlay with a symlinked parent",
        linked_overlay_file(".."),
        6,
        r"\S+/overlays/extras/sglang/link: is a symlink: expected regular files; copy what it points to",
    ),
    Fault(
        "overlay that is a symlink",
        replace_by_link(lambda line: line.overlay),
        6,
        r"\S+/overlays/extras: is a symlink: expected a folder; copy what it points to",
    ),
    Fault(
        "overlay over a patched file",
        overlay_after_the_patches,
        6,
        rf"overlay:late overwrites {FILE}, which first\.patch changed before it; move the layer before the patches .*",
    ),
    Fault(
        "patch path ../",
        patch(at_path("../small.py")),
        6,
        r"\S+/first\.patch: '--- a/\.\./small\.py': expected --- a/<path inside the tree>; export it again",
    ),
    Fault(
        "patch path absolute",
        patch(at_path("/etc/x")),
        6,
        r"\S+/first\.patch: '--- a//etc/x': expected --- a/<path inside the tree>; export it again",
    ),
    Fault(
        "patch that makes a symlink",
        patch(NEW_SYMLINK),
        6,
        r"\S+/first\.patch: creates a file: .*: expected changes inside existing text files; export it without that",
    ),
    Fault(
        "patch that turns a file into a symlink",
        patch(SYMLINK),
        6,
        r"\S+/first\.patch: changes a file mode: expected changes inside existing text files; export it without that",
    ),
    Fault(
        "patch that is a symlink",
        replace_by_link(lambda line: line.patches / "first.patch"),
        6,
        r"\S+/series:1: first\.patch: expected a regular file of that name, found none; add it or drop the line",
    ),
    Fault(
        "series that is a symlink",
        replace_by_link(lambda line: line.patches / "series"),
        6,
        r"\S+/patches/small/series: is a symlink: expected patches that lie here; copy what it points to",
    ),
    Fault(
        "patches below a symlinked parent",
        replace_by_link(lambda line: line.patches),
        6,
        r"\S+/patches/small: is a symlink: expected patches that lie here; copy what it points to",
    ),
    Fault(
        "series line ../",
        series("../small/first.patch\nsecond.patch\n"),
        6,
        r"\S+/series:1: \.\./small/first\.patch: expected the name of a \.patch file beside it; correct the line",
    ),
    Fault(
        "series line absolute",
        series("/etc/first.patch\nsecond.patch\n"),
        6,
        r"\S+/series:1: /etc/first\.patch: expected the name of a \.patch file beside it; correct the line",
    ),
    Fault(
        "fuzz-only hunk",
        patch(FUZZ),
        6,
        rf"{HUNK}: expected '    def first\(self, x, z\):' at line 7, "
        r"found '    def first\(self, x\):'; the source changed under the patch: .*",
    ),
    Fault(
        "offset hunk",
        patch(moved(-2)),
        6,
        rf"{HUNK}: expected its context at line \d, found it at line \d \(offset \+2\); "
        r"a moved hunk is never applied: .*",
    ),
    Fault(
        "near-duplicate context in the wrong function",
        twin,
        6,
        rf"{HUNK}: expected its context at line 8, found it at line 13 \(offset \+5\); .*",
    ),
    Fault(
        "no-op patch",
        patch(NOTHING),
        6,
        r"\S+/first\.patch: hunk @@ -1,2 \+1,2 @@ changes nothing; drop the hunk",
    ),
    Fault(
        "patch that is in the source already",
        patch(diff(FILE, SMALL.replace("x + 1", "x - 1", 1), SMALL)),
        6,
        rf"{HUNK}: expected '        y = x - 1' at line 8, found '        y = x \+ 1'; the .*",
    ),
    Fault(
        "patch in no series",
        series("first.patch\n"),
        6,
        r"\S+/patches/small/second\.patch: is in no series; add it to \S+/series or remove it",
    ),
    Fault(
        "series line without file",
        series("first.patch\nsecond.patch\nthird.patch\n"),
        6,
        r"\S+/series:3: third\.patch: expected a regular file of that name, found none; add it or drop the line",
    ),
    Fault(
        "doubled series line",
        series("first.patch\nsecond.patch\nfirst.patch\n"),
        6,
        r"\S+/series:3: first\.patch: listed twice; remove one of the lines",
    ),
    Fault(
        "patch with CRLF",
        patch(FIRST.replace("\n", "\r\n")),
        6,
        r"\S+/first\.patch: has CRLF line ends: expected LF; convert it",
    ),
    Fault(
        "patch without a newline at its end",
        patch(FIRST.removesuffix("\n")),
        6,
        r"\S+/first\.patch: last line has no newline; the file may be cut short: export it again",
    ),
    Fault(
        "file without a newline at its end",
        patch(NO_END),
        6,
        rf"first\.patch: sglang/version\.txt: {FIRST_HUNK}: expected 'no newline at the end' at line 1, "
        r"found 'no newline at the end' without a newline; the source changed under the patch: .*",
    ),
    Fault(
        "binary hunk",
        patch(BINARY),
        6,
        r"\S+/first\.patch: is binary: expected changes inside existing text files; export it without that",
    ),
    Fault(
        "no inventory of the base",
        drop_from_cache,
        7,
        r"\S+/team/base@\S+: inventory: expected \S+\.json, found none; run build\.py base inventory .*",
        ("base", "build"),
    ),
    Fault(
        "inventory of another base",
        other_inventory,
        7,
        r"\S+/team/base@\S+: inventory: expected \S+\.json, found none; run build\.py base inventory .*",
        ("base", "build"),
    ),
    Fault(
        "inventory that is cut short",
        cut_inventory,
        7,
        r"\S+/team/base@\S+: inventory: expected \S+\.json, found none; run build\.py base inventory .*",
        ("base", "build"),
    ),
    Fault(
        "base that its registry lacks",
        missing_base,
        7,
        r"\S+/team/base: get manifest sha256:7{64}: expected status 200, found 404 MANIFEST_UNKNOWN; check .*",
        ("base", "inventory"),
    ),
    Fault(
        "file in the place of .build",
        build_is_a_file,
        3,
        r"\S+/\.build: File exists: expected a folder that can be written; make room .*",
    ),
]


@pytest.mark.parametrize("fault", INPUT_FAULTS, ids=lambda fault: fault.name)
def test_fault_of_an_input_is_one_red_line_and_leaves_the_old_outputs(line: SmallLine, fault: Fault) -> None:
    fault.plant(line)
    before = outputs(line)
    refused(line.run(*fault.command), fault.code, fault.message)
    assert outputs(line) == before
    assert line.unfinished() == []


def test_base_of_another_content_than_its_digest(
    line: SmallLine, server: RegistryServer, storage: Path, tmp_path: Path
) -> None:
    image = make_base(tmp_path / "base", [LayerEntry("a", b"content")])
    document = line.edit()
    line.edit(base={**document["base"], "reference": small_line.push(image, Repository(server.address, "bad/base"))})
    (blob,) = storage.rglob(f"{image.layers[0].digest.removeprefix('sha256:')}/data")
    blob.write_bytes(blob.read_bytes().replace(b"content", b"CONTENT"))
    before = outputs(line)
    message = r"\S+/bad/base: get blob (\S+): expected \1, found sha256:\w{64}; do not use this registry until .*"
    refused(line.run("base", "inventory"), 7, message)
    assert outputs(line) == before
    assert line.unfinished() == []


# -- the machine ----------------------------------------------------------------------------------------------------

MOUNTED = ["unshare", "--mount", "sh", "-ec"]
"""A shell in mounts of its own, so that none outlives it."""


def test_build_folder_that_cannot_be_written(line: SmallLine) -> None:
    before = outputs(line)
    read_only = 'mount --bind .build .build && mount -o remount,bind,ro .build; exec "$@"'
    done = line.run("compose", wrap=[*MOUNTED, read_only, "sh"])
    refused(done, 3, r"\S+/\.build: Read-only file system: expected a folder that can be written; make room .*")
    assert outputs(line) == before
    assert line.unfinished() == []
    line.ok("compose")


FULL = """\
free=$1 record=$2; shift 2
cp -a .build old
mount -t tmpfs -o size=8m none .build
cp -a old/. .build
rm -r old
cat /dev/zero > .build/fill || true
truncate --size=-$free .build/fill
status=0
"$@" || status=$?
rm .build/fill
cp -a .build "$record"
mount -o remount,size=2g .build
"$@" > "$record.again"
exit $status
"""
"""Run a command in a full build folder, then again once there is room; ``$record`` is what it looked like between."""


@pytest.mark.parametrize(
    ("room", "command", "message"),
    [
        # Three pages: the tree has five files that are not empty.
        pytest.param("12K", "compose", r"\S+/\.build or \S+: No space left on device; free space .*", id="tree"),
        pytest.param(
            "1M", "image", r"\S+/\.build: free space: expected 1 GiB, found 0\.0 GiB; free some, .*", id="image"
        ),
    ],
)
def test_full_build_folder(line: SmallLine, room: str, command: str, message: str) -> None:
    before = outputs(line)
    refused(line.run(command, wrap=[*MOUNTED, FULL, "sh", room, "between"]), 3, message)
    shutil.rmtree(line.build)
    (line.folder / "between").rename(line.build)
    assert outputs(line) == before
    assert line.unfinished() == []
    assert re.search(r"^sha256:\w{64}$", (line.folder / "between.again").read_text(), re.MULTILINE)


HOLD = """
from pipeline import console
step = console.step
def held(title):
    print("held", flush=True)
    sys.stdin.read()
    return step(title)
console.step = held
"""


def test_second_run_at_once(line: SmallLine) -> None:
    before = outputs(line)
    with line.start("compose", before=f"import sys{HOLD}", stdin=subprocess.PIPE) as first:
        assert first.stdout
        assert first.stdout.readline() == "held\n"
        second = line.run("compose")
        refused(second, 12, rf"\S+/\.build: in use by another run \(pid {first.pid}\); wait for it, or stop it")
        assert outputs(line) == before
        first.communicate()
    assert first.returncode == 0
    assert outputs(line) == before
    assert line.unfinished() == []


# -- the engine and the base under it -------------------------------------------------------------------------------


def not_run(line: SmallLine, done: Done, reason: str, code: int = 9) -> None:
    """The image is there, its checks did not run, the report says so, and the gate of a release is closed."""
    refused(done, code, rf"sha256:\w{{64}}: checks were not run: found {reason}; {SEE}")
    assert line.report() == dict.fromkeys(CHECKS, "not_run")
    assert line.unfinished() == []
    closed(line)


def closed(line: SmallLine) -> None:
    address = line.edit()["base"]["reference"].partition("/")[0]
    refused(line.run("release", f"{address}/team/closed"), 11, r"\S+/team/closed: .*checks: .*; build\.py check")


def plant_check(line: SmallLine, body: str) -> None:
    """Replace the check ``tree``; the others stay."""
    (line.folder / "checks" / "test_tree.py").write_text(f"import os, signal, time\n\ndef test_tree():\n    {body}\n")


def sound_again(line: SmallLine, before: dict[str, object]) -> None:
    """With the project's own checks the same command succeeds and gives what was there before the fault."""
    shutil.copy(PROJECT / "checks/test_tree.py", line.folder / "checks")
    line.ok("image")
    assert outputs(line) == before
    assert line.unfinished() == []


def test_engine_that_is_not_there(line: SmallLine, tmp_path: Path) -> None:
    before = outputs(line)
    absent = replace(line, docker_host=f"unix://{tmp_path}/none.sock")
    not_run(line, absent.run("image"), rf"DOCKER_HOST=unix://{tmp_path}/none\.sock does not answer: found .*")
    sound_again(line, before)


def test_machine_without_any_engine(line: SmallLine) -> None:
    nothing = """
from pathlib import Path
from pipeline import engine
engine.DEFAULT_SOCKET = Path("/nonexistent")
engine._search_path = lambda: "/nonexistent"
"""
    done = replace(line, docker_host="").run("image", before=nothing)
    reason = r"no engine answers, and a private dockerd cannot run here: missing dockerd \(apt-get install .*\).*"
    not_run(line, done, reason)


def test_engine_that_dies_during_a_check(line: SmallLine, tmp_path: Path) -> None:
    before = outputs(line)
    dying = PrivateEngine.of(tmp_path / "dying")
    try:
        started, pause = dying.start().client, threading.Event()
        given = replace(line, docker_host=dying.host)
        # It heeds the SIGTERM that the next dockerd sends it; the first process of a container has no default for it.
        plant_check(line, "signal.signal(signal.SIGTERM, lambda *_: os._exit(1)); time.sleep(600)")
        with given.start("image", before=lower("seconds=60")) as process:
            while not started.containers.list():  # of those that run
                assert process.poll() is None
                pause.wait(0.05)
            pid = dying.pid()
            assert pid
            os.kill(pid, signal.SIGKILL)
            out, err = process.communicate()
        not_run(line, Done(process.returncode, out, err), "the engine failed: run the check container: found .*")
        with contextlib.closing(dying.start().client) as client:
            assert len(client.containers.list(all=True)) == 1
            sound_again(given, before)
            assert [*client.containers.list(all=True), *client.volumes.list()] == []
        started.close()
    finally:
        dying.stop()


def lower(limit: str) -> str:
    """Code that gives the check container another limit than its constant."""
    return f"from pipeline import check; check.run_checks.__kwdefaults__.update({limit})"


@pytest.mark.parametrize(
    ("body", "limit", "reason"),
    [
        pytest.param(
            "b = bytearray(1 << 30); b[::4096] = b'x' * len(b[::4096])",
            f"memory={96 << 20}",
            r"the check container ran out of memory \(limit 0\.094 GiB\)",
            id="memory",
        ),
        pytest.param(
            "time.sleep(600)",
            "seconds=2",
            "the check container did not end within 2 s and was killed",
            id="time",
        ),
    ],
)
def test_check_container_out_of(line: SmallLine, body: str, limit: str, reason: str) -> None:
    plant_check(line, body)
    not_run(line, line.run("image", before=lower(limit)), reason)


def test_base_that_is_not_as_its_inventory_says(line: SmallLine) -> None:
    (file,) = (line.build / "inventories").iterdir()
    document = json.loads(file.read_bytes())
    right = document["files"][DEPENDENCY]["sha256"]
    document["files"][DEPENDENCY]["sha256"] = "7" * 64
    file.write_text(json.dumps(document))
    done = line.run("image")
    refused(done, 10, rf"sha256:\w{{64}}: expected every check passed, found tree failed; {SEE}")
    assert line.report() == {name: "failed" if name == "tree" else "passed" for name in CHECKS}
    said = f"{DEPENDENCY}: expected sha256 {'7' * 64} of the base's inventory, found {right}"
    assert said in (line.out / "check-report.json").read_text()
    closed(line)


# -- interrupts -----------------------------------------------------------------------------------------------------

STRIKE = """
import os, re, sys
from pipeline import console
where, left = re.compile({where!r}), {number}
def look(text):
    global left
    if where.search(text):
        left -= 1
        if left == 0:
            os.killpg(0, {signum})
def hook(event, arguments):
    if event in ("open", "os.rename", "subprocess.Popen"):
        look(" ".join([event, *map(str, arguments)]))
sys.addaudithook(hook)
step = console.step
def watched(title):
    look(f"step {{title}}")
    return step(title)
console.step = watched
"""
"""Send the whole process group a signal when the pipeline comes to a step, opens or renames a file, or runs a program
for the ``number``-th time: exactly before it does so, at the same place in every run."""


class Point(NamedTuple):
    """Where a run is struck, and what it must do anew: folders of the build folder that are forgotten before."""

    command: str
    where: str
    number: int = 1
    forget: tuple[str, ...] = ()

    @property
    def signals(self) -> list[signal.Signals]:
        """Both at each step and while one tree takes the place of another; where a file is half written, the harder."""
        both = self.where.startswith("^step") or "tree" in self.where
        return [signal.SIGINT, signal.SIGKILL] if both else [signal.SIGKILL]


POINTS = [
    Point("compose", "^step Compose the tree"),
    Point("compose", r"^subprocess\.Popen git .*'fetch'", forget=("cache",)),
    Point("compose", r"^os\.rename \S+/cache/git/\.\S+ ", forget=("cache",)),
    Point("compose", r"^os\.rename \S+\.whl ", forget=("cache",)),
    Point("compose", r"^subprocess\.Popen git .*'apply'", 2),
    Point("compose", "^step Write the tree"),
    Point("compose", r"^open \S+/\.tree\.\w{8}/", 3),
    Point("compose", r"^os\.rename \S+/small/tree "),
    Point("compose", r"^os\.rename \S+/\.tree\.\w{8} "),
    Point("compose", r"^os\.rename \S+/\.record\.json\.\w{8} "),
    Point("compose --write-lock", r"^os\.rename \S+/\.lock\.yaml\.\w{8} "),
    Point("base inventory", "^step Read manifest and config", forget=("bases", "inventories")),
    Point("base inventory", r"^os\.rename \S+/bases/\.\S+ ", forget=("bases", "inventories")),
    Point("base inventory", "^step Inventory of", forget=("bases", "inventories")),
    Point("base inventory", r"^open \S+/layer r ", 2, forget=("inventories",)),
    Point("base inventory", r"^os\.rename \S+/inventories/\.\S+ ", forget=("inventories",)),
    Point("image", "^step Image"),
    Point("image", r"^open \S+/\.image\.\w{8}/layer\.tar "),
    Point("image", r"^os\.rename \S+/small/image "),
    Point("image", r"^os\.rename \S+/\.image\.\w{8} "),
    Point("image", "^step Container engine"),
    Point("image", "^step pull "),
    Point("image", "^step load "),
    Point("image", "^step check "),
    Point("image", r"^open \S+/check\.log ", 2),
    Point("image", r"^os\.rename \S+/\.junit\.xml\.\w{8} "),
    Point("image", r"^os\.rename \S+/\.check-report\.json\.\w{8} "),
    Point("image", r"^os\.rename \S+/\.inputs\.\w{8} "),
]
"""The steps of all stages in their order, and between them each moment at which something is half written."""


def name_of(point: Point) -> str:
    return f"{point.command}: {re.sub(r'[^A-Za-z -]+', ' ', point.where).strip()}"


def struck(line: SmallLine, *command: str, where: str, number: int, signum: signal.Signals) -> Done:
    """Run a command that is struck; SIGKILL must end it, SIGINT makes it end in order."""
    done = line.run(*command, before=STRIKE.format(where=where, number=number, signum=int(signum)))
    if signum == signal.SIGKILL:
        assert done.code == -signum, f"the run never came to {where}: {done.err}"
        for left in line.scratch.iterdir():  # what a killed process leaves there is the system's to remove
            shutil.rmtree(left)
    else:
        refused(done, 130, re.escape(IN_THE_END))
        assert line.unfinished() == []
    return done


@pytest.mark.parametrize(
    ("point", "signum"),
    [pytest.param(point, signum, id=f"{name_of(point)} {signum.name}") for point in POINTS for signum in point.signals],
)
def test_run_that_is_struck_leaves_old_or_new_and_the_next_one_succeeds(
    states: States, moved_on: SmallLine, point: Point, signum: signal.Signals
) -> None:
    line, command = moved_on, point.command.split()
    for name in point.forget:
        shutil.rmtree(line.build / name)
    if "--write-lock" in command:
        shutil.copy(states.old.manifest.parent / "lock.yaml", line.manifest.parent)
    old, new = outputs(states.old), outputs(states.new)
    struck(line, *command, where=point.where, number=point.number, signum=signum)
    for name, found in outputs(line).items():
        assert found in (old[name], new[name]), f"{name} is neither the old nor the new one"
    line.ok(*command)
    if command == ["image"]:
        assert outputs(line) == new
    assert line.unfinished() == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=lambda signum: signum.name)
@pytest.mark.parametrize("where", ["^step Look at", "^step Push blobs", "^step Tag small-", "^step Tag small$"])
def test_release_that_is_struck_leaves_the_old_tag_and_the_next_one_succeeds(
    states: States, line: SmallLine, server: RegistryServer, where: str, signum: signal.Signals
) -> None:
    path = f"team/{signum.name.lower()}{re.sub('[^a-z]+', '-', where.lower().replace('$', ' moving')).rstrip('-')}"
    shutil.rmtree(line.folder)
    line = states.new.copy(line.folder)
    states.old.ok("release", f"{server.address}/{path}", "--allow-dirty")
    old, new = states.old.image().digest, states.new.image().digest
    struck(line, "release", f"{server.address}/{path}", "--allow-dirty", where=where, number=1, signum=signum)
    with Registry(Repository(server.address, path)) as registry:
        assert registry.head_manifest("small") == registry.head_manifest("small-20260131") == old
        assert registry.head_manifest("small-20260201") in (None, new)
        line.ok("release", f"{server.address}/{path}", "--allow-dirty")
        assert registry.head_manifest("small") == registry.head_manifest("small-20260201") == new
        assert registry.head_manifest("small-20260131") == old


def test_no_case_of_this_run_ended_badly(tally: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    tally["cases"] -= 1  # this one
    with capsys.disabled():
        print(f"\nfault matrix: {tally['cases']} cases, {tally['bad outcomes']} bad outcomes")
    assert tally["bad outcomes"] == 0
