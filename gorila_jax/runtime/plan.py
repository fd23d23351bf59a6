"""What is known of a run before anything of it has started."""

from __future__ import annotations

from typing import NamedTuple

import jax
import psutil

from gorila_jax.agents import RECIPES, find_recipe
from gorila_jax.agents.recipe import Recipe, check
from gorila_jax.config import Config, get, validate
from gorila_jax.environments import environment_spec
from gorila_jax.parameter_server import make_optimizer
from gorila_jax.replay import reverb_available, split_table
from gorila_jax.replay.limiter import check_limiter, smallest_error_buffer
from gorila_jax.replay.signature import row_bytes, step_signature
from gorila_jax.replay.table import TableSpec, check_memory, check_table, estimate_bytes
from gorila_jax.rl.windows import Layout
from gorila_jax.runtime import configure, topology
from gorila_jax.runtime.devices import claim_devices, prefer_fast_cpu_runtime
from gorila_jax.types import ConfigError, EnvironmentSpec, Network


class Plan(NamedTuple):
    """Who there is, where, and how large."""

    config: Config
    recipe: Recipe
    spec: EnvironmentSpec
    topology: topology.Topology
    table: TableSpec  # of replay; all are alike
    backend: str  # of replay: reverb or memory
    replay_bytes: int  # when full, in this process; 0 where other processes hold it
    lines: list[str]  # for a person

    def check_memory(self) -> None:
        """Raises ConfigError where a full replay does not fit into the memory that is free now."""
        free_bytes = psutil.virtual_memory().available
        check_memory(self.replay_bytes, free_bytes, self.config.replay.capacity_steps)


def make_plan(config: Config, recipe: Recipe | None = None) -> Plan:
    """Checks all that needs no look at memory and workdir. Raises ConfigError.

    Args:
      config: of the run.
      recipe: in place of the one that `config.agent` names.
    """
    validate(config)
    recipe = recipe or find_recipe(config.agent)
    check(recipe, config)
    many = config.learner.num_learners > 1 or config.parameter_server.num_shards > 1
    make_optimizer(config.parameter_server, sharded=many)
    if config.agent in RECIPES:
        prefer_fast_cpu_runtime()
    devices = claim_devices(config.run)
    spec = environment_spec(config.environment, config.env)
    placed = topology.make_topology(config, devices)
    shapes = jax.eval_shape(recipe.network(config, spec).init, jax.random.PRNGKey(0))
    num_parameters = sum(leaf.size for leaf in jax.tree_util.tree_leaves(shapes))
    if config.parameter_server.num_shards > num_parameters:
        raise ConfigError(
            f"parameter_server.num_shards is {config.parameter_server.num_shards}, but the network has only "
            f"{num_parameters:,} parameters to share among them"
        )
    _check_memory_of_network(config, recipe, spec)
    table, backend = table_spec(config, recipe, spec), choose_backend(config)
    layout = recipe.layout(config)
    needed_bytes = estimate_bytes(table, placed.num_tables, backend, layout.stride_steps)
    lines = [
        *configure.describe(config),
        *topology.describe(placed, config, len(devices)),
        f"network: {num_parameters:,} parameters, {spec.num_actions} actions, observations "
        f"{spec.observation_dtype} {spec.observation_shape}",
        f"environment: {', '.join(f'{name}={value}' for name, value in spec.settings.items())}",
        _describe_replay(config, layout, table, placed.num_tables, backend, needed_bytes),
        f"budget: {config.run.total_frames:,} frames = "
        f"{config.run.total_frames // spec.frames_per_step:,} steps",
    ]
    here = 0 if config.replay.server_addresses else needed_bytes
    return Plan(config, recipe, spec, placed, table, backend, here, lines)


def _check_memory_of_network(config: Config, recipe: Recipe, spec: EnvironmentSpec) -> None:
    """Raises ConfigError for a network that remembers, and items which it could not learn to from."""
    layout = recipe.layout(config)
    remembers = state_size(recipe.network(config, spec)) > 0
    if remembers and layout.burn_in_steps + layout.length_steps == 1 and not layout.stores_state:
        raise ConfigError(
            f"the network of {config.agent} has a recurrent state, but its replay items are single steps "
            "without one: give it the layout, accumulator and loss of drqn or r2d2, and sequence.length_steps"
        )


