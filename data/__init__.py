"""What flows and where it rests: trajectories, the trajectory log, tasks. Imports neither torch nor transformers."""
