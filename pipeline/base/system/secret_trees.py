"""Secrets found by the structure of a text: JSON, YAML, and the statements of Python and TOML.

Every notation is a tree of named values. A text that cannot be parsed as a whole, such as part of a diff, is parsed in
parts: YAML by indentation, Python by statement.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import yaml

from pipeline.base.system.secrecy import HIDDEN, Secrecy, is_harmless, looks_secret, secrecy_of

NOUN = re.compile(r"secret|pass|pwd|pw\b|token|key|cred|auth|sig|pats?\b|sas\b|cookie|jwt|psk|bearer|kennwort|sess")
"""Every name of a secret, in small letters, contains one of these words. Other texts need no search."""

_LINE_END = re.compile(r"\r\n?|\n")  # as Python's parser counts lines
_LABELS = re.compile(r"name|key|var(?:iable)?|field|option|property|param(?:eter)?(?:name|key)?", re.IGNORECASE)
_VALUES = re.compile(r"values?|val|default(?:_factory)?|const|(?:param(?:eter)?|string)value", re.IGNORECASE)
_NAME = re.compile(r"[\w.$/-]{1,128}")
_TOKEN = re.compile(
    r"(?P<long>\"\"\"|''').*?(?P=long)|(?P<quote>[\"'])(?:\\.|(?!(?P=quote))[^\\\n])*(?P=quote)"
    r"|\#[^\n]*|\\\n|[\[({\])}\n]",
    re.S,
)
_LITERAL = re.compile(r"(?P<quote>\"\"\"|'''|\"|')(?P<inner>(?:\\.|(?!(?P=quote)).)*)(?P=quote)", re.S)
_LONG = re.compile(r"(?P<quote>\"\"\"|''')(?P<inner>.*?)(?P=quote)", re.S)
_CLAUSE = re.compile(r"\s*(?:@|el(?=if\b)|(?:else|finally)\s*:|(?:except|case)\b[^:\n]*:)?\s*")
_CERTAINLY_SECRET = re.compile(r"(?=\S*\d)[\w.+/=:@!#%&*~-]+")
_PROPERTIES = re.compile(r"(?:[!&]\S*\s+)*")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
# Texts around a part with which it can be parsed: a statement, a header, an argument, an entry.
_AROUND_CODE, _AROUND_HEADER = (("", ""), ("f(\n", "\n)"), ("{\n", "\n}")), (("", "\n pass"),)
_HEADER = re.compile(r":[ \t]*(?:#.*)?$")
_AROUND_YAML = {"{": ("[", "]"), '"': ("{", "}")}
_MOST_CHARACTERS, _COST_OF_FAILURE = 20_000, 1000
"""Bound of a statement of Python; the time of an attempt that fails, in characters."""
_STRONG = (ast.BoolOp, ast.BinOp, ast.IfExp, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Starred, ast.Lambda, ast.Await)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Span = tuple[int, int]
Branch = tuple[str, Any, bool]
"""The name of a part or an empty text, the part, and whether its texts are secrets only if they look like it."""


def find_label(pairs: Iterable[tuple[str, Any]]) -> str:
    """Return the name that a map gives to its value: `A` of `{"name": "A", "value": "B"}`; else an empty text."""
    return next((text for key, text in pairs if is_label(key) and isinstance(text, str)), "")


def is_label(key: str) -> bool:
    """Return whether the value of a key may be the name of another value."""
    return _LABELS.fullmatch(key) is not None


def has_label(key: str) -> bool:
    """Return whether the value of a key belongs to the name that another key gives."""
    return _VALUES.fullmatch(key) is not None


def is_visible_literal(value: str, name: str, *, is_doubtful: bool) -> bool:
    """Return whether a literal of a program cannot be the secret of a name."""
    secrecy, last = secrecy_of(name), name.rpartition(".")[2]
    is_certain = secrecy is Secrecy.CERTAIN or (secrecy is Secrecy.LIKELY and last.isupper())
    if is_doubtful and not _CERTAINLY_SECRET.fullmatch(value):
        return True
    is_doubtful |= not is_certain
    is_name = value.startswith("-") or ((is_doubtful or value.isupper()) and secrecy_of(value) is not Secrecy.NONE)
    return is_name or is_harmless(value, secrecy) or (is_doubtful and not looks_secret(value))


def find_in_code(text: str) -> list[Span]:
    """Return the spans of secret literals in the statements of a program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in the code
        return sorted(set(_find_in_statements(text)))


