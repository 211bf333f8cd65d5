"""One hunk on one text: every verdict, what bytes make of it, and what holds for any text and any edit."""

import difflib
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.hunk_match import Match, Text, context_of, difference, in_scope, is_telling, judge, there_already
from pipeline.patch_text import heading, occurrences
from pipeline.patches import Hunk, split_lines
from pipeline.rebase_report import HunkStatus

FILE = b"""import first
import second


class A:
    def one(self):
        alpha = compute(1)
        beta = compute(2)
        return alpha + beta

    def two(self):
        gamma = compute(3)
        delta = compute(4)
        return gamma - delta
"""
ONE = FILE.replace(b"beta = compute(2)", b"beta = compute(22)")
TWO = FILE.replace(b"delta = compute(4)", b"delta = compute(44)")


def hunks(old: bytes, new: bytes, context: int = 2) -> list[Hunk]:
    """The hunks of a difference, with headings as git writes them."""
    a, b = split_lines(old), split_lines(new)
    found: list[Hunk] = []
    for codes in difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(context):
        i, k, j, m = codes[0][1], codes[-1][2], codes[0][3], codes[-1][4]
        found.append(Hunk(i + 1 if k > i else i, j + 1 if m > j else j, tuple(a[i:k]), tuple(b[j:m]), heading(a, i)))
    return found


def hunk(old: bytes, new: bytes, context: int = 2) -> Hunk:
    (only,) = hunks(old, new, context)
    return only


def against(wanted: Hunk, text: bytes, *, before: bytes | None = None, taken: frozenset[int] = frozenset()) -> Match:
    return judge(wanted, Text(split_lines(text), taken, split_lines(before) if before is not None else None))


# Exact and moved


def test_at_its_line_it_is_exact() -> None:
    assert against(hunk(FILE, ONE), FILE) == Match(HunkStatus.EXACT, 5)


def test_below_new_lines_it_is_moved_by_their_number() -> None:
    found = against(hunk(FILE, ONE), b"# new\n" * 3 + FILE)
    assert (found.status, found.at) == (HunkStatus.MOVED, 8)


def test_of_equal_texts_the_one_in_its_function_is_meant() -> None:
    twice = b"def a():\n    x = read()\n    y = 1\n    z = 2\n\n\ndef b():\n    x = read()\n    y = 1\n    z = 2\n"
    old = (b"    x = read()\n", b"    y = 1\n", b"    z = 2\n")
    wanted = Hunk(7, 7, old, (old[0], b"    y = 3\n", old[2]), b"def b():")
    found = against(wanted, twice)
    assert (found.status, found.at, found.places) == (HunkStatus.MOVED, 7, (1,))
    # At its stated line, but there another function has come.
    other = Hunk(2, 2, wanted.old, wanted.new, b"def b():")
    assert (against(other, twice).status, against(other, twice).at) == (HunkStatus.MOVED, 7)


def test_of_equal_texts_without_a_function_the_nearest_is_meant() -> None:
    text = b"".join(b"start\nold value\nend\n" if i in (3, 30) else b"line %d\n" % i for i in range(40))
    wanted = Hunk(5, 5, (b"start\n", b"old value\n", b"end\n"), (b"start\n", b"new value\n", b"end\n"))
    found = against(wanted, text)
    assert (found.status, found.at, found.places) == (HunkStatus.MOVED, 3, (32,))


def test_equally_near_places_are_no_place() -> None:
    text = b"start\nold value\nend\nbetween\nstart\nold value\nend\n"
    wanted = Hunk(3, 3, (b"start\n", b"old value\n", b"end\n"), (b"start\n", b"new value\n", b"end\n"))
    found = against(wanted, text)
    assert (found.status, found.places, found.note) == (
        HunkStatus.CONFLICT,
        (0, 4),
        "fits equally well in several places",
    )


