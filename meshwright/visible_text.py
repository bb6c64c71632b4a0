"""Text of other people's files, safe to show: no control character of theirs reaches a terminal or a document."""

from __future__ import annotations

import re
from typing import Any

# Control characters but tab and line ends, halves of surrogate pairs, and what XML has no place for.
_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """The text with escapes in place of characters that cannot be shown or written."""
    return _INVISIBLE.sub(lambda found: ascii(found[0])[1:-1], text)


def visible_values(content: Any) -> Any:
    """JSON content with `visible` texts, its keys as they are.

    Raises:
        RecursionError: when it is nested too deeply.
    """
    if isinstance(content, str):
        return visible(content)
    if isinstance(content, list):
        return [visible_values(item) for item in content]
    if isinstance(content, dict):
        return {key: visible_values(item) for key, item in content.items()}
    return content
