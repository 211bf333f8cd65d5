"""What changes upstream beside the patches: each kind of change on a small tree, and who of us it concerns."""

from pathlib import Path

import pytest
import yaml

from pipeline import environment_variables, launch_flags, upstream_changes
from pipeline.launch_flags import LaunchFlag
from pipeline.manifest import load_line
from pipeline.source_values import Scope, Sources, Unread
from pipeline.upstream_changes import ANY_VALUE, FileChange, NameChange
from tests.fast.builders import make_line, write_files

Tree = dict[str, bytes]
ENVIRON, SERVER_ARGS = environment_variables.DECLARATIONS, launch_flags.PARSER
CHOICES = "sglang/srt/arg_groups/choices.py"
FIELDS = "sglang/srt/arg_groups/fields/spec.py"
WORKER, WALK = "sglang/srt/speculative/worker.py", "sglang/kernels/ops/speculative/walk.py"

ONE_CLASS = """
from sglang.srt.arg_groups.choices import KINDS
from typing import Literal, Optional

class ServerArgs:
    model_path: A[str, Arg(help="h", aliases=["--model"]), NS("model")]
    steps: A[int, "help", NS("spec")] = 3
    kind: A[Optional[str], Arg(help="h", choices=KINDS)] = None
    hidden: A[bool, Arg(no_cli=True)] = False
    plain: int = 4
    mode: A[Literal["a", "b"], f"help {1}"] = "a"
    tp_size: A[int, Arg(cli_name="--tensor-size")] = 2 * 4
    fuse: A[bool, Arg(action=argparse.BooleanOptionalAction)] = True
    parser: A[str, Arg(no_cli=True)] = "auto"

    @staticmethod
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
        names = list(Parser.known.keys())
        parser.add_argument("--parser", choices=["auto"] + names, default=ServerArgs.parser)
        parser.add_argument("--old-steps", action=DeprecatedStoreTrueAction, help=argparse.SUPPRESS)
        parser.add_argument("--level", choices=[m.name.lower() for m in Level])

class Parser:
    known = {"x": 1, "y": 2}
"""
SPREAD = """
from sglang.srt.arg_groups.fields.spec import Spec

def _declared_default(name):
    return getattr(ServerArgs, name)

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--kind", default=_declared_default("kind"))

_INPUT_NAMESPACES = [Spec]
ServerArgs = defstruct("ServerArgs", [])
"""
SPEC = """
from sglang.srt.arg_groups.choices import KINDS as ALL
class Spec(Struct):
    steps: A[int, "help"] = 3
    kind: A[str, Arg(no_cli=True)] = ALL[0]
    derived = Derived(doc="no flag")
"""


def flags(server_args: str, **more: str) -> dict[str, LaunchFlag]:
    tree = {SERVER_ARGS: server_args.encode(), CHOICES: b'KINDS = ["k1"] + ["k2"]\n'}
    return launch_flags.read(tree | {name: text.encode() for name, text in more.items()})


def test_flags_of_annotated_fields_and_of_calls_are_read() -> None:
    found = flags(ONE_CLASS)
    assert {name: flag.default for name, flag in found.items()} == {
        "--model-path": "None",
        "--model": "None",
        "--steps": "3",
        "--kind": "None",
        "--mode": "'a'",
        "--tensor-size": "8",
        "--fuse": "True",
        "--no-fuse": "True",
        "--parser": "'auto'",
        "--old-steps": "False",
        "--level": "None",
    }
    assert found["--kind"].choices == ("k1", "k2")
    assert found["--mode"].choices == ("a", "b")
    assert found["--parser"].choices == ("auto", "x", "y")
    assert found["--steps"].choices is None
    assert [name for name, flag in found.items() if flag.computed] == ["--level"]


def test_flags_of_classes_that_a_list_names_are_read() -> None:
    found = flags(SPREAD, **{FIELDS: SPEC})
    assert {name: flag.default for name, flag in found.items()} == {"--steps": "3", "--kind": "'k1'"}