def test_in_other_functions_alone_several_places_are_none() -> None:
    block = b"    x = read()\n    y = compute(1)\n    z = write()\n"
    text = b"def a():\n" + block + b"\n\ndef b():\n" + block
    old = tuple(split_lines(block))
    wanted = Hunk(3, 3, old, (old[0], b"    y = 3\n", old[2]), b"def gone():")
    found = against(wanted, text)
    assert (found.status, found.places) == (HunkStatus.CONFLICT, (1, 7))
    # Nor is one chosen where a line of context has gone, too.
    found = against(wanted, text.replace(b"x = read()", b"x = read_all()"))
    assert found.status is HunkStatus.CONFLICT


def test_another_function_is_named() -> None:
    found = against(hunk(FILE, TWO), b"# new\n" + FILE.replace(b"def two(self)", b"def other(self)"))
    assert found.status is HunkStatus.CONFLICT or found.status is HunkStatus.FUZZ
    old = tuple(split_lines(FILE)[11:14])
    inner = Hunk(12, 12, old, (old[0], b"        delta = 4\n", old[2]), b"def two(self):")
    found = against(inner, b"# new\n" + FILE.replace(b"def two(self)", b"def other(self)"))
    assert (found.status, found.at) == (HunkStatus.MOVED, 12)
    assert found.note == "below 'def other(self):' now, was below 'def two(self):'"


# Upstream


def test_its_result_with_all_context_is_upstream() -> None:
    found = against(hunk(FILE, ONE), b"# new\n" + ONE)
    assert (found.status, found.at, found.proof) == (HunkStatus.UPSTREAM, 6, frozenset({8}))


def test_its_result_in_other_surroundings_is_upstream() -> None:
    changed = ONE.replace(b"alpha = compute(1)", b"alpha = compute(111)")
    found = against(hunk(FILE, ONE), changed, before=FILE)
    assert (found.status, found.at) == (HunkStatus.UPSTREAM, 7)
    assert "other surroundings" in found.note


def test_a_result_beside_what_it_should_remove_is_not_upstream() -> None:
    both = ONE.replace(b"        beta = compute(22)\n", b"        beta = compute(2)\n        beta = compute(22)\n")
    assert against(hunk(FILE, ONE), both, before=FILE).status is not HunkStatus.UPSTREAM


def test_what_stood_in_the_file_before_is_no_news() -> None:
    old = b"def f():\n    prepare_everything(1)\n    first = 1\n    second = 2\n"
    new = old.replace(b"    second", b"    prepare_everything(1)\n    second")
    wanted = hunk(old, new, context=1)
    assert against(wanted, old.replace(b"second", b"other"), before=old).status is HunkStatus.FUZZ
    upstream = new.replace(b"second", b"other")
    assert against(wanted, upstream, before=old).status is HunkStatus.UPSTREAM


def test_a_result_that_stood_elsewhere_before_is_no_news() -> None:
    before = b"start = open()\nvalue = 2\nend = close()\n" + FILE + b"start = open()\nvalue = 1\nend = close()\n"
    at = before.rindex(b"value = 1")
    wanted = hunk(before, before[:at] + b"value = 2" + before[at + 9 :], context=1)
    wanted = Hunk(wanted.old_start, wanted.new_start, wanted.old, wanted.new)
    text = before[:at] + b"value = other()" + before[at + 9 :]
    assert against(wanted, text, before=before).status is HunkStatus.CONFLICT
    assert against(wanted, before[:at] + b"value = 2" + before[at + 9 :], before=before).status is HunkStatus.UPSTREAM


def test_a_result_where_the_old_text_stands_as_well_is_not_upstream() -> None:
    new, old = b"start = open()\nvalue = 2\nend = close()\n", b"start = open()\nvalue = 1\nend = close()\n"
    wanted = Hunk(1, 1, tuple(split_lines(old)), tuple(split_lines(new)))
    found = against(wanted, new + b"between = 3\n" * 5 + old)
    assert (found.status, found.at) == (HunkStatus.MOVED, 8)


