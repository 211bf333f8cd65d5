"""Judge one hunk against one text: where it stands, whether its result is there already, or what comes nearest.

Bytes count: white space, line ends and a missing newline at the end of a file are differences. A hunk is placed only
with all its context. What fits with less of it is reported, and so is a result that upstream has in other surroundings.
"""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pipeline.patch_text import HEADING, HEADING_BYTES, heading, occurrences
from pipeline.patches import Hunk
from pipeline.rebase_report import HunkStatus

MAX_FUZZ = 2
"""Lines of context that may be left out on either side, as in patch(1)."""
ANY_HEADING = re.compile(rb"^[A-Za-z_$]")
"""Lines that git takes for a heading where it is told no language."""
SCOPE = re.compile(rb"(async[ \t]+)?(class|def)[ \t]+\w+")
WORDS = re.compile(rb"\w+")
TOKENS = re.compile(rb"\w+|[^\w\s]")
COMPARED_LINES = 60
"""Of a long hunk, so many lines are compared with what looks like them."""
SHOWN = 0.3
ELSEWHERE = 0.6
"""Least similarity that is worth a look: of lines where nothing tells the place, and of lines away from the place."""
PARTIAL_LINES = 3
PARTIAL_SHARE = 0.6
"""Of at least so many added lines, so many must be there for a change to count as made in part."""
NOTHING_NEAR = "nothing like it is in the file"
HOME_BONUS = 0.45
SCOPE_BONUS = 0.2
RESULT_MALUS = 0.15
"""By so much lines elsewhere must be more similar than those where the old ones stood, or in the same function; and by
so much a hunk's result, which is longer, than its old text."""


Scope = tuple[tuple[int, bytes], ...]
"""The class and function lines around a line, from outside in: indentation and name of each."""


@dataclass(frozen=True)
class Text:
    """A file as a hunk meets it."""

    lines: list[bytes]
    taken: frozenset[int] = frozenset()
    """Indices of lines that prove nothing about upstream: the series itself brought them."""
    before: list[bytes] | None = None
    """The file for which the hunk was made, where it is known: what stood there already is no news."""

    @cached_property
    def words(self) -> list[set[bytes]]:
        """The words of each line."""
        return [set(WORDS.findall(line)) for line in self.lines]

    def mapped(self, at: int) -> int | None:
        """Where the line ``at`` of the file that the hunk was made for is now, or would be; none where that is unknown.

        For orientation only: lines that are all too frequent are passed over.
        """
        if self.before is None:
            return None
        found = 0
        for block in self._blocks:
            if at < block.a:
                break
            found = block.b + min(at - block.a, block.size)
        return found

    @cached_property
    def original(self) -> "Text":
        """The file for which the hunk was made; empty where it is not known."""
        return Text(self.before or [])

    @cached_property
    def scopes(self) -> list[Scope]:
        """What stands around each line, and would around one more at the end."""
        scope, found = Scope(), [Scope()]
        for line in self.lines:
            if match := HEADING.match(line.rstrip(b"\r\n")):
                depth = _indent(line)
                scope = (*(outer for outer in scope if outer[0] < depth), (depth, _name(match[1])))
            found.append(scope)
        return found

    @cached_property
    def paths(self) -> set[tuple[bytes, ...]]:
        """All that lines can stand in: the names from outside in."""
        return {tuple(name for _, name in scope) for scope in self.scopes}

    def path(self, at: int, depth: int) -> tuple[bytes, ...]:
        """The names around a line of that indentation."""
        return tuple(name for indent, name in self.scopes[min(at, len(self.lines))] if indent < depth)

    @cached_property
    def _blocks(self) -> list[difflib.Match]:
        return difflib.SequenceMatcher(None, self.before or [], self.lines).get_matching_blocks()


@dataclass(frozen=True)
class Near:
    """Lines ``at`` to ``end`` (from 0, end excluded), the lines of the hunk that they resemble, and how much."""

    at: int
    end: int
    similarity: float
    is_result: bool
    wanted: tuple[bytes, ...]