def _describe_replay(
    config: Config, layout: Layout, table: TableSpec, num_tables: int, backend: str, needed_bytes: int
) -> str:
    items = f"{table.capacity_items:,} transitions"
    if layout.length_steps > 1:
        items = f"{table.capacity_items * layout.stride_steps:,} steps = {table.capacity_items:,} sequences"
    where = f"about {needed_bytes / 1e9:.2f} GB when full"
    padding = layout.frame_stack + layout.burn_in_steps + layout.length_steps + layout.n_steps - 1
    where += f", up to {padding * row_bytes(table.signature) / 1e6:.1g} MB more for each episode in it"
    if config.replay.server_addresses:
        where += f", on {', '.join(config.replay.server_addresses)}"
    elif backend == "memory" and config.replay.backend == "auto" and not config.run.lockstep:
        where += "; in this process, because Reverb is not installed"
    free_bytes = psutil.virtual_memory().available
    return f"replay: {backend}, {num_tables} x {items}, {where}; {free_bytes / 1e9:.1f} GB free here"


def table_spec(config: Config, recipe: Recipe, spec: EnvironmentSpec) -> TableSpec:
    """A replay table of a run; all its tables are alike. Those of a global replay are shares of the whole.

    The configuration counts steps; a table and its limiter count items, which begin `stride_steps` apart and
    each train `length_steps`.

    Raises:
      ConfigError: `replay.error_buffer_samples` has no room for a batch, or a table would hold fewer items
        than the first sample waits for.
    """
    replay, layout = config.replay, recipe.layout(config)
    samples_per_insert = replay.samples_per_insert * layout.stride_steps / layout.length_steps
    buffer = replay.error_buffer_samples / layout.length_steps
    if not buffer and samples_per_insert:
        bundles = config.learner.num_learners if replay.layout == "local" else 1
        # A step of an actor inserts one item per environment, and the last of an episode all that are begun.
        last = -(-(layout.length_steps + layout.n_steps - 1) // layout.stride_steps)
        inserts = config.env.num_environments * last * config.actor.num_actors // bundles
        buffer = 2 * smallest_error_buffer(
            samples_per_insert,
            config.learner.batch_size * config.learner.num_learners // bundles,
            config.learner.prefetch_batches + 4,  # Reverb's samplers draw about two more ahead, each
            inserts,
        )
    table = TableSpec(
        signature=step_signature(spec),
        window_steps=layout.window_steps,
        capacity_items=replay.capacity_steps // layout.stride_steps,
        min_items=-(-replay.learning_starts_steps // layout.stride_steps),
        samples_per_insert=samples_per_insert,
        error_buffer=buffer,
        priority_exponent=replay.priority_exponent,
        state_size=state_size(recipe.network(config, spec)) if layout.stores_state else 0,
    )
    shares = replay.server_count if replay.layout == "global" else 1
    check_limiter(table.limiter, config.learner.batch_size, shares, layout.length_steps)
    share = split_table(table, shares)
    check_table(share, shares)
    return share


def state_size(network: Network) -> int:
    """K, the numbers of a network's recurrent state. Nothing is computed for it."""
    parameters = jax.eval_shape(network.init, jax.random.PRNGKey(0))
    state = jax.eval_shape(lambda parameters: network.initial_state(parameters, 1), parameters)
    return int(state.shape[1])


def choose_backend(config: Config) -> str:
    """reverb or memory, where the configuration leaves it open.

    Raises:
      ConfigError: it comes to memory, and something is set that only a server has.
    """
    backend = config.replay.backend
    if backend == "auto":
        backend = "memory" if config.run.lockstep or not reverb_available() else "reverb"
    if backend == "memory":
        for path in ("replay.server_addresses", "replay.port"):
            if get(config, path):
                raise ConfigError(
                    f"{path} is set, but this run has the in-process replay, which has no server: Reverb is "
                    "used unless run.lockstep or replay.backend=memory is set, or it is not installed"
                )
    return backend