def test_the_same_addition_in_another_function_is_another_one() -> None:
    line = b"        remember_everything(self)\n"
    wanted = hunk(FILE, FILE.replace(b"        return alpha", line + b"        return alpha"))
    other = FILE.replace(b"        return gamma", line + b"        return gamma")
    assert against(wanted, other, before=FILE) == Match(HunkStatus.EXACT, wanted.stated)


SYNC = b"        torch.cuda.synchronize()\n"


@pytest.mark.parametrize("before", [FILE, None])
def test_an_addition_that_stands_in_another_function_alone_is_a_conflict(before: bytes | None) -> None:
    """Its own function is there, with other text; what upstream has in another one is not its result."""
    wanted = hunk(FILE, FILE.replace(b"        beta =", SYNC + b"        beta ="))
    changed = FILE.replace(b"alpha = compute(1)", b"alpha = other(1)").replace(b"beta = compute(2)", b"beta = other(2)")
    other = changed.replace(b"        delta", SYNC + b"        delta")
    found = against(wanted, other, before=before)
    assert found.status is HunkStatus.CONFLICT
    assert found.note == "what it adds stands below 'def two(self):', line 13; it belongs below 'def one(self):'"
    # In its own function, whatever that takes now, it is its result; and where that function is gone.
    own = changed.replace(b"        beta", SYNC + b"        beta").replace(b"one(self)", b"one(self, more)")
    assert against(wanted, own, before=before).status is HunkStatus.UPSTREAM
    gone = other.replace(b"def one(self)", b"def first(self)")
    assert against(wanted, gone, before=before).status is HunkStatus.UPSTREAM


METHOD = b"    def reset(self):\n        self.state = prepare_everything()\n\n"
CLASSES = FILE + b"\n" + FILE[FILE.index(b"class A") :].replace(b"class A", b"class B")
FIRST, SECOND = CLASSES.index(b"    def two"), CLASSES.rindex(b"    def two")


@pytest.mark.parametrize("indented", [METHOD, METHOD.replace(b"self.state", b"self.other_state_of_it")])
def test_a_method_of_another_class_is_another_one(indented: bytes) -> None:
    """Both classes have the function above it, too."""
    wanted = hunk(CLASSES, CLASSES[:FIRST] + indented + CLASSES[FIRST:], context=3)
    for at in (SECOND, len(CLASSES)):
        other = CLASSES[:at] + indented + CLASSES[at:]
        assert against(wanted, other, before=CLASSES) == Match(HunkStatus.EXACT, wanted.stated)
        assert there_already(wanted, Text(split_lines(other)), wanted.stated) is None
    own = CLASSES.replace(b"\n\nclass B", b"\n" + indented + b"\nclass B")
    assert against(wanted, own, before=CLASSES).status is HunkStatus.UPSTREAM
    assert there_already(wanted, Text(split_lines(own)), wanted.stated) is not None


def test_a_line_in_the_same_method_of_another_class_is_another_one() -> None:
    def in_two(at: int) -> bytes:
        return CLASSES[:at] + CLASSES[at:].replace(b"        return gamma", SYNC + b"        return gamma", 1)

    wanted = hunk(CLASSES, in_two(FIRST), context=1)
    wanted = Hunk(wanted.old_start, wanted.new_start, wanted.old, wanted.new, b"def two(self):")
    assert against(wanted, in_two(SECOND), before=CLASSES) == Match(HunkStatus.EXACT, wanted.stated)
    # Its own class has other text now: what the other one has is not its result, with all its context or with less.
    changed = in_two(SECOND).replace(b"delta = compute(4)", b"delta = other(4)", 1)
    for text in (changed, changed.replace(b"return gamma - delta", b"return delta - gamma")):
        assert against(wanted, text, before=CLASSES).status is HunkStatus.FUZZ


