"""What can go wrong between us and a vLLM server. All are EngineErrors: infrastructure faults, never model failures."""

from __future__ import annotations

from agent.policy import EngineError


class ServerFault(EngineError):
    """A server did not answer, or not properly. Nothing of the answer was used: the turn may be sampled again."""


class ServerGone(ServerFault):
    """The connection could not be made or broke: the server is down until it answers again."""


class AnswerFault(ServerFault):
    """An answer does not hold what was asked for (tokens, log-probabilities, versions), so none of it is believed."""


class ServerRefused(EngineError):
    """The server refused the request itself: sent again it would be refused again."""


class NoServer(EngineError):
    """No server took the request in time."""


class WeightUpdateFailed(EngineError):
    """A server could not take published weights; the text says at which verb."""


class ServedWeightsWrong(EngineError):
    """The served-weights proof failed: the server computes with other weights than were published."""


class ServerStartFailed(EngineError):
    """A server process did not come up, or died too often; the text holds its last lines."""
