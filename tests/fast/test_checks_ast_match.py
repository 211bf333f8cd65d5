"""Structural matching of snippets."""

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.ast_match import SnippetError, occurs, parse_snippet, scopes


def found(snippet: str, code: str) -> bool:
    return occurs(parse_snippet(textwrap.dedent(snippet)), ast.parse(textwrap.dedent(code)))


@pytest.mark.parametrize(
    ("snippet", "code"),
    [
        ("f(a)", "x = 1 + f( a )  # comment"),
        ("'a'", 'x = "a"'),
        ("f(...)", "f()"),
        ("f(...)", "f(1, *b, k=2, **c)"),
        ("f(..., k=1)", "f(a, b, j=2, k=1)"),
        ("f(a, ...)", "f(a)"),
        ("f(..., b)", "f(a, b)"),
        ("f(j=1, k=2)", "f(k=2, j=1)"),
        ("f(k=...)", "f(k=[1, 2])"),
        ("f(a)[...]", "f(a)[0, 1]"),
        ("....size", "a.b(c).size"),
        ("return ...", "def f(): return 1"),
        ("x = ...", "x = y = 1" if False else "x = 1"),
        ("... or c()", "a() or b() or c()"),
        ("... or b() or ...", "a() or b() or c()"),
        ("... or b() or ...", "b() or c()"),
        ("... == 'xpu'", "cfg.device == 'xpu'"),
        ("[..., 'b', ...]", "x = ['a', 'b', 'c']"),
        ("{..., 'b'}", "x = {'b'}"),
        ("(..., 0)", "w = (size, 0)"),
        ("{'a': f, ...: ...}", "{'b': 1, 'a': f}"),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"),
        ("{'a': 1, ...: ...}", "{'a': 1, **more}"),
        ("if a: ...", "if a:\n    b()\n    c()"),
        ("if a: ...", "if a:\n    b()\nelse:\n    c()"),
        ("if a:\n    b()", "if z:\n    pass\nelif a:\n    b()\nelse:\n    c()"),
        ("if a:\n    ...\n    c()", "if a:\n    b()\n    c()"),
        ("if a:\n    pass\nelse:\n    b()", "if a:\n    pass\nelse:\n    b()"),
        ("for i in x: ...", "for i in x:\n    f(i)\nelse:\n    g()"),
        ("import a", "import a"),
        ("x", "x.y"),
    ],
)
def test_found(snippet: str, code: str) -> None:
    assert found(snippet, code)


@pytest.mark.parametrize(
    ("snippet", "code"),
    [
        ("f(a)", "f(b)"),
        ("f(a)", "f(a, b)"),
        ("f(a)", "f(a, k=1)"),
        ("f(a, k=1)", "f(a)"),
        ("f(..., k=1)", "f(k=2)"),
        ("f(k=1, j=1)", "f(k=1, l=1)"),
        ("f(a, ...)", "f(b, a)"),
        ("f(...)", "g(f)"),
        ("f(...)", "a.f()"),
        ("a.f(...)", "f()"),
        ("1", "True"),
        ("1", "1.0"),
        ("1", "x = 'f(1)'"),
        ("a or b", "a and b"),
        ("a or b", "a or b or c"),
        ("... or c()", "a() or c() or b()"),
        ("[..., 'b']", "['b', 'c']"),
        ("[...]", "(1, 2)"),
        ("{'a': 1}", "{'a': 1, 'b': 2}"),
        ("{'a': 1, ...: ...}", "{'a': 2}"),
        ("{'a': 1, 'b': ..., ...: ...}", "{'a': 1}"),
        ("if a: ...", "if not a:\n    b()"),
        ("if a:\n    b()", "if a:\n    b()\n    c()"),
        ("if a:\n    pass\nelse:\n    b()", "if a:\n    pass"),
        ("return ...", "def f(): return"),
        ("x = 1", "x: int = 1"),
        ("x", "x = 1"),
        ("f(a)", "# f(a)"),
        ("f(a)", "'''f(a)'''"),
        ("a + b", "b + a"),
    ],
)
def test_not_found(snippet: str, code: str) -> None:
    assert not found(snippet, code)


@pytest.mark.parametrize(("text", "problem"), [("a b", "is no Python"), ("a\nb", "2 statements"), ("", "0 statements")])
def test_bad_snippet(text: str, problem: str) -> None:
    with pytest.raises(SnippetError, match=problem):
        parse_snippet(text)


def test_snippet_that_would_match_anything() -> None:
    with pytest.raises(SnippetError, match="anything"):
        parse_snippet("...")


def test_scopes() -> None:
    code = """
    class A:
        def f(self): return 1
        class B:
            async def f(self): return 2
    if x:
        def g(): return 3
    else:
        def g(): return 4
    def h():
        def inner(): return 5
    """
    module = ast.parse(textwrap.dedent(code))

    def bodies(name: str | None) -> list[str]:
        return [ast.unparse(scope).strip()[-1] for scope in scopes(module, name)]

    assert bodies("A.f") == ["1"]
    assert bodies("A.B.f") == ["2"]
    assert bodies("g") == ["3", "4"]
    assert bodies("h.inner") == ["5"]
    assert bodies("f") == []
    assert bodies("A.g") == []
    assert scopes(module, None) == [module]


NAMES = st.sampled_from(["a", "b", "c", "f", "g"])


def _call(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arguments = st.lists(children, max_size=3)
    keywords = st.dictionaries(NAMES, children, max_size=2)
    return st.builds(
        lambda name, args, kwargs: f"{name}({', '.join([*args, *(f'{k}={v}' for k, v in kwargs.items())])})",
        NAMES,
        arguments,
        keywords,
    )


EXPRESSIONS = st.recursive(
    NAMES | st.integers(0, 9).map(str) | st.sampled_from(["'x'", "True", "None"]),
    lambda children: (
        _call(children)
        | st.builds("({} or {})".format, children, children)
        | st.builds("({} + {})".format, children, children)
        | st.lists(children, min_size=1, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.builds("{}[{}]".format, NAMES, children)
        | st.builds("{{{}: {}}}".format, children, children)
    ),
    max_leaves=12,
)


@given(EXPRESSIONS)
def test_every_part_of_an_expression_is_found_in_it_and_nothing_else_of_its_size(text: str) -> None:
    """A snippet without ``...`` matches a node exactly when both have the same syntax tree."""
    code = ast.parse(text)
    for part in ast.walk(code):
        if isinstance(part, ast.expr):
            snippet = parse_snippet(ast.unparse(part))
            assert occurs(snippet, code)
    assert not found("missing", text)


@given(EXPRESSIONS, EXPRESSIONS)
def test_any_one_expression_may_be_left_open(left: str, right: str) -> None:
    code = f"outer = inner({left}, key={right})"
    assert found(f"inner(..., key={right})", code)
    assert found(f"inner({left}, key=...)", code)
    assert found("outer = ...", code)
    assert not found(f"inner({left})", code)
