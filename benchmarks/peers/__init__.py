"""The same game, played by other libraries' DQN on the same machine: `python -m benchmarks.peers`."""
