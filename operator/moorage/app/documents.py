"""YAML that somebody else may have written: read with bounds, and refused where it says one thing twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

MAX_BYTES = 2 * 1024 * 1024  # an API server takes no larger object, either
MAX_DEPTH = 100  # levels; the deepest thing that a manifest has any use for is below 20
MAX_NODES = 200_000  # once every alias stands for what it names
MERGE = "tag:yaml.org,2002:merge"


class Refused(ValueError):
    """It isn't read; the message says where and why."""


def read_documents(text: str) -> list[Any]:
    """All documents of a stream that aren't empty. Raises Refused."""
    if len(text) > MAX_BYTES:
        raise Refused(f"it is larger than {MAX_BYTES // 1024} KiB")
    try:
        _check_depth(text)
        return [found for each in yaml.compose_all(text, yaml.SafeLoader) if (found := _built(each)) is not None]
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise Refused(str(error)) from None


def _check_depth(text: str) -> None:
    """By events, of which a parser keeps a list: whatever comes after this may recurse."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise Refused(f"line {_line(event)}: it is nested more than {MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _built(root: Node) -> Any:
    sizes: dict[int, int | None] = {}
    if _size(root, sizes) > MAX_NODES:
        raise Refused(f"it has more than {MAX_NODES} values, once every alias stands for what it names")
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _size(node: Node, sizes: dict[int, int | None]) -> int:
    """How many values a node stands for. `sizes` has each node once, as None while it is being counted."""
    if id(node) in sizes:
        known = sizes[id(node)]
        if known is None:
            raise Refused(f"line {_line(node)}: an alias names what it lies in")
        return known
    sizes[id(node)] = None
    if isinstance(node, MappingNode):
        _check_keys(node)
    sizes[id(node)] = size = 1 + sum(_size(each, sizes) for each in _children(node))
    return size


def _children(node: Node) -> Iterator[Node]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, CollectionNode):
        yield from node.value


def _check_keys(node: MappingNode) -> None:
    seen: dict[tuple[str, str], Node] = {}
    for key, _ in node.value:
        if not isinstance(key, ScalarNode) or key.tag == MERGE:
            continue
        name = (key.tag, key.value)
        if name in seen:
            raise Refused(f"line {_line(key)}: {key.value} is there a second time, after line {_line(seen[name])}")
        seen[name] = key


def _line(at: Node | yaml.Event) -> int:
    return at.start_mark.line + 1 if at.start_mark else 0
