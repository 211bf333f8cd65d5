"""What SGLang makes of a command line: everything that it decides before it loads a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any


def resolve(arguments: Sequence[str], settings: Iterable[str]) -> dict[str, Any]:
    """Parse, resolve and check the arguments of ``launch_server`` as the server does.

    Args:
        arguments: what follows ``python -m sglang.launch_server``.
        settings: names of the settings to return; nested settings come back as dictionaries.

    Raises:
        SystemExit: the parser refuses an argument.
        Exception: whatever SGLang raises when the settings do not go together.
    """
    from sglang.srt.arg_groups.overrides import resolving_view  # type: ignore[import-not-found]
    from sglang.srt.server_args import prepare_server_args  # type: ignore[import-not-found]

    server_args = prepare_server_args(list(arguments))
    server_args.resolve_once()
    server_args.check_server_args()
    decided = resolving_view(server_args)
    return {name: plain(getattr(decided, name)) for name in settings}


def plain(value: Any) -> Any:
    """A dataclass as a dictionary, anything else as it is."""
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
