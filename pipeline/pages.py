"""The generated pages of a line: one for each profile, an index, the registry's text, what was rejected, and a block
of the line's own page."""

import os
from collections.abc import Iterator
from pathlib import Path

from pipeline import recipe, rejected, release
from pipeline.errors import ManifestError
from pipeline.files import PROJECT, write_atomic
from pipeline.manifest import Line, PypiPin, SourceLayer, lines
from pipeline.templates import render

BEGIN, END = "<!-- recipes:begin -->", "<!-- recipes:end -->"


def pages(line: Line, readme: str) -> dict[str, str]:
    """Path below the project to text, of everything that is generated; a line without profiles has no pages.

    Args:
        readme: the line's page as it is.

    Raises:
        ManifestError: the profiles or the page lack what is needed.
    """
    if not line.profiles.profiles:
        return {}
    folder, make_option = recipe.folder(line), recipe.make_option(line)
    recipes = [recipe.make(line, name) for name in line.profiles.profiles]
    found = {f"{folder}/{entry.name}.md": recipe.FORMATS["registry-page"](entry) for entry in recipes}
    tried = rejected.pages(line)
    found[f"{folder}/README.md"] = render(
        "index.md.j2",
        line=line,
        table=table(recipes, ""),
        choices=recipe.choices(line),
        docs=recipe.docs(line),
        rejected=next((os.path.relpath(name, folder) for name in tried), None),
        others=[name for name in lines() if name != line.name] if line.is_main else [],
        make_option=make_option,
    )
    ours = [entry for entry in recipes if entry.profile.image is None]
    found[f"{folder}/registry.md"] = render(
        "registry-overview.md.j2",
        line=line,
        recipes=ours,
        choices=recipe.choices(line, "`{}`".format),
        sglang=sglang(line),
        moving=release.tags(line, "published").moving,
        image=ours[0].image,
        docs=recipe.docs(line),
        make_option=make_option,
    )
    up = "../" * line.page.count("/")
    return {**found, **tried, line.page: with_block(readme, table(recipes, f"{up}{folder}/"))}


def table(recipes: list[recipe.Recipe], folder: str) -> str:
    """The profiles as a Markdown table; ``folder`` leads to their pages."""
    rows = ["| profile | for | tokens | at a time | graphs: target, draft, selector |", "|---|---|---|---|---|"]
    for entry in recipes:
        graphs = f"{entry.graphs.target_verify}, {entry.graphs.draft}, {entry.graphs.selector}"
        mark = " (default)" if entry.name == entry.line.profiles.default else ""
        cells = [f"[{entry.name}]({folder}{entry.name}.md){mark}", entry.profile.why]
        cells += [f"{entry.profile.max_total_tokens:,}", str(entry.at_once), graphs]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def sglang(line: Line) -> str:
    """The release that the tree starts from."""
    first = line.release.layers[0]
    pin = line.release.pins[first.source] if isinstance(first, SourceLayer) else None
    return pin.version if isinstance(pin, PypiPin) else "of a commit"


def with_block(readme: str, block: str) -> str:
    """The line's page with the block between its two markers exchanged.

    Raises:
        ManifestError: a marker is missing or stands twice.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise ManifestError(
            "README.md", expected=f"{BEGIN} and {END} once each, in this order", do="restore the markers"
        )
    return f"{readme[: readme.index(BEGIN)]}{BEGIN}\n{block}{readme[readme.index(END) :]}"


def stale(line: Line, project: Path = PROJECT) -> Iterator[tuple[Path, str]]:
    """Pages that are not what is rendered now, with what they should be; a page that no profile has is to be empty."""
    wanted = pages(line, (project / line.page).read_text(encoding="utf-8"))
    for name, text in wanted.items():
        path = project / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            yield path, text
    known = {project / name for name in wanted}
    yield from ((path, "") for path in sorted((project / recipe.folder(line)).glob("*.md")) if path not in known)


def write(line: Line, project: Path = PROJECT) -> list[Path]:
    """Write what is stale, remove pages of profiles that are gone; the paths."""
    changed = list(stale(line, project))
    for path, text in changed:
        if text:
            write_atomic(path, text.encode())
        else:
            path.unlink()
    return [path for path, _ in changed]
