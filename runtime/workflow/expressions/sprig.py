"""The pure functions of sprig (masterminds.github.io/sprig), as Argo gives them to expressions: `sprig.trim(x)`.

Without what reads the machine or the clock, makes keys, or is random: such a name is unknown here.
"""

import base64
import copy
import hashlib
import json
import math
import posixpath
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from everstep.runtime.workflow.expressions import go_duration, regexp
from everstep.runtime.workflow.expressions.bounds import INT_MAX, INT_MIN, check_count, check_length, wrap_int64
from everstep.runtime.workflow.expressions.builtins import join_texts, replace_text, unique_key, unique_values
from everstep.runtime.workflow.expressions.errors import ExpressionError
from everstep.runtime.workflow.expressions.json_text import read_json
from everstep.runtime.workflow.expressions.values import Int64, go_json, go_pretty_json, go_text
from everstep.runtime.workflow.expressions.versions import allows

_OCTAL = re.compile(r"^([+-]?)0(?=[0-7])")


def _fail(message: str) -> Any:
    raise ExpressionError(message)


def to_int(value: Any) -> int:
    """cast.ToInt64: anything but a 64-bit number is 0; texts are Go's literals (`010` is 8)."""
    try:
        number = int(_OCTAL.sub(r"\g<1>0o", value), 0) if isinstance(value, str) else int(value)
    except (ValueError, TypeError, OverflowError):
        return 0
    return number if INT_MIN <= number <= INT_MAX else 0


def to_float(value: Any) -> float:
    """cast.ToFloat64: anything but a number is 0."""
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _is_empty(value: Any) -> bool:
    return value in (None, False, 0, "", 0.0) or value == [] or value == {}


