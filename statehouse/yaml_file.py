"""A YAML file: its data, and the line of each value. A mapping names a thing once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from statehouse.errors import ConfigError

MERGE = "tag:yaml.org,2002:merge"  # of the name `<<`
# PyYAML meets the rest of a text whose quotes ended early: mostly SQL in single quotes that has single quotes itself.
QUOTES = " (an expression in single quotes has each of its own twice: 'v = ''x'''; or write \"v = 'x'\")"


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, which raises errors of Python for a value that looks like one of its types and is none, such as
    2026-13-45 or ``!!int abc``: here these are YAMLErrors with a line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:
            raise yaml.constructor.ConstructorError(problem=str(error), problem_mark=node.start_mark) from None


class YamlFile(NamedTuple):
    """What a file says. A path is a tuple such as ``("stores", "rewards", "key", 0)``."""

    data: Any
    lines: dict[tuple, int]  # the line of each path, from 1
    quoted: frozenset[tuple]  # the paths of texts in quotes, which are not in the data

    def line_of(self, path: tuple) -> int:
        """The line of a path, or of the nearest parent that stands in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(file: str | Path, expected: str, secret: bool = False) -> YamlFile:
    """Read a file; ``expected`` is for the messages.

    Raises :class:`ConfigError` where the file cannot be read, is not YAML, or has a name twice in one mapping: then with
    both lines. No message has a value of a ``secret`` file.
    """
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: expected {expected}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: found bytes that are not UTF-8, expected {expected}") from None
    return parse_yaml(text, str(path), expected, secret)


def parse_yaml(text: str, source: str, expected: str, secret: bool = False) -> YamlFile:
    """The same for a text; messages begin with ``source``."""

    def not_yaml(where: str, problem: str) -> ConfigError:
        return ConfigError(f"{where}: not YAML: " + (f"expected {expected}" if secret else problem))

    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if repeated := list(_repeated_keys(loader, root, (), set())):
            raise ConfigError("\n".join(f"{source}:{message}" for message in repeated))
        data = None if root is None else loader.construct_document(root)
        # Only now: names that come by `<<` have been put into their mappings, before those that replace them.
        places = {path: (line, quoted) for path, line, quoted in _places(root, (), 1, set())}
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        problem = str(getattr(error, "problem", None) or getattr(error, "reason", error))
        raise not_yaml(f"{source}:{line}", problem + (QUOTES if "<scalar>" in problem else "")) from None
    except RecursionError:
        raise not_yaml(source, "found lists or mappings that are too deep in each other") from None
    lines = {path: line for path, (line, _) in places.items()}
    return YamlFile(data, lines, frozenset(path for path, (_, quoted) in places.items() if quoted))


def _repeated_keys(loader: _Loader, node: yaml.Node | None, path: tuple, seen: set[int]) -> Iterator[str]:
    """A message for each name that its mapping has already, at any depth.

    Names are equal if they are equal in the data: ``1`` and ``0x1`` are. A mapping may have a name that it also gets by
    ``<<``, and replaces it; it has ``<<`` once, for one mapping or a list. ``seen`` are the nodes that have been looked
    into: an alias is the node of its anchor, and may stand inside itself.
    """
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _repeated_keys(loader, value, (*path, index), seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[Hashable, int] = {}
        for key, value in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if isinstance(key, yaml.ScalarNode):  # another is refused when the data is made
                same = (MERGE,) if key.tag == MERGE else loader.construct_object(key)
                if same in lines:
                    place = "".join(f"{part}." for part in path) + name
                    both = f"lines {lines[same]} and {line}" if lines[same] != line else f"line {line}"
                    yield f"{line}: {place}: found {name!r} twice, in {both}, expected each name once"
                lines.setdefault(same, line)
            yield from _repeated_keys(loader, value, (*path, name), seen)


def _places(node: yaml.Node | None, path: tuple, line: int, seen: set[int]) -> Iterator[tuple[tuple, int, bool]]:
    """Every path with its line (of a mapping's value, that of its name), and whether a text in quotes stands there. What
    is inside an anchor is at the anchor's path alone."""
    if node is None:
        return
    yield path, line, isinstance(node, yaml.ScalarNode) and node.style in ("'", '"')
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _places(value, (*path, str(key.value)), key.start_mark.line + 1, seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _places(value, (*path, index), value.start_mark.line + 1, seen)
