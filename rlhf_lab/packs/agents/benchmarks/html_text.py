"""Extraction of visible text from HTML, in linear time even for malformed pages.

The standard library's HTMLParser scans an unclosed tag again for each `<` in it: 60 KB of `<a ` take half a minute.
This parser reads each character once: as in browsers, a tag, comment or script that never ends hides the rest of the
page. This is not a complete HTML5 parser: it knows tags, comments, raw text and entities.
"""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urljoin

HIDDEN = ("script", "style", "noscript", "template", "svg", "head")
RAW = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}
"""Name of an element whose content is not parsed as markup → pattern of its end tag."""
BLOCKS = ("p", "div", "li", "tr", "br", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "table", "ul", "ol")
VOID = ("br",)
MAX_LINK = 2_000
"""Maximum number of characters of a link's address; longer addresses are left out."""
MAX_LINKS = 2**20
"""Maximum number of characters of all addresses in a page's text; further ones are left out. Relative links are
expanded with the address of the page, so a long address would multiply the size of the page."""
MIN_LINK_COST = 50
"""Minimum number of characters that a link counts towards `MAX_LINKS`, even if its address is shorter. This limits the
number of `urljoin` calls."""

MARKUP = re.compile(r"<(?:(?P<tag>/?[a-zA-Z])|[!?/])")
"""Start of a tag, or of a comment or declaration. Any other `<` is a "less than" sign and part of the text."""
# Possessive quantifiers (++, *+) prevent backtracking: no character is read twice if the `>` is missing.
TAG = re.compile(r"""<(/?)([a-zA-Z][^\s/>]*+)((?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+)>""")
# an attribute and its value: in double quotes, in single quotes, or without
HREF = re.compile(r"""([^\s=/>"']++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>]*+)))?+""")
LONG_NUMBER = re.compile(r"&#(?:0*+[0-9]{8,}+|[xX]0*+[0-9a-fA-F]{7,}+);?")
"""Numeric character reference (`&#…;`) whose number is too large for a character. Python refuses to read numbers of
more than 4,300 digits."""


def html_text(html: str, url: str) -> str:
    """Return the visible text of HTML. The title comes first, blocks have their own lines, addresses follow their
    links.

    Args:
        html: the page.
        url: address of the page, to which links are relative.
    """
    # A relative link is as long as the page's address, or longer.
    reader = _VisibleTextReader(url if len(url) <= MAX_LINK else "")
    _parse(html, reader)
    text = "".join(reader.parts)
    lines = [" ".join(line.split()) for line in text.split("\n")]
    body = "\n".join(line for line in lines if line)
    title = " ".join("".join(reader.title).split())
    return f"{title}\n\n{body}" if title else body


def _parse(html: str, reader: _VisibleTextReader) -> None:
    """Pass the tags and texts of a page, in order, to the reader that collects the visible text."""
    position = 0
    while markup := MARKUP.search(html, position):
        start = markup.start()
        reader.add_text(html[position:start])
        if markup["tag"]:
            tag = TAG.match(html, start)
            if tag is None:
                return  # the tag never ends, so it hides the rest
            position = _read_tag(html, tag, reader)
        else:
            is_comment = html.startswith("<!--", start)
            closing = "-->" if is_comment else ">"
            end = html.find(closing, start + 2)  # + 2 instead of + 4, because `<!-->` is an empty comment
            if end < 0:
                return
            position = end + len(closing)
    reader.add_text(html[position:])


def _read_tag(html: str, tag: re.Match[str], reader: _VisibleTextReader) -> int:
    """Pass one tag to the reader. Return where to continue: after the tag, or at the end tag of a script or style."""
    name, attributes = tag[2].lower(), tag[3]
    if tag[1]:
        reader.end(name)
        return tag.end()
    reader.start(name, attributes)
    if attributes.endswith("/"):
        reader.end(name)
    elif name in RAW:  # what looks like a tag in a script or a style is not one
        closing = RAW[name].search(html, tag.end())
        return closing.start() if closing else len(html)
    return tag.end()


class _VisibleTextReader:
    """Collects the visible text of a page.

    Attributes:
        parts: pieces of the text.
        title: pieces of the title.
    """

    def __init__(self, url: str):
        self.parts: list[str] = []
        self.title: list[str] = []
        self._url = url
        self._hidden: list[str] = []  # open hidden elements; a name is stored once, because the outermost one decides
        self._links: list[str] = []
        self._characters_left = MAX_LINKS
        self._in_title = False

    def start(self, tag: str, attributes: str) -> None:
        if tag == "title" and "svg" not in self._hidden:  # an SVG image may have a title of its own
            self._in_title = True
        elif tag == "body":
            self._hidden.clear()  # the head may not have been closed
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
        elif tag in self._hidden:  # it also ends the elements within it that were left open
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
        """Return the absolute address of a link; "" for links within the page, other schemes, or beyond the limits."""
        if self._characters_left <= 0:
            return ""
        try:
            address = urljoin(self._url, link.strip())
        except ValueError:
            return ""
        is_page = address.startswith(("http://", "https://")) and not link.startswith("#")
        shown = address if is_page and len(address) <= MAX_LINK else ""
        self._characters_left -= max(len(shown), MIN_LINK_COST)
        return shown


def _href(attributes: str) -> str:
    """Return the value of `href` in a link's attributes; "" if there is none."""
    for attribute in HREF.finditer(attributes):
        if attribute[1].lower() == "href":
            return _unescaped(attribute[2] or attribute[3] or attribute[4] or "")
    return ""


def _unescaped(text: str) -> str:
    return unescape(LONG_NUMBER.sub("\ufffd", text)) if "&" in text else text
