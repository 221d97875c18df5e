"""Who judges: benchmark harnesses, statistics, reports."""
