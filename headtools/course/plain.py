"""Text from data as text: what no file can hold or no eye can see is replaced, what HTML would read is escaped."""

from __future__ import annotations

import html

__all__ = ["escape", "plain", "shortened"]

# Unicode has a picture for each control character; half a surrogate pair is no character and cannot be written.
_SHOWN = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {0x7F: 0x2421}
_SHOWN |= dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)


def plain(text: object) -> str:
    """Return text that can be drawn and written as UTF-8: control characters as their pictures, lone surrogates as �.

    >>> plain("a\\x00b\\ud800"), plain("é\\t👩‍👧")
    ('a␀b�', 'é\\t👩‍👧')
    """
    return str(text).translate(_SHOWN)


def escape(text: object) -> str:
    """Return text as HTML that shows it, in an element or in a quoted attribute.

    >>> escape("<b> & '\\x00'")
    '&lt;b&gt; &amp; &#x27;␀&#x27;'
    """
    return html.escape(plain(text))


def shortened(text: object, max_letters: int = 14) -> str:
    """Return a text of no more than ``max_letters`` letters.

    >>> shortened("incomprehensibilities", 8)
    'incompr…'
    """
    text = str(text)
    return text if len(text) <= max_letters else text[: max_letters - 1] + "…"
