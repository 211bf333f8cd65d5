"""The features that the project promises are in the code of this image, found by structure."""

import ast
from collections.abc import Callable, Collection, Iterator
from functools import cache

from checks.ast_match import occurs, parse_snippet, scopes
from checks.given import Feature, Given
from checks.verdict import Verdict


def test_features(given: Given, verdict: Verdict) -> None:
    """Each row of ``features.yaml``: its file is recorded, its scope exists, and its code is (not) there."""
    parse = cache(lambda path: ast.parse((given.package_root / path).read_bytes(), filename=path))
    if not given.features:
        verdict.problem("features.yaml: expected rows, found none")
    for row in given.features:
        for problem in problems(row, given.files.keys(), parse):
            verdict.problem(f"{row.id} ({row.title}): {problem}")
    snippets = sum(len(row.find) + len(row.absent) for row in given.features)
    verdict.conclude(f"{len(given.features)} rows hold, {snippets} pieces of code found or absent as promised")


def problems(row: Feature, recorded: Collection[str], parse: Callable[[str], ast.Module]) -> Iterator[str]:
    """What is wrong with one row.

    Args:
        recorded: paths of the files of the tree.
        parse: gives the syntax tree of a file of the tree, by its path.
    """
    if row.file not in recorded:
        yield f"expected {row.file} in the record, found no such file"
        return
    try:
        module = parse(row.file)
    except (OSError, SyntaxError, ValueError) as error:
        yield f"{row.file} cannot be parsed: {error}"
        return
    where = f"{row.file} in {row.scope}" if row.scope else row.file
    defined = scopes(module, row.scope)
    if not defined:
        yield f"{row.file}: expected a definition of {row.scope}, found none"
        return
    for text in row.find:
        snippet = parse_snippet(text)
        if not all(occurs(snippet, scope) for scope in defined):
            yield f"{where}: expected the code {text!r}, found none like it"
    for text in row.absent:
        snippet = parse_snippet(text)
        if any(occurs(snippet, scope) for scope in defined):
            yield f"{where}: found the code {text!r}, expected it to be gone"