def test_what_another_class_had_already_is_no_reason_against_its_own() -> None:
    """The hunk brings to A what B has, and so does upstream, at another place in A."""
    at = len(FILE)
    before = CLASSES[:SECOND] + METHOD + CLASSES[SECOND:]
    wanted = hunk(before, before[:FIRST] + METHOD + before[FIRST:], context=3)
    own = before[:at] + b"\n" + METHOD.rstrip(b"\n") + b"\n" + before[at:]
    assert against(wanted, own, before=before).status is HunkStatus.UPSTREAM
    assert against(wanted, before, before=before) == Match(HunkStatus.EXACT, wanted.stated)


def test_text_that_fits_in_another_class_alone_says_so() -> None:
    old = tuple(split_lines(FILE)[11:14])
    wanted = Hunk(12, 12, old, (old[0], b"        delta = 4\n", old[2]), b"def two(self):")
    now = FILE.replace(b"gamma = compute(3)", b"gamma = other(3)") + CLASSES[len(FILE) :]
    found = against(wanted, now, before=FILE)
    assert (found.status, found.at) == (HunkStatus.MOVED, 22)
    assert found.note == "below 'class B, def two' now, was below 'class A, def two'"


def test_a_line_in_some_function_is_no_result_of_a_hunk_that_names_none() -> None:
    old = (b"    first = 1\n", b"    second = 2\n")
    wanted = Hunk(3, 3, old, (old[0], b"    torch.cuda.synchronize()\n", old[1]))
    text = b"def f():\n    torch.cuda.synchronize()\n    return other_value\n"
    found = against(wanted, text)
    assert found.status is HunkStatus.CONFLICT
    assert found.note == "what it adds stands below 'def f():', line 2; it belongs elsewhere"


def test_a_line_of_the_module_belongs_to_no_function() -> None:
    old = (b"import first\n", b"import second\n")
    wanted = Hunk(20, 20, old, (old[0], b"import something_else\n", old[1]), b"def f():")
    text = b"def f():\n    pass\n\n\ndef g():\n    pass\n\n\nimport something_else\n"
    assert against(wanted, text).status is HunkStatus.UPSTREAM


def test_what_the_series_itself_brought_proves_nothing() -> None:
    found = against(hunk(FILE, ONE), ONE, taken=frozenset({7}))
    assert found.status is HunkStatus.CONFLICT


def test_a_removal_is_upstream_where_its_context_has_closed() -> None:
    gone = FILE.replace(b"        beta = compute(2)\n", b"")
    assert against(hunk(FILE, gone), gone).status is HunkStatus.UPSTREAM
    assert against(hunk(FILE, gone), b"# new\n" + FILE).status is HunkStatus.MOVED
    assert against(hunk(FILE, gone), FILE.replace(b"beta = compute(2)", b"omega = 7")).status is HunkStatus.CONFLICT


def test_a_removal_whose_lines_stand_further_down_is_not_upstream() -> None:
    old = b"def f():\n    changed_here()\n    remove_me()\n    after_it()\n"
    new = old.replace(b"    remove_me()\n", b"")
    later = new.replace(b"    after_it()\n", b"    after_it()\n    more()\n    remove_me()\n")
    assert against(hunk(old, new, context=1), later).status is HunkStatus.FUZZ
    # In another function it is another one; and of two, the hunk may leave one.
    assert against(hunk(old, new, context=1), new + b"\n\ndef g():\n    remove_me()\n").status is HunkStatus.UPSTREAM
    twice = old.replace(b"    after_it()\n", b"    remove_me()\n    after_it()\n")
    wanted = hunk(twice, old, context=2)
    assert against(wanted, b"# new\n" + old, before=twice).status is HunkStatus.UPSTREAM


def test_an_addition_whose_old_text_still_fits_is_upstream_when_it_is_there() -> None:
    added = FILE.replace(b"    def two", b"    def middle(self):\n        return 77\n\n    def two")
    wanted = hunk(FILE, added, context=1)
    elsewhere = FILE + b"\n    def middle(self):\n        return 77\n"
    assert against(wanted, elsewhere, before=FILE).status is HunkStatus.UPSTREAM


