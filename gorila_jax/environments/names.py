"""From what a user types to the name that EnvPool knows."""

from __future__ import annotations

import difflib
import re

from gorila_jax.types import ConfigError

_TOYS = ("envpool.classic_control", "envpool.toy_text")


def is_user_environment(name: str) -> bool:
    """Whether `name` is a `module:factory` of the user's own."""
    return ":" in name


def is_atari(name: str) -> bool:
    """Whether `name` means an Atari game. Raises ConfigError when it means nothing."""
    return not is_user_environment(name) and _is_atari_registered(resolve_name(name))


def is_toy(name: str) -> bool:
    """Whether `name` means one of EnvPool's small problems (Catch, CartPole), whose step takes about a
    microsecond. Raises ConfigError when it means nothing."""
    return not is_user_environment(name) and _package(resolve_name(name)) in _TOYS


def resolve_name(name: str) -> str:
    """The full name: `pong`, `PONG-v5` and `Pong-v5` are `Pong-v5`, `space_invaders` is `SpaceInvaders-v5`.

    Case, underscores, hyphens and spaces do not matter. Without a version the Atari game is meant, or else
    the newest version. `module:factory` is returned as it is.

    Raises:
        ConfigError: no such environment; the message has the closest names.
    """
    if is_user_environment(name):
        return name
    registered = _registered_names()
    if name in registered:
        return name
    wanted = _plain(name)
    full: dict[str, str] = {}
    unversioned: dict[str, str] = {}
    # In this order an Atari game replaces what else bears its name, and a newer version an older one.
    for candidate in sorted(registered, key=lambda each: (_is_atari_registered(each), _version(each))):
        full[_plain(candidate)] = candidate
        unversioned[_plain(_without_version(candidate))] = candidate
    if wanted in full:
        return full[wanted]
    if wanted in unversioned:
        return unversioned[wanted]
    raise ConfigError(f"environment {name!r} is not known; {_suggestion(name, unversioned)}")


def _suggestion(name: str, unversioned: dict[str, str]) -> str:
    # Other libraries' names of Atari games: ALE/Pong-v5, PongNoFrameskip-v4, PongDeterministic-v4.
    short = re.sub(r"^ale/|noframeskip|deterministic", "", _without_version(name).lower())
    close = difflib.get_close_matches(_plain(short), unversioned, n=5, cutoff=0.6)
    listed = ", ".join(unversioned[each] for each in close)
    meant = f"did you mean {listed}?" if close else "try Pong-v5, Breakout-v5, Catch-v0 or CartPole-v1."
    return f"{meant} Your own environment is named module:factory."


def _plain(name: str) -> str:
    return re.sub(r"[_\- ]", "", name).lower()


def _without_version(name: str) -> str:
    return re.sub(r"-v\d+$", "", name)


def _version(name: str) -> int:
    found = re.search(r"-v(\d+)$", name)
    return int(found.group(1)) if found else -1


def _registered_names() -> frozenset[str]:
    # EnvPool takes two seconds to load, which processes that only step a user's environment must not pay.
    import envpool

    return frozenset(envpool.list_all_envs())


def _is_atari_registered(name: str) -> bool:
    return _package(name) == "envpool.atari"


def _package(name: str) -> str:
    from envpool.registration import registry

    return registry.specs[name][0]
