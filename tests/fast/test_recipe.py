"""Recipes: what a shell, Compose and a program read is what the profile says, whatever a folder is called."""

import csv
import itertools
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import cli, recipe
from pipeline.documents import ReleasedImage, ReleaseRecord
from pipeline.errors import ManifestError
from pipeline.manifest import DEFAULT_LINE, Graphs, load_line
from pipeline.recipe import FORMATS, Recipe
from tests.fast.builders import SHA256, says, write_files

LINE = load_line(DEFAULT_LINE)
PROFILES = list(LINE.profiles.profiles)
OURS = [name for name, profile in LINE.profiles.profiles.items() if profile.image is None]
ODD = [
    "/srv/my models",
    '/srv/it\'s $HOME `x` \\ "q", a=b',
    "models",
    "mo dels/a,b",
    "/srv/-x",
    "./here",
    "$(touch evil)",
]
FAKE = """#!/bin/sh
printf '%s\\0' "$@" > "$RECORDED"
"""


def run_in_shell(script: str, folder: Path, below: str = ".") -> list[str]:
    """Words that docker gets when a POSIX shell runs the script in ``folder``, or in another below it."""
    tools = write_files(folder / "tools", {"docker": FAKE, "getent": "#!/bin/sh\necho render:x:992:\n"})
    (folder / below).mkdir(exist_ok=True)
    for tool in tools.iterdir():
        tool.chmod(0o755)
    recorded = folder / "recorded"
    path = f"{tools}:{os.environ['PATH']}"
    environment = {"PATH": path, "RECORDED": str(recorded), "HOME": "/nowhere"}
    subprocess.run(["/bin/sh", "-eu", "-c", script], cwd=folder / below, env=environment, check=True)
    return recorded.read_text().split("\0")[:-1]


def mounts(words: list[str]) -> dict[str, dict[str, str]]:
    """Mounts by their target, as Docker's CSV says them, whose reader takes no quote but around a field, or doubled."""
    values = [words[at + 1] for at, word in enumerate(words) if word == "--mount"]
    one = r'(?:"(?:[^"]|"")*"|[^",]*)'
    assert [value for value in values if not re.fullmatch(f"{one}(?:,{one})*", value)] == []
    rows = [next(csv.reader([value])) for value in values]
    found = [{key: value for key, _, value in (field.partition("=") for field in row)} for row in rows]
    return {row["target"]: row for row in found}


def make(name: str, **options: Any) -> Recipe:
    return recipe.make(LINE, name, **options)


@pytest.mark.parametrize("models", ODD)
@pytest.mark.parametrize("name", PROFILES)
def test_shell_hands_docker_exactly_the_profile(name: str, models: str, tmp_path: Path) -> None:
    made = make(name, machine={"models": models})
    words = run_in_shell(FORMATS["docker-run"](made), tmp_path)
    assert words[: len(("run", "-d"))] == ["run", "-d"]
    at = words.index(made.image.text)
    assert words[at + 1 :] == made.launch
    found = mounts(words[:at])
    for inside, folder in made.profile.mounts.items():
        place = Path(models) / folder if models.startswith("/") else tmp_path / models / folder
        assert os.path.normpath(found[inside]["source"]) == os.path.normpath(place)
        assert "readonly" in found[inside]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recorded", "tools"]  # nothing was carried out


@pytest.mark.parametrize("models", ["models", ".", "./", "./a/b", 'm,"o" dels'])
@pytest.mark.parametrize("here", ["a b", "a,b", 'a"b', "it's", 'x",source=y,z="', "$(touch evil) `x` \\ $HOME", "a:b"])
def test_working_directory_may_be_called_as_it_likes(here: str, models: str, tmp_path: Path) -> None:
    made = make("1m-dflash2", machine={"models": models})
    words = run_in_shell(FORMATS["docker-run"](made), tmp_path, here)
    found = mounts(words)
    for inside, folder in made.profile.mounts.items():
        wanted = os.path.normpath(tmp_path / here / models / folder)
        assert os.path.normpath(found[inside].pop("source")) == wanted
        assert found[inside] == {"type": "bind", "target": inside, "readonly": ""}


