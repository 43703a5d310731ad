"""The page of a run: one HTML file that needs nothing else, whatever the texts in it say.

The template escapes every value; style and script are named in the page's policy by their hashes, so that nothing else
can be run or loaded even if a template of the site forgets to escape.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurmtrain.render.templates import open_templates, render_template

_STYLE, _SCRIPT, _PAGE = "explain/page.css", "explain/page.js", "explain/page.html.j2"


def render_page(values: Mapping[str, Any], *, bundled: Path, overrides: Sequence[Path] = ()) -> str:
    """Raises ``SpecError`` where a template cannot be rendered."""
    environment = open_templates(bundled, overrides, autoescape=True)
    style = render_template(environment, _STYLE, {})
    script = render_template(environment, _SCRIPT, {})
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash_of(style)}",
            f"script-src {_hash_of(script)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    own = {"style": _inline(style), "script": _inline(script), "policy": policy}
    return render_template(environment, _PAGE, {**values, **own})


def _hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _inline(text: str) -> str:
    """Our own style and script, which the template does not escape; the site's may not end their element."""
    if "</" in text:
        raise ValueError("style and script of the page may not hold '</'")
    return text