def find_in_documents(text: str) -> list[Span]:
    """Return the spans of secret values in JSON and YAML, also below a line that is neither."""
    spans = set[Span]()
    for root, offset in _parse_documents(text):
        for node, name, _ in _find_leaves(root):
            start, end = (mark.index + offset for mark in (node.start_mark, node.end_mark))
            start += len(_PROPERTIES.match(text[start:end])[0])  # type: ignore[index]
            style, secrecy = getattr(node, "style", None), secrecy_of(name)
            if style in ("|", ">"):
                start = text.index("\n", start)
            inner = text[start:end].strip()
            start += text[start:end].find(inner)
            value = _text_of(node) or inner
            is_doubtful = secrecy is Secrecy.AMBIGUOUS and not looks_secret(value)
            if not is_harmless(value, secrecy) and not is_doubtful and HIDDEN not in inner:
                is_quoted = style in ("'", '"')
                spans.add((start + is_quoted, start + len(inner) - is_quoted))
    return sorted(spans)


def _parse_documents(text: str) -> Iterator[tuple[yaml.Node, int]]:
    """Yield the roots of documents, and the position in the text from which their positions count."""
    parts, budget = [(0, len(text))], 10 * len(text) + 500 * _COST_OF_FAILURE
    while parts and budget > 0:
        start, end = parts.pop()
        part = text[start:end]
        if ":" not in part or NOUN.search(part.lower()) is None:
            continue
        before, after = _AROUND_YAML.get(part.lstrip()[0], ("", ""))
        try:
            yield from ((root, start - len(before)) for root in yaml.compose_all(f"{before}{part}{after}", _LOADER))
        except (yaml.YAMLError, ValueError, RecursionError):
            budget -= len(part) + _COST_OF_FAILURE
            begins = list(re.finditer(r"^ *(?=[^\s#])", part, re.M))
            least = min((len(match[0]) for match in begins), default=0)
            bounds = [match.start() for match in begins if len(match[0]) == least]
            middle = bounds[len(bounds) // 2] if len(bounds) > 1 else part.find("\n") + 1  # a line and those below it
            if 0 < middle < len(part):
                parts += [(start, start + middle), (start + middle, end)]


def _find_in_statements(text: str, offset: int = 0) -> Iterator[Span]:
    position, budget = 0, 5 * len(text) + 500 * _COST_OF_FAILURE
    while position < len(text) and budget > 0:
        end, closers = _find_end(text, position)
        part = text[position:end]
        if ("'" in part or '"' in part) and NOUN.search(part.lower()) is not None:
            start = position + _CLAUSE.match(part).end()  # type: ignore[union-attr]
            tree, shift = _parse_code(text[start:end], closers)
            if tree is not None:
                yield from _find_in_tree(tree, text[start:end], offset + start, shift)
            else:  # another statement may begin in the next line
                budget -= len(part) + _COST_OF_FAILURE
                end = start + len(text[start:end].partition("\n")[0])
            if long := _LONG.search(text, position, end):  # code in a text, or text between two texts
                yield from _find_in_statements(long["inner"], offset + long.start("inner"))
        position = max(end, position) + 1


def _find_end(text: str, position: int) -> tuple[int, str]:
    """Return the end of the statement at a position, and the brackets that are open there."""
    closers = list[str]()
    for match in _TOKEN.finditer(text, position):
        part = match[0]
        if part in _CLOSING:
            closers.append(_CLOSING[part])
        elif part in closers[-1:]:
            closers.pop()
        elif (part in ")]}\n" and not closers) or (part == "\n" and match.start() - position > _MOST_CHARACTERS):
            return match.start(), ""
    return len(text), "".join(reversed(closers))


def _parse_code(part: str, closers: str) -> tuple[ast.AST | None, int]:
    """Return the tree of a part of a program, and the number of lines before it; `None` if it cannot be parsed."""
    for before, after in _AROUND_HEADER if _HEADER.search(part) else _AROUND_CODE:
        try:
            return ast.parse(f"{before}{part}\n{closers}{after}"), before.count("\n")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None, 0


def _find_in_tree(tree: ast.AST, part: str, start: int, shift: int) -> Iterator[Span]:
    lines = _LINE_END.split(part)
    starts = [start, *(start + match.end() for match in _LINE_END.finditer(part))]

    def locate(line: int, column: int) -> int:
        number = line - 1 - shift
        return starts[number] + len(lines[number].encode()[:column].decode())

    for node, name, is_doubtful in _find_leaves(tree):
        begin, end = locate(node.lineno, node.col_offset), locate(node.end_lineno, node.end_col_offset)
        literals = [*_LITERAL.finditer(part, begin - start, end - start)]
        if not is_visible_literal("".join(literal["inner"] for literal in literals), name, is_doubtful=is_doubtful):
            yield from ((start + literal.start("inner"), start + literal.end("inner")) for literal in literals)


def _find_leaves(root: Any) -> Iterator[tuple[Any, str, bool]]:
    """Yield the texts below a node that have a secret name, with this name."""
    stack, seen = [(root, "", False)], set[tuple[int, Secrecy, str]]()
    while stack:
        node, name, is_doubtful = stack.pop()
        secrecy = secrecy_of(name)
        is_list = isinstance(node, yaml.SequenceNode) and not node.flow_style  # such a list is hidden as a whole
        if _text_of(node) is not None or isinstance(node, ast.JoinedStr) or (is_list and secrecy > Secrecy.AMBIGUOUS):
            if secrecy is not Secrecy.NONE:
                yield node, name, is_doubtful
        elif (place := (id(node), secrecy, name.rpartition(".")[2])) not in seen:  # anchors may refer to each other
            seen.add(place)
            is_map_of_secrets = isinstance(node, ast.Dict) and name.isupper()
            for key, child, is_child_doubtful in _list_branches(node, is_named=bool(secrecy)):
                child_name = f"{name}.{key}" if name and key and not is_map_of_secrets else name or key
                if child is not None and (child_name or not isinstance(child, yaml.ScalarNode)):
                    stack.append((child, child_name, is_doubtful or is_child_doubtful))


def _list_branches(node: Any, *, is_named: bool) -> list[Branch]:
    match node:
        case yaml.MappingNode(value=pairs):
            return _name_values([(_text_of(key) or "", value, False) for key, value in pairs])
        case yaml.SequenceNode(value=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return _name_next(parts, is_pair=len(parts) == 2)
        case ast.Assign():
            return [branch for target in node.targets for branch in _assign(target, node.value)]
        case ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr():
            return _assign(node.target, node.value)
        case ast.Dict():
            items = zip(node.keys, node.values, strict=True)
            return _name_values([(_name_of(key), value, False) for key, value in items])
        case ast.arguments():
            last = [*node.posonlyargs, *node.args][::-1]  # defaults belong to the last arguments
            defaults = [*zip(last, node.defaults[::-1]), *zip(node.kwonlyargs, node.kw_defaults)]  # noqa: B905
            return [(argument.arg, default, False) for argument, default in defaults]
        case ast.Compare(left=left, comparators=comparators):
            return [(_name_of(left), other, True) for other in comparators]
        case ast.Subscript():
            return [("", node.value, True)]
        case ast.Call():
            return _list_arguments(node, is_named=is_named)
        case ast.keyword():
            return [(node.arg or "", node.value, False)]
        case ast.AST():
            return [("", child, not isinstance(node, _STRONG)) for child in ast.iter_child_nodes(node)]
    return []


def _assign(target: ast.expr, value: ast.expr | None) -> list[Branch]:
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        return [branch for pair in zip(target.elts, value.elts) for branch in _assign(*pair)]  # noqa: B905
    return [(_name_of(target), value, False)]


def _list_arguments(call: ast.Call, *, is_named: bool) -> list[Branch]:
    """Return the parts of a call; `SecretStr("S")`, `setenv("TOKEN", "S")` and `default="S"` pass a secret."""
    function = _name_of(call.func)
    is_wrapper = function[:1].isupper() and secrecy_of(function) is not Secrecy.NONE
    is_strong = is_wrapper or function in ("Field", "field", "str", "bytes")
    positional = [
        (name or function * (is_wrapper and not is_named), part, is_doubtful or not (is_strong or name))
        for name, part, is_doubtful in _name_next(call.args, is_pair=True)
    ]
    label = next((name for name in map(_text_of, call.args) if name and secrecy_of(name)), "")
    keywords = [(keyword.arg or "", keyword.value, False) for keyword in call.keywords]
    named = _name_values([("name", ast.Constant(label), False), *keywords] if label else keywords)
    if is_named:  # Field("S", description="the key")
        named = [
            ("" if has_label(key) else key, part, has_label(key) and not is_strong)
            for key, part, _ in named
            if has_label(key) or secrecy_of(key)
        ]
    return [*positional, *named, ("", call.func, True)]


def _name_values(branches: list[Branch]) -> list[Branch]:
    """Name the value of a map after its label: `{"name": "TOKEN", "value": "S"}`."""
    label = find_label((key, _text_of(part)) for key, part, _ in branches)
    if secrecy_of(label) is Secrecy.NONE:
        return branches
    return [(label if has_label(key) else key, part, is_doubtful) for key, part, is_doubtful in branches]


def _name_next(parts: Sequence[Any], *, is_pair: bool) -> list[Branch]:
    """Name the parts of a list; in pairs, a part after the name of a secret has this name."""
    names = ["", *(_text_of(part) or "" for part in parts)]
    is_name = [
        (is_pair or name.startswith("-")) and _NAME.fullmatch(name) is not None and secrecy_of(name) > Secrecy.NONE
        for name in names
    ]
    return [
        (name if named else "", part, named and not (name.isupper() or name.startswith("-")))
        for name, named, part in zip(names, is_name, parts)  # noqa: B905
    ]


def _text_of(node: Any) -> str | None:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    value = node.value if isinstance(node, ast.Constant) else None
    return value.decode("latin-1") if isinstance(value, bytes) else value if isinstance(value, str) else None


def _name_of(node: Any) -> str:
    """Return the last part of the name that an expression has: `token` of `self.token` and of `config["token"]`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript():
            return _name_of(node.slice)
        case ast.Constant(value=str(name)) if _NAME.fullmatch(name):
            return name
    return ""
