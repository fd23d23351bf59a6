"""DRQN (Hausknecht & Stone 2015): DQN with an LSTM, learned from sub-sequences. R2D2 starts from here.

As in DQN a lost life ends an episode in training, and so clears the state; evaluation remembers whole games.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from gorila_jax.actor.accumulator import Accumulator
from gorila_jax.actor.sequences import SequenceAccumulator
from gorila_jax.agents import dqn
from gorila_jax.agents.dqn import OURS
from gorila_jax.agents.recipe import LossFn, Preset, Setting
from gorila_jax.config import Config
from gorila_jax.rl.priorities import sequence_priorities
from gorila_jax.rl.rescaling import rescaling
from gorila_jax.rl.returns import clip_rewards
from gorila_jax.rl.sequences import sequence_td_errors, sequences
from gorila_jax.rl.td_errors import huber_loss, values_of_actions
from gorila_jax.rl.windows import Layout
from gorila_jax.types import ConfigError, Inputs, LossOutput, Network, Parameters, ReplayWriter, Step


def layout(config: Config) -> Layout:
    """Of sequences; the state that goes with one has no values without a recurrent core."""
    sequence = config.sequence
    return Layout(
        frame_stack=config.env.frame_stack,
        burn_in_steps=sequence.burn_in_steps,
        length_steps=sequence.length_steps,
        stride_steps=sequence.stride_steps,
        n_steps=config.learner.n_steps,
        stores_state=sequence.start_state == "stored",
    )


def accumulator(config: Config, writer: ReplayWriter) -> Accumulator:
    learner = config.learner
    return SequenceAccumulator(
        writer,
        config.env.num_environments,
        layout(config),
        max_abs_reward=learner.max_abs_reward,
        rescaling=rescaling(learner.rescaling_epsilon),
        priority_eta=config.sequence.priority_eta,
    )


def loss(config: Config, network: Network) -> LossFn:
    """y = h(R + D h^-1(v)) at every trained step of a sequence, with v = max_a Q(s', a; target).

    Online and target network are each unrolled from the sequence's start state, without gradient through
    burn-in. With `double_q`, v is the target's value of the action that the online network prefers. A
    sequence's loss is the sum over its real steps divided by its length. (R2D2, Kapturowski et al. 2019,
    section 2.3; DRQN, Hausknecht & Stone 2015, section 4.2: h is the identity, and there is no burn-in.)
    """
    learner, sequence = config.learner, config.sequence
    its_layout = layout(config)
    burn_in, length = its_layout.burn_in_steps, its_layout.length_steps
    pair = rescaling(learner.rescaling_epsilon)

    def sequence_loss(
        parameters: Parameters, target_parameters: Parameters, steps: Step, state: jax.Array
    ) -> LossOutput:
        batch = sequences(steps, its_layout)
        size = len(steps.reward)

        def start(parameters: Parameters) -> jax.Array:
            return state if its_layout.stores_state else network.initial_state(parameters, size)

        # Burn-in, trained steps and those that follow; the gradient is that of the trained steps' values.
        before, trained, after = (
            Inputs(*(field[begin:end] for field in batch.inputs))
            for begin, end in ((0, burn_in), (burn_in, burn_in + length), (burn_in + length, None))
        )
        fixed = jax.lax.stop_gradient(parameters)
        reached = start(fixed)
        if burn_in:
            _, reached = network.unroll(fixed, before, reached)
        q_tm1, reached = network.unroll(parameters, trained, jax.lax.stop_gradient(reached))
        q_after, _ = network.unroll(fixed, after, jax.lax.stop_gradient(reached))
        q = jnp.concatenate([q_tm1, q_after])
        q_target, _ = network.unroll(target_parameters, batch.inputs, start(target_parameters))
        q_target = q_target[burn_in:]
        v_t = values_of_actions(q_target, jnp.argmax(q if learner.double_q else q_target, axis=-1))
        td_errors = sequence_td_errors(
            q_tm1=values_of_actions(q_tm1, batch.a_tm1),
            r_t=clip_rewards(batch.r_t, learner.max_abs_reward),
            discount_t=batch.discount_t,
            valid_t=batch.valid_t,
            v_t=jax.lax.stop_gradient(v_t),
            rescaling=pair,
        )
        valid = batch.valid_t[:length]
        losses = jnp.sum(huber_loss(td_errors, learner.max_abs_td_error), axis=0) / length
        magnitudes = jnp.sum(abs(td_errors), axis=0) / jnp.maximum(jnp.sum(valid, axis=0), 1)
        return LossOutput(losses, magnitudes, sequence_priorities(td_errors, valid, sequence.priority_eta))

    return sequence_loss


def check_core(config: Config) -> None:
    """Raises ConfigError for settings of sequences that mean nothing without a recurrent core."""
    if config.network.core == "none" and config.sequence.burn_in_steps:
        raise ConfigError(
            f"sequence.burn_in_steps is {config.sequence.burn_in_steps}, but network.core=none has no state "
            "to bring up to date"
        )


def validate(config: Config) -> None:
    """One actor and one learner, as DQN."""
    dqn.check_one_of_each(config)
    check_core(config)


HAUSKNECHT = "Hausknecht & Stone 2015"
UNVERIFIED = HAUSKNECHT + " (unverified)"

ALGORITHM: Preset = {
    "env.frame_stack": Setting(1, HAUSKNECHT),
    "network.core": Setting("lstm", HAUSKNECHT),
    "network.hidden_units": Setting((), HAUSKNECHT + ": the LSTM is in place of the dense layer"),
    "sequence.start_state": Setting("zero", HAUSKNECHT),
    "sequence.length_steps": Setting(10, UNVERIFIED),
    "sequence.overlap_steps": Setting(-1, HAUSKNECHT + ": a sub-sequence may begin at any step"),
    "learner.n_steps": Setting(1, HAUSKNECHT),
}

PAPER: Preset = {
    **dqn.PAPER,
    **dqn.EXPLORATION["paper"],
    **ALGORITHM,
    "replay.samples_per_insert": Setting(80.0, UNVERIFIED + ": 32 sub-sequences of 10 steps every 4 steps"),
    "network.core_units": Setting(512, HAUSKNECHT),
}

SMALL: Preset = {
    **dqn.SMALL,
    **dqn.EXPLORATION["small"],
    **ALGORITHM,
    "network.core_units": Setting(128, OURS),
    "learner.batch_size": Setting(16, OURS),
}

TOY: Preset = {
    **dqn.TOY,
    **dqn.EXPLORATION["toy"],
    **ALGORITHM,
    "network.core_units": Setting(64, OURS),
    "replay.samples_per_insert": Setting(16.0, OURS),
    "learner.batch_size": Setting(8, OURS),
}

recipe = dqn.recipe._replace(
    name="drqn",
    validate=validate,
    layout=layout,
    accumulator=accumulator,
    loss=loss,
    presets={"paper": PAPER, "small": SMALL, "toy": TOY},
)