@pytest.mark.parametrize("name", PROFILES)
def test_container_gets_what_the_machine_gives(name: str, tmp_path: Path) -> None:
    words = run_in_shell(FORMATS["docker-run"](make(name)), tmp_path)
    options = words[: words.index(make(name).image.text)]
    pairs = list(itertools.pairwise(options))
    wanted = [("--device", "/dev/dri"), ("--group-add", "video"), ("--group-add", "992"), ("--ipc", "host")]
    wanted += [("--shm-size", "64g"), ("--ulimit", "memlock=-1"), ("--ulimit", "stack=67108864"), ("-p", "30000:30000")]
    assert [pair for pair in wanted if pair not in pairs] == []
    environment = {value for key, value in pairs if key == "-e"}
    assert environment == {f"{key}={value}" for key, value in make(name).profile.environment.items()}


def test_machine_can_be_changed(tmp_path: Path) -> None:
    machine = {"port": 8000, "shm_size": "8g", "devices": ("/dev/a b",), "ulimits": {"nofile": 9}}
    made = make("1m-mtp", machine=machine, render_group="my group")
    words = run_in_shell(FORMATS["docker-run"](made), tmp_path)
    assert "my group" in words
    assert {"8000:8000", "8g", "/dev/a b", "nofile=9"} <= set(words)
    assert words[-2:] == ["--port", "8000"]
    assert any(":8000/health" in word for word in words)


@pytest.mark.parametrize("models", ODD)
@pytest.mark.parametrize("name", PROFILES)
def test_compose_file_says_the_same(name: str, models: str) -> None:
    made = make(name, machine={"models": models}, render_group="992")
    text = FORMATS["compose"](made)
    service = unescaped(yaml.safe_load(text)["services"]["sglang"])
    assert service["command"] == made.launch
    assert service["image"] == made.image.text
    assert service["group_add"] == ["video", "992"]
    assert service["environment"] == made.profile.environment
    volumes = {row["target"]: row for row in service["volumes"]}
    for inside, folder in made.folders.items():
        source = volumes[inside]["source"]
        assert source.startswith(("/", "./"))
        assert os.path.normpath(source) == os.path.normpath(folder)
        assert volumes[inside]["read_only"] is True
        assert volumes[inside]["bind"] == {"create_host_path": False}
    assert service["healthcheck"]["test"] == ["CMD", *made.health]


def unescaped(value: Any) -> Any:
    """What Compose makes of a value: a doubled dollar is one, a single one would be a variable."""
    if isinstance(value, str):
        assert "$" not in value.replace("$$", "")
        return value.replace("$$", "$")
    if isinstance(value, dict):
        return {key: unescaped(entry) for key, entry in value.items()}
    return [unescaped(entry) for entry in value] if isinstance(value, list) else value


def test_compose_asks_for_the_render_group_that_only_the_machine_knows() -> None:
    text = FORMATS["compose"](make("1m-mtp"))
    assert "${RENDER_GROUP:?" in yaml.safe_load(text)["services"]["sglang"]["group_add"][1]
    assert "# The group of the render nodes differs between machines: export RENDER_GROUP=" in text


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", PROFILES)
def test_every_form_has_health_as_its_probe_and_no_trailing_space(name: str, form: str) -> None:
    text = FORMATS[form](make(name))
    assert text.endswith("\n")
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert "/health" in text
    probes = [line for line in text.splitlines() if "health_generate" in line]
    assert all("Do not use" in line for line in probes)


@pytest.mark.parametrize("name", PROFILES)
def test_json_form_is_the_profile_for_programs(name: str) -> None:
    made = make(name)
    document = json.loads(FORMATS["json"](made))
    assert document["command"] == made.launch
    assert document["mounts"].keys() == made.profile.mounts.keys()
    assert document["flags_checked_against_this_image"] is (name in OURS)
    assert document["readiness"]["url"].endswith("/health")