# Fuzz and partly


def test_with_changed_context_it_fits_with_fuzz_alone() -> None:
    found = against(hunk(FILE, ONE), FILE.replace(b"def one(self)", b"def one(self, more)"))
    assert (found.status, found.fuzz, found.note) == (HunkStatus.FUZZ, 1, "lines of context left out: 1 above")
    wanted = hunk(FILE, FILE.replace(b"return alpha", b"result = alpha"))
    found = against(wanted, FILE.replace(b"def two", b"def second"))
    assert (found.status, found.at, found.fuzz) == (HunkStatus.FUZZ, 6, 1)
    assert found.near is not None
    assert not found.near.is_result


def test_an_end_of_file_that_grew_is_no_exact_place() -> None:
    appended = FILE + b"\n\nclass B:\n    pass\n"
    found = against(hunk(FILE, appended), FILE + b"\n\nclass C:\n    pass\n")
    assert (found.status, found.fuzz, found.note) == (HunkStatus.FUZZ, 0, "its text no longer ends the file")
    assert against(hunk(FILE, appended), appended).status is HunkStatus.UPSTREAM
    assert against(hunk(FILE, appended), FILE).status is HunkStatus.EXACT


def test_some_changes_of_a_hunk_are_partly_upstream() -> None:
    new = FILE.replace(b"compute(1)", b"compute(11)").replace(b"return alpha + beta", b"return beta + alpha")
    wanted = hunk(FILE, new)
    found = against(wanted, FILE.replace(b"compute(1)", b"compute(11)"), before=FILE)
    assert (found.status, found.note) == (HunkStatus.PARTLY, "1 of 2 changes are there (line 7)")
    assert found.near is not None
    assert found.near.is_result


def test_most_lines_of_an_addition_are_partly_upstream() -> None:
    body = b"        first = %s(1)\n        second = compute(2222)\n        return first - second\n\n"
    method = b"    def middle(self):\n" + body
    wanted = hunk(FILE, FILE.replace(b"    def two", method % b"compute" + b"    def two"), context=1)
    found = against(wanted, FILE.replace(b"    def two", method % b"other" + b"    def two"), before=FILE)
    assert found.status is HunkStatus.PARTLY
    assert found.note == "of the lines that it adds, 75% are there (from line 11 on)"
    told = (method % b"compute").replace(b"(self):\n", b'(self):\n        """Told."""\n')
    found = against(wanted, FILE.replace(b"    def two", told + b"    def two"), before=FILE)
    assert found.status is HunkStatus.PARTLY
    assert found.note == "of the lines that it adds, all, with others between them, are there (from line 11 on)"


FOUR = b"".join(b"        prepare_device(%d)\n" % number for number in range(4))


@pytest.mark.parametrize("there", [FOUR, FOUR.replace(b"device(3)", b"other(3)")], ids=["all", "most"])
def test_lines_of_another_function_are_no_part_of_one_that_fits(there: bytes) -> None:
    wanted = hunk(FILE, FILE.replace(b"        return alpha", FOUR + b"        return alpha"))
    other = FILE.replace(b"        return gamma", there + b"        return gamma")
    assert against(wanted, other, before=FILE) == Match(HunkStatus.EXACT, wanted.stated)
    assert there_already(wanted, Text(split_lines(other)), wanted.stated) is None
    # In its own function most of them are a part, though its old text fits as well: in the report, and to one who
    # applies it without knowing the old file.
    own = FILE.replace(b"        alpha", FOUR.replace(b"device(3)", b"other(3)") + b"        alpha")
    assert against(wanted, own, before=FILE).status is HunkStatus.PARTLY
    found = there_already(wanted, Text(split_lines(own)), wanted.stated)
    assert found is not None
    assert found.note == "of the lines that it adds, 75% are there (from line 7 on)"


# Conflict