@dataclass(frozen=True)
class Match:
    """The verdict; ``at`` and ``places`` count from 0."""

    status: HunkStatus
    at: int | None = None
    fuzz: int = 0
    places: tuple[int, ...] = ()
    note: str = ""
    near: Near | None = None
    proof: frozenset[int] = field(default=frozenset())
    """Of an upstream hunk: the lines that are its result."""


@dataclass(frozen=True)
class _Group:
    """Lines of a hunk that go and come together, with the unchanged lines on both sides."""

    removed: list[bytes]
    added: list[bytes]
    above: list[bytes]
    below: list[bytes]
    scope: bytes
    """Class or function in which it stands; empty where the hunk does not say."""
    old_at: int
    """Index of the removed lines in the hunk's old text."""
    new_at: int
    """Index of the added lines in the hunk's new text."""

    @property
    def depth(self) -> int:
        """The least indentation of what it adds, or else removes: what holds it has less."""
        lines = list(filter(is_telling, self.added)) or list(filter(is_telling, self.removed))
        return min(map(_indent, lines), default=0)


def context_of(hunk: Hunk) -> tuple[int, int]:
    """Unchanged lines at the beginning and at the end of a hunk."""
    old, new = hunk.old, hunk.new
    shortest = min(len(old), len(new))
    lead = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    tail = next((i for i in range(shortest - lead) if old[-1 - i] != new[-1 - i]), shortest - lead)
    return lead, tail


def judge(hunk: Hunk, text: Text, expected: int | None = None) -> Match:
    """How a hunk meets a text.

    Args:
        expected: index at which it should stand by what the hunks before it found; the stated one by default.
    """
    if expected is None:
        expected = hunk.stated
    return _Judge(hunk, text, expected).verdict()


def there_already(hunk: Hunk, text: Text, expected: int) -> Match | None:
    """The verdict where the hunk's result stands in the text, or some of its changes, though its old text fits as well.

    For one who applies it. Where nothing tells what stood in the file before, this takes for news what is none; a
    person can tell, and nothing is added twice.
    """
    return _Judge(hunk, text, expected).result()


def in_scope(scope: bytes, lines: list[bytes], at: int) -> bool:
    """Whether a place stands below the class or function ``scope``; any place does where there is none."""
    if not scope:
        return True
    plain = next((line for line in reversed(lines[:at]) if ANY_HEADING.match(line)), b"")
    return scope[:HEADING_BYTES].strip() in (heading(lines, at), plain[:HEADING_BYTES].strip())


def is_telling(line: bytes) -> bool:
    """Whether a line says anything, unlike a blank line or a bracket."""
    return sum(map(len, WORDS.findall(line))) >= 3


def _is_distinctive(lines: Sequence[bytes]) -> bool:
    """Whether lines can be told from others without what stands around them."""
    return any(sum(map(len, WORDS.findall(line))) >= 12 for line in lines)


def difference(old: Sequence[bytes], new: Sequence[bytes]) -> str:
    """Lines of both texts, each with a space, ``-`` or ``+`` before it."""
    shown: list[str] = []

    def show(sign: str, lines: Sequence[bytes]) -> None:
        for line in lines:
            shown.append(sign + line.removesuffix(b"\n").decode("utf-8", "replace"))
            if not line.endswith(b"\n"):
                shown.append("\\ No newline at end of file")

    matcher: difflib.SequenceMatcher[bytes] = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            show(" ", old[a:b])
        else:
            show("-", old[a:b])
            show("+", new[c:d])
    return "\n".join(shown)


