"""Flags of the benchmarks that train whole runs."""

from __future__ import annotations

from absl import flags

SEEDS = flags.DEFINE_list(
    "seeds", ["1", "2", "3"], "of the runs, which follow each other; evaluations have others"
)
DIRECTORY = flags.DEFINE_string("directory", None, "new one for the workdirs; by default a temporary one")
RESULTS = flags.DEFINE_string("results", None, "directory for the files; by default nothing is written")
TRAIN_FLAGS = flags.DEFINE_multi_string("train", [], "another flag for every run: --train=--config.x.y=z")
