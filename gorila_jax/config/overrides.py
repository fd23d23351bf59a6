"""Changes to a configuration by dotted path, from flags, Python or JSON."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import typing
from collections.abc import Mapping
from typing import Any

from gorila_jax.config.settings import Config, Field, fields
from gorila_jax.types import ConfigError


def override(config: Config, values: Mapping[str, Any]) -> Config:
    """`config` with the leaves at the dotted paths replaced; text is parsed to the field's type.

    Raises:
      ConfigError: for an unknown path, with close ones, or a value of another type, with an example.
    """
    known = fields()
    for path, value in values.items():
        if path not in known:
            raise ConfigError(f"unknown setting {path!r}; possible: {', '.join(close_settings(path))}")
        config = _replace(config, path.split("."), _typed(known[path], value))
    return config


def close_settings(path: str) -> list[str]:
    """Settings that somebody who wrote `path` may have meant, the likeliest first."""
    known = fields()
    *_, name = path.split(".")
    same_name = [p for p in known if p.split(".")[-1] == name]
    near = same_name + [p for p in difflib.get_close_matches(path, known, n=3) if p not in same_name]
    return near or [p for p in known if p.split(".")[0] == path.split(".")[0]] or list(known)


def _replace(node: Any, names: list[str], value: Any) -> Any:
    if len(names) > 1:
        value = _replace(getattr(node, names[0]), names[1:], value)
    return dataclasses.replace(node, **{names[0]: value})


def _typed(leaf: Field, value: Any) -> Any:
    """`value` as `leaf.type`. An int is taken for a float, nothing else is converted silently."""
    try:
        if leaf.path == "parameter_server.optimizer_options":
            return _options(value)
        if typing.get_origin(leaf.type) is tuple:
            element = typing.get_args(leaf.type)[0]
            parts = value
            if isinstance(value, str):
                parts = [part.strip() for part in value.strip("()[] ").split(",")]
            return tuple(_scalar(element, part) for part in parts if part != "")
        return _scalar(leaf.type, value)
    except (ValueError, TypeError, SyntaxError):
        kind = "true or false" if leaf.type is bool else str(getattr(leaf.type, "__name__", leaf.type))
        example = f", for example {leaf.default!r}" if leaf.default != "" else ""
        raise ConfigError(f"{leaf.path}: {value!r} is not of type {kind}{example}") from None


def _scalar(kind: type, value: Any) -> Any:
    if isinstance(value, str) and kind is not str:
        return _parse(kind, value.strip())
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError
    return value


def _parse(kind: type, text: str) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ValueError
        return text.lower() in ("true", "1")
    if kind is int and "e" in text.lower():  # 1e6
        if not float(text).is_integer():
            raise ValueError
        return int(float(text))
    return kind(text)


def _options(value: Any) -> tuple[tuple[str, Any], ...]:
    """`decay=0.95,centered=true` or pairs, to pairs of a name and a Python literal."""
    if not isinstance(value, str):
        return tuple((str(name), option) for name, option in value)
    pairs = []
    for part in filter(None, value.split(",")):
        name, text = part.split("=", 1)
        literal = {"true": "True", "false": "False"}.get(text.strip().lower(), text.strip())
        pairs.append((name.strip(), ast.literal_eval(literal)))
    return tuple(pairs)


def to_json_dict(config: Config) -> dict[str, Any]:
    """Nested dictionaries of JSON values."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    return plain(dataclasses.asdict(config))


def from_json_dict(values: Mapping[str, Any]) -> Config:
    """The inverse of `to_json_dict`. Raises ConfigError for a field that does not exist."""
    flat: dict[str, Any] = {}

    def walk(node: Mapping[str, Any], prefix: str) -> None:
        for name, value in node.items():
            if isinstance(value, Mapping):
                walk(value, prefix + name + ".")
            else:
                flat[prefix + name] = value

    walk(values, "")
    return override(Config(), flat)
