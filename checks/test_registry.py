"""SGLang's own registry of this image holds the model classes of the release line, from the recorded files."""

import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checks.files import sha256
from checks.given import Architecture, Given
from checks.verdict import Verdict

REGISTRY = "sglang.srt.models.registry"
_OF_EVERY_CLASS = frozenset({"__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__"})


def test_registry(given: Given, verdict: Verdict) -> None:
    """Each architecture by its class name, file, hash and the names that tell it from an older class."""
    with _heard() as messages:
        try:
            registry = importlib.import_module(REGISTRY).ModelRegistry
            registry.get_supported_archs()
            models: Mapping[str, Any] | None = registry.models
        except (Exception, SystemExit) as error:
            verdict.problem(f"{REGISTRY} cannot be imported: {_error_line(error)}")
            models = None
    if models is not None:
        _judge(models, messages, given, verdict)
    verdict.conclude(f"{len(models or ())} models registered, among them {', '.join(given.architectures)} as recorded")


def _judge(models: Mapping[str, Any], messages: list[str], given: Given, verdict: Verdict) -> None:
    if not given.architectures:
        verdict.problem("expected model classes to look for in the manifest's architectures, found none")
    for name, wanted in given.architectures.items():
        if name not in models:
            verdict.problem(f"{name}: not registered ({len(models)} models are); {_first_word(messages, wanted.file)}")
        else:
            for problem in _problems(name, models[name], wanted, given):
                verdict.problem(f"{name}: {problem}")


def _error_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


class _Listener(logging.Handler):
    """Keeps the text of warnings."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Collect warnings and log messages: SGLang turns the failed import of a model into one of them."""
    messages: list[str] = []
    handler = _Listener(messages)
    logging.getLogger().addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield messages
        finally:
            logging.getLogger().removeHandler(handler)
    messages += [str(entry.message) for entry in caught]


def _first_word(messages: list[str], file: str) -> str:
    """The message that most likely explains a missing class: about its module, about an import, or the first."""
    module = file.removesuffix(".py").replace("/", ".")
    about = [text for text in messages if f"{module}:" in text] + [text for text in messages if "import" in text]
    chosen = (about + messages)[:1]
    return f"first warning: {' '.join(chosen[0].split())[:300]}" if chosen else "the import gave no warning"


def _problems(name: str, cls: Any, wanted: Architecture, given: Given) -> Iterator[str]:
    if not isinstance(cls, type):
        yield f"expected a class, found {cls!r}"
        return
    if cls.__name__ != name:
        yield f"expected a class of that name, found an alias of {cls.__name__}"
    elif (original := _aliased(cls)) is not None:
        yield f"expected a class of its own, found one that adds nothing to {original}"
    module = importlib.import_module(cls.__module__)
    yield from _file_problems(module.__file__, wanted, given)
    for attribute in wanted.must_have:
        if attribute not in vars(module):
            yield f"expected its module {module.__name__} to define {attribute}, found no such definition"


def _aliased(cls: type) -> str | None:
    """Name of the model class that this one merely renames, if it does."""
    base = cls.__bases__[0]
    adds = vars(cls).keys() - _OF_EVERY_CLASS
    return base.__name__ if len(cls.__bases__) == 1 and base.__module__.startswith("sglang.") and not adds else None


def _file_problems(loaded: str | None, wanted: Architecture, given: Given) -> Iterator[str]:
    expected = given.package_root / wanted.file
    if loaded is None or Path(loaded).resolve() != expected.resolve():
        yield f"expected it to be loaded from {expected}, found {loaded}"
        return
    recorded = given.files[wanted.file].sha256 if wanted.file in given.files else "no such file in the record"
    found = sha256(expected)
    if found != recorded:
        yield f"{wanted.file}: expected the recorded sha256 {recorded}, found {found}"
