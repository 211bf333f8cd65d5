"""Generated pages: they are what the data renders to, and one that is not is found."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from jinja2 import UndefinedError

from pipeline import check_data, pages, recipe, rejected
from pipeline.errors import ManifestError
from pipeline.files import PROJECT
from pipeline.manifest import DEFAULT_LINE, Line, Profile, Profiles, lines, load_line
from pipeline.templates import render
from tests.fast.builders import says, write_files

LINE = load_line(DEFAULT_LINE)
LINES = [load_line(name) for name in lines()]
PROFILES = [pytest.param(line, name, id=f"{line.name}-{name}") for line in LINES for name in line.profiles.profiles]
README = f"# x\n\n{pages.BEGIN}\nold\n{pages.END}\nend\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_files(tmp_path, {"README.md": README})
    pages.write(LINE, tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", lines())
def test_pages_of_the_project_are_up_to_date(name: str) -> None:
    assert [str(path) for path, _ in pages.stale(load_line(name))] == [], f"run make recipes LINE={name}"


@pytest.fixture
def other(tmp_path: Path) -> Line:
    """Another line beside the main one, with its profiles and a page of its own; it rejected nothing."""
    line = LINE.model_copy(update={"name": "other", "folder": tmp_path / "manifests/other"})
    write_files(tmp_path, {line.page: README, "README.md": README})
    pages.write(LINE, tmp_path)
    return line


def test_pages_of_two_lines_lie_beside_each_other(other: Line, tmp_path: Path) -> None:
    written = {str(path.relative_to(tmp_path)) for path in pages.write(other, tmp_path)}
    names = {"README", "registry", *LINE.profiles.profiles}
    assert written == {other.page, *(f"docs/recipes/other/{name}.md" for name in names)}
    assert list(pages.stale(other, tmp_path)) == list(pages.stale(LINE, tmp_path)) == []


def test_links_and_commands_of_another_lines_pages_are_its_own(other: Line, tmp_path: Path) -> None:
    pages.write(other, tmp_path)
    for path in [tmp_path / other.page, *(tmp_path / "docs/recipes/other").glob("*.md")]:
        text = path.read_text()
        for link in re.findall(r"\]\((?!https://)([^)#]+)", text):
            target = (path.parent / link).resolve()
            assert target.is_file() or (PROJECT / target.relative_to(tmp_path)).is_file(), (path, link)
        for command in re.findall(r"\./build\.py (?:capacity|recipe --profile|draft-1m|checkpoint)[^`\n]*", text):
            assert "--line other" in command, (path, command)


def test_line_without_profiles_has_no_pages(other: Line, tmp_path: Path) -> None:
    empty = other.model_copy(update={"profiles": Profiles(profiles={})})
    assert pages.write(empty, tmp_path) == []
    assert (tmp_path / other.page).read_text() == README


def test_pages_are_written_once(project: Path) -> None:
    assert pages.write(LINE, project) == []
    text = (project / "README.md").read_text()
    assert text.startswith("# x\n")
    assert text.endswith(f"{pages.END}\nend\n")
    assert "old" not in text


@pytest.mark.parametrize("name", ["docs/recipes/1m-mtp.md", "docs/recipes/README.md", "docs/rejected.md", "README.md"])
def test_changed_page_is_found_and_written_anew(project: Path, name: str) -> None:
    path = project / name
    good = path.read_text()
    path.write_text(good.replace("1m-mtp", "1m-MTP").replace("rejected", "taken"))
    assert [path for path, _ in pages.stale(LINE, project)] == [path]
    assert pages.write(LINE, project) == [path]
    assert path.read_text() == good


def test_missing_page_and_page_of_a_profile_that_is_gone_are_found(project: Path) -> None:
    gone, missing = project / "docs/recipes/old.md", project / "docs/recipes/1m-mtp.md"
    gone.write_text("x\n")
    missing.unlink()
    assert {path for path, _ in pages.stale(LINE, project)} == {gone, missing}
    pages.write(LINE, project)
    assert missing.is_file()
    assert not gone.exists()


@pytest.mark.parametrize("text", ["", pages.BEGIN, f"{pages.END}{pages.BEGIN}", README + README])
def test_readme_without_its_markers_is_refused(text: str) -> None:
    with pytest.raises(ManifestError, check=says("once each, in this order")):
        pages.with_block(text, "x")


@pytest.mark.parametrize("line", LINES, ids=lines())
def test_pages_have_no_trailing_space_and_their_links_lead_somewhere(line: Line) -> None:
    for name, text in texts(line.name).items():
        assert [row for row in text.splitlines() if row != row.rstrip()] == [], name
        for link in re.findall(r"\]\(([^)#]+)", text):
            assert link.startswith("https://") or (PROJECT / name).parent.joinpath(link).resolve().is_file(), (
                name,
                link,
            )


@cache
def texts(line: str) -> dict[str, str]:
    return pages.pages(load_line(line), README)


def headings(text: str) -> list[str]:
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


@pytest.mark.parametrize(("line", "name"), PROFILES)
def test_page_of_a_profile_says_what_an_operator_needs(line: Line, name: str) -> None:
    text = texts(line.name)[f"{recipe.folder(line)}/{name}.md"]
    assert headings(text) == [
        *("Which profile", "Hardware", "Download", "Run", "Check that it is up", "One request", "Stop"),
        *("Graphs", "Limits", "Measured"),
    ]
    assert all(sentence in text for sentence in line.profiles.profiles[name].measured)
    assert_serving_is_told(recipe.make(line, name), text)
    assert "--max-time 1800" in text
    assert "in a checkout of [this project]" in text


@pytest.mark.parametrize("line", LINES, ids=lines())
def test_text_for_a_registry_says_what_an_operator_needs(line: Line) -> None:
    text = texts(line.name)[f"{recipe.folder(line)}/registry.md"]
    ours = [name for name, profile in line.profiles.profiles.items() if profile.image is None]
    assert headings(text) == ["Which profile", "Hardware", *ours, "Check that it is up", "One request"]
    parts = dict(zip(headings(text), re.split(r"^## .+$", text, flags=re.MULTILINE)[1:], strict=True))
    made = [recipe.make(line, name) for name in ours]
    for entry in made:
        assert_serving_is_told(entry, parts[entry.name])
        # Hardware and request are told once for all profiles.
        assert f"{entry.machine.card} ({entry.machine.card_memory_gib} GiB each)" in parts["Hardware"]
        assert f"tensor parallel {entry.profile.flags['tp-size']}," in parts["Hardware"]
        assert entry.request in parts["One request"]
    assert "All commands are for a checkout of [this project]" in text.split(f"## {ours[0]}")[0]


@pytest.mark.parametrize(("line", "name"), PROFILES)
def test_card_of_a_checkpoint_says_what_was_never_measured(line: Line, name: str) -> None:
    text = recipe.FORMATS["model-card"](recipe.make(line, name))
    before, _, unmeasured = text.partition("\nNever measured:\n")
    profile = line.profiles.profiles[name]
    assert all(f"\n* {sentence}" in before for sentence in profile.limits)
    assert all(f"\n* {sentence}" in unmeasured for sentence in profile.unmeasured)
    assert "in a checkout of the project" in before


def assert_serving_is_told(made: recipe.Recipe, text: str) -> None:
    """What stands on the page of a profile, and in its part of the text for a registry."""
    profile = made.profile
    assert all(made.shell(words) in text for words in made.downloads)
    assert made.docker_run in text
    assert f"docker stop --time 120 {made.container}\n" in text
    assert "\nNever measured:\n" in text
    assert all(f"\n* {sentence}" in text for sentence in (*profile.unmeasured, *profile.limits))
    assert f"share {profile.max_total_tokens:,} tokens" in text
    assert "state slots" in text


def test_template_that_names_what_it_is_not_given_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="experiments"):
        render("rejected.md.j2", line=LINE)


@pytest.mark.parametrize("name", lines())
def test_variable_that_would_bring_a_rejected_experiment_back_is_refused_as_a_default(name: str) -> None:
    refused = check_data.input_parts(LINE)["known_bad_environment"]
    rows = {row["name"]: row for row in refused}
    line = load_line(name)
    switches = [row.back.variable for row in rejected.read(line).root if row.back.variable]
    assert switches or not line.is_main
    for switch in switches:
        variable, _, value = switch.partition("=")
        assert variable in rows, f"{variable}: add it to checks/environment.yaml"
        assert re.search(rows[variable]["value"], value), switch


def brought_back(profile: Profile) -> set[str]:
    """Flags (with their value) and variables of the profile that bring a rejected experiment back."""
    ways = [row.back for row in rejected.read(LINE).root]
    variables = {way.variable.partition("=")[0] for way in ways if way.variable}
    words = {f"--{name}" if value is True else f"--{name} {value}" for name, value in profile.flags.items()}
    return variables & profile.environment.keys() | {way.flag for way in ways if way.flag} & words


@pytest.mark.parametrize(("line", "name"), PROFILES)
def test_no_profile_sets_what_was_rejected(line: Line, name: str) -> None:
    assert brought_back(line.profiles.profiles[name]) == set()


@pytest.mark.parametrize("way", [row.back for row in rejected.read(LINE).root if row.back.flag or row.back.variable])
def test_profile_that_sets_what_was_rejected_is_found(way: rejected.Back) -> None:
    profile = next(iter(LINE.profiles.profiles.values()))
    if way.flag:
        flag, _, value = way.flag.removeprefix("--").partition(" ")
        planted = profile.model_copy(update={"arguments": {**profile.arguments, flag: value or True}})
        assert brought_back(planted) == {way.flag}
    if way.variable:
        variable, _, value = way.variable.partition("=")
        planted = profile.model_copy(update={"environment": {variable: value}})
        assert brought_back(planted) == {variable}


def test_experiment_without_a_way_back_is_refused(tmp_path: Path) -> None:
    row = {"what": "x", "seen": "y", "disposition": "z", "back": {}}
    folder = write_files(tmp_path, {rejected.FILE: yaml.safe_dump([row])})
    with pytest.raises(ManifestError, check=says("says nothing: name a flag")):
        rejected.read(LINE.model_copy(update={"folder": folder}))
