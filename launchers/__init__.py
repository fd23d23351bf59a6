"""Programs: absl flags and a call."""
