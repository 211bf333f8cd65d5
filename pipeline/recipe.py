"""Recipes: one profile in every form in which somebody serves it, all from the same words.

A recipe is the profile, the image and the machine's part, resolved. Its forms are templates of ``recipes/``; the words
that a shell has to read are quoted here, so that a folder may be named as it likes.
"""

import csv
import io
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml
from rich.table import Table

from pipeline import capacity, pool_sizes, release, release_record
from pipeline.errors import ManifestError
from pipeline.files import PROJECT
from pipeline.manifest import Graphs, Line, Machine, Profile, words_of
from pipeline.templates import render

PLACEHOLDER = "registry.example/sglang-xpu"
"""Repository of a recipe for an image that is not released yet: a name that no resolver knows (RFC 2606)."""
LAUNCH = ("-m", "sglang.launch_server")
WIDTH = 110
"""Columns at which a command goes on in the next line."""
RENDER_GROUP = '"$(getent group render | cut -d: -f3)"'
HEALTH = "/health"
PROBE = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)"
"""Nothing in it means anything to a shell inside double quotes."""


class Shell(str):
    """Text that is shell syntax already: it is not quoted again."""


Words = Sequence[str]


class Reference(NamedTuple):
    """What to pull, and why that is not yet a digest."""

    text: str
    warning: str | None