@pytest.mark.parametrize("name", PROFILES)
def test_downloads_name_the_pinned_revisions_and_fill_every_mount(name: str) -> None:
    made = make(name, machine={"models": "/m x"})
    downloads = [words for words in made.downloads if words[:2] == ["hf", "download"]]
    revisions = {words[2]: words[words.index("--revision") + 1] for words in downloads}
    profile = made.profile
    expected = {profile.target: profile.target_revision}
    if profile.draft and profile.draft_revision:
        expected[profile.draft] = profile.draft_revision
    assert revisions == expected
    made_folders = [words[-1] for words in made.downloads]
    assert set(made.folders.values()) <= set(made_folders)
    assert all(shlex.split(made.shell(words)) == words for words in made.downloads)


def test_derived_draft_is_made_from_the_native_one() -> None:
    *_, derive = make("1m-dflash2").downloads
    assert derive == ["./build.py", "draft-1m", "models/Qwen3.8-27B-DFlash2", "models/Qwen3.8-27B-DFlash2-1m"]


def test_image_without_a_record_is_a_tag_with_a_warning(tmp_path: Path) -> None:
    made = make("1m-mtp", repository="my.registry/x", project=tmp_path)
    assert made.image.text == f"my.registry/x:{LINE.release.tag}-{LINE.release.release}"
    assert made.image.warning
    assert made.image.warning in FORMATS["docker-run"](made)
    assert json.loads(FORMATS["json"](made))["pinned_by_digest"] is False
    assert "placeholder" not in made.image.warning


def test_registry_that_nobody_named_is_called_a_placeholder(tmp_path: Path) -> None:
    made = make("1m-mtp", project=tmp_path)
    assert made.image.text.startswith("registry.example/")
    assert "registry.example is only a placeholder" in str(made.image.warning)


def record(repository: str, tag: str) -> ReleaseRecord:
    """A record whose every digest is zero."""
    digest = f"sha256:{SHA256}"
    image = dict.fromkeys(("digest", "config", "layer", "tree", "base"), digest)
    return ReleaseRecord(
        line=LINE.name,
        release=LINE.release.release,
        repository=repository,
        tags=(tag,),
        image=ReleasedImage(**image, base_kind="published", base_name="x"),
        pins={},
        steps=(),
        patches={},
        manifest=digest,
        checks_digest=digest,
        checks=(),
        checkpoints={},
        tools={},
        dirty=False,
        recorded_at="2026-01-31T00:00:00Z",
    )


def test_released_image_is_named_by_the_digest_of_its_record(tmp_path: Path) -> None:
    tag = f"{LINE.release.tag}-{LINE.release.release}"
    write_files(tmp_path, {f"releases/{tag}.json": record("my.registry/x", tag).to_json()})
    made = make("1m-mtp", repository="elsewhere/y", project=tmp_path)
    assert made.image == (f"my.registry/x@sha256:{SHA256}", None)
    assert "record" not in FORMATS["docker-run"](made)


def test_image_of_somebody_else_is_named_by_its_published_digest(tmp_path: Path) -> None:
    made = make("1m-20260819", project=tmp_path)
    assert made.image.text.startswith("rahulunair/sglang-xpu@sha256:12a3ad50")
    assert made.image.warning is None
    page = FORMATS["registry-page"](made)
    assert "are not checked" in page
    assert "--speculative-algorithm EAGLE" in page


@pytest.mark.parametrize("name", OURS)
def test_graph_decisions_are_what_flags_and_variables_make_of_them(name: str) -> None:
    profile = LINE.profiles.profiles[name]
    assert profile.graphs == recipe.graph_decisions(profile, {**LINE.release.variables, **profile.environment})