@pytest.mark.parametrize("text", ["", "class Other: ...\n", "ServerArgs = 1\n", "class (\n"])
def test_tree_with_another_parser_shows_no_flag(text: str) -> None:
    assert flags(text) == {}
    assert launch_flags.read({}) == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-1", -1),
        ("1 << 4", 16),
        ("2 * 3 + 1", 7),
        ("'a' 'b'", "ab"),
        ("sorted({'a'})", ["a"]),
        ("LIST[1]", "two"),
        ("Kind.ALL", ["one"]),
        ("field(default_factory=lambda: [1])", [1]),
        ("field(default_factory=list)", []),
        ("last()", ["local"]),
    ],
)
def test_stated_value_is_read(text: str, value: object) -> None:
    assert _value(text) == value


@pytest.mark.parametrize(
    "text", ["unknown", "LIST[9]", "Kind.NONE", "1 << 99", "'a' + 1", "CIRCLE", "early()", "open('x')", "{**LIST}"]
)
def test_what_only_a_run_could_tell_is_not_guessed(text: str) -> None:
    with pytest.raises(Unread):
        _value(text)


def _value(text: str) -> object:
    source = (
        "LIST = ['one', 'two']\nCIRCLE = CIRCLE + [1]\nclass Kind:\n    ONE = 'one'\n    ALL = (ONE,)\n"
        "def last():\n    local = ['local']\n    return local\n"
        "def early():\n    if 1:\n        return [1]\n    raise ValueError\n"
        f"wanted = {text}\n"
    )
    sources = Sources({"m.py": source.encode()})
    statement = sources.names("m.py")["wanted"]
    return sources.value(statement.value, Scope("m.py"))  # type: ignore[attr-defined]


def test_variables_of_the_registry_and_of_reads_are_found() -> None:
    registry = b"""
class Envs:
    A = EnvBool(False)
    B = EnvBoolWithAlias(True, deprecated_name="OLD_B")
    C = EnvStr()
_DEPRECATED_ENVS: dict = {"D": _DeprecatedEnv(replacement="A"), "E": _DeprecatedEnv()}
"""
    code = b"""
import os
from os import environ
NAME = "F"
os.getenv(NAME, "1"); os.environ.get("F"); environ["G"]; "H" in os.environ
get_bool_env_var("I"); utils.get_int_env_var("J", 7); os.environ.setdefault("K", "x")
os.environ["WRITTEN"] = "1"; os.environ.pop("POPPED"); os.getenv(computed); {}.get("NOT")
"""
    tree = {ENVIRON: registry, "sglang/a.py": code, "sglang/test/b.py": b"import os; os.getenv('T')"}
    assert environment_variables.read({**tree, "sglang/broken.py": b"os.environ ("}) == {
        "A": "False",
        "B": "True",
        "OLD_B": "deprecated, use B",
        "C": "None",
        "D": "deprecated, use A",
        "E": "deprecated",
        "F": "'1' or None",
        "G": environment_variables.REQUIRED,
        "H": "",
        "I": "False",
        "J": "7",
        "K": "'x'",
    }


@pytest.mark.parametrize(("old", "new"), [("'false'", "False"), ("'0'", "0"), ("True", "'true'"), ("0 or 1", "1 or 0")])
def test_one_default_written_in_two_ways_is_the_same(old: str, new: str) -> None:
    assert environment_variables.same(old, new)
    assert not environment_variables.same(old, "'other'")


def compare(old: Tree, new: Tree, **uses: str) -> upstream_changes.UpstreamChanges:
    return upstream_changes.compare(old, new, {WORKER: "dflash2"}, uses)


def environ(**defaults: str) -> Tree:
    return {ENVIRON: "".join(["class Envs:\n", *(f"    {n} = EnvStr({d})\n" for n, d in defaults.items())]).encode()}