@dataclass(frozen=True)
class Recipe:
    """A profile with everything that a form of it needs."""

    line: Line
    name: str
    profile: Profile
    machine: Machine
    image: Reference
    render_group: str | None = None
    """Number or name of the group that owns the render nodes; None: asked of the machine where the recipe runs."""

    @property
    def container(self) -> str:
        """Name of the container."""
        return f"{self.line.release.tag}-{self.name}"

    @property
    def line_option(self) -> str:
        """What a command of this project has to be told of the line."""
        return "" if self.line.is_main else f" --line {self.line.name}"

    @property
    def make_option(self) -> str:
        """The same for ``make``."""
        return make_option(self.line)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.machine.port}"

    @property
    def python(self) -> str:
        """The interpreter's name in the image."""
        return self.profile.image.python if self.profile.image else "python3"

    @property
    def launch(self) -> list[str]:
        """The whole command inside the container."""
        return [self.python, *LAUNCH, *self.profile.argv, *self.machine.listen]

    @property
    def health(self) -> list[str]:
        """Readiness probe, run in the container: the image need not hold curl. It asks for no token."""
        return [self.python, "-c", PROBE, self.url + HEALTH]

    @property
    def folders(self) -> dict[str, str]:
        """Folder in the container to folder of the machine, both as given."""
        return {inside: f"{self.machine.models.rstrip('/')}/{name}" for inside, name in self.profile.mounts.items()}

    @property
    def derived(self) -> bool:
        return self.line.profiles.is_derived(self.name)

    @cached_property
    def downloads(self) -> list[list[str]]:
        """Commands that put the checkpoints where the mounts expect them, and derive what is nowhere to be had."""
        profile, models = self.profile, self.machine.models.rstrip("/")
        target, *draft = self.folders.values()
        commands = [download(profile.target, profile.target_revision, target)]
        if profile.draft and profile.draft_revision:
            native = f"{models}/{profile.draft.rpartition('/')[2]}" if self.derived else draft[0]
            commands.append(download(profile.draft, profile.draft_revision, native))
            if self.derived:
                commands.append(["./build.py", "draft-1m", native, draft[0], *self.line_option.split()])
        return commands

    @property
    def at_once(self) -> int:
        """Requests that run at the same time; further ones wait."""
        return self.serving.running

    @property
    def graphs(self) -> Graphs:
        """The profile's graph decisions; every profile of a line has them."""
        if self.profile.graphs is None:
            raise ManifestError(f"profile {self.name}: no graphs", do="say what runs as a graph and what eagerly")
        return self.profile.graphs

    @property
    def mixed_graphs(self) -> bool:
        """Whether one part replays a graph while another runs eagerly."""
        return {self.graphs.target_verify, self.graphs.draft, self.graphs.selector} >= {"graph", "eager"}

    @property
    def docker_run(self) -> str:
        """The command that starts the container, for a POSIX shell."""
        machine = self.machine
        group: str = Shell(RENDER_GROUP) if self.render_group is None else self.render_group
        options: list[Words] = [("-d",), ("--name", self.container), ("--restart", machine.restart)]
        for device in machine.devices:
            options += [("--device", device), ("--mount", bind(device, device, read_only=False))]
        options += [("--group-add", name) for name in (*machine.groups, group)]
        options += [("--ipc", machine.ipc), ("--shm-size", machine.shm_size)]
        options += [("--cap-add", name) for name in machine.capabilities]
        options += [("--security-opt", name) for name in machine.security]
        options += [("--ulimit", f"{name}={value}") for name, value in machine.ulimits.items()]
        options += [("-p", f"{machine.port}:{machine.port}")]
        options += [("-e", f"{name}={value}") for name, value in self.profile.environment.items()]
        options += [
            ("--health-cmd", f'{self.python} -c "{PROBE}" {self.url}{HEALTH}'),
            ("--health-start-period", "60m"),
        ]
        options += [("--mount", self._mount(inside)) for inside in self.folders]
        launch = _options([*self.profile.argv, *machine.listen])
        server = wrapped(self.shell([self.python, *LAUNCH]), launch, "    ")
        run = " \\\n  ".join([wrapped("docker run", options, "  "), quote(self.image.text), server])
        return f"{self._models_below}\n{run}" if self.below else run

    @property
    def below(self) -> bool:
        """Whether the models are below the working directory, whose name only the shell knows."""
        return not self.machine.models.startswith("/")

    @property
    def _models_below(self) -> str:
        """A line of shell that sets ``models`` to their folder as a quoted field of CSV holds it: ``"`` is doubled."""
        folder = self.machine.models.rstrip("/").removeprefix("./").replace('"', '""')
        return f"""models=$(pwd | sed 's/"/""/g')/{quote(folder)}"""

    def _mount(self, inside: str) -> str:
        """A model folder, read-only; of the names in it the manifest allows no other than plain ones."""
        if self.below:
            source = f"$models/{self.profile.mounts[inside]}"
            return Shell(f'"type=bind,\\"source={source}\\",target={inside},readonly"')
        return bind(self.folders[inside], inside, read_only=True)

    def shell(self, words: Words) -> str:
        """Words as a shell reads them; for the templates."""
        return " ".join(map(quote, words))

    @property
    def without_draft(self) -> list[str]:
        """The flags that take the place of the ``speculative-*`` ones when the draft is left out."""
        return words_of(self.profile.without_draft)

    @property
    def branches(self) -> list[tuple[str, str]]:
        """Checkpoints whose revision is no commit, so that it may name other bytes tomorrow."""
        pairs = [(self.profile.target, self.profile.target_revision)]
        return [pair for pair in pairs if not re.fullmatch(r"[0-9a-f]{40}", pair[1])]

    @property
    def text_only(self) -> bool:
        return self.profile.image is None and bool(self.profile.flags.get("language-only"))

    @property
    def slots_each(self) -> int:
        """State slots that a running request takes."""
        return pool_sizes.slots_per_request(self.serving.strategy)

    @property
    def serving(self) -> pool_sizes.Serving:
        return capacity.serving(self.profile, self.line.release.variables)

    @property
    def request(self) -> str:
        """One chat request, with time for the kernels that it may have to compile."""
        message = {"role": "user", "content": "Write a haiku about a memory pool."}
        model = self.profile.flags["served-model-name"]
        body = json.dumps({"model": model, "messages": [message], "max_tokens": 512})
        options = [("--fail-with-body",), ("--max-time", "1800"), (f"{self.url}/v1/chat/completions",)]
        options += [("--header", "Content-Type: application/json"), ("--data", body)]
        return wrapped("curl", options, "  ")

    @property
    def compose(self) -> str:
        """A Compose file."""
        return render("compose.yaml.j2", recipe=self, service=yaml.safe_dump(self.service, sort_keys=False, width=1000))

    @property
    def service(self) -> dict[str, Any]:
        """The one service of the Compose file; ``$`` is doubled, since Compose reads it as a variable."""
        machine = self.machine
        mounts = [(device, device, False) for device in machine.devices]
        mounts += [(_beside(folder), inside, True) for inside, folder in self.folders.items()]
        service = {
            "container_name": self.container,
            "image": self.image.text,
            "restart": machine.restart,
            "devices": [f"{device}:{device}" for device in machine.devices],
            "group_add": list(machine.groups),
            "ipc": machine.ipc,
            "shm_size": machine.shm_size,
            "cap_add": list(machine.capabilities),
            "security_opt": list(machine.security),
            "ulimits": dict(machine.ulimits),
            "ports": [f"{machine.port}:{machine.port}"],
            "environment": dict(self.profile.environment),
            "volumes": [
                {"type": "bind", "source": source, "target": inside, "read_only": read_only, "bind": NO_NEW_FOLDER}
                for source, inside, read_only in mounts
            ],
            "command": self.launch,
            "healthcheck": {"test": ["CMD", *self.health], "interval": "30s", "start_period": "60m"},
            "stop_grace_period": "2m",
        }
        escaped: dict[str, Any] = _escaped(service)
        ask = "${RENDER_GROUP:?export RENDER_GROUP=$$(getent group render | cut -d: -f3)}"
        escaped["group_add"].append(ask if self.render_group is None else _escaped(self.render_group))
        return escaped

    def as_json(self) -> dict[str, Any]:
        """The recipe for programs: nothing is quoted, nothing left to a shell but the render group."""
        profile = self.profile
        return {
            "profile": self.name,
            "image": self.image.text,
            "pinned_by_digest": self.image.warning is None,
            "flags_checked_against_this_image": profile.image is None,
            "command": self.launch,
            "environment": dict(profile.environment),
            "mounts": self.folders,
            "machine": self.machine.model_dump(mode="json"),
            "render_group": self.render_group,
            "readiness": {"url": f"{self.url}{HEALTH}", "probe": self.health},
            "downloads": self.downloads,
            "graphs": self.graphs.model_dump(),
            "resolved": profile.resolved,
            "requests_at_once": self.at_once,
            "tokens": profile.max_total_tokens,
            **{key: list(getattr(profile, key)) for key in ("measured", "unmeasured", "limits")},
        }


