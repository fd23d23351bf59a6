"""Who uses which table and which devices; devices are names here."""

from __future__ import annotations

import collections

import pytest

from gorila_jax.config import Config, override
from gorila_jax.runtime.topology import describe, make_topology
from gorila_jax.types import ConfigError


def config_of(num_actors: int, num_learners: int, layout: str = "global", **more) -> Config:
    return override(
        Config(),
        {"actor.num_actors": num_actors, "learner.num_learners": num_learners, "replay.layout": layout}
        | more,
    )


def test_a_global_replay_is_one_table_for_all():
    topology = make_topology(config_of(3, 2), ["cpu:0"])
    assert topology.num_tables == 1
    assert topology.actor_tables == (0, 0, 0)
    assert topology.learner_tables == ((0,), (0,))


@pytest.mark.parametrize(
    "servers", [{"replay.num_servers": 2}, {"replay.server_addresses": "a:1,b:2", "replay.run_id": "r"}]
)
def test_a_global_replay_on_several_servers_is_a_table_on_each_for_every_learner(servers):
    topology = make_topology(config_of(6, 2, **servers), ["cpu:0"])
    assert (topology.num_tables, topology.num_servers) == (2, 2)
    assert topology.actor_tables == (0, 1, 0, 1, 0, 1)
    assert topology.learner_tables == ((0, 1), (0, 1))


def test_local_replays_are_dealt_to_servers():
    topology = make_topology(config_of(3, 3, "local", **{"replay.num_servers": 2}), ["cpu:0"])
    assert (topology.num_tables, topology.num_servers) == (3, 2)
    assert topology.learner_tables == ((0,), (1,), (2,))


@pytest.mark.parametrize(("num_actors", "num_learners"), [(1, 1), (4, 2), (6, 3), (3, 3)])
def test_local_replays_are_bundles_of_equal_size(num_actors, num_learners):
    topology = make_topology(config_of(num_actors, num_learners, "local"), ["cpu:0"])
    assert topology.num_tables == num_learners
    assert topology.learner_tables == tuple((learner,) for learner in range(num_learners))
    feeding = collections.Counter(topology.actor_tables)
    assert feeding == dict.fromkeys(range(num_learners), num_actors // num_learners)


@pytest.mark.parametrize(
    ("devices", "num_learners", "placed"),
    [
        (1, 1, [[0]]),
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1], [2, 3]]),  # equal shares; one is left over
        (2, 2, [[0], [1]]),
        (3, 2, [[0], [1]]),
        (2, 5, [[0], [1], [0], [1], [0]]),  # fewer devices than learners: one each, shared
        (1, 3, [[0], [0], [0]]),
    ],
)
def test_learners_share_single_devices_only(devices, num_learners, placed):
    topology = make_topology(config_of(1, num_learners), list(range(devices)))
    assert [list(own) for own in topology.learner_devices] == placed
    uses = collections.Counter(device for own in topology.learner_devices for device in own)
    assert all(len(own) == 1 for own in topology.learner_devices if any(uses[device] > 1 for device in own))


def test_a_batch_that_a_learners_devices_cannot_share_is_refused():
    config = config_of(1, 2, **{"learner.batch_size": 9})
    with pytest.raises(ConfigError, match="9"):
        make_topology(config, list(range(4)))
    assert make_topology(config, list(range(3))).learner_devices == ((0,), (1,))


def test_the_plan_names_every_learner_its_actors_and_its_devices():
    config = config_of(4, 2, "local", **{"env.num_environments": 3, "parameter_server.num_shards": 5})
    lines = describe(make_topology(config, ["cpu:0", "cpu:1"]), config, num_devices=2)
    assert lines == [
        "4 actor(s) x 3 environments, 2 replay table(s) (local), 2 learner(s), 5 parameter shard(s)",
        "learner 0: table 0 fed by actors 0, 1, on cpu:0",
        "learner 1: table 1 fed by actors 2, 3, on cpu:1",
    ]


def test_the_plan_names_the_actors_of_every_server():
    config = config_of(4, 1, **{"replay.num_servers": 2})
    lines = describe(make_topology(config, ["cpu:0"]), config, num_devices=1)
    assert lines[1:] == [
        "learner 0: table 0 fed by actors 0, 2; table 1 fed by actors 1, 3, on cpu:0",
    ]


def test_many_actors_take_few_words():
    for config, words in [
        (config_of(2, 1), "table 0 fed by actors 0, 1, on"),
        (config_of(360, 1), "table 0 fed by actors 0 to 359, on"),
        (config_of(20, 1, **{"replay.num_servers": 2}), "table 0 fed by 10 actors: 0, 2, ..., 18; table 1"),
    ]:
        assert words in describe(make_topology(config, ["cpu:0"]), config, 1)[1]


def test_devices_left_over_are_told():
    config = config_of(1, 2)
    told = describe(make_topology(config, list(range(5))), config, 5)[-1]
    assert told.startswith("1 of 5 devices stay idle")
    assert "idle" not in describe(make_topology(config, list(range(4))), config, 4)[-1]