def test_changes_of_variables_come_with_those_who_use_them() -> None:
    old = environ(KEPT="1", GONE="1", OTHER="1", CHANGED="'a'", SAME="False")
    new = environ(KEPT="1", CHANGED="'b'", NEW="1", SAME="'0'")
    found = compare(old, new, profile="OTHER CHANGED_MORE", patch="+ CHANGED = 1").variables
    assert (found.before, found.after, found.new, found.not_compared) == (5, 4, 1, ())
    assert found.changes == (
        NameChange(name="CHANGED", what="default", old="'a'", new="'b'", used_by=("patch",)),
        NameChange(name="OTHER", what="vanished", old="1", used_by=("profile",)),
        NameChange(name="GONE", what="vanished", old="1"),
    )
    assert [change.name for change in found.ours] == ["CHANGED", "OTHER"]


def test_a_variable_that_code_still_names_did_not_vanish() -> None:
    old = environ(KEPT="1", HELPED="1", COMMENTED="1", TESTED="1")
    code = b"path = _lazy_path('HELPED')\n# 'COMMENTED'\n"
    new = environ(KEPT="1") | {"sglang/a.py": code, "sglang/test/b.py": b"flag('TESTED')"}
    changes = compare(old, new).variables.changes
    assert [(change.name, change.what) for change in changes] == [("COMMENTED", "vanished"), ("TESTED", "vanished")]


def server_args(*fields: str) -> Tree:
    return {SERVER_ARGS: "\n    ".join(["class ServerArgs:", *fields, "pass"]).encode()}


def test_changes_of_flags_come_with_those_who_use_them() -> None:
    old = server_args(
        'gone: A[int, "h"] = 1',
        'steps: A[int, "h"] = 1',
        'kind: A[str, Arg(choices=["a", "b"])] = "a"',
        'free: A[str, "h"] = "a"',
    )
    new = server_args(
        'steps: A[int, "h"] = 2',
        'kind: A[str, Arg(choices=["b", "c"])] = "a"',
        'free: A[str, Arg(choices=["a"])] = "a"',
        'new: A[int, "h"] = 1',
    )
    found = compare(old, new, profile="--gone\n--steps-more\n--kind", overlay='"--gone is needed"').flags
    assert (found.before, found.after, found.new) == (4, 4, 1)
    assert found.changes == (
        NameChange(name="--kind", what="choices", old="a", new="c", used_by=("profile",)),
        NameChange(name="--gone", what="vanished", old="1", used_by=("profile", "overlay")),
        NameChange(name="--free", what="choices", old=ANY_VALUE, new="a"),
        NameChange(name="--steps", what="default", old="1", new="2"),
    )


def test_tree_without_flags_or_variables_is_not_taken_for_one_that_lost_all() -> None:
    found = compare(server_args('gone: A[int, "h"] = 1') | environ(A="1"), {"sglang/x.py": b""})
    assert found.flags.changes == found.variables.changes == ()
    assert "of the new tree" in found.flags.not_compared[0]
    assert "of the new tree" in found.variables.not_compared[0]


def test_choices_that_only_a_run_could_tell_are_named_and_not_judged() -> None:
    old = server_args('kind: A[str, Arg(choices=made())] = "a"')
    found = compare(old, server_args('kind: A[str, Arg(choices=["a"])] = "a"')).flags
    assert found.changes == ()
    assert found.not_compared == ("choices of --kind: made when the server starts",)


BODY = "".join(f"line_{number} = {number}\n" for number in range(20))
IMPORTS = "from sglang.kernels.ops.speculative import walk\nfrom .info import Info\nimport sglang.srt.utils.other\n"
OLD_FILES: Tree = {
    WORKER: (IMPORTS + BODY).encode(),
    WALK: b"walk = 1\n",
    "sglang/srt/speculative/info.py": BODY.encode(),
    "sglang/srt/utils/other.py": b"",
}


def statuses(new: Tree) -> dict[str, FileChange]:
    return {change.path: change for change in compare(OLD_FILES, new).files}