NO_NEW_FOLDER = {"create_host_path": False}
"""A mistyped folder must fail: else an empty one is made and mounted."""


def download(repository: str, revision: str, folder: str) -> list[str]:
    """The command that fetches one revision of a checkpoint."""
    return ["hf", "download", repository, "--revision", revision, "--local-dir", folder]


def quote(word: str) -> str:
    """A word for a POSIX shell."""
    return str(word) if isinstance(word, Shell) else shlex.quote(word)


def bind(source: str, target: str, *, read_only: bool) -> str:
    """The value of ``--mount``, which Docker reads as a line of CSV; unlike ``-v`` it makes no missing folder."""
    line = io.StringIO()
    fields = ["type=bind", f"source={source}", f"target={target}", *(["readonly"] if read_only else [])]
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def wrapped(head: str, groups: Iterable[Words], indent: str) -> str:
    """The command ``head``, already quoted, with groups of words that are never torn apart, on few lines."""
    lines, current = [], head
    for group in groups:
        text = " ".join(map(quote, group))
        if len(current) + len(text) + 1 > WIDTH:
            lines.append(current)
            current = indent + text
        else:
            current += f" {text}"
    return " \\\n".join([*lines, current])


def _options(argv: Sequence[str]) -> list[Words]:
    """Each flag with its value."""
    starts = [number for number, word in enumerate(argv) if word.startswith("--")]
    return [argv[a:b] for a, b in zip(starts, [*starts[1:], len(argv)], strict=True)]


def _beside(folder: str) -> str:
    """A folder as Compose reads it: a relative one is beside the file."""
    return folder if folder.startswith(("/", "./")) else f"./{folder}"


def _escaped(value: Any) -> Any:
    match value:
        case str():
            return value.replace("$", "$$")
        case dict():
            return {key: _escaped(entry) for key, entry in value.items()}
        case list():
            return [_escaped(entry) for entry in value]
    return value


def graph_decisions(profile: Profile, environment: Mapping[str, str]) -> Graphs:
    """What the flags and variables make of the three decisions, by SGLang 0.5.23's own conditions.

    Target: ``cuda_graph_config.decode.backend``, which XPU honours for ``full`` only (``handle_xpu_backends``).
    Draft: the same setting (``_capture_cuda_graphs`` of ``EAGLEWorkerV2``, ``init_cuda_graphs`` of ``DFlashWorkerV2``)
    unless ``SGLANG_DFLASH_DISABLE_DRAFT_GRAPH``. Selector: in the draft's graph (``_maybe_build_draft_sampler``) unless
    ``SGLANG_DFLASH_EAGER_DRAFT_SAMPLER``. What that function asks of the loaded model besides is left out, as no flag
    says it: an ``lm_head`` of the target that can be captured, and a block of more than one token.
    """
    captured = bool(profile.graph_batches)
    algorithm = profile.flags.get("speculative-algorithm")

    def decide(there: bool, *switches: str) -> Any:
        if not there:
            return "none"
        return "graph" if captured and not any(environment.get(name) in TRUE for name in switches) else "eager"

    dflash = algorithm == "DFLASH"
    switches = ("SGLANG_DFLASH_DISABLE_DRAFT_GRAPH",) if dflash else ()
    return Graphs(
        target_verify=decide(True),
        draft=decide(algorithm is not None, *switches),
        selector=decide(dflash, *switches, "SGLANG_DFLASH_EAGER_DRAFT_SAMPLER"),
    )


