"""Templates of ``recipes/``, filled in: a name without a value is an error, never an empty place."""

import json

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.files import PROJECT

TEMPLATES = PROJECT / "recipes"


def render(template: str, **values: object) -> str:
    """A template as text.

    Raises:
        jinja2.UndefinedError: the template names something that ``values`` lacks.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Elsewhere than in HTML, shell words, YAML and JSON are quoted by the filters below, or before.
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
    )
    environment.filters["json"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    environment.filters["yaml"] = lambda value: yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000)
    environment.filters["count"] = lambda value: f"{value:,}"
    return environment.get_template(template).render(values)
