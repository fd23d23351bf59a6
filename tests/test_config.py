"""The configuration: overrides, types, ranges, JSON, and that no field is for show."""

from __future__ import annotations

import pathlib
import re

import pytest

from gorila_jax import config as configs
from gorila_jax.config import Config, override, validate
from gorila_jax.types import ConfigError

PACKAGE = pathlib.Path(configs.__file__).parents[1]


def test_text_is_parsed_to_the_type_of_the_field():
    changed = override(
        Config(),
        {
            "learner.batch_size": "64",
            "network.filters": "16,32",
            "run.total_frames": "1e6",
            "run.lockstep": "true",
            "env.discount": "1",
            "parameter_server.optimizer_options": "decay=0.95,centered=true",
            "replay.server_addresses": "a:1,b:2",
        },
    )
    assert changed.learner.batch_size == 64
    assert changed.network.filters == (16, 32)
    assert changed.run.total_frames == 1_000_000
    assert changed.run.lockstep is True
    assert changed.env.discount == 1.0
    assert changed.parameter_server.optimizer_options == (("decay", 0.95), ("centered", True))
    assert changed.replay.server_addresses == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("learner.batch_sise", "3", "learner.batch_size"),
        ("learner.batch_size", "3.5", "3.5"),
        ("learner.batch_size", 3.0, "int"),
        ("run.lockstep", "maybe", "true or false"),
        ("nothing.like_it", "1", "env.num_environments"),
        ("network.filters", "a,b", "(32, 64, 64)"),
        ("parameter_server.optimizer_options", "eps", "eps"),
    ],
)
def test_a_wrong_override_is_refused_with_what_is_possible(path, value, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        override(Config(), {path: value})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"learner.batch_size": 0}, "learner.batch_size"),
        ({"env.discount": 1.5}, "env.discount"),
        ({"actor.num_actors": 10**9}, "actor.num_actors is 1000000000, it must be at most 100000"),
        ({"parameter_server.learning_rate": float("nan")}, "learning_rate"),
        ({"network.torso": "resnet"}, "nature"),
        ({"replay.capacity_steps": 10}, "learning would never start"),
        ({"replay.layout": "local", "actor.num_actors": 3, "learner.num_learners": 2}, "multiple"),
        ({"run.lockstep": True, "replay.backend": "reverb"}, "memory"),
        ({"replay.num_servers": 2, "actor.num_actors": 3}, "actor.num_actors is 3, .* use 2 or 4"),
        ({"replay.num_servers": 2}, "actor.num_actors is 1, .* use 2$"),
        (
            {"replay.num_servers": 3, "actor.num_actors": 3},
            "learner.batch_size is 32, but 3 replay servers .* use 30 or 33",
        ),
        (
            {"replay.num_servers": 3, "actor.num_actors": 3, "learner.batch_size": 33},
            "replay.capacity_steps is 1000000, .* use 999999 or 1000002",
        ),
        ({"replay.layout": "local", "replay.num_servers": 2}, "too few for 2 replay servers"),
        (
            {"sequence.length_steps": 8, "sequence.overlap_steps": 8},
            "overlap_steps is 8, it must be less than sequence.length_steps = 8",
        ),
        (
            {
                "sequence.length_steps": 80,
                "sequence.overlap_steps": 40,
                "replay.learning_starts_steps": 39,
            },
            "learning_starts_steps is 39, less than one sequence: it must be at least 40",
        ),
        (
            {
                "sequence.length_steps": 80,
                "sequence.overlap_steps": 40,
                "replay.learning_starts_steps": 40,
                "replay.capacity_steps": 39,
            },
            "capacity_steps is 39, less than one sequence: it must be at least 40",
        ),
        (
            {
                "sequence.length_steps": 20,
                "sequence.overlap_steps": 10,
                "replay.learning_starts_steps": 54,
                "replay.capacity_steps": 55,
            },
            "more than replay.capacity_steps = 55 in whole sequences, of which one begins every 10 steps",
        ),
        ({"env.observation_keys": "image,direction,image"}, "observation_keys names image twice"),
        (
            {"replay.num_servers": 3, "replay.server_addresses": "a:1,b:2", "replay.run_id": "r"},
            "replay.num_servers is 3, but replay.server_addresses names 2",
        ),
        ({"replay.server_addresses": "a:1,b:2", "replay.run_id": "r"}, "actor.num_actors is 1"),
        ({"replay.num_servers": 2, "actor.num_actors": 2, "replay.port": 65535}, "need as many ports"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(values, says):
    with pytest.raises(ConfigError, match=says):
        validate(override(Config(), values))


@pytest.mark.parametrize(
    ("wrong", "possible"),
    [
        ("learner.learning_rate", "parameter_server.learning_rate"),
        ("batch_size", "learner.batch_size"),
        ("learner.batch_sise", "learner.batch_size"),
        ("replay.x", "replay.port, "),
    ],
)
def test_an_unknown_setting_is_answered_with_what_may_have_been_meant(wrong, possible):
    with pytest.raises(ConfigError, match=rf"unknown setting '{wrong}'; possible: {possible}"):
        override(Config(), {wrong: 1})


def test_servers_are_counted_by_their_addresses_where_these_are_given():
    two = {"actor.num_actors": 2, "replay.server_addresses": "a:1,b:2", "replay.run_id": "r"}
    for values, servers in [({}, 1), ({"replay.num_servers": 2}, 2), (two, 2)]:
        assert override(Config(), values).replay.server_count == servers
    for values in (two, two | {"replay.num_servers": 2}):
        validate(override(Config(), values))


def test_json_and_back_gives_the_same_configuration():
    changes = {"network.filters": "16,32", "parameter_server.optimizer_options": "eps=1e-5"}
    changed = override(Config(), changes)
    assert configs.from_json_dict(configs.to_json_dict(changed)) == changed


def test_the_defaults_are_valid_and_every_field_says_what_it_means():
    validate(Config())
    assert all(len(field.meaning) > 8 for field in configs.fields().values())


def test_every_field_is_read_somewhere():
    readers = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "config"]
    source = "\n".join(path.read_text() for path in readers)
    unread = [path for path in configs.fields() if not re.search(rf"\.{path.split('.')[-1]}\b", source)]
    assert not unread
