"""SWE-bench: anybody's predictions graded in our sandboxes, judged by the official package, watched by our guards."""
