"""The benchmark of the parameter server measures both forms."""

from __future__ import annotations

import pytest

from benchmarks import parameter_server
from gorila_jax.types import ConfigError
from tests.benchmarks.in_process import run_benchmark


def test_both_forms_beside_their_bounds(capsys, tmp_path):
    record, _ = run_benchmark(
        parameter_server,
        capsys,
        tmp_path,
        "--cases=toy_4",
        "--sharded_case=toy_4",
        "--shards=2",
        "--learners=2",
        "--rounds=1",
        "--seconds=0.01",
    )
    ratios, figures = record["ratios"], record["figures"]
    assert ratios["server_of_fused"] == ratios["server_of_fused_toy_4"]
    assert {
        "pushes_2_shards_of_optax", "pushes_2_shards_of_memcpy", "learners_2_shards_2_of_one_learner"
    } <= set(ratios)  # fmt: skip
    assert figures["settings"]["sharded"]["batch_size"] == 4
    ages = figures["learners_2_shards_2_greatest_age_updates"]
    assert figures["learners_2_shards_2_mean_age_updates"]["highest"] <= ages["highest"]


@pytest.mark.parametrize("name", ["toy", "huge_32", "toy_many"])
def test_a_case_that_does_not_exist_is_refused(name):
    with pytest.raises(ConfigError, match="as in small_32"):
        parameter_server.make_case(name)
