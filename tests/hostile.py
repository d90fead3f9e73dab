"""Texts that would like to be something else: what data may hold, and what a page must not make of it."""

from html.parser import HTMLParser

HOSTILE = {
    "script": "</script></iframe><script>window.PWN=1</script>",
    "image": '"><img src=x onerror=window.PWN=1>',
    "quotes": "\"' onmouseover='window.PWN=1' x=\"",
    "comment": "--><!-- <![CDATA[ ]]>",
    "entities": "&lt;script&gt;&amp;&#60;b&#62;&",
    "template": "{0}{a}{{}} ${x} %s %(a)s \\u003cscript\\u003e",
    "mathtext": "$\\frac{$ $x_1$ $$",
    "bidi": "\u202eevil\u2066 \u200f\u061c",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈é\u0301\u0301\u0301",
    "nul": "a\x00b\x01\x1b[31m\x7f",
    "surrogate": "\ud800 x\udc80y \udfff",
    "no characters": "\ufeff\ufffe\uffff\U0010ffff",
    "spaces": " \t\n\r\u2028\u2029\u00a0\u3000 ",
    "long": "w" * 10_000,
    "address": "javascript:window.PWN=1 data:text/html,<script>",
}


class Skeleton(HTMLParser):
    """The elements of a page with the names of their attributes, pages within pages included; its text apart."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.parts, self.text, self.attributes = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.parts.append((tag, *(name for name, _ in attributes)))
        for name, value in attributes:
            if name == "srcdoc":
                inside = Skeleton(value)
                self.parts += inside.parts
                self.text += inside.text
            else:
                self.attributes.append(value or "")

    def handle_endtag(self, tag):
        self.parts.append(("/" + tag,))

    def handle_comment(self, data):
        self.parts.append(("comment", data))

    def handle_data(self, data):
        self.text.append(data)

    def unknown_decl(self, data):
        raise AssertionError(f"a declaration in a page: {data!r}")