def test_eager_draft_or_selector_is_seen_although_graphs_are_on() -> None:
    profile = LINE.profiles.profiles["native-256k-dflash2"]
    eager = recipe.graph_decisions(profile, {"SGLANG_DFLASH_DISABLE_DRAFT_GRAPH": "1"})
    assert eager == Graphs(target_verify="graph", draft="eager", selector="eager")
    part = recipe.graph_decisions(profile, {"SGLANG_DFLASH_EAGER_DRAFT_SAMPLER": "true"})
    assert part == Graphs(target_verify="graph", draft="graph", selector="eager")
    off = profile.model_copy(update={"arguments": {**profile.arguments, "cuda-graph-config": "{}"}})
    assert recipe.graph_decisions(off, {}) == Graphs(target_verify="eager", draft="eager", selector="eager")
    mtp = LINE.profiles.profiles["1m-mtp"]
    assert recipe.graph_decisions(mtp, {"SGLANG_DFLASH_DISABLE_DRAFT_GRAPH": "1"}).draft == "graph"


def test_page_shows_the_split_of_graphs() -> None:
    page = FORMATS["registry-page"](make("1m-20260819"))
    assert "| target: decode and verification | graph |" in page
    assert "| selector: candidates and walk | eager |" in page
    assert "Mixed:" in page
    assert "Mixed:" not in FORMATS["registry-page"](make("1m-dflash2"))


@pytest.mark.parametrize(
    ("machine", "problem"),
    [({"models": "a\nb"}, "a line break"), ({"models": "a\0b"}, "a line break"), ({"models": ""}, "expected a path")],
)
def test_folder_that_no_form_could_name_is_refused(machine: dict[str, str], problem: str) -> None:
    with pytest.raises(ManifestError, check=says(problem)):
        make("1m-mtp", machine=machine)


def test_line_without_a_machine_or_graphs_is_refused() -> None:
    profiles = LINE.profiles.model_copy(update={"machine": None})
    with pytest.raises(ManifestError, check=says("no machine")):
        recipe.make(LINE.model_copy(update={"profiles": profiles}), "1m-mtp")
    bare = LINE.profiles.profiles["1m-mtp"].model_copy(update={"graphs": None})
    other = LINE.profiles.model_copy(update={"profiles": {"1m-mtp": bare}})
    with pytest.raises(ManifestError, check=says("no graphs")):
        _ = recipe.make(LINE.model_copy(update={"profiles": other}), "1m-mtp").graphs


@pytest.mark.parametrize("form", FORMATS)
def test_command_prints_a_form_and_warns_without_a_record(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["recipe", "--profile", "1m-mtp", "--format", form, "--models", "/my models"]) == 0
    out, err = capfd.readouterr()
    assert out == FORMATS[form](make("1m-mtp", machine={"models": "/my models"}))
    assert err.count("\n") == 1
    assert "no release record" in err


def test_command_lists_the_profiles(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["recipe", "--list"]) == 0
    out, _ = capfd.readouterr()
    assert all(name in out for name in PROFILES)
    assert cli.run(["recipe", "--list", "--json"]) == 0
    out, _ = capfd.readouterr()
    assert [row["profile"] for row in json.loads(out)] == PROFILES


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["recipe"], 2, "--profile NAME"),
        (["recipe", "--profile", "nothing"], 4, "no profile 'nothing'"),
        (["recipe", "--profile", "1m-mtp", "--format", "xml"], 2, "--format"),
        (["recipe", "--profile", "1m-mtp", "--ulimit", "memlock"], 2, "expected NAME=NUMBER"),
        (["recipe", "--profile", "1m-mtp", "--models", "a\nb"], 4, "a line break"),
        (["capacity", "--profile", "nothing"], 4, "no profile 'nothing'"),
        (["capacity", "--profile", "1m-20260819"], 4, "documents another image"),
        (["capacity", "--profile", "1m-mtp", "--tp", "3"], 4, "a divisor of the 16 linear key heads"),
    ],
)
def test_wrong_request_is_one_line(
    arguments: list[str], code: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
