"""The typed form of ``manifests/<line>/``: what a release line is made of.

Three files: ``release.yaml`` (what goes into the image), ``profiles.yaml`` (how it is served) and ``lock.yaml``
(what came out of resolving it: digests, written by ``build.py compose --write-lock`` and
``build.py base build --write-lock``). Unknown and doubled keys are refused; the nearest known key is named.
"""

import datetime
import difflib
import json
import re
from collections.abc import Hashable, Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from pipeline.documents import Digest, Sha256
from pipeline.errors import ManifestError

MANIFESTS = Path(__file__).resolve().parent.parent / "manifests"
DEFAULT_LINE = "qwen3.8-27b"


def _tree_path(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or not path.parts or ".." in path.parts or str(path) != value or "\\" in value:
        raise ValueError("must be a plain relative path inside the tree")
    return value


TreePath = Annotated[str, AfterValidator(_tree_path)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]


class Strict(BaseModel):
    """Closed and frozen: a key that nothing reads is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PypiPin(Strict):
    """A wheel on the configured package index."""

    kind: Literal["pypi"]
    # Both go into a requirements file, where anything else could be an option of pip.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")]
    sha256: dict[Annotated[str, Field(pattern=r"^cp3\d+$")], Sha256]
    """Hash of the wheel per Python tag (``cp311``)."""


class GitPin(Strict):
    """A commit of a git repository."""

    kind: Literal["git"]
    url: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    subdir: TreePath | Literal[""] = ""
    """Folder of the repository that holds the tree (``python`` for SGLang's own repository)."""


class DirPin(Strict):
    """A folder of work in progress; an image made from it can never be released."""

    kind: Literal["dir"]
    path: str
    """Absolute, or relative to the project."""


Pin = Annotated[PypiPin | GitPin | DirPin, Field(discriminator="kind")]


class SourceLayer(Strict):
    """Files of a pin: all of them, or those listed."""

    source: Name
    files: tuple[TreePath, ...] | None = None


class OverlayLayer(Strict):
    """A named set of new files, ``overlays/<set>/``."""

    overlay: Name


class PatchesLayer(Strict):
    """The ordered patches of ``patches/<line>/series``."""

    patches: Literal["series"]


def _layer_kind(value: Any) -> str | None:
    """A layer is told by its key, so that a problem in it is reported for what it was meant to be."""
    keys = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return next((kind for kind in ("source", "overlay", "patches") if kind in keys), None)


Layer = Annotated[
    Annotated[SourceLayer, Tag("source")]
    | Annotated[OverlayLayer, Tag("overlay")]
    | Annotated[PatchesLayer, Tag("patches")],
    Discriminator(
        _layer_kind, custom_error_type="layer", custom_error_message="must be a source, an overlay or patches"
    ),
]


class CpuBase(Strict):
    """The local base: Debian packages and hashed wheels, built here."""

    kind: Literal["cpu"]
    suite: str
    """Debian suite."""
    debian: tuple[str, ...]
    """Packages beside the minimal system."""
    requirements: str
    """Hashed requirements file beside this manifest; its torch must be a CPU build (``+cpu``)."""
    python_tag: Annotated[str, Field(pattern=r"^cp3\d+$")] = "cp311"


REFERENCE = r"^[^@\s]+@sha256:[0-9a-f]{64}$"


class PublishedBase(Strict):
    """An image in a registry, by the digest of its platform manifest."""

    kind: Literal["published"]
    reference: Annotated[str, Field(pattern=REFERENCE)]
    package_root: str
    python_tag: Annotated[str, Field(pattern=r"^cp3\d+$")]
    allows: tuple[str, ...] = ()
    """Python packages that the checks otherwise refuse and that this base declares to hold."""


Base = Annotated[CpuBase | PublishedBase, Field(discriminator="kind")]


class EnvironmentDefault(Strict):
    """A variable that the image sets."""

    value: str
    why: str
    read_by: str | None = None
    """Who reads it, where that is not the tree itself."""


class Architecture(Strict):
    """A model class that the image's registry must hold."""

    file: TreePath
    why: str
    must_have: tuple[str, ...] = ()
    """Names that the class's module must define, to tell it from an older class under the same name."""


class Release(Strict):
    """``release.yaml``."""

    title: str
    model: str
    """Name of the model as people write it."""
    tag: Name
    """Moving tag of the model; ``{tag}-{release}`` is the pinned one."""
    release: str
    """Date, YYYYMMDD."""
    pins: dict[Name, Pin]
    layers: tuple[Layer, ...]
    """Applied in this order; the first is the whole tree."""
    base: Base
    environment: dict[str, EnvironmentDefault]
    architectures: dict[str, Architecture]
    """Class name, as SGLang's registry lists it, to where it must come from."""
    requires_checkpoints: tuple[TreePath, ...] = ()
    """Reports of ``build.py checkpoint --json`` beside this file without which nothing is released."""

    @field_validator("release", mode="before")
    @classmethod
    def _date(cls, value: object) -> str:
        text = str(value)
        try:
            if not re.fullmatch(r"\d{8}", text):
                raise ValueError
            datetime.datetime.strptime(text, "%Y%m%d")
        except ValueError:
            raise ValueError("must be a date, YYYYMMDD") from None
        return text

    @model_validator(mode="after")
    def _layers_name_pins(self) -> "Release":
        if not self.layers or not isinstance(self.layers[0], SourceLayer) or self.layers[0].files is not None:
            raise ValueError("layers must start with a whole source")
        for number, layer in enumerate(self.layers):
            kind, name = next(iter(layer))
            if any(next(iter(other)) == (kind, name) for other in self.layers[:number]):
                raise ValueError(f"layers names {kind} {name!r} twice; steps of the lock have one name each")
            if isinstance(layer, SourceLayer) and layer.source not in self.pins:
                raise ValueError(f"layers names the source {layer.source!r}, which pins does not define")
        return self

    @property
    def variables(self) -> dict[str, str]:
        """What the image sets."""
        return {name: entry.value for name, entry in self.environment.items()}

    @property
    def created(self) -> str:
        """The release date as RFC 3339, for image configs."""
        return datetime.datetime.strptime(self.release, "%Y%m%d").strftime("%Y-%m-%dT00:00:00Z")


Flag = str | int | float | bool
Flags = dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")], Flag]
"""Launch flags without the leading dashes; ``true`` is a flag without a value."""
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
How = Literal["graph", "eager", "none"]
"""Captured once and replayed, launched kernel by kernel, or not there at all."""


class Graphs(Strict):
    """What runs as a captured device graph: three decisions that no single flag makes."""

    target_verify: How
    """The target's decode and verification step."""
    draft: How
    """The MTP head's steps, or the DFlash2 backbone."""
    selector: How
    """DFlash2's candidates and walk, which may stay eager beside a captured backbone."""


class DraftRing(Strict):
    """Rows that private rings of draft KV have, as ``sglang/srt/speculative/dflash_ring.py`` lays them out."""

    stride: int
    """Of one request."""
    rows: int
    """Of all requests that can run at once."""


class PublishedImage(Strict):
    """An image that this project did not build."""

    repository: str
    tag: str
    digest: Digest
    python: str
    """Name of its interpreter, as its own instructions call it."""


class Profile(Strict):
    """One way to serve the model; rendered into recipes and parsed by the image's own argument parser."""

    why: str
    """One sentence: what this profile is for."""
    image: PublishedImage | None = None
    """Somebody else's image that the profile documents; its flags are not checked against ours."""
    target: str
    """Hub id of the target checkpoint."""
    target_revision: str
    draft: str | None = None
    """Hub id of the draft checkpoint, or of what ``draft_1m`` makes it from; none where the target has its own head."""
    draft_revision: str | None = None
    context_length: int
    max_total_tokens: int
    max_mamba_cache_size: int
    mounts: dict[
        Annotated[str, Field(pattern=r"^/[a-z0-9-]+$")], Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
    ] = {}
    """Folder in the container to folder below the models folder of the machine."""
    arguments: Flags
    without_draft: Flags = {}
    """What takes the place of all ``speculative-*`` flags when the draft's mount is left out."""
    environment: dict[VariableName, str] = {}
    """Beyond the image's own defaults."""
    graphs: Graphs | None = None
    draft_ring: DraftRing | None = None
    """None where the draft shares the target's slots."""
    resolved: dict[str, Any] = {}
    """``ServerArgs`` attributes that upstream's resolution fills or changes, and to what; a flag that is not named
    here has to come out as it went in."""
    measured: tuple[str, ...] = ()
    """What was seen to work on cards, one sentence each."""
    unmeasured: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    """What must not be asked of it, one sentence each."""

    @model_validator(mode="after")
    def _sound(self) -> "Profile":
        if false := [name for name, value in self.arguments.items() if value is False]:
            raise ValueError(f"{false[0]}: false is no flag; leave it out")
        paths = {path for name, path in self.arguments.items() if name in MODEL_FLAGS}
        if self.mounts and paths != set(self.mounts):
            raise ValueError(f"mounts are {sorted(self.mounts)}, and the flags name {sorted(map(str, paths))}")
        if bool(self.draft) != bool(self.draft_revision):
            raise ValueError("draft and draft_revision go together")
        return self

    @property
    def flags(self) -> dict[str, Flag]:
        """Every launch flag, in the order of the command line."""
        sizes = {
            "context-length": self.context_length,
            "max-total-tokens": self.max_total_tokens,
            "max-mamba-cache-size": self.max_mamba_cache_size,
        }
        speculative = {name: value for name, value in self.arguments.items() if name.startswith(SPECULATIVE)}
        return {**_without(self.arguments, speculative), **sizes, **speculative}

    @property
    def argv(self) -> list[str]:
        """The words after ``python3 -m sglang.launch_server``, without host and port."""
        return words_of(self.flags)

    @property
    def graph_batches(self) -> tuple[int, ...]:
        """Batch sizes of the decode graphs; none where decode graphs are off, as they are by default on XPU."""
        decode = json.loads(str(self.arguments.get("cuda-graph-config", "{}"))).get("decode", {})
        return tuple(decode.get("bs", ())) if decode.get("backend") == "full" else ()


def words_of(flags: Flags) -> list[str]:
    """Flags as words of a command line."""
    words: list[str] = []
    for name, value in flags.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def _without(mapping: dict[str, Flag], names: dict[str, Flag]) -> dict[str, Flag]:
    return {name: value for name, value in mapping.items() if name not in names}


SPECULATIVE = "speculative-"
MODEL_FLAGS = ("model-path", "speculative-draft-model-path")


class HubRevision(Strict):
    """A checkpoint on the Hub, at a revision."""

    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")]
    revision: str
    """A commit, or a branch or tag that is resolved to one when it is used."""


class Draft1M(Strict):
    """What ``build.py draft-1m`` makes the draft of the 1M profile from."""

    source: HubRevision
    """The native draft, at a commit."""
    target: HubRevision
    """The revision of the target whose YaRN settings the draft gets."""
    profile: Name | None = None
    """The profile that the result is gated for."""

    @field_validator("source")
    @classmethod
    def _at_a_commit(cls, value: HubRevision) -> HubRevision:
        if not re.fullmatch(r"[0-9a-f]{40}", value.revision):
            raise ValueError("revision must be a commit of 40 hex digits")
        return value


class Choice(Strict):
    """A kind of work, and the profile to begin with."""

    workload: str
    profile: Name
    why: str


class Machine(Strict):
    """What a container gets of the machine; each is a default that ``build.py recipe`` lets one change."""

    cards: int
    card: str
    card_memory_gib: int
    models: str
    """Folder that holds the model folders, absolute or below the working directory."""
    port: int
    devices: tuple[str, ...]
    """Device folders, both passed on and mounted: the links in ``by-path`` are no devices."""
    groups: tuple[str, ...]
    """Groups of the container beside the machine's render group, whose number differs between machines."""
    ipc: str
    shm_size: str
    capabilities: tuple[str, ...]
    security: tuple[str, ...]
    ulimits: dict[str, int]
    restart: str

    @property
    def listen(self) -> list[str]:
        """The end of every command line: all addresses of the container, and the port that it passes on."""
        return ["--host", "0.0.0.0", "--port", str(self.port)]


class Common(Strict):
    """What comes before the own entries of every profile; one of somebody else's image gets none of it."""

    arguments: Flags = {}
    resolved: dict[str, Any] = {}


class Profiles(Strict):
    """``profiles.yaml``."""

    common: Common = Common()
    profiles: dict[Name, Profile]
    default: Name | None = None
    default_why: str | None = None
    choices: tuple[Choice, ...] = ()
    machine: Machine | None = None
    draft_1m: Draft1M | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_common(cls, document: Any) -> Any:
        match document:
            case {"common": dict(common), "profiles": dict(rows)}:
                return {**document, "profiles": {name: _merged(common, row) for name, row in rows.items()}}
        return document

    @model_validator(mode="after")
    def _names_exist(self) -> "Profiles":
        named = {"default": self.default, "draft_1m": self.draft_1m.profile if self.draft_1m else None}
        named |= {f"choices.{number}": choice.profile for number, choice in enumerate(self.choices)}
        for where, name in named.items():
            if name and name not in self.profiles:
                raise ValueError(f"{where} names the profile {name!r}, which profiles does not define")
        return self

    @model_validator(mode="after")
    def _derived_draft_is_of_its_source(self) -> "Profiles":
        if self.draft_1m and self.draft_1m.profile:
            profile, source = self.profiles[self.draft_1m.profile], self.draft_1m.source
            if (profile.draft, profile.draft_revision) != (source.repository, source.revision):
                raise ValueError(f"draft_1m.source is not the draft of the profile {self.draft_1m.profile!r}")
        return self

    def named(self, name: str) -> Profile:
        """A profile.

        Raises:
            ManifestError: there is none of that name.
        """
        if name not in self.profiles:
            raise ManifestError(
                f"no profile {name!r}", found=", ".join(self.profiles) or "none", do="build.py recipe --list"
            )
        return self.profiles[name]

    def is_derived(self, name: str) -> bool:
        """Whether the profile's draft is made by ``build.py draft-1m`` instead of downloaded."""
        return self.draft_1m is not None and self.draft_1m.profile == name


def _merged(common: dict[str, Any], row: Any) -> Any:
    """A profile as written, with the common entries first; what has another form is left for the schema to refuse."""
    if not isinstance(row, dict) or "image" in row:
        return row
    pairs = {key: (common.get(key), row.get(key, {})) for key in ("arguments", "resolved")}
    merged = {key: {**a, **b} for key, (a, b) in pairs.items() if isinstance(a, dict) and isinstance(b, dict)}
    return {**row, **merged}


class LockedBase(Strict):
    """The base that the lock was written with."""

    digest: Digest
    debian: dict[str, str] = {}
    python: dict[str, str] = {}


class LockedFiles(Strict):
    """The files that a layer lists, as the lock was written with them."""

    revision: str
    """The pin in words: ``sglang==0.5.19``."""
    sha256: dict[TreePath, Sha256]


class Lock(Strict):
    """``lock.yaml``."""

    steps: dict[str, Digest]
    """Digest of the tree after each step, in order; step names as in the record."""
    files: dict[Name, LockedFiles] = {}
    """Per source that brings listed files: which file is of which revision."""
    base: LockedBase | None = None
    xpu_base: Annotated[str, Field(pattern=REFERENCE)] | None = None
    """What ``build.py base build xpu`` pushed: what a published base may name."""


class Line(Strict):
    """One release line, read from its folder."""

    name: str
    folder: Path
    release: Release
    profiles: Profiles
    lock: Lock | None

    @property
    def is_main(self) -> bool:
        """Whether this is the line that commands take by default, and that README.md is about."""
        return self.name == DEFAULT_LINE

    @property
    def page(self) -> str:
        """The page about the line, below the project."""
        return "README.md" if self.is_main else f"{MANIFESTS.name}/{self.name}/README.md"

    def config(self, folder: str) -> dict[str, Any]:
        """The ``config.json`` of a model folder that profiles mount.

        Raises:
            ManifestError: the line keeps none of that folder.
        """
        path = self.folder / "configs" / folder / "config.json"
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ManifestError(
                f"{path}: {error}", do=f"put the config.json of the model that profiles mount as {folder} there"
            ) from None
        return content


Model = TypeVar("Model", bound=BaseModel)


def lines(manifests: Path = MANIFESTS) -> list[str]:
    """Names of the release lines that exist."""
    return sorted(path.parent.name for path in manifests.glob("*/release.yaml"))


def load_line(name: str, manifests: Path = MANIFESTS) -> Line:
    """Read and validate one release line.

    Raises:
        ManifestError: naming file, key, what was expected and the nearest known key or line.
    """
    folder = manifests / name
    if not (folder / "release.yaml").is_file():
        known = lines(manifests)
        raise ManifestError(
            f"no release line {name!r}",
            expected=f"a folder below {manifests}",
            found=", ".join(known) or "none",
            do=_suggest(name, known) or "see build.py plan --help",
        )
    lock_file = folder / "lock.yaml"
    return Line(
        name=name,
        folder=folder,
        release=read_yaml(folder / "release.yaml", Release),
        profiles=read_yaml(folder / "profiles.yaml", Profiles),
        lock=read_yaml(lock_file, Lock) if lock_file.is_file() else None,
    )


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key that occurs twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, "a key is no plain value", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} occurs twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_yaml(path: Path) -> Any:
    """Parse a YAML file; doubled keys and syntax errors are one-line :class:`ManifestError`."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}", do="restore it from git") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that no calendar has
        raise ManifestError(f"{path}: {error}", do="correct the YAML") from error


def read_yaml(path: Path, model: type[Model]) -> Model:
    """Parse a YAML file into ``model``; the first problem is reported as one line."""
    try:
        return model.model_validate(load_yaml(path))
    except ValidationError as error:
        raise _problem(path, model, error) from error


def _problem(path: Path, model: type[BaseModel], error: ValidationError) -> ManifestError:
    """The first problem, but an unknown key before the required one that it was meant to be."""
    problems = error.errors()
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    # A part with a bracket names a validator, not a key.
    where = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
    if first["type"] == "extra_forbidden":
        near = _suggest(str(first["loc"][-1]), sorted(_known_keys(model)))
        return ManifestError(f"{path}: unknown key {where!r}", do=near or "remove it")
    what = ": ".join(part for part in (str(path), where, first["msg"].removeprefix("Value error, ")) if part)
    found = repr(first["input"])[:120] if where and first["type"] != "missing" else None
    return ManifestError(what, found=found, do="correct the manifest")


def _suggest(word: str, known: list[str]) -> str | None:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else None


def _known_keys(model: type[BaseModel]) -> Iterator[str]:
    """Field names of a model and of every model below it."""
    todo, seen = [model], set[type[BaseModel]]()
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        for name, field in current.model_fields.items():
            yield name
            todo += _models_in(field.annotation)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
