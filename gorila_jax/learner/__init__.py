"""The learner: reads batches, computes gradients on its devices, pushes them to the parameter server."""
