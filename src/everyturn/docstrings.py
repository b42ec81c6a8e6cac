"""What a docstring says about a function and about each of its parameters."""

from __future__ import annotations

import inspect
import re
from typing import Literal

_STYLES: tuple[tuple[Literal["sphinx", "numpy", "google"], re.Pattern[str]], ...] = (
    ("sphinx", re.compile(r"^[ \t]*:(param|parameter|arg|argument|key|keyword)\b[^:\n]*:", re.M)),
    ("numpy", re.compile(r"^[ \t]*(Other )?Parameters[ \t]*\n[ \t]*-{3,}[ \t]*$", re.M | re.I)),
    (
        "google",
        re.compile(r"^[ \t]*((Keyword |Other )?(Args|Arguments|Params|Parameters)):[ \t]*$", re.M | re.I),
    ),
)


def parse(doc: str | None) -> tuple[str, dict[str, str]]:
    """The description without its section on parameters, and the parameters' own descriptions."""
    if not doc or not doc.strip():
        return "", {}
    doc = inspect.cleandoc(doc)
    style = next((style for style, pattern in _STYLES if pattern.search(doc)), None)
    if style is None:
        return doc, {}
    # Only here: importing it takes longer than defining most tools.
    from griffe import Docstring, DocstringSectionParameters, DocstringSectionReturns, DocstringSectionText

    texts: list[str] = []
    parameters: dict[str, str] = {}
    for section in Docstring(doc, lineno=1).parse(style, warnings=False):
        if isinstance(section, DocstringSectionText):
            texts.append(section.value.strip())
        elif isinstance(section, DocstringSectionParameters):
            for parameter in section.value:
                parameters.setdefault(parameter.name.lstrip("*"), " ".join(parameter.description.split()))
        elif isinstance(section, DocstringSectionReturns):
            returned = " ".join(" ".join(part.description.split()) for part in section.value)
            texts.append(f"Returns: {returned}")
    return "\n\n".join(text for text in texts if text), parameters
