"""Templates and where they come from: a folder of the site's, the user's or a project's before the bundled ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from slurmtrain.errors import SpecError


def open_templates(bundled: Path, overrides: Sequence[Path], *, autoescape: bool) -> SandboxedEnvironment:
    """``overrides`` are folders that come before the bundled one; a template there may extend ``bundled/…``."""
    shipped = jinja2.FileSystemLoader(bundled)
    return SandboxedEnvironment(
        loader=jinja2.ChoiceLoader(
            [jinja2.FileSystemLoader(tuple(overrides)), jinja2.PrefixLoader({"bundled": shipped}), shipped]
        ),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=autoescape,
    )


def render_template(environment: SandboxedEnvironment, name: str, values: Mapping[str, Any]) -> str:
    """Raises ``SpecError`` where the template cannot be rendered."""
    try:
        return environment.get_template(name).render(values)
    except jinja2.TemplateSyntaxError as exc:
        raise SpecError(f"the template {exc.filename or exc.name}:{exc.lineno} cannot be read: {exc.message}") from exc
    except jinja2.TemplateNotFound as exc:
        raise SpecError(f"the template {name} needs {exc.name!r}, which is nowhere") from exc
    except jinja2.UndefinedError as exc:
        raise SpecError(f"the template {name} uses a value that does not exist: {exc.message}") from exc
    except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
        raise SpecError(f"the template {name} cannot be rendered: {str(exc) or type(exc).__name__}") from exc
