"""Competition mathematics: protocols (prompt, sampling, number of samples) and reports. Grading is `envs.maths`."""
