"""The texts and tooltips of an SVG."""

import re
import xml.etree.ElementTree as ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def words(text):
    """(words, how, x) of every text of an SVG, and of every hint that a browser shows."""
    found = []
    for element in ElementTree.fromstring(text).iter():
        if element.tag in (f"{SVG}text", f"{SVG}title"):
            anchor = re.search(r"text-anchor: (\w+)", element.get("style", ""))
            anchor = anchor[1] if anchor else element.get("text-anchor", "start")
            found.append(("".join(element.itertext()), anchor, float(element.get("x", 0))))
    return found


def said(text):
    """Its texts without positions, which depend on the fonts of the machine."""
    return [word for word, *_ in words(text)]


def beyond(text, width, letter=7.0):
    """The texts of a picture that reach beyond its edges, where a letter is so many pixels wide."""
    found = []
    for word, anchor, x in words(text):
        long = letter * len(word)
        left = {"end": x - long, "middle": x - long / 2}.get(anchor, x)
        if left < -6 or left + long > width + 6:
            found.append(word)
    return found