def test_listed_files_and_what_they_import_there_are_compared() -> None:
    found = statuses(OLD_FILES)
    assert {path: (change.status, change.why) for path, change in found.items()} == {
        WORKER: ("same", "source dflash2"),
        WALK: ("same", f"imported by {WORKER}"),
        "sglang/srt/speculative/info.py": ("same", f"imported by {WORKER}"),
    }


def test_changed_file_has_its_counts() -> None:
    change = statuses({**OLD_FILES, WORKER: (IMPORTS + BODY + "more = 1\n").replace("line_3 = 3\n", "").encode()})[
        WORKER
    ]
    assert (change.status, change.added, change.removed) == ("changed", 1, 1)


@pytest.mark.parametrize("path", [WORKER, WALK])
def test_vanished_file_is_found(path: str) -> None:
    assert statuses({name: data for name, data in OLD_FILES.items() if name != path})[path].status == "vanished"


@pytest.mark.parametrize(
    ("to", "changed", "status"),
    [
        ("sglang/srt/other_name.py", "", "moved"),
        ("sglang/srt/spec/info.py", "more = 1\n", "moved"),
        ("sglang/srt/other_name.py", "more = 1\n", "vanished"),
        ("sglang/srt/spec/info.py", "more = 1\n" * 100, "vanished"),
    ],
)
def test_file_that_went_elsewhere_is_moved_if_it_is_the_same_one(to: str, changed: str, status: str) -> None:
    path = "sglang/srt/speculative/info.py"
    new = {name: data for name, data in OLD_FILES.items() if name != path} | {to: (BODY + changed).encode()}
    change = statuses(new)[path]
    assert change.status == status
    assert change.to == (to if status == "moved" else None)
    assert change.added == (1 if status == "moved" and changed else 0)


def test_file_that_only_the_new_release_imports_is_new() -> None:
    path = "sglang/srt/speculative/fresh.py"
    new = {**OLD_FILES, WORKER: (IMPORTS + "from sglang.srt.speculative.fresh import x\n").encode(), path: b"x = 1\n"}
    change = statuses(new)[path]
    assert (change.status, change.why, change.added) == ("new", f"imported by {WORKER}", 1)


def test_line_names_what_it_uses(tmp_path: Path) -> None:
    layers = [{"source": "sglang"}, {"source": "second", "files": [WORKER]}, {"overlay": "o"}, {"patches": "series"}]
    make_line(tmp_path, layers=layers, environment={"A_VARIABLE": {"value": "1", "why": "w"}})
    profile = {"why": "w", "target": "t/t", "target_revision": "r", "context_length": 1, "max_total_tokens": 1}
    profile |= {"max_mamba_cache_size": 1, "arguments": {"a-flag": 1}, "environment": {"B_VARIABLE": "1"}}
    foreign = {**profile, "image": {"repository": "r", "tag": "t", "digest": f"sha256:{'0' * 64}", "python": "p"}}
    profiles = {"profiles": {"own": profile, "foreign": foreign}}
    write_files(
        tmp_path,
        {
            "manifests/small/profiles.yaml": yaml.safe_dump(profiles),
            "patches/small/a.patch": "+ C_VARIABLE",
            "overlays/o/sglang/x.py": "D_VARIABLE",
            "overlays/unused/sglang/y.py": "E_VARIABLE",
            "docs/environment.md": "`A_VARIABLE`",
        },
    )
    line = load_line("small", tmp_path / "manifests")
    uses = upstream_changes.uses_of(line, tmp_path)
    assert list(uses) == [
        *("release.yaml", "profile own", "docs/environment.md", "patches/small/a.patch", "overlays/o/sglang/x.py")
    ]
    assert uses["profile own"].split() == [
        *("B_VARIABLE", "--a-flag", "--context-length", "--max-total-tokens", "--max-mamba-cache-size")
    ]
    assert upstream_changes.second_source(line) == {WORKER: "second"}


def test_comparison_is_kept_as_json() -> None:
    found = compare(OLD_FILES | environ(A="1"), OLD_FILES | environ(A="2"), profile="A")
    assert upstream_changes.UpstreamChanges.model_validate_json(found.to_json()) == found