TRUE = ("1", "true", "yes", "y")


def make(
    line: Line,
    name: str,
    *,
    repository: str = PLACEHOLDER,
    render_group: str | None = None,
    machine: Mapping[str, Any] = MappingProxyType({}),
    project: Path = PROJECT,
) -> Recipe:
    """The recipe of a profile.

    Args:
        repository: where an image that has no release record will be.
        machine: parts of the machine's settings to use instead of the manifest's; None leaves one as it is.

    Raises:
        ManifestError: the line has no such profile, or says nothing about the machine.
    """
    profiles = line.profiles
    profile = profiles.named(name)
    if profiles.machine is None:
        raise ManifestError(f"{line.folder}/profiles.yaml: no machine", do="say what a container gets of it")
    given = {key: value for key, value in machine.items() if value is not None}
    if broken := [value for value in (*given.values(), render_group) if re.search(r"[\n\r\0]", str(value))]:
        raise ManifestError(f"{broken[0]!r}: a line break", do="rename the folder")
    if given.get("models") == "":
        raise ManifestError("no folder for the models", expected="a path", do="say . for the working directory")
    return Recipe(
        line,
        name,
        profile,
        profiles.machine.model_copy(update=given),
        reference(line, profile, repository, project),
        render_group,
    )


def reference(line: Line, profile: Profile, repository: str, project: Path = PROJECT) -> Reference:
    """The image of a profile: by digest where somebody recorded one, else by its pinned tag, with a warning."""
    if profile.image is not None:
        return Reference(f"{profile.image.repository}@{profile.image.digest}", None)
    tag = release.tags(line, "published").pinned
    file = project / release_record.FOLDER / f"{tag}.json"
    if file.is_file():
        record = release_record.read(file)
        return Reference(f"{record.repository}@{record.image.digest}", None)
    nobody = f", and {PLACEHOLDER.partition('/')[0]} is only a placeholder" if repository == PLACEHOLDER else ""
    why = f"{tag} has no release record, so this is a tag, which names no bytes{nobody}"
    return Reference(f"{repository}:{tag}", f"{why}: render again once it is released")


def table(line: Line) -> Table:
    """The profiles for people."""
    result = Table("profile", "for")
    for title in ("tokens", "at once", "slots"):
        result.add_column(title, justify="right")
    result.add_column("graphs: target, draft, selector")
    for name in line.profiles.profiles:
        recipe = make(line, name)
        graphs, profile = recipe.graphs, recipe.profile
        mark = " (default)" if name == line.profiles.default else ""
        numbers = (f"{profile.max_total_tokens:,}", str(recipe.at_once), str(profile.max_mamba_cache_size))
        decisions = f"{graphs.target_verify}, {graphs.draft}, {graphs.selector}"
        result.add_row(name + mark, profile.why, *numbers, decisions)
    return result


def choices(line: Line, link: Callable[[str], str] = lambda name: f"[{name}]({name}.md)") -> str:
    """The table that helps to choose; ``link`` writes a profile's name."""
    return render("choices.md.j2", profiles=line.profiles, link=link)


def folder(line: Line) -> str:
    """Folder of the line's pages, below the project."""
    return "docs/recipes" if line.is_main else f"docs/recipes/{line.name}"


def docs(line: Line) -> str:
    """From there to the folder of documentation."""
    return os.path.relpath("docs", folder(line))


def make_option(line: Line) -> str:
    """What ``make`` has to be told of the line."""
    return "" if line.is_main else f" LINE={line.name}"


FORMATS: dict[str, Callable[[Recipe], str]] = {
    "docker-run": lambda recipe: render("docker-run.sh.j2", recipe=recipe),
    "registry-page": lambda recipe: render(
        "registry-page.md.j2", recipe=recipe, choices=choices(recipe.line), docs=docs(recipe.line)
    ),
    "compose": lambda recipe: recipe.compose,
    "model-card": lambda recipe: render("model-card-profile.md.j2", recipe=recipe),
    "json": lambda recipe: json.dumps(recipe.as_json(), indent=2, ensure_ascii=False) + "\n",
}
