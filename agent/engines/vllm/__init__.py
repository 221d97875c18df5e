"""The vLLM engine: a policy on one or many vLLM servers, spoken to over HTTP alone (vLLM lives in its own environment).

faults    what can go wrong, by name: none of it ever looks like a failure of the model
client    one server: tokens in and out, abort, pause / reload / label / reset / resume, health
answers   what a server answered, checked before a token of it is believed
router    which server an episode goes to; how many requests a server holds
sync      bringing a server to the published weights, and the proof that it serves them
proof     the probe: teacher-forced log-probabilities of the trainer against the server's
policy    `VllmPolicy`, the engine contract over all of that
launch    the command line and environment of a server
guard     ends a server's whole process tree, whoever dies first
supervisor  starts, watches and restarts servers
inside/   the one file that vLLM itself loads
"""
