"""What a Dockerfile of ours must not do, beside what hadolint looks for: hide a failure, or float."""

import re
from collections.abc import Iterator
from typing import NamedTuple

INSTRUCTION = re.compile(r"^([A-Za-z]+)\s+(.*)$", re.DOTALL)
QUOTE = r"""'[^']*'|"(?:\\.|[^"\\])*\""""
QUOTED = re.compile(QUOTE)
SCRIPT = re.compile(rf"""(?<![\w.-])(?:ba|da|k|z)?sh\b[^&|;]*?\s?["']?-\w*c["']?[\s,]+({QUOTE})""")
"""What a shell is given to run, also in the form of a list."""
HIDES = {
    r"\|\|": "a failure after `||` is no failure",
    r";": "the command before `;` may fail unseen",
    r"\bset\s+\+e\b": "failures are switched off",
    r"(?<!<)<<(?!<)": "nobody judges the commands of a here-document",
    r"(?<![&>])&(?![&>])": "a command in the background may fail unseen",
}
FLOATS = {
    r"\bgit\s+(clone|pull|fetch)\b": "a branch moves: install a wheel by hash",
    r":latest\b": "`latest` moves",
    r"\b(curl|wget)\b[^|]*\|\s*(ba|da)?sh\b": "runs what a server sends today",
    r"\bpip3?\s+install\b(?!.*(--require-hashes|/tmp/))": "without hashes an index decides what is installed",
    r"\bapt-get\s+(dist-)?upgrade\b": "versions of today",
}
REFUSED = {r"intel.extension.for.pytorch": "XPU support is part of torch; that package has ended"}


class Step(NamedTuple):
    """An instruction, its continuation lines joined."""

    number: int
    """Line at which it begins."""
    word: str
    """In capitals, as Docker takes it in any."""
    rest: str


def steps(text: str) -> Iterator[Step]:
    """Instructions of a Dockerfile without comments."""
    start, held = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not held):
            continue
        start = start if held else number
        held += line.rstrip("\\") if line.endswith("\\") else line
        if not line.endswith("\\"):
            if match := INSTRUCTION.match(held.strip()):
                yield Step(start, match[1].upper(), match[2])
            held = ""


def problems(text: str) -> list[str]:
    """What is wrong, as ``line: what``; empty for a good Dockerfile."""
    found: list[str] = []
    user = "root"
    for step in steps(text):
        place = f"line {step.number}: {step.word}"
        bare = _commands(step.rest)
        if step.word == "RUN":
            found += [f"{place}: {why}" for pattern, why in HIDES.items() if re.search(pattern, bare)]
        found += [f"{place}: {why}" for pattern, why in (FLOATS | REFUSED).items() if re.search(pattern, bare)]
        if step.word == "FROM" and "@" not in step.rest:
            found.append(f"{place}: an image without a digest")
        if step.word == "USER":
            user = step.rest.strip()
    if user.split(":")[0] in ("root", "0"):
        found.append("the last USER is root")
    return found


def _commands(text: str) -> str:
    """The text without what is quoted, as that runs nothing; what a shell is given in quotes follows it."""
    scripts = [_commands(_unquoted(match[1])) for match in SCRIPT.finditer(text)]
    return "\n".join([QUOTED.sub("''", text), *scripts])


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text[1:-1]