def _words(text: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    return [word for word in re.split(r"[\s_.-]+", spaced) if word]


def _camel(text: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[\s_-]+", text) if word)


def _title(text: str) -> str:
    return re.sub(r"(?<![\w])([^\W\d_])", lambda m: m[1].upper(), text)


def _untitle(text: str) -> str:
    return re.sub(r"(^|\s)(\S)", lambda m: m[1] + m[2].lower(), text)


def _truncate(length: int, text: str) -> str:
    return text[length:] if length < 0 and len(text) > -length else text[:length] if length >= 0 else text


def _abbreviate(width: int, text: str) -> str:
    return text if width < 4 or len(text) <= width else text[: width - 3] + "..."


def _wrap(width: int, text: str, separator: str = "\n") -> str:
    lines, words, length = list[str](), list[str](), 0
    for word in text.split(" "):
        if length and length + 1 + len(word) > width:
            lines.append(" ".join(words))
            words, length = [], 0
        if length or word:
            length += len(word) + (1 if length else 0)
            words.append(word)
    return join_texts([*lines, " ".join(words)], separator)


def _indent(spaces: int, text: str) -> str:
    if spaces < 0:
        raise ExpressionError("strings: negative Repeat count")
    check_length(len(text) + spaces * (text.count("\n") + 1))
    return "\n".join(" " * spaces + line for line in text.split("\n"))


def _repeat(count: int, text: str) -> str:
    if count < 0:
        raise ExpressionError("strings: negative Repeat count")
    check_length(len(text) * check_count(count))
    return text * count


def _strings(values: Any) -> list[str]:
    return [go_text(value) for value in (values if isinstance(values, list) else [values]) if value is not None]


def _until(stop: int) -> list[int]:
    return _until_step(0, stop, 1 if stop >= 0 else -1)


def _until_step(start: int, stop: int, step: int) -> list[int]:
    if step == 0:
        return []
    numbers = range(start, stop, step)
    check_count(max(0, (stop - start) // step))
    return list(numbers)


def _seq(*parameters: int) -> str:
    start, step, end = 1, 1, 0
    if not 1 <= len(parameters) <= 3:
        return ""
    if len(parameters) == 1:
        end = parameters[0]
    elif len(parameters) == 2:
        start, end = parameters
    elif len(parameters) == 3:
        start, step, end = parameters
    if len(parameters) < 3 and end < start:
        step = -1
    if step == 0:
        return ""
    check_count((end - start) // step)
    return " ".join(map(str, range(start, end + (1 if step > 0 else -1), step)))


def _round(value: Any, digits: int, on: float = 0.5) -> float:
    scaled = to_float(value) * 10.0**digits
    if not math.isfinite(scaled):
        return scaled / 10.0**digits
    part, _ = math.modf(scaled)  # Negative for a negative number, so that sprig rounds each of them down.
    return float(math.ceil(scaled) if part >= on else math.floor(scaled)) / 10.0**digits


def _without(values: list[Any], out: set[Any]) -> list[Any]:
    return [value for value in values if unique_key(value) not in out]


def _dict(*pairs: Any) -> dict[str, Any]:
    entries_by_key = {go_text(key): value for key, value in zip(pairs[::2], pairs[1::2], strict=False)}
    return {**entries_by_key, go_text(pairs[-1]): ""} if len(pairs) % 2 else entries_by_key


def _merge(overwrite: bool, *maps: dict[str, Any]) -> dict[str, Any]:
    merged_map = dict(maps[0])
    for later_map in maps[1:]:
        for key, value in later_map.items():
            if isinstance(merged_map.get(key), dict) and isinstance(value, dict):
                merged_map[key] = _merge(overwrite, merged_map[key], value)
            elif overwrite or _is_empty(merged_map.get(key)):
                merged_map[key] = value
    return merged_map


def _dig(*arguments: Any) -> Any:
    *keys, default, place = arguments
    for key in keys:
        if not isinstance(place, dict) or key not in place:
            return default
        place = place[key]
    return place


_KINDS: dict[type, str] = {
    bool: "bool",
    int: "int",
    Int64: "int64",
    float: "float64",
    str: "string",
    list: "slice",
    dict: "map",
}
_TYPES = {"slice": "[]interface {}", "map": "map[string]interface {}", "invalid": "<nil>"}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "invalid")


def _type(value: Any) -> str:
    return _TYPES.get(_kind(value), _kind(value))


def _integers(operation: Callable[[int, int], int]) -> Callable[..., Int64]:
    def fold(first: Any, *rest: Any) -> Int64:
        total = to_int(first)
        for value in rest:
            total = wrap_int64(operation(total, to_int(value)))
        return Int64(total)

    return fold


def _floats(operation: Callable[[float, float], float]) -> Callable[..., float]:
    def fold(first: Any, *rest: Any) -> float:
        total = to_float(first)
        for value in rest:
            total = operation(total, to_float(value))
        return total

    return fold


def _quotient(a: int, b: int) -> int:
    if b == 0:
        raise ExpressionError("integer divide by zero")
    return -(-a // b) if (a < 0) != (b < 0) else a // b


def _duration(value: Any) -> str:
    """Of whole seconds: a text or an int64; anything else is zero. Too many of them go round, as in Go."""
    count = value if isinstance(value, Int64) else 0
    if isinstance(value, str) and (match := re.fullmatch(r"([+-]?)0*([0-9]*)", value)):
        count = max(INT_MIN, min(INT_MAX, int(f"{match[1]}{match[2][:20] or 0}")))
    return go_duration.format_duration(wrap_int64(count * go_duration.SECOND))


_ROUNDED = {"y": 365 * 24, "mo": 30 * 24, "d": 24, "h": 1}


def _round_duration(value: Any) -> str:
    """The largest unit of which there is more than one, and how many: of a text, or of nanoseconds as an int64."""
    count = abs(value) if isinstance(value, Int64) else 0
    if isinstance(value, str):
        with suppress(ValueError):
            count = abs(go_duration.parse_duration(value))
    units = {name: hours * go_duration.HOUR for name, hours in _ROUNDED.items()}
    units |= {"m": go_duration.MINUTE, "s": go_duration.SECOND}
    return next((f"{count // size}{name}" for name, size in units.items() if count > size), "0s")


def _digest(name: str) -> Callable[[str], str]:
    return lambda text: hashlib.new(name, text.encode()).hexdigest()


def _base(path: str) -> str:
    return posixpath.basename(path.rstrip("/")) or ("/" if path else ".")


def _extension(path: str) -> str:
    return "".join(posixpath.basename(path).rpartition(".")[1:]) if "." in posixpath.basename(path) else ""


def _url_join(parts: dict[str, str]) -> str:
    from urllib.parse import urlunsplit

    at = "@".join(filter(None, [parts.get("userinfo", ""), parts.get("host", "")]))
    path, query, fragment = (parts.get(name, "") for name in ("path", "query", "fragment"))
    return urlunsplit((parts.get("scheme", ""), at, path, query, fragment))


def _url_parse(text: str) -> dict[str, str]:
    from urllib.parse import urlsplit

    parts = urlsplit(text)
    return {"scheme": parts.scheme, "host": parts.netloc.rpartition("@")[2], "hostname": parts.hostname or "",
            "path": parts.path, "query": parts.query, "fragment": parts.fragment, "opaque": "",
            "userinfo": parts.netloc.rpartition("@")[0]}  # fmt: skip


_META = re.compile(r"[\\.+*?()|\[\]{}^$]")
TEXT: dict[str, Callable[..., Any]] = {
    "trim": lambda s: s.strip(), "trimAll": lambda c, s: s.strip(c), "trimall": lambda c, s: s.strip(c),
    "trimPrefix": lambda p, s: s.removeprefix(p), "trimSuffix": lambda p, s: s.removesuffix(p),
    "upper": lambda s: s.upper(), "lower": lambda s: s.lower(), "title": _title, "untitle": _untitle,
    "repeat": _repeat, "substr": lambda a, b, s: s[max(0, a) : b if b >= 0 else None],
    "trunc": _truncate, "abbrev": _abbreviate, "nospace": lambda s: re.sub(r"\s", "", s),
    "initials": lambda s: "".join(word[0] for word in s.split()), "swapcase": lambda s: s.swapcase(),
    "contains": lambda p, s: p in s, "hasPrefix": lambda p, s: s.startswith(p),
    "hasSuffix": lambda p, s: s.endswith(p), "quote": lambda *v: " ".join(json.dumps(s) for s in _strings(list(v))),
    "squote": lambda *v: " ".join(f"'{s}'" for s in _strings(list(v))), "cat": lambda *v: " ".join(_strings(list(v))),
    "indent": _indent, "nindent": lambda n, s: "\n" + _indent(n, s), "replace": lambda a, b, s: replace_text(s, a, b),
    "plural": lambda single, many, n: single if n == 1 else many, "snakecase": lambda s: "_".join(_words(s)).lower(),
    "kebabcase": lambda s: "-".join(_words(s)).lower(), "camelcase": _camel, "wrap": _wrap,
    "wrapWith": lambda width, separator, s: _wrap(width, s, separator), "toString": go_text,
    "toStrings": _strings, "join": lambda glue, values: join_texts(_strings(values), glue),
    "splitList": lambda separator, s: s.split(separator),
    "split": lambda separator, s: {f"_{i}": part for i, part in enumerate(s.split(separator))},
    "splitn": lambda separator, n, s: {f"_{i}": part for i, part in enumerate(s.split(separator, n - 1))},
    "sortAlpha": lambda values: sorted(_strings(values)),
    "regexMatch": regexp.matches, "regexFind": regexp.find_first, "regexFindAll": regexp.find_all,
    "regexReplaceAll": regexp.replace_all,
    "regexReplaceAllLiteral": lambda r, s, new: regexp.replace_all(r, s, new, literal=True),
    "regexSplit": regexp.split, "regexQuoteMeta": lambda s: _META.sub(r"\\\g<0>", s),
    "semverCompare": allows, "b64enc": lambda s: base64.b64encode(s.encode()).decode(),
    "b64dec": lambda s: base64.b64decode(s).decode(), "b32enc": lambda s: base64.b32encode(s.encode()).decode(),
    "b32dec": lambda s: base64.b32decode(s).decode(), "sha1sum": _digest("sha1"), "sha256sum": _digest("sha256"),
    "sha512sum": _digest("sha512"), "adler32sum": lambda s: str(zlib.adler32(s.encode())),
    "base": _base, "dir": lambda p: posixpath.dirname(p) or ".", "clean": posixpath.normpath,
    "ext": _extension, "isAbs": posixpath.isabs, "osBase": _base,
    "osDir": lambda p: posixpath.dirname(p) or ".", "osClean": posixpath.normpath,
    "osExt": _extension, "osIsAbs": posixpath.isabs, "urlParse": _url_parse,
    "urlJoin": _url_join,
}  # fmt: skip
NUMBERS: dict[str, Callable[..., Any]] = {
    "atoi": to_int, "int": to_int, "int64": lambda v: Int64(to_int(v)), "float64": to_float,
    "toDecimal": lambda v: Int64(wrap_int64(int(str(v), 8)) if re.fullmatch("[0-7]+", str(v)) else 0),
    "add": _integers(lambda a, b: a + b), "add1": lambda a: Int64(wrap_int64(to_int(a) + 1)),
    "sub": _integers(lambda a, b: a - b),
    "mul": _integers(lambda a, b: a * b), "div": _integers(_quotient),
    "mod": _integers(lambda a, b: a - b * _quotient(a, b)), "max": _integers(max), "biggest": _integers(max),
    "min": _integers(min), "addf": _floats(lambda a, b: a + b), "add1f": lambda a: to_float(a) + 1.0,
    "subf": _floats(lambda a, b: a - b), "mulf": _floats(lambda a, b: a * b),
    "divf": _floats(lambda a, b: a / b if b else math.inf), "maxf": _floats(max), "minf": _floats(min),
    "ceil": lambda v: float(math.ceil(to_float(v))), "floor": lambda v: float(math.floor(to_float(v))),
    "duration": _duration, "durationRound": _round_duration,
    "round": _round, "until": _until, "seq": _seq, "untilStep": _until_step,
}  # fmt: skip
LISTS: dict[str, Callable[..., Any]] = {
    "list": lambda *v: list(v), "tuple": lambda *v: list(v), "first": lambda v: v[0] if v else None,
    "last": lambda v: v[-1] if v else None, "rest": lambda v: v[1:], "initial": lambda v: v[:-1],
    "append": lambda v, item: [*v, item], "push": lambda v, item: [*v, item], "prepend": lambda v, item: [item, *v],
    "concat": lambda *v: [item for part in v for item in part], "reverse": lambda v: v[::-1],
    "uniq": unique_values,
    "without": lambda v, *out: _without(v, {unique_key(item) for item in out}), "has": lambda item, v: item in v,
    "compact": lambda v: [item for item in v if not _is_empty(item)],
    "slice": lambda v, a=0, b=None: v[a:b], "chunk": lambda n, v: [v[i : i + n] for i in range(0, len(v), n)],
    "dict": _dict, "get": lambda d, k: d.get(k, ""), "set": lambda d, k, v: {**d, k: v},
    "unset": lambda d, k: {key: value for key, value in d.items() if key != k}, "hasKey": lambda d, k: k in d,
    "pluck": lambda k, *d: [part[k] for part in d if k in part], "keys": lambda *d: [k for part in d for k in part],
    "pick": lambda d, *k: {key: d[key] for key in k if key in d},
    "omit": lambda d, *k: {key: value for key, value in d.items() if key not in k},
    "values": lambda d: list(d.values()), "merge": lambda *d: _merge(False, *d), "dig": _dig,
    "mergeOverwrite": lambda *d: _merge(True, *d), "deepCopy": copy.deepcopy,
}  # fmt: skip
OTHERS: dict[str, Callable[..., Any]] = {
    "default": lambda d, v=None: d if _is_empty(v) else v, "empty": _is_empty,
    "coalesce": lambda *v: next((value for value in v if not _is_empty(value)), None),
    "all": lambda *v: not any(map(_is_empty, v)), "any": lambda *v: not all(map(_is_empty, v)),
    "ternary": lambda yes, no, which: yes if which else no, "fail": _fail, "toJson": go_json,
    "mustToJson": go_json, "toPrettyJson": go_pretty_json, "toRawJson": lambda v: go_json(v, escape=False),
    "fromJson": lambda s: read_json(s, floats=True), "mustFromJson": lambda s: read_json(s, floats=True),
    "kindOf": _kind,
    "kindIs": lambda kind, v: _kind(v) == kind, "typeOf": _type, "typeIs": lambda name, v: _type(v) == name,
    "deepEqual": lambda a, b: a == b, "hello": lambda: "Hello!",
}  # fmt: skip
SPRIG = {**TEXT, **NUMBERS, **LISTS, **OTHERS}
