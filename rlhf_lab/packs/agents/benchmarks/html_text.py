"""The visible text of HTML, in time linear in its length, however broken it is.

The standard library's HTMLParser reads an unclosed tag again for each `<` in it: 60 KB of `<a ` take half a minute.
Here every scan either consumes what it has read or is the last one: as in browsers, a tag, comment or script that
never ends hides the rest of the page. Not a full HTML5 parser: it knows tags, comments, raw text and entities.
"""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urljoin

HIDDEN = ("script", "style", "noscript", "template", "svg", "head")
RAW = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}
"""Element whose content is no markup → where it ends."""
BLOCKS = ("p", "div", "li", "tr", "br", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "table", "ul", "ol")
VOID = ("br",)
MAX_LINK = 2_000
"""Characters of a link's address; longer ones are left out, so that a long base address cannot multiply the page."""

# Possessive (++, *+): nothing that was read is read again when the `>` is missing.
TAG = re.compile(r"""<(/?)([a-zA-Z][^\s/>]*+)((?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+)>""")
HREF = re.compile(
    r"""([^\s=/>"']++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>]*+)))?+""",
)
LONG_NUMBER = re.compile(r"&#(?:0*+[0-9]{8,}+|[xX]0*+[0-9a-fA-F]{7,}+);?")
"""A reference to no character. Python refuses to read numbers of more than 4,300 digits."""


def html_text(html: str, url: str) -> str:
    """The visible text of HTML: title first, blocks on lines of their own, the address behind the text of a link.

    Args:
        url: address of the page, to which links are relative.
    """
    reader = _Reader(url if len(url) <= MAX_LINK else "")
    _parse(html, reader)
    lines = (" ".join(line.split()) for line in "".join(reader.parts).split("\n"))
    body = "\n".join(line for line in lines if line)
    title = " ".join("".join(reader.title).split())
    return f"{title}\n\n{body}" if title else body


def _parse(html: str, reader: _Reader) -> None:
    """Give the tags and texts of a page to a reader, in their order."""
    position = 0
    while (start := html.find("<", position)) >= 0:
        reader.add_text(html[position:start])
        following = html[start + 1 : start + 3]
        if (following[:1].isascii() and following[:1].isalpha()) or re.match(r"/[a-zA-Z]", following):
            tag = TAG.match(html, start)
            if tag is None:
                return  # it never ends
            position = _read_tag(html, tag, reader)
        elif following[:1] in ("!", "?", "/") and following:
            is_comment = html.startswith("<!--", start)
            closing = "-->" if is_comment else ">"
            end = html.find(closing, start + 2)  # also ends `<!-->`, an empty comment
            if end < 0:
                return
            position = end + len(closing)
        else:  # a "less than"
            reader.add_text("<")
            position = start + 1
    reader.add_text(html[position:])


def _read_tag(html: str, tag: re.Match[str], reader: _Reader) -> int:
    """Give one tag to a reader. Returns where to go on: behind it, or at the end of the raw text that it opens."""
    name, attributes = tag[2].lower(), tag[3]
    if tag[1]:
        reader.end(name)
        return tag.end()
    reader.start(name, attributes)
    if attributes.endswith("/"):
        reader.end(name)
    elif name in RAW:
        closing = RAW[name].search(html, tag.end())
        return closing.start() if closing else len(html)
    return tag.end()


class _Reader:
    """What of a page is visible.

    Attributes:
        parts: pieces of the text.
        title: pieces of the title.
    """

    def __init__(self, url: str):
        self.parts: list[str] = []
        self.title: list[str] = []
        self._url = url
        self._hidden: list[str] = []  # open hidden elements, each name once: the outermost decides
        self._links: list[str] = []
        self._in_title = False

    def start(self, tag: str, attributes: str) -> None:
        if tag == "title" and "svg" not in self._hidden:
            self._in_title = True
        elif tag == "body":
            self._hidden.clear()  # a head that was never closed
        elif tag in HIDDEN:
            if tag not in self._hidden:
                self._hidden.append(tag)
        elif tag in BLOCKS:
            self.parts.append("\n")
        elif tag == "a":
            self._links.append(self._address(_href(attributes)))
        elif tag in ("td", "th"):
            self.parts.append("\t")

    def end(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif tag in BLOCKS and tag not in VOID:
            self.parts.append("\n")
        elif tag == "a" and self._links:
            address = self._links.pop()
            if address and not self._hidden:
                self.parts.append(f" ({address})")

    def add_text(self, text: str) -> None:
        if self._in_title:
            self.title.append(_unescaped(text))
        elif not self._hidden:
            self.parts.append(_unescaped(text))

    def _address(self, link: str) -> str:
        """Where a link leads; "" for one within the page or to no page."""
        try:
            address = urljoin(self._url, link.strip())
        except ValueError:
            return ""
        is_page = address.startswith(("http://", "https://")) and not link.startswith("#")
        return address if is_page and len(address) <= MAX_LINK else ""


def _href(attributes: str) -> str:
    """The address that the attributes of a link name; "" where they name none."""
    for attribute in HREF.finditer(attributes):
        if attribute[1].lower() == "href":
            return _unescaped(attribute[2] or attribute[3] or attribute[4] or "")
    return ""


def _unescaped(text: str) -> str:
    return unescape(LONG_NUMBER.sub("\ufffd", text)) if "&" in text else text
