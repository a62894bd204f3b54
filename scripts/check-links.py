#!/usr/bin/env python3
"""Checks every relative link and anchor in the Markdown files of the repository.

    python3 scripts/check-links.py

* A relative link names an existing file or folder inside the repository.
* An anchor (`page.md#title`, `#title`) names a heading of that page, by GitHub's rules.
* `docs/SUMMARY.md` lists every page under `docs/` once.
* A path such as `docs/gpus.md` in a source file, a script or a message names an existing page.

External links are not opened. Only the standard library is needed. Exit code 1 and one line per fault.
"""

import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SKIPPED_FOLDERS = {".git", "target", "runs", "book", "node_modules"}
SOURCES = {".rs", ".py", ".sh", ".yaml", ".yml", ".toml", ".js", ".html", ".css"}

# [text](target) and ![text](target), and [name]: target.
INLINE = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^()\s<>]*(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$")
FENCE = re.compile(r"^\s*(?:>\s*)*(```+|~~~+)")
MENTION = re.compile(r"(?<![\w/.-])docs/[\w./-]+\.md(#[\w-]+)?")


def files(suffixes):
    """All files of the repository with one of these suffixes, in order."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        for name in sorted(names):
            if Path(name).suffix in suffixes:
                yield Path(folder) / name


def prose(text):
    """Numbered lines outside of fenced code, and all of them with their code spans emptied."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if mark and (fence is None or mark[1].startswith(fence)):
            fence = mark[1] if fence is None else None
            continue
        if fence is None:
            yield number, line


def without_code(line):
    return re.sub(r"(`+)(?:(?!\1).)*\1", "``", line)


def slug(title):
    """A heading's anchor, as GitHub makes it: what is shown, in lower case, without punctuation, spaces as hyphens."""
    title = re.sub(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()]*\)", r"\1", title)
    title = re.sub(r"</?\w[^>]*>", "", title).replace("`", "")
    title = re.sub(r"(?<!\w)[*_]+|[*_]+(?!\w)", "", title)
    title = re.sub(r"[^\w\- ]", "", title.strip().lower())
    return title.replace(" ", "-")


def anchors(path, known={}):
    """The anchors of a page; of equal headings the second one ends in -1, and so on."""
    if path not in known:
        found, text = set(), path.read_text(encoding="utf-8")
        for _, line in prose(text):
            heading = HEADING.match(line)
            if heading:
                base = slug(heading[2])
                name, again = base, 0
                while name in found:
                    again += 1
                    name = f"{base}-{again}"
                found.add(name)
            found.update(re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", line))
        known[path] = found
    return known[path]


def fault_of(target, page):
    """What is wrong with a link of a page, if anything."""
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//", target):
        return None
    path, _, anchor = target.partition("#")
    if path.startswith("/"):
        return "is absolute: give a path relative to the page"
    linked = page if not path else Path(os.path.normpath(page.parent / unquote(path)))
    if not linked.is_relative_to(ROOT):
        return "leads out of the repository"
    if not linked.exists():
        return f"there is no {linked.relative_to(ROOT)}"
    if not anchor or linked.suffix != ".md":
        return None
    if unquote(anchor) not in anchors(linked):
        return f"{linked.relative_to(ROOT)} has no heading #{anchor}"
    return None


def check_links():
    for page in files({".md"}):
        for number, line in prose(page.read_text(encoding="utf-8")):
            line = without_code(line) if "`" in line else line
            targets = INLINE.findall(line) + REFERENCE.findall(line)
            for target in targets:
                fault = fault_of(target, page)
                if fault:
                    yield f"{page.relative_to(ROOT)}:{number}: ({target}): {fault}"


def check_summary():
    summary = DOCS / "SUMMARY.md"
    listed = []
    for _, line in prose(summary.read_text(encoding="utf-8")):
        listed += [Path(os.path.normpath(DOCS / target)) for target in INLINE.findall(line) if target]
    for page in sorted(set(files({".md"}))):
        if page.is_relative_to(DOCS) and page != summary and listed.count(page) != 1:
            yield f"docs/SUMMARY.md: lists {page.relative_to(DOCS)} {listed.count(page)} times instead of once"


def check_mentions():
    for source in files(SOURCES):
        for number, line in enumerate(source.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            for mention in MENTION.finditer(line):
                fault = fault_of(mention[0], ROOT / "README.md")
                if fault and source != Path(__file__).resolve():
                    yield f"{source.relative_to(ROOT)}:{number}: {mention[0]}: {fault}"


def main():
    faults = [*check_links(), *check_summary(), *check_mentions()]
    for fault in faults:
        print(fault)
    pages = sum(1 for _ in files({".md"}))
    print(f"{pages} pages, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