@dataclass(frozen=True)
class _Judge:
    hunk: Hunk
    text: Text
    expected: int

    @property
    def lines(self) -> list[bytes]:
        return self.text.lines

    @property
    def old(self) -> list[bytes]:
        return list(self.hunk.old)

    @property
    def new(self) -> list[bytes]:
        return list(self.hunk.new)

    def verdict(self) -> Match:
        if not self.old:
            return self._without_context()
        found = self._with_all_context()
        if found is not None and found.status is HunkStatus.UPSTREAM:
            return found
        fit = self._fit(found)
        if found is not None and fit is not None and self.text.before is None:
            return found  # whether its lines stood elsewhere before, nothing tells
        return self._by_groups(fit) or found or self._with_fuzz() or self._conflict()

    def result(self) -> Match | None:
        if not self.old:
            return None
        found = self._with_all_context()
        if found is not None and found.status is HunkStatus.UPSTREAM:
            return found
        return self._by_groups(self._fit(found))

    def _fit(self, found: Match | None) -> int | None:
        """Where the old text stands, if that is in its class or function."""
        return found.at if found is not None and found.at is not None and self._is_here(found.at) else None

    def _is_here(self, at: int) -> bool:
        """Whether a place stands in the class or function of the hunk, and that in the class in which it was."""
        return in_scope(self.hunk.heading, self.lines, at) and not self._is_namesake(at)

    def _is_namesake(self, at: int) -> bool:
        """Whether a place stands in the function of that name of another class, as far as the old file is known."""
        same_name = in_scope(self.hunk.heading, self.lines, at)
        return same_name and not _held(self.text, [at], self.depth, self.holder)

    @cached_property
    def depth(self) -> int:
        return min(map(_indent, filter(is_telling, self.old)), default=0)

    @cached_property
    def holder(self) -> set[tuple[bytes, ...]]:
        """What the hunk stands in in its own file, where that is known."""
        return {self.text.original.path(self.hunk.stated, self.depth)} if self.text.before is not None else set()

    def _without_context(self) -> Match:
        if not self.lines:
            return Match(HunkStatus.EXACT, 0)
        if self.lines == self.new:
            return Match(HunkStatus.UPSTREAM, 0, proof=frozenset(range(len(self.new))))
        return Match(HunkStatus.CONFLICT, note="it has no context, so that nothing proves its place")

    @property
    def ends_file(self) -> bool:
        """Whether it stands at the end of its file: there is context above, and none below.

        A hunk that repeats a line does not tell which of the two is context; it is then taken to be below.
        """
        first = self.hunk.old[0] == self.hunk.new[0] if self.hunk.new else False
        return first and self.hunk.old[-1] != self.hunk.new[-1]

    def _at_end(self, at: int, count: int) -> bool:
        return not self.ends_file or at + count == len(self.lines)

    # With all context

    def _with_all_context(self) -> Match | None:
        """The best place of the old text, or of the result, with every line of context."""
        old = [at for at in occurrences(self.lines, self.old) if self._at_end(at, len(self.old))]
        here = [at for at in old if self._is_here(at)]
        if self.hunk.stated in (here or old):
            return Match(HunkStatus.EXACT, self.hunk.stated)
        ranked = sorted([*((at, False) for at in old), *((at, True) for at in self._results())], key=self._rank)
        if not ranked:
            return None
        at, is_result = ranked[0]
        if is_result:
            return Match(HunkStatus.UPSTREAM, at, proof=self._added(at))
        return self._moved([place for place, is_result in ranked if not is_result])

    @cached_property
    def home(self) -> int:
        """Where it should stand, as well as that can be told."""
        mapped = self.text.mapped(self.hunk.stated)
        return self.expected if mapped is None else mapped

    def _rank(self, candidate: tuple[int, bool]) -> tuple[bool, int]:
        return not self._is_here(candidate[0]), abs(candidate[0] - self.home)

    def _moved(self, places: list[int]) -> Match:
        best, others = places[0], tuple(sorted(places[1:]))
        rivals = [at for at in places if self._rank((at, False)) == self._rank((best, False))]
        if not self._is_here(best):
            rivals = places
        if len(rivals) > 1:
            return Match(HunkStatus.CONFLICT, places=tuple(sorted(rivals)), note="fits equally well in several places")
        note = ""
        if not self._is_here(best):
            now, was = heading(self.lines, best), self.hunk.heading
            if self._is_namesake(best):
                now, was = (b", ".join(path) for path in (self.text.path(best, self.depth), *self.holder))
            note = f"below {quoted(now)} now, was below {quoted(was)}"
        return Match(HunkStatus.MOVED, best, places=others, note=note)

    def _results(self) -> list[int]:
        """Places of the hunk's result with all its context, where upstream made it."""
        groups = self.groups
        telling = any(map(is_telling, self.new))
        found: list[int] = []
        for at in occurrences(self.lines, self.new):
            if self._added(at) & self.text.taken or self._is_namesake(at):
                continue
            if not (telling or at == self.hunk.stated):
                continue
            if not any(group.added for group in groups) and not (self._is_here(at) and self._at_end(at, len(self.new))):
                continue
            if not any(self._still_there(group, at + group.new_at) for group in groups):
                found.append(at)
        return found if self._is_news(self.new, len(found)) else []

    def _added(self, at: int) -> frozenset[int]:
        """Indices of the added lines where the result stands at ``at``."""
        spans = [range(at + group.new_at, at + group.new_at + len(group.added)) for group in self.groups]
        return frozenset(index for span in spans for index in span)

    def _is_news(self, block: list[bytes], count: int) -> bool:
        """Whether the text has a block more often than the file that the hunk was made for."""
        return count > len(occurrences(self.text.original.lines, block))

    # Change by change, with less context

    @cached_property
    def groups(self) -> list[_Group]:
        old, new = self.old, self.new
        matcher: difflib.SequenceMatcher[bytes] = difflib.SequenceMatcher(None, old, new, autojunk=False)
        codes = matcher.get_opcodes()
        found: list[_Group] = []
        for number, (tag, a, b, c, d) in enumerate(codes):
            if tag == "equal":
                continue
            above = old[codes[number - 1][1] : a] if number else []
            below = old[b : codes[number + 1][2]] if number + 1 < len(codes) else []
            titles = [match[1].strip() for line in old[:a] if (match := HEADING.match(line.rstrip(b"\r\n")))]
            found.append(_Group(old[a:b], new[c:d], above, below, titles[-1] if titles else self.hunk.heading, a, c))
        return found

    def _by_groups(self, fit: int | None) -> Match | None:
        """Whether upstream has all or some of the changes, each beside a line of its context or unmistakable.

        Args:
            fit: where the old text stands as it should, so that only what was added in its scope counts.
        """
        groups = [group for group in self.groups if any(map(is_telling, [*group.removed, *group.added]))]
        proofs = [self._proof(group, fit) for group in groups]
        done = [proof for proof in proofs if proof is not None]
        if done and len(done) == len(proofs):
            proof = frozenset(index for span in done for index in span)
            note = "its result is there, in other surroundings"
            return Match(HunkStatus.UPSTREAM, done[0].start, proof=proof, note=note)
        if done:
            places = ", ".join(str(span.start + 1) for span in done)
            note = f"{len(done)} of {len(proofs)} changes are there (line {places})"
            first = next(group for group, proof in zip(groups, proofs, strict=True) if proof is not None)
            near = self._result_near(first, done[0].start)
            return Match(HunkStatus.PARTLY, done[0].start, note=note, near=near)
        for group in groups:
            if half := self._half(group, fit):
                share = "all, with others between them," if half[1] == 1 else f"{half[1]:.0%}"
                note = f"of the lines that it adds, {share} are there (from line {half[0] + 1} on)"
                return Match(HunkStatus.PARTLY, half[0], note=note, near=self._result_near(group, half[0]))
        return None

    def _half(self, group: _Group, fit: int | None) -> tuple[int, float] | None:
        """Where the file holds most, but not all of the lines that a change adds, and how many of them."""
        wanted = set(filter(is_telling, group.added))
        if len(wanted) < PARTIAL_LINES:
            return None
        known = set(self.text.before or ())
        places = [at for at, line in enumerate(self.lines) if line in wanted - known and at not in self.text.taken]
        if fit is not None:
            places = _held(self.text, places, group.depth, self._holders(group, fit))
        reach = 2 * len(group.added)
        shares = [
            (len({self.lines[at] for at in places[i:] if at < first + reach}) / len(wanted), -first)
            for i, first in enumerate(places)
        ]
        share, first = max(shares, default=(0.0, 0))
        return (-first, share) if share >= PARTIAL_SHARE else None

    def _proof(self, group: _Group, fit: int | None) -> range | None:
        """The lines that show that upstream made this change; empty, at its place, where it only removes."""
        for above, below in ((2, 2), (1, 1), (1, 0), (0, 1), (0, 0)):
            if above > len(group.above) or below > len(group.below):
                continue
            upper, lower = group.above[len(group.above) - above :], group.below[:below]
            places = self._places(group, upper, lower, fit)
            former = [at + above for at in occurrences(self.text.original.lines, [*upper, *group.added, *lower])]
            if len(places) > len(_held(self.text.original, former, group.depth, self._holders(group, fit))):
                at = min(places, key=lambda place: abs(place - self.home))
                return range(at, at + len(group.added))
        return None

    def _places(self, group: _Group, upper: list[bytes], lower: list[bytes], fit: int | None) -> list[int]:
        """Places of the added lines between these lines of context, where that proves anything."""
        both, telling = bool(upper and lower), any(map(is_telling, group.added))
        if not telling and not (both and is_telling(upper[-1]) and is_telling(lower[0])):
            return []
        if not upper and not lower and not _is_distinctive(group.added):
            return []
        found = [at + len(upper) for at in occurrences(self.lines, [*upper, *group.added, *lower])]
        found = [at for at in found if not self.text.taken & set(range(at, at + len(group.added)))]
        found = _held(self.text, found, group.depth, self._holders(group, fit))
        bare = not upper and not lower
        here = [at for at in found if self._is_in_scope_of(group, at, bare)]
        alone = len(found) == 1 and _is_distinctive(group.added) and self._needs_no_scope(group, fit)
        if not here and not alone:
            return []
        return [at for at in here or found if not self._still_there(group, at, alone=bare)]

    def _is_in_scope_of(self, group: _Group, at: int, bare: bool) -> bool:
        """Whether the added lines at ``at`` stand in the class or function of their change, whatever its arguments.

        Args:
            bare: no context stands beside them. Where the hunk names no scope, they count then only outside of any.
        """
        if not group.scope and bare and any(map(_indent, group.added)):
            return not heading(self.lines, at)
        name = SCOPE.match(group.scope)
        there = SCOPE.match(heading(self.lines, at))
        return in_scope(group.scope, self.lines, at) or bool(name and there and name[0] == there[0])

    def _holders(self, group: _Group, fit: int | None) -> set[tuple[bytes, ...]]:
        """What the change stands in: where the old text fits, in its own file, or where its scope is; none: unknown."""
        if fit is not None:
            return {self.text.path(fit + group.old_at, group.depth)}
        if self.text.before is not None:
            return {self.text.original.path(self.hunk.stated + group.old_at, group.depth)}
        name = _name(group.scope)
        scopes = [scope for scope in self.text.scopes if scope and scope[-1][1] == name]
        return {tuple(name for indent, name in scope if indent < group.depth) for scope in scopes}

    def _needs_no_scope(self, group: _Group, fit: int | None) -> bool:
        """Whether lines say enough by themselves, because they bring their own scope, need none, or it is gone."""
        if any(HEADING.match(line.rstrip(b"\r\n")) for line in group.added):
            return True
        return fit is None and (not any(map(_indent, group.added)) or not self._has_scope(group.scope))

    def _has_scope(self, scope: bytes) -> bool:
        """Whether the text has that class or function; yes where the hunk names none, for then nothing tells."""
        if not scope:
            return True
        name = SCOPE.match(scope)
        wanted = name[0] if name else scope
        titles = (line.strip() for line in self.lines if HEADING.match(line.rstrip(b"\r\n")) or ANY_HEADING.match(line))
        return any(title.startswith(wanted) and not re.match(rb"\w", title[len(wanted) :]) for title in titles)

    def _still_there(self, group: _Group, at: int, alone: bool = False) -> bool:
        """Whether the lines that the change removes stand in the same class or function as its result.

        Beside a line of the change's context; or anywhere, where the result stands alone.
        """
        if not any(map(is_telling, group.removed)):
            return False
        start, end = _scope(self.lines, at)
        count = len(group.removed)
        if not any(map(is_telling, group.added)):  # only that they are away tells that they were removed
            kept = occurrences(self.new, group.removed)
            return len(occurrences(self.lines[start:end], group.removed)) > len(kept)
        for place in occurrences(self.lines[start:end], group.removed):
            place += start
            if place < at + len(group.added) and at < place + count:
                continue
            near = [*zip(self.lines[place - 1 : place], group.above[-1:], strict=False)]
            near += zip(self.lines[place + count : place + count + 1], group.below[:1], strict=False)
            if alone or any(line == context and is_telling(line) for line, context in near):
                return True
        return False

    # With less context, and without any

    def _with_fuzz(self) -> Match | None:
        """The old text with up to two lines of context less on either side."""
        lead, tail = context_of(self.hunk)
        trims = [(a, b) for a in range(min(MAX_FUZZ, lead) + 1) for b in range(min(MAX_FUZZ, tail) + 1)]
        for above, below in sorted(trims, key=lambda trim: (max(trim), sum(trim))):
            core = self.old[above : len(self.old) - below]
            if not any(map(is_telling, core)):
                continue
            places = [at - above for at in occurrences(self.lines, core)]
            here = [at for at in places if self._is_here(at + above)]
            if not here and not (len(places) == 1 and _is_distinctive(core)):
                continue
            at = min(here or places, key=lambda place: abs(place - self.home))
            sides = [f"{count} above" for count in [above] if count] + [f"{count} below" for count in [below] if count]
            note = f"lines of context left out: {' and '.join(sides)}"
            if (above, below) == (0, 0):
                note = "its text no longer ends the file"
            start, end = max(at, 0), min(at + len(self.old), len(self.lines))
            near = Near(start, end, self._likeness(self.old, start, end), False, self.hunk.old)
            return Match(HunkStatus.FUZZ, start, fuzz=max(above, below), note=note, near=near)
        return None

    def _conflict(self) -> Match:
        near = self._nearest()
        note = self._only_space() or self._elsewhere() or ("" if near else NOTHING_NEAR)
        return Match(HunkStatus.CONFLICT, note=note, near=near)

    def _elsewhere(self) -> str:
        """A note where the only lines like those that it adds stand in another class or function."""
        for group in self.groups:
            places = occurrences(self.lines, group.added) if _is_distinctive(group.added) else []
            if len(places) == 1 and places[0] not in self.text.taken and self._is_news(group.added, 1):
                here = quoted(heading(self.lines, places[0]))
                wanted = f"below {quoted(group.scope)}" if group.scope else "elsewhere"
                return f"what it adds stands below {here}, line {places[0] + 1}; it belongs {wanted}"
        return ""

    def _only_space(self) -> str:
        """A note where the old text is there but for white space."""
        kinds: dict[str, Callable[[bytes], bytes]] = {"line ends": _without_ending, "white space": bytes.strip}
        for what, strip in kinds.items():
            found = occurrences([strip(line) for line in self.lines], [strip(line) for line in self.old])
            if found and any(map(is_telling, self.old)):
                return f"differs from line {found[0] + 1} on in {what} only"
        return ""

    def _nearest(self) -> Near | None:
        """The lines that look most like the hunk's old text or, where they look more like it, its result."""
        found = [self._similar(self.hunk.old, is_result=False)]
        if any(is_telling(line) for group in self.groups for line in group.added):
            found.append(self._similar(self.hunk.new, is_result=True))
        near = [entry for entry in found if entry is not None]
        return max(near, key=lambda entry: entry.similarity - RESULT_MALUS * entry.is_result, default=None)

    def _similar(self, wanted: tuple[bytes, ...], is_result: bool, places: Sequence[int] = ()) -> Near | None:
        wanted = wanted[:COMPARED_LINES]
        home = [self.home] if self.text.before is not None else []
        found: list[tuple[float, Near]] = []
        for at in places or [*home, *self._candidates(wanted)]:
            least = 0 if places or at in home else ELSEWHERE if home else SHOWN
            for count in sorted({len(wanted), len(wanted) + 3, 2 * len(wanted)}):
                start, end = _trimmed(wanted, self.lines, at, min(at + count, len(self.lines)))
                similarity = self._likeness(wanted, start, end)
                in_same = bool(self.hunk.heading) and self._is_here(start)
                bonus = HOME_BONUS if at in home else SCOPE_BONUS if in_same else 0
                if similarity >= least:
                    found.append((similarity + bonus, Near(start, end, similarity, is_result, wanted)))
        return max(found, key=lambda entry: entry[0])[1] if found else None

    def _result_near(self, group: _Group, at: int) -> Near | None:
        """The lines around what upstream has of the hunk's result: the added lines of ``group`` are at ``at``."""
        return self._similar(self.hunk.new, is_result=True, places=[max(at - min(group.new_at, COMPARED_LINES), 0)])

    def _candidates(self, wanted: tuple[bytes, ...]) -> Iterator[int]:
        """Starts of the stretches that share the most and the rarest words with the wanted lines."""
        words = set[bytes]().union(*(WORDS.findall(line) for line in wanted))
        commonness = Counter(word for line in self.text.words for word in line & words)
        scores = [sum(1 / commonness[word] for word in line & words) for line in self.text.words]
        sums = [0.0]
        for score in scores:
            sums.append(sums[-1] + score)
        count = len(wanted)
        starts = range(max(len(self.lines) - count, 0) + 1)
        ranked = sorted(starts, key=lambda at: (-(sums[min(at + count, len(scores))] - sums[at]), abs(at - self.home)))
        chosen: list[int] = []
        for at in ranked[: 20 * count]:
            if all(abs(at - other) > count // 2 for other in chosen):
                chosen.append(at)
                yield at
            if len(chosen) == 6:
                return

    def _likeness(self, wanted: Sequence[bytes], start: int, end: int) -> float:
        a, b = TOKENS.findall(b"".join(wanted)), TOKENS.findall(b"".join(self.lines[start:end]))
        matcher: difflib.SequenceMatcher[bytes] = difflib.SequenceMatcher(None, a, b, autojunk=False)
        return round(matcher.ratio(), 2)


def _trimmed(wanted: Sequence[bytes], lines: list[bytes], start: int, end: int) -> tuple[int, int]:
    """The stretch without the lines at its ends that answer to nothing in the wanted lines."""
    matcher: difflib.SequenceMatcher[bytes] = difflib.SequenceMatcher(None, wanted, lines[start:end], autojunk=False)
    codes = matcher.get_opcodes()
    if codes and codes[0][0] == "insert":
        start += codes[0][4]
    if len(codes) > 1 and codes[-1][0] == "insert":
        end -= codes[-1][4] - codes[-1][3]
    return start, max(start, end)


def _scope(lines: list[bytes], at: int) -> tuple[int, int]:
    """The class or function around a place, as a stretch of lines."""
    titles = [(index, _indent(line)) for index, line in enumerate(lines) if HEADING.match(line.rstrip(b"\r\n"))]
    start, depth = max(((index, indent) for index, indent in titles if index <= at), default=(0, 0))
    end = min((index for index, indent in titles if index > max(start, at) and indent <= depth), default=len(lines))
    return start, end


def _held(text: Text, places: list[int], depth: int, holders: set[tuple[bytes, ...]]) -> list[int]:
    """Of these places those in the same classes and functions; all, where the text has no such."""
    known = holders & text.paths
    return [at for at in places if not known or any(text.path(at, depth)[: len(each)] == each for each in known)]


def _name(title: bytes) -> bytes:
    """A class or function line without what it takes."""
    match = SCOPE.match(title.strip())
    return match[0] if match else title.strip()


def _without_ending(line: bytes) -> bytes:
    return line.rstrip(b"\r\n")


def _indent(line: bytes) -> int:
    return len(line) - len(line.lstrip())


def quoted(line: bytes) -> str:
    """A class or function line as it is shown."""
    return repr(line.decode("utf-8", "replace")) if line else "no class or function"
