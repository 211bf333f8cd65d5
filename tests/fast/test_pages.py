"""Generated pages: they are what the data renders to, and one that is not is found."""

import re
from pathlib import Path

import pytest
import yaml

from pipeline import check_data, pages, rejected
from pipeline.errors import ManifestError
from pipeline.files import PROJECT
from pipeline.manifest import DEFAULT_LINE, Line, Profiles, lines, load_line
from tests.fast.builders import says, write_files

LINE = load_line(DEFAULT_LINE)
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


def test_pages_have_no_trailing_space_and_their_links_lead_somewhere() -> None:
    for name, text in pages.pages(LINE, README).items():
        assert [line for line in text.splitlines() if line != line.rstrip()] == [], name
        for link in re.findall(r"\]\(([^)#]+)", text):
            assert link.startswith("https://") or (PROJECT / name).parent.joinpath(link).resolve().is_file(), (
                name,
                link,
            )


@pytest.mark.parametrize("name", list(LINE.profiles.profiles))
def test_page_of_a_profile_says_what_an_operator_needs(name: str) -> None:
    text = pages.pages(LINE, README)[f"docs/recipes/{name}.md"]
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == [
        *("Which profile", "Hardware", "Download", "Run", "Check that it is up", "One request", "Stop"),
        *("Graphs", "Limits", "Measured"),
    ]
    profile = LINE.profiles.profiles[name]
    assert all(sentence in text for sentence in (*profile.measured, *profile.unmeasured, *profile.limits))
    assert f"share {profile.max_total_tokens:,} tokens" in text
    assert "state slots" in text
    assert "--max-time 1800" in text


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


@pytest.mark.parametrize("name", lines())
def test_no_profile_sets_what_was_rejected(name: str) -> None:
    line = load_line(name)
    rows = rejected.read(line).root
    variables = {row.back.variable.partition("=")[0] for row in rows if row.back.variable}
    flags = {row.back.flag.split()[0][2:] for row in rows if row.back.flag and len(row.back.flag.split()) < 2}
    flags -= {"chunked-prefill-size"}  # its own value is the one that stayed
    for profile in line.profiles.profiles.values():
        assert not variables & profile.environment.keys()
        assert not flags & profile.flags.keys()


def test_experiment_without_a_way_back_is_refused(tmp_path: Path) -> None:
    row = {"what": "x", "seen": "y", "disposition": "z", "back": {}}
    folder = write_files(tmp_path, {rejected.FILE: yaml.safe_dump([row])})
    with pytest.raises(ManifestError, check=says("says nothing: name a flag")):
        rejected.read(LINE.model_copy(update={"folder": folder}))