def test_a_text_that_is_gone_is_a_conflict_with_the_nearest_lines() -> None:
    text = b"# new\n" + FILE.replace(b"beta = compute(2)", b"beta = compute_all(2, fast=True)")
    found = against(hunk(FILE, ONE), text, before=FILE)
    assert found.status is HunkStatus.CONFLICT
    assert found.near is not None
    assert (found.near.at, found.near.end, found.near.is_result) == (6, 11, False)
    shown = difference(found.near.wanted, split_lines(text)[found.near.at : found.near.end]).splitlines()
    assert shown[2:4] == ["-        beta = compute(2)", "+        beta = compute_all(2, fast=True)"]


def test_weak_likeness_elsewhere_does_not_lead_away_from_the_place() -> None:
    names = [b"SETTING_%d_OF_PART = EnvInt(%d)\n" % (number, number % 5) for number in range(40)]
    before = b"".join([*names[:30], b"SETTING_OTHER_NAME = EnvInt(4)\n", b"\n", b"# Quantization\n", *names[30:]])
    after = before.replace(b"(4)\n\n#", b"(4)\nSETTING_OURS = EnvBool(True)\n\n#")
    text = before.replace(b"SETTING_OTHER_NAME = EnvInt(4)\n", b"")
    found = against(hunk(before, after, context=1), text, before=before)
    assert found.status is HunkStatus.CONFLICT
    assert found.near is not None
    assert found.near.at == 30


def test_of_alike_lines_those_of_the_same_function_are_the_nearest() -> None:
    """Lines above a stretch that look like nothing do not make it one of the function before."""
    body = b"    first = x\n    second = first + 1\n    third = second * %s\n    return third\n\n\n"
    old = b"def f(x):\n" + body % b"3" + b"def g(x):\n" + body % b"4"
    wanted = hunk(old, old.replace(b"* 3", b"* 30"), context=1)
    found = against(wanted, b"# new\n" * 9 + old.replace(b"* 3", b"// 3"))
    assert found.near is not None
    assert found.near.at == 11


def test_where_nothing_is_like_it_that_is_said() -> None:
    found = against(hunk(FILE, ONE), b"other text\n")
    assert (found.status, found.near, found.note) == (HunkStatus.CONFLICT, None, "nothing like it is in the file")


def test_line_ends_and_white_space_count_and_are_named() -> None:
    assert against(hunk(FILE, ONE), FILE.replace(b"\n", b"\r\n")).note == "differs from line 6 on in line ends only"
    found = against(hunk(FILE, ONE), FILE.replace(b"    ", b"  "))
    assert (found.status, found.note) == (HunkStatus.CONFLICT, "differs from line 6 on in white space only")
    old, new = (text.replace(b"\n", b"\r\n") for text in (FILE, ONE))
    assert against(hunk(old, new), old).status is HunkStatus.EXACT
    assert against(hunk(old, new), new).status is HunkStatus.UPSTREAM


def test_a_missing_newline_at_the_end_counts() -> None:
    cut, cut_two = FILE[:-1], TWO[:-1]
    assert against(hunk(cut, cut_two), cut).status is HunkStatus.EXACT
    assert against(hunk(cut, cut_two), FILE).status is not HunkStatus.EXACT
    assert against(hunk(cut, cut_two), cut_two).status is HunkStatus.UPSTREAM
    adds = hunk(cut, FILE)
    assert against(adds, cut).status is HunkStatus.EXACT
    assert against(adds, FILE).status is HunkStatus.UPSTREAM
    assert difference([b"a"], [b"a\n"]) == "-a\n\\ No newline at end of file\n+a"


def test_without_any_context_no_place_is_proven() -> None:
    wanted = Hunk(3, 4, (), (b"new line\n",))
    assert against(wanted, FILE).note == "it has no context, so that nothing proves its place"
    assert against(wanted, b"").status is HunkStatus.EXACT


