"""Competition mathematics: problems with a final answer in \\boxed{}, graded exactly; with or without a Python tool."""