def test_scope_is_a_python_or_any_heading() -> None:
    lines = split_lines(FILE)
    assert in_scope(b"", lines, 3)
    assert in_scope(b"def one(self):", lines, 8)
    assert in_scope(b"class A:", lines, 8)  # as git says where it is told no language
    assert not in_scope(b"def two(self):", lines, 8)


# What holds for any text

LINE = st.sampled_from([b"", b"}", b"    return x", b"def f():", b"class A:", b"    value = 1", b"# note\r"]) | st.text(
    "abc =()", max_size=8
).map(str.encode)
TEXTS = st.lists(LINE, min_size=1, max_size=25).map(lambda lines: b"".join(line + b"\n" for line in lines))


@st.composite
def edits(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A text and the text after one edit, some without a newline at the end."""
    old = split_lines(draw(TEXTS))
    start = draw(st.integers(0, len(old)))
    end = draw(st.integers(start, min(start + 3, len(old))))
    added = [line + b"\n" for line in draw(st.lists(LINE, max_size=4))]
    new = [*old[:start], *added, *old[end:]]
    cut = draw(st.booleans())
    before, after = b"".join(old), b"".join(new)
    return (before.removesuffix(b"\n"), after.removesuffix(b"\n")) if cut else (before, after)


def only_place(text: bytes, wanted: tuple[bytes, ...]) -> bool:
    return len(occurrences(split_lines(text), list(wanted))) == 1


@settings(max_examples=100)
@given(edits(), st.integers(1, 3))
def test_on_the_text_it_was_made_for_a_hunk_is_exact(edit: tuple[bytes, bytes], context: int) -> None:
    old, new = edit
    for wanted in hunks(old, new, context):
        assume(wanted.old and only_place(old, wanted.old))
        assert against(wanted, old, before=old) == Match(HunkStatus.EXACT, wanted.stated)


@settings(max_examples=100)
@given(edits(), st.integers(1, 3), st.integers(1, 9))
def test_below_inserted_lines_a_hunk_is_moved_by_their_number(
    edit: tuple[bytes, bytes], context: int, count: int
) -> None:
    old, new = edit
    text = b"".join(b"inserted %d\n" % index for index in range(count)) + old
    for wanted in hunks(old, new, context):
        assume(wanted.old and only_place(text, wanted.old))
        found = against(wanted, text, before=old)
        assert (found.status, found.at) == (HunkStatus.MOVED, wanted.stated + count)


@settings(max_examples=100)
@given(edits(), st.integers(1, 3))
def test_on_its_result_a_telling_hunk_is_upstream(edit: tuple[bytes, bytes], context: int) -> None:
    old, new = edit
    for wanted in hunks(old, new, context):
        changed = [line for line in wanted.new if line not in wanted.old]
        assume(any(map(is_telling, changed)) and not occurrences(split_lines(new), list(wanted.old)))
        # A removed line of which another copy stays tells nothing.
        assume(not any(line in wanted.new for line in Counter(wanted.old) - Counter(wanted.new)))
        assert against(wanted, new, before=old).status is HunkStatus.UPSTREAM


@settings(max_examples=100)
@given(edits(), TEXTS)
def test_any_text_gets_a_verdict_and_placed_means_that_it_stands_there(edit: tuple[bytes, bytes], text: bytes) -> None:
    old, new = edit
    for wanted in hunks(old, new):
        found = against(wanted, text, before=old)
        if found.status in (HunkStatus.EXACT, HunkStatus.MOVED) and wanted.old:
            assert found.at is not None
            assert tuple(split_lines(text)[found.at : found.at + len(wanted.old)]) == wanted.old


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [(b"a\nb\nc\n", b"a\nx\nc\n", (1, 1)), (b"a\n", b"a\nb\n", (1, 0)), (b"b\n", b"a\nb\n", (0, 1))],
)
def test_context_of_a_hunk(old: bytes, new: bytes, expected: tuple[int, int]) -> None:
    assert context_of(hunk(old, new)) == expected
